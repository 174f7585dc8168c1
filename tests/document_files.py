"""Files to upload, made by hand: PDFs, Word documents, and what only looks like them."""

from __future__ import annotations

from io import BytesIO
from xml.sax.saxutils import escape
from zipfile import ZIP_DEFLATED, ZipFile

from reportlab.lib.pdfencrypt import StandardEncryption  # type: ignore[import-untyped]
from reportlab.pdfgen.canvas import Canvas  # type: ignore[import-untyped]

_TYPES = """<?xml version="1.0" encoding="UTF-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>
<Default Extension="png" ContentType="image/png"/>
<Override PartName="/word/document.xml"
 ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/>
</Types>"""
_RELATIONSHIPS = """<?xml version="1.0" encoding="UTF-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
<Relationship Id="rId1" Target="word/document.xml"
 Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"/>
</Relationships>"""
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def pdf(*pages: str) -> bytes:
    """A PDF; each line of a page's text is a line of it."""
    return _drawn(pages, None)


def encrypted_pdf(text: str, password: str) -> bytes:
    return _drawn((text,), StandardEncryption(password, ownerPassword="owner", strength=128))


def scanned_pdf(pages: int) -> bytes:
    """Pages with a drawing each, and no text."""
    out = BytesIO()
    canvas = Canvas(out)
    for _ in range(pages):
        canvas.rect(100, 100, 300, 500, fill=1)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def _drawn(pages: tuple[str, ...], encryption: StandardEncryption | None) -> bytes:
    out = BytesIO()
    canvas = Canvas(out, encrypt=encryption)
    for page in pages:
        text = canvas.beginText(72, 750)
        for line in page.split("\n"):
            text.textLine(line)
        canvas.drawText(text)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def word(*paragraphs: str, document: str | None = None, relationships: str | None = None, unused: int = 0) -> bytes:
    """A Word document of `paragraphs`; one that begins with `# ` is a heading.

    `document` is its XML instead, `relationships` what that refers to, `unused` the size of a part of zeros.
    """
    out = BytesIO()
    with ZipFile(out, "w", ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", _TYPES)
        archive.writestr("_rels/.rels", _RELATIONSHIPS)
        archive.writestr("word/document.xml", document or word_xml("".join(map(_paragraph, paragraphs))))
        if relationships is not None:
            archive.writestr("word/_rels/document.xml.rels", relationships)
        if unused:
            with archive.open("word/unused.xml", "w", force_zip64=True) as part:
                for _ in range(unused >> 20):
                    part.write(bytes(1 << 20))
    return out.getvalue()


def word_xml(body: str, doctype: str = "") -> str:
    return f'<?xml version="1.0"?>{doctype}<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>'


def zip_bomb() -> bytes:
    """A Word document of half a megabyte that unpacks to 400 MiB."""
    return word("Text.", unused=400 << 20)


def _paragraph(text: str) -> str:
    heading = '<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>' if text.startswith("# ") else ""
    return f"<w:p>{heading}<w:r><w:t>{escape(text.removeprefix('# '))}</w:t></w:r></w:p>"
