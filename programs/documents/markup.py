"""HTML as Markdown: what a reader sees of it. Nothing it names is fetched."""

from __future__ import annotations

import re

from bs4 import BeautifulSoup
from bs4.dammit import UnicodeDammit
from markdownify import ATX, MarkdownConverter

from programs.errors import DocumentUnreadableError

_UNSEEN = ("head", "title", "script", "style", "noscript", "template", "iframe", "object", "svg", "math", "canvas")
_LINKS = ("http:", "https:", "mailto:")
_GAPS = re.compile(r"\n\s*\n")


def html_text(raw: bytes, charset: str | None) -> str:
    """An HTML file as text, in the charset that it, its byte order mark or `charset` say."""
    known = [] if charset is None else [charset]
    text = UnicodeDammit(raw, known_definite_encodings=known, is_html=True).unicode_markup
    if text is None:
        raise DocumentUnreadableError("its charset cannot be told; save it as UTF-8")
    return markdown_of(text)


def markdown_of(html: str) -> str:
    """Headings, lists, tables, emphasis and links as Markdown; a picture as what is said to stand for it."""
    soup = BeautifulSoup(html, "lxml")
    title = " ".join(soup.title.get_text().split()) if soup.title and not soup.h1 else ""
    for unseen in soup(_UNSEEN):
        unseen.decompose()
    for picture in soup("img"):
        picture.replace_with(str(picture.get("alt") or ""))
    for link in soup("a"):
        if not str(link.get("href") or "").startswith(_LINKS):
            link.unwrap()
    text = MarkdownConverter(
        heading_style=ATX, bullets="-", escape_asterisks=False, escape_underscores=False, table_infer_header=True
    ).convert_soup(soup)
    return _GAPS.sub("\n\n", f"# {title}\n\n{text}" if title else text).strip() + "\n"
