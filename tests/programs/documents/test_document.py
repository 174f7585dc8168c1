"""A document knows its pages, and its id is what it holds."""

from __future__ import annotations

from io import BytesIO

from programs.documents.document import Document, Page, document_id


def test_a_character_is_on_a_page() -> None:
    pages = (Page(1, 0, 5), Page(2, 5, 6), Page(3, 6, 9))
    document = Document("doc_x", "x.pdf", "application/pdf", 9, "one\n\f\ftwo", pages, 0.0)
    assert [document.page_at(char) for char in range(9)] == [1, 1, 1, 1, 1, 2, 3, 3, 3]
    assert Document("doc_x", "x.txt", "text/plain", 9, "one\ntwo", (), 0.0).page_at(0) is None


def test_an_id_is_of_the_bytes_the_media_type_and_the_charset() -> None:
    ids = [
        document_id(BytesIO(b"text"), "text/plain"),
        document_id(BytesIO(b"texT"), "text/plain"),
        document_id(BytesIO(b"text"), "text/html"),
        document_id(BytesIO(b"text"), "text/plain", "koi8-r"),
        document_id(BytesIO(b"text" * 1_000_000), "text/plain"),
    ]
    assert len(set(ids)) == 5
    assert all(len(one) == 36 and one.startswith("doc_") for one in ids)
    read_on = BytesIO(b"text")
    read_on.read()
    assert document_id(read_on, "text/plain") == ids[0]
