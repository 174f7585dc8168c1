"""Documents in a real Valkey."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from programs.documents.document import Document, DocumentInfo, Page
from programs.documents.store import DocumentStore
from programs.documents.tokens import DocumentTokens
from programs.errors import StoreUnavailableError, UnknownDocumentError
from programs.store import connect
from programs.tokenizer import Tokenizer
from tests.model_files import CHATML, tiny_tokenizer

TTL_S = 1000


def document(number: int, text: str = "Ünder\fpage two 🦄") -> Document:
    pages = (Page(1, 0, 6), Page(2, 6, len(text)))
    return Document(f"doc_{number:032x}", f"{number}.txt", "text/plain", 100 + number, text, pages, 1000.0 + number)


@pytest.fixture
async def redis(store: str) -> AsyncIterator[Redis]:
    client = connect(store)
    yield client
    await client.aclose()


@pytest.fixture
def documents(redis: Redis) -> DocumentStore:
    return DocumentStore(redis, TTL_S)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny_tokenizer().to_str(), CHATML)


async def test_a_document_comes_back_as_it_was_put(documents: DocumentStore) -> None:
    put = document(1)
    await documents.put(put)
    assert await documents.get(put.id) == put
    assert await documents.info(put.id) == put.info
    assert put.info == DocumentInfo(put.id, "1.txt", "text/plain", 101, 16, put.pages, 1001.0)


async def test_putting_a_document_again_changes_nothing_but_its_name(documents: DocumentStore) -> None:
    put = document(1)
    await documents.put(put)
    await documents.put(replace(put, name="other", created=5000.0))
    assert await documents.get(put.id) == replace(put, name="other")
    assert (await documents.newest(10)).documents == (replace(put, name="other").info,)


async def test_a_document_is_renamed(documents: DocumentStore) -> None:
    await documents.put(document(1))
    assert (await documents.rename(document(1).id, "new")).name == "new"
    assert (await documents.get(document(1).id)).name == "new"
    with pytest.raises(UnknownDocumentError):
        await documents.rename(document(2).id, "new")


async def test_what_was_never_put_or_is_deleted_is_unknown(documents: DocumentStore, redis: Redis) -> None:
    await documents.put(document(1))
    assert await documents.delete(document(1).id)
    assert not await documents.delete(document(1).id)
    for read in (documents.get, documents.info):
        with pytest.raises(UnknownDocumentError, match=document(1).id):
            await read(document(1).id)
    assert (await documents.newest(10)).documents == ()
    assert await redis.keys("*") == []


async def test_documents_are_listed_newest_first_page_by_page(documents: DocumentStore) -> None:
    for number in (3, 1, 2, 5, 4):
        await documents.put(document(number))
    first = await documents.newest(2)
    second = await documents.newest(2, after=first.documents[-1].id)
    third = await documents.newest(2, after=second.documents[-1].id)
    assert [one.name for page in (first, second, third) for one in page.documents] == [
        "5.txt",
        "4.txt",
        "3.txt",
        "2.txt",
        "1.txt",
    ]
    assert (first.more, second.more, third.more) == (True, True, False)
    with pytest.raises(UnknownDocumentError):
        await documents.newest(2, after=document(9).id)


async def test_a_page_is_full_although_documents_in_between_have_expired(
    documents: DocumentStore, redis: Redis
) -> None:
    for number in range(9):
        await documents.put(document(number))
    for number in (3, 4, 5, 7):
        await redis.delete(f"antiphon:{{{document(number).id}}}:document")
    page = await documents.newest(3)
    assert ([one.name for one in page.documents], page.more) == (["8.txt", "6.txt", "2.txt"], True)


async def test_every_key_expires_and_use_puts_that_off(documents: DocumentStore, redis: Redis) -> None:
    await documents.put(document(1))
    keys = await redis.keys("*")
    assert len(keys) == 3
    for use in (documents.get(document(1).id), documents.info(document(1).id)):
        for key in keys:
            await redis.expire(key, 10)
        await use
        assert [await redis.ttl(key) > 10 for key in keys] == [True] * 3


async def test_what_has_expired_leaves_the_listing_when_another_document_is_put(store: str, redis: Redis) -> None:
    brief = DocumentStore(redis, ttl_s=1)
    await brief.put(document(1))
    while await redis.exists(f"antiphon:{{{document(1).id}}}:document"):
        await brief.newest(10)  # which is no use of it
        await asyncio.sleep(0.05)
    await brief.put(document(2))
    for key in ("created", "used"):
        assert await redis.zrange(f"antiphon:{{documents}}:{key}", 0, -1) == [document(2).id.encode()]


async def test_tokens_are_encoded_once_for_each_tokenizer(
    documents: DocumentStore, redis: Redis, tokenizer: Tokenizer
) -> None:
    put = document(1, "the quick brown fox 🦄 <|im_end|>")
    await documents.put(put)
    tokens = await documents.tokens(put, tokenizer)
    assert tokens == DocumentTokens.of(put.text, tokenizer)
    field = f"tokens:{tokenizer.spelling_digest}"
    kept = array("I", [7, 8, 0, 3]).tobytes()
    await redis.hset(f"antiphon:{{{put.id}}}:document", field, kept)
    assert await documents.tokens(put, tokenizer) == DocumentTokens(array("I", [7, 8]), array("I", [0, 3]))


async def test_tokens_of_a_document_that_was_deleted_meanwhile_do_not_bring_it_back(
    documents: DocumentStore, redis: Redis, tokenizer: Tokenizer
) -> None:
    tokens = await documents.tokens(document(1), tokenizer)
    assert tokens == DocumentTokens.of(document(1).text, tokenizer)
    assert await redis.keys("*") == []


async def test_a_store_that_is_away_is_said_to_be(tokenizer: Tokenizer) -> None:
    away = connect("redis://127.0.0.1:1")
    documents = DocumentStore(away, TTL_S)
    for call in (
        documents.put(document(1)),
        documents.get("doc_1"),
        documents.info("doc_1"),
        documents.newest(1),
        documents.delete("doc_1"),
        documents.rename("doc_1", "name"),
        documents.tokens(document(1), tokenizer),
    ):
        with pytest.raises(StoreUnavailableError):
            await call
    await away.aclose()
