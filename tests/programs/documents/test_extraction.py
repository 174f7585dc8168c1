"""Files become text, whatever they hold."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pytest

from programs import errors
from programs.documents.document import Page
from programs.documents.extraction import Extracted, ExtractionLimits, ExtractionRequest, Refused, extracted
from programs.documents.media import DOCX, HTML, MARKDOWN, PDF, TEXT
from programs.errors import (
    DocumentEmptyError,
    DocumentEncryptedError,
    DocumentError,
    DocumentTooLargeError,
    DocumentTypeError,
    DocumentUnreadableError,
)
from tests.document_files import encrypted_pdf, pdf, word, word_xml


def read(
    content: bytes, media_type: str, charset: str | None = None, limits: ExtractionLimits | None = None
) -> Extracted:
    outcome = extracted(BytesIO(content), ExtractionRequest(media_type, charset, limits or ExtractionLimits()))
    if isinstance(outcome, Refused):
        raise getattr(errors, outcome.error)(outcome.message)
    return outcome


@pytest.mark.parametrize(
    ("raw", "charset"),
    [
        ("Über “dashes” — 日本語 🦄".encode(), None),
        (codecs.BOM_UTF8 + "Über “dashes” — 日本語 🦄".encode(), None),
        ("Über “dashes” — 日本語 🦄".encode("utf-16"), None),
        (codecs.BOM_UTF16_BE + "Über “dashes” — 日本語 🦄".encode("utf-16-be"), None),
        ("Über “dashes” — 日本語 🦄".encode("utf-32"), None),
        ("Über “dashes” — 日本語 🦄".encode("utf-16-le"), "utf-16-le"),
    ],
)
def test_text_is_read_in_any_unicode(raw: bytes, charset: str | None) -> None:
    assert read(raw, TEXT, charset) == Extracted("Über “dashes” — 日本語 🦄", ())


@pytest.mark.parametrize(
    ("text", "charset"),
    [
        ("Grüße aus München", "latin-1"),
        ("é", "latin-1"),
        ("Ça coûte 3 € à peine", "cp1252"),
        ("naïve café, déjà vu, “quoted” — dash", "cp1252"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy", "cp1250"),
        ("Привет, как дела? Это только тест.", "cp1251"),
        ("Привет, как дела? Это только тест.", "koi8-r"),
        ("日本語のテキストです。これはテストです。", "shift_jis"),
        ("你好，世界，这是一个测试。", "gb18030"),
        ("A long English text with one £ in it. " * 50, "latin-1"),
    ],
)
def test_text_in_an_older_charset_is_recognised(text: str, charset: str) -> None:
    assert (read(text.encode(charset), TEXT)).text == text
    assert (read(text.encode(charset), TEXT, charset)).text == text


@pytest.mark.parametrize(
    ("raw", "charset", "kind", "says"),
    [
        (b"caf\xe9", "utf-8", DocumentUnreadableError, "not the utf-8"),
        (b"text", "no-such-charset", DocumentUnreadableError, "no-such-charset"),
        (codecs.BOM_UTF16_LE + b"odd", None, DocumentUnreadableError, "not the utf-16"),
        (bytes(range(1, 256)), None, DocumentUnreadableError, "not UTF-8 (byte 127)"),
        ("text".encode("utf-16-le"), None, DocumentTypeError, "byte order mark"),
    ],
)
def test_text_in_a_charset_that_is_wrong_or_unknown_is_refused(
    raw: bytes, charset: str | None, kind: type[DocumentError], says: str
) -> None:
    with pytest.raises(kind) as refused:
        read(raw, TEXT, charset)
    assert type(refused.value) is kind
    assert says in str(refused.value)


def test_text_is_kept_in_one_form_with_the_pages_that_form_feeds_end() -> None:
    found = read(b"One.\r\nTwo\0.\fThree.\x07\f".replace(b"\0", b""), TEXT)
    assert found == Extracted("One.\nTwo.\fThree.\f", (Page(1, 0, 10), Page(2, 10, 17)))


def test_markdown_is_kept_as_it_is() -> None:
    text = "# Title\n\n* one\n* `two`\n\n<b>raw</b> & more\n"
    assert read(text.encode(), MARKDOWN) == Extracted(text, ())


def test_html_is_what_its_reader_sees() -> None:
    html = """<html><head><title>Page</title><style>p {color: red}</style><script>steal()</script></head><body>
    <h1>Head &amp; shoulders</h1><!-- hidden --><p>Some <b>bold</b> text,<br>a <a href="https://example.org/x">link</a>,
    an <a href="#top">inner one</a>, <a href="javascript:steal()">a trick</a> and 2*3_4.</p>
    <ul><li>one</li><li>two</li></ul><img src="http://example.org/p.png" alt="A picture">
    <table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>
    <pre>code  here</pre><noscript>no</noscript><iframe src="http://example.org"></iframe></body></html>"""
    found = read(html.encode(), HTML)
    assert found.text.split("\n\n") == [
        "# Head & shoulders",
        "Some **bold** text,  \na [link](https://example.org/x),\nan inner one, a trick and 2*3_4.",
        "- one\n- two",
        "A picture",
        "| a | b |\n| --- | --- |\n| 1 | 2 |",
        "```\ncode  here\n```\n",
    ]


def test_html_is_read_as_browsers_do_where_ends_are_left_out() -> None:
    assert read(b"<ul><li>a<li>b</ul><table><tr><td>1<td>2</table>", HTML).text.startswith("- a\n- b\n")


def test_html_without_a_heading_has_its_title_for_one() -> None:
    assert (read(b"<title>The  page</title><p>Text.", HTML)).text == "# The page\n\nText.\n"


def test_html_is_read_in_the_charset_that_it_names() -> None:
    html = '<meta charset="windows-1251"><p>Привет'
    assert (read(html.encode("cp1251"), HTML)).text == "Привет\n"
    assert (read("<p>Привет".encode("koi8-r"), HTML, "koi8-r")).text == "Привет\n"


def test_a_word_document_is_read_with_its_headings() -> None:
    found = read(word("# Contract", "First <party> & second.", "Über all."), DOCX)
    assert found == Extracted("# Contract\n\nFirst <party> & second.\n\nÜber all.\n", ())


def test_a_pdf_is_read_page_by_page_without_ligatures() -> None:
    found = read(pdf("Page one.\nIts second line.", "", "Page three."), PDF)
    assert found.text == "Page one.\nIts second line.\n\f\n\fPage three.\n"
    assert found.pages == (Page(1, 0, 28), Page(2, 28, 30), Page(3, 30, 42))


def test_a_pdf_that_the_empty_password_opens_is_read() -> None:
    assert (read(encrypted_pdf("Open to all.", ""), PDF)).text == "Open to all.\n"
    with pytest.raises(DocumentEncryptedError, match="it is encrypted; save it without a password"):
        read(encrypted_pdf("Secret.", "s"), PDF)


@pytest.mark.parametrize(
    ("content", "media_type", "kind"),
    [
        (b"\xef\xbb\xbf \r\n\0"[:-1], TEXT, DocumentEmptyError),
        (b"<html><script>x</script></html>", HTML, DocumentEmptyError),
        (word(""), DOCX, DocumentEmptyError),
        (pdf("Text.")[:-600], PDF, DocumentUnreadableError),
        (b"%PDF-1.7\n" + bytes(1000), PDF, DocumentUnreadableError),
        (word("Text.")[:-10], DOCX, DocumentUnreadableError),
        (word(document="<w:document"), DOCX, DocumentUnreadableError),
        (b"<div>" * 50_000 + b"x", HTML, DocumentUnreadableError),
    ],
)
def test_what_is_empty_or_broken_is_told_from_another(
    content: bytes, media_type: str, kind: type[DocumentError]
) -> None:
    with pytest.raises(DocumentError) as refused:
        read(content, media_type)
    assert type(refused.value) is kind


@pytest.fixture
async def visits() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that notes who connects to it."""
    seen: list[bytes] = []

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(visit, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x", seen


async def test_nothing_that_a_file_names_is_opened(visits: tuple[str, list[bytes]], tmp_path: Path) -> None:
    url, seen = visits
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    html = f'<link rel=stylesheet href="{url}"><img src="{url}"><img src="{secret.as_uri()}"><iframe src="{url}">x'
    assert (await asyncio.to_thread(read, f"{html}</iframe>Text.".encode(), HTML)).text == "Text.\n"
    for address in (url, secret.as_uri()):
        doctype = f'<!DOCTYPE d [<!ENTITY e SYSTEM "{address}">]>'
        external = word(document=word_xml("<w:p><w:r><w:t>&e;</w:t></w:r></w:p>", doctype))
        with pytest.raises(DocumentError):
            await asyncio.to_thread(read, external, DOCX)
        linked = await asyncio.to_thread(read, word_with_linked_picture(address), DOCX)
        assert "SECRET" not in linked.text
    assert seen == []


def word_with_linked_picture(address: str) -> bytes:
    drawing = (
        '<w:p><w:r><w:t>Text.</w:t></w:r><w:r><w:drawing><wp:inline xmlns:wp="http://schemas.openxmlformats.org/'
        'drawingml/2006/wordprocessingDrawing"><a:graphic xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main">'
        '<a:graphicData><pic:pic xmlns:pic="http://schemas.openxmlformats.org/drawingml/2006/picture"><pic:blipFill>'
        '<a:blip xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" r:link="rId5"/>'
        "</pic:blipFill></pic:pic></a:graphicData></a:graphic></wp:inline></w:drawing></w:r></w:p>"
    )
    relationships = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId5" '
        'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/image" '
        f'Target="{address}" TargetMode="External"/></Relationships>'
    )
    return word(document=word_xml(drawing), relationships=relationships)


BILLION_LAUGHS = word(
    document=word_xml(
        "<w:p><w:r><w:t>&l9;</w:t></w:r></w:p>",
        '<!DOCTYPE d [<!ENTITY l0 "lol">'
        + "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
        + "]>",
    )
)


def test_entities_that_grow_without_end_are_refused() -> None:
    with pytest.raises(DocumentUnreadableError):
        read(BILLION_LAUGHS, DOCX)


def test_a_document_that_unpacks_to_too_much_or_has_too_much_text_is_refused() -> None:
    with pytest.raises(DocumentTooLargeError, match="more than the 1000000 that are allowed"):
        read(word("Text.", unused=2 << 20), DOCX, limits=ExtractionLimits(unpacked_bytes=1_000_000))
    for content, media_type in ((b"x" * 101, TEXT), (pdf(*["Some words. " * 3] * 4), PDF), (word("x" * 101), DOCX)):
        with pytest.raises(DocumentTooLargeError, match="longer than 100 characters"):
            read(content, media_type, limits=ExtractionLimits(characters=100))
