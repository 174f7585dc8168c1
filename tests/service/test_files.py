"""`/v1/files`, through the openai SDK."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from openai import APIStatusError, NotFoundError
from redis import Redis

from service.settings import Settings
from tests.conftest import Front, running_front
from tests.fake_engine.running import FakeEngine
from tests.service.talk import client_of

LIMIT = 100_000
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


@pytest.fixture
async def small(engine: FakeEngine, store: str, model_dir: Path) -> AsyncIterator[Front]:
    settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store, max_file_bytes=LIMIT)
    async with running_front(settings) as front:
        yield front


async def test_a_file_is_kept_until_deleted(front: Front) -> None:
    data = b'{"custom_id": "1"}\n' * 100_000  # some blocks of it
    async with client_of(front) as client:
        made = await client.files.create(file=("dir/my batch ä.jsonl", data), purpose="batch")
        kept = await client.files.retrieve(made.id)
        content = await client.files.content(made.id)
        deleted = await client.files.delete(made.id)
        with pytest.raises(NotFoundError) as gone:
            await client.files.content(made.id)
    assert (made.bytes, made.filename, made.purpose) == (len(data), "my batch ä.jsonl", "batch")
    assert (made.object, made.status, made.to_dict()) == ("file", "processed", kept.to_dict())
    assert made.expires_at == made.created_at + 30 * 24 * 3600
    assert content.content == data
    assert content.response.headers["content-disposition"] == "attachment; filename*=utf-8''my%20batch%20%C3%A4.jsonl"
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "file", True)
    assert gone.value.code == "file_not_found"


async def test_files_are_listed_page_by_page(front: Front) -> None:
    async with client_of(front) as client:
        made = [(await client.files.create(file=b"x", purpose="batch")).id for _ in range(5)]
        newest = [file.id async for file in client.files.list(limit=2)]
        oldest = [file.id async for file in client.files.list(limit=2, order="asc", purpose="batch")]
        outputs = [file.id async for file in client.files.list(purpose="batch_output")]
        page = await client.files.list(limit=2, after=made[-1])
    assert (newest, oldest, outputs) == (made[::-1], made, [])
    assert ([file.id for file in page.data], page.has_more) == ([made[3], made[2]], True)


async def test_a_file_expires_when_its_maker_says(front: Front) -> None:
    async with client_of(front) as client:
        made = await client.files.create(
            file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        with pytest.raises(APIStatusError) as refused:
            await client.files.create(
                file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3599}
            )
    assert made.expires_at == made.created_at + 3600
    assert (refused.value.status_code, refused.value.param) == (400, "expires_after.seconds")


async def test_other_purposes_are_refused(front: Front) -> None:
    async with client_of(front) as client:
        with pytest.raises(APIStatusError) as refused:
            await client.files.create(file=b"x", purpose="vision")
    assert (refused.value.status_code, refused.value.param) == (400, "purpose")


def part(name: str, data: bytes, filename: str = "") -> bytes:
    given = f'; filename="{filename}"' if filename else ""
    return b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % (name.encode(), given.encode(), data)


@pytest.mark.parametrize(
    ("headers", "body", "said"),
    [
        ({"Content-Type": "application/json"}, b"{}", "multipart/form-data"),
        ({"Content-Type": "multipart/form-data"}, b"x", "boundary"),
        (FORM, b"", "no file"),
        (FORM, b"no form", "not a form"),
        (FORM, part("purpose", b"batch") + b"--b--\r\n", "no file"),
        (FORM, part("file", b"text, not a file") + b"--b--\r\n", "no file"),
        (FORM, part("purpose", b"batch") + part("other", b"x", "x") + b"--b--\r\n", "no file"),
        (FORM, part("file", b"x", "x") + part("file", b"y", "y") + b"--b--\r\n", "Too many files"),
        (FORM, b"".join(part(str(n), b"x") for n in range(20)) + b"--b--\r\n", "Too many fields"),
    ],
)
async def test_a_body_that_is_no_upload_is_refused(
    front: Front, headers: dict[str, str], body: bytes, said: str
) -> None:
    async with httpx.AsyncClient(verify=False) as http:
        answer = await http.post(f"{front.url}/v1/files", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert said in answer.json()["error"]["message"]


async def test_a_file_over_the_limit_is_refused_with_its_length_declared_or_not(small: Front) -> None:
    async def blocks(data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), 10_000):
            yield data[start : start + 10_000]

    def form(size: int) -> bytes:
        return part("purpose", b"batch") + part("file", b"x" * size, "x") + b"--b--\r\n"

    async with httpx.AsyncClient(verify=False) as http:
        at_the_limit = await http.post(f"{small.url}/v1/files", content=form(LIMIT), headers=FORM)
        answers = [
            await http.post(f"{small.url}/v1/files", content=content, headers=FORM)
            for content in (form(LIMIT + 1), form(3 * LIMIT), blocks(form(3 * LIMIT)))
        ]
        kept = (await http.get(f"{small.url}/v1/files")).json()
    assert (at_the_limit.status_code, at_the_limit.json()["bytes"]) == (200, LIMIT)
    assert [answer.status_code for answer in answers] == [413] * 3
    assert f"{LIMIT} bytes" in answers[0].json()["error"]["message"]
    assert [file["id"] for file in kept["data"]] == [at_the_limit.json()["id"]]


async def test_an_upload_that_is_broken_off_leaves_nothing(
    front: Front, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = urlsplit(front.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    head = "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\nContent-Type: " + FORM["Content-Type"]
    writer.write(head.encode() + b"\r\n\r\n" + part("purpose", b"batch") + part("file", b"x" * 3_000_000, "x"))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with client_of(front) as client:
        await asyncio.sleep(0.5)
        assert (await client.files.list()).data == []
    with Redis.from_url(store) as redis:
        assert list(redis.scan_iter("*")) == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
