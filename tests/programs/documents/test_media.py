"""What a file is read as: by its name, its sender and how it begins, which must agree."""

from __future__ import annotations

import pytest

from programs.documents.media import DOCX, HTML, MARKDOWN, PDF, TEXT, charset_of, media_type_of
from programs.errors import DocumentTypeError

ZIP, SAYS_NOTHING = b"PK\x03\x04...", "application/octet-stream"


@pytest.mark.parametrize(
    ("name", "declared", "head", "expected"),
    [
        ("a.txt", "text/plain", b"Text", TEXT),
        ("a.md", SAYS_NOTHING, b"Text", MARKDOWN),
        ("a.MARKDOWN", "text/plain", b"Text", MARKDOWN),
        ("a", "text/markdown; charset=utf-8", b"Text", MARKDOWN),
        ("a.html", "", b"Text", HTML),
        ("a", "application/xhtml+xml", b"<?xml", HTML),
        ("a", SAYS_NOTHING, b"\xef\xbb\xbf \n<!doctype HTML>", HTML),
        ("a.txt", "text/plain", b"<!doctype html>", TEXT),
        ("a.py", "text/x-python", b"import this", TEXT),
        ("a.csv", "text/csv", b"a,b", TEXT),
        ("a.json", "application/json", b"{}", TEXT),
        ("a.svg.atom", "application/atom+xml", b"<feed>", TEXT),
        ("Makefile", "", b"all:", TEXT),
        ("a.pdf", "application/pdf", b"%PDF-1.7", PDF),
        ("a.pdf", SAYS_NOTHING, b"junk before it %PDF-1.7", PDF),
        ("a", SAYS_NOTHING, b"\n%PDF-1.7", PDF),
        ("about.md", SAYS_NOTHING, b"A file that begins with %PDF-1.7 is a PDF", MARKDOWN),
        ("a.docx", DOCX, ZIP, DOCX),
        ("a", SAYS_NOTHING, ZIP, DOCX),
    ],
)
def test_a_file_is_read_as_what_it_is(name: str, declared: str, head: bytes, expected: str) -> None:
    assert media_type_of(name, declared, head) == expected


@pytest.mark.parametrize(
    ("name", "declared", "head", "says"),
    [
        ("a.txt", "text/plain", b"%PDF-1.7", "'a.txt' is said to be text/plain, but is a PDF"),
        ("a.pdf", "text/plain", b"%PDF-1.7", "'a.pdf' is said to be text/plain, but is a PDF"),
        ("a.txt", "application/pdf", b"%PDF-1.7", "'a.txt' is said to be text/plain, but is a PDF"),
        ("a.pdf", "application/pdf", b"Text", "'a.pdf' is said to be application/pdf, but is no such file"),
        ("a.docx", SAYS_NOTHING, b"Text", "but is no such file"),
        ("a.docx", DOCX, b"%PDF-1.7", "but is a PDF"),
        ("a.md", "", ZIP, "is said to be text/markdown, but is a ZIP archive, as DOCX is"),
        ("a.txt", "text/plain", b"\x89PNG\r\n\x1a\n", "'a.txt' is a PNG image; text, Markdown, HTML, PDF and DOCX are"),
        ("a.doc", "application/msword", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "'application/msword' is not read"),
        ("a.doc", SAYS_NOTHING, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "save it as .docx without a password"),
        ("a.rtf", "", b"{\\rtf1", "an RTF file; save it as .docx"),
        ("a.png", "image/png", b"Text", "'image/png' is not read"),
        ("a.zip", "application/zip", ZIP, "'application/zip' is not read"),
        ("", "", b"\x1f\x8b", "the file is a gzip archive"),
    ],
)
def test_a_file_that_is_not_what_it_is_said_to_be_or_not_read_is_refused(
    name: str, declared: str, head: bytes, says: str
) -> None:
    with pytest.raises(DocumentTypeError) as refused:
        media_type_of(name, declared, head)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("text/plain; charset=latin-1", "iso8859-1"),
        ('text/html; Charset="Windows-1251"; x=y', "cp1251"),
        ("text/plain;charset=UTF8", None),
        ("text/plain;charset=none-such", "none-such"),
        ("text/plain", None),
        ("", None),
        ("; charset", None),
    ],
)
def test_a_content_type_may_name_a_charset(declared: str, expected: str | None) -> None:
    assert charset_of(declared) == expected
