"""`/v1/documents`: what is uploaded comes back as text, and what cannot be read is refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.settings import Settings
from tests.conftest import Front, running_front
from tests.document_files import encrypted_pdf, pdf, scanned_pdf, word, zip_bomb
from tests.fake_engine.running import FakeEngine

LIMIT = 200_000
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.fixture
async def small(engine: FakeEngine, store: str, model_dir: Path) -> AsyncIterator[Front]:
    """A front that takes small documents only."""
    settings = Settings(
        engines=(engine.url,), model_dir=model_dir, store_url=store, document_bytes=LIMIT, document_characters=1_000
    )
    async with running_front(settings) as front:
        yield front


async def upload(
    front: Front, file: str, content: bytes, declared: str = "application/octet-stream", **fields: str
) -> httpx.Response:
    async with httpx.AsyncClient(base_url=front.url, timeout=60) as client:
        return await client.post("/v1/documents", files={"file": (file, content, declared)}, data=fields)


async def get(front: Front, path: str, **query: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=front.url) as client:
        return await client.get(f"/v1/documents{path}", params=query)


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


async def test_a_document_is_kept_until_it_is_deleted(front: Front) -> None:
    made = await upload(front, "dir/notes ü.md", "# Title\r\n\r\nÜber.\r\n".encode(), "text/markdown")
    document = made.json()
    got = await get(front, f"/{document['id']}")
    text = await get(front, f"/{document['id']}/text")
    cited = await get(front, f"/{document['id']}/text", start=9, end=13)
    async with httpx.AsyncClient(base_url=front.url) as client:
        deleted = await client.delete(f"/v1/documents/{document['id']}")
        again = await client.delete(f"/v1/documents/{document['id']}")
    gone = await get(front, f"/{document['id']}/text")
    assert made.status_code == 201
    assert got.json() == document
    assert document | {"id": 0, "created_at": 0} == {
        "id": 0,
        "object": "document",
        "name": "notes ü.md",
        "media_type": "text/markdown",
        "bytes": 19,
        "characters": 15,
        "pages": None,
        "created_at": 0,
        "page_offsets": [],
    }
    assert (text.text, text.headers["content-type"]) == ("# Title\n\nÜber.\n", "text/plain; charset=utf-8")
    assert cited.text == "Über"
    assert deleted.json() == {"id": document["id"], "object": "document.deleted", "deleted": True}
    message = f"Document with id '{document['id']}' not found."
    assert error_of(again) == error_of(gone) == (404, "document_not_found", message)


async def test_the_same_file_is_the_same_document_by_its_last_name(front: Front) -> None:
    first = await upload(front, "a.txt", b"Some text.")
    second = await upload(front, "b.txt", b"Some text.")
    other = await upload(front, "b.md", b"Some text.")
    assert (first.status_code, second.status_code, other.status_code) == (201, 200, 201)
    assert second.json() == first.json() | {"name": "b.txt"}
    assert other.json()["id"] != first.json()["id"]
    named = await upload(front, "b.txt", b"Some text.", name="My text")
    assert (named.json()["id"], named.json()["name"]) == (first.json()["id"], "My text")


async def test_the_same_bytes_in_another_charset_are_another_document(front: Front) -> None:
    raw = "Привет, как дела?".encode("koi8-r")
    wrong = (await upload(front, "a.txt", raw, "text/plain; charset=cp1251")).json()
    right = (await upload(front, "a.txt", raw, "text/plain; charset=KOI8-R")).json()
    assert (await get(front, f"/{right['id']}/text")).text == "Привет, как дела?"
    assert wrong["id"] != right["id"]
    said = (await upload(front, "b.txt", b"Text.", "text/plain;charset=UTF-8")).json()
    assert (await upload(front, "b.txt", b"Text.")).json()["id"] == said["id"]


async def test_documents_are_listed_page_by_page(front: Front) -> None:
    made = [(await upload(front, f"{number}.txt", b"text %d" % number)).json() for number in range(3)]
    first = (await get(front, "", limit=2)).json()
    second = (await get(front, "", limit=2, after=first["last_id"])).json()
    assert [one["id"] for one in first["data"] + second["data"]] == [one["id"] for one in reversed(made)]
    assert (first["object"], first["first_id"], first["has_more"]) == ("list", made[2]["id"], True)
    assert (second["has_more"], "page_offsets" in second["data"][0]) == (False, False)
    assert error_of(await get(front, "", after="doc_x"))[:2] == (404, "document_not_found")
    assert (await get(front, "", limit=0)).status_code == 400


async def test_a_pdf_has_the_text_of_its_pages(front: Front) -> None:
    made = (
        await upload(front, "report.pdf", pdf("Page one says hello.", "Page two says more."), "application/pdf")
    ).json()
    assert (made["media_type"], made["pages"]) == ("application/pdf", 2)
    texts = [
        (await get(front, f"/{made['id']}/text", start=start, end=end)).text for start, end in made["page_offsets"]
    ]
    assert texts == ["Page one says hello.\n\f", "Page two says more.\n"]


async def test_an_upload_whose_name_and_type_say_nothing_is_told_by_what_it_holds(front: Front) -> None:
    kinds = [
        (await upload(front, "upload", content)).json().get("media_type")
        for content in (pdf("Text."), word("Text."), b"<!DOCTYPE html><p>Text.", b"Text.")
    ]
    assert kinds == ["application/pdf", DOCX, "text/html", "text/plain"]


@pytest.mark.parametrize(
    ("name", "content", "declared", "expected"),
    [
        ("scan.pdf", scanned_pdf(2), "application/pdf", (400, "document_empty", "no text on its pages (2)")),
        (
            "secret.pdf",
            encrypted_pdf("Text.", "s"),
            "application/pdf",
            (400, "document_encrypted", "without a password"),
        ),
        ("broken.pdf", pdf("Text.")[:200], "application/pdf", (400, "document_unreadable", "it is broken")),
        ("broken.docx", word("Text.")[:300], DOCX, (400, "document_unreadable", "it is broken")),
        ("notes.txt", PNG, "text/plain", (415, "document_type", "'notes.txt' is a PNG image")),
        ("notes.txt", pdf("Text."), "text/plain", (415, "document_type", "said to be text/plain, but is a PDF")),
        ("notes.pdf", b"Text.", "application/pdf", (415, "document_type", "said to be application/pdf, but")),
        ("picture.txt", b"Text.", "image/png", (415, "document_type", "'image/png' is not read")),
        ("empty.txt", b"", "text/plain", (400, "document_empty", "'empty.txt' is empty")),
        ("blank.txt", b" \n\n\t", "text/plain", (400, "document_empty", "no text in it")),
        ("data.txt", b"a\0b", "text/plain", (415, "document_type", "NUL bytes")),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(
    front: Front, name: str, content: bytes, declared: str, expected: tuple[int, str, str]
) -> None:
    status, code, message = error_of(await upload(front, name, content, declared))
    assert (status, code) == expected[:2]
    assert expected[2] in message
    assert (await get(front, "")).json()["data"] == []


@pytest.mark.slow
async def test_a_zip_bomb_is_refused(front: Front) -> None:
    bomb = zip_bomb()
    assert len(bomb) < 1_000_000
    assert error_of(await upload(front, "bomb.docx", bomb, DOCX)) == (
        413,
        "document_too_large",
        "'bomb.docx' cannot be read: it unpacks to 419431268 bytes, more than the 268435456 that are allowed",
    )


async def test_a_file_over_the_limit_is_refused_whatever_its_headers_say(small: Front) -> None:
    async def undeclared() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
        for _ in range(20):
            yield b"x" * 50_000

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    async with httpx.AsyncClient(base_url=small.url) as client:
        answer = await client.post("/v1/documents", content=undeclared(), headers=headers)
    assert answer.status_code == 413
    exact = await upload(small, "a.txt", b" " * (LIMIT - 1) + b"x")
    over = await upload(small, "a.txt", b" " * LIMIT + b"x")
    assert error_of(exact)[:2] == (413, "document_too_large")  # its text is too long
    assert (over.status_code, over.json()["error"]["message"]) == (
        413,
        "the file is larger than 200000 bytes, the limit of this server",
    )


async def test_a_text_over_the_limit_is_refused(small: Front) -> None:
    fits = await upload(small, "a.txt", b"x" * 1_000)
    over = await upload(small, "a.txt", b"x" * 1_001)
    pages = await upload(small, "a.pdf", pdf(*["Some text. " * 5] * 20))
    assert fits.status_code == 201
    assert error_of(over)[:2] == error_of(pages)[:2] == (413, "document_too_large")
    assert "longer than 1000 characters" in error_of(over)[2]


@pytest.mark.slow
async def test_other_requests_are_answered_while_a_file_is_read(front: Front) -> None:
    reading = asyncio.create_task(upload(front, "long.txt", b"Some words of a text. " * 400_000))
    answered = 0
    while not reading.done():
        assert (await get(front, "")).status_code == 200
        answered += 1
    assert (await reading).status_code == 201
    assert answered > 3
