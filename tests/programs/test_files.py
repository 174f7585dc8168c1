"""Files in blocks, in the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from programs.errors import StoreUnavailableError, UnknownFileError
from programs.files import BLOCK_BYTES, FileStore, StoredFile, new_file_id
from programs.store import connect

TTL_S = 1000


@pytest.fixture
async def redis(store: str) -> AsyncIterator[Redis]:
    async with connect(store) as redis:
        yield redis


@pytest.fixture
def files(redis: Redis) -> FileStore:
    return FileStore(redis, TTL_S)


async def parts(data: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in data:
        yield part


async def read(files: FileStore, file: StoredFile) -> bytes:
    return b"".join([block async for block in files.blocks(file)])


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 5])
@pytest.mark.parametrize("part", [1 << 19, 7 << 19])
async def test_what_is_read_is_what_was_written(files: FileStore, redis: Redis, size: int, part: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    file = await files.put("a", "batch", parts([data[start : start + part] for start in range(0, size, part)]))
    assert await read(files, await files.get(file.id)) == data
    sizes = [await redis.strlen(key) async for key in redis.scan_iter("*:block:*")]
    assert (file.size, sum(sizes), max(sizes, default=0)) == (size, size, min(size, BLOCK_BYTES))


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.integers(1, 9))
def test_lines_are_those_of_the_whole(lines: list[bytes], block: int) -> None:
    class InSmallBlocks(FileStore):
        async def blocks(self, file: StoredFile) -> AsyncIterator[bytes]:  # type: ignore[override]
            whole = b"\n".join(lines)
            for start in range(0, len(whole), block):
                yield whole[start : start + block]

    async def found() -> list[bytes]:
        file = StoredFile("file-x", "", "batch", 0, "", 0, 0)
        return [line async for line in InSmallBlocks(Redis(), TTL_S).lines(file)]

    expected = b"\n".join(lines).split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert asyncio.run(found()) == expected


async def test_every_key_of_a_file_expires_with_it(files: FileStore, redis: Redis) -> None:
    file = await files.put("a", "batch", parts([b"x" * (2 * BLOCK_BYTES + 1)]), ttl_s=100)
    of_file = [key async for key in redis.scan_iter("*") if file.id.encode() in key]
    ends = {await redis.pexpiretime(key) for key in of_file}
    assert (len(of_file), ends) == (4, {int(file.expires * 1000)})
    assert 0 < await redis.ttl("antiphon:{files}:ids") <= TTL_S
    assert file.expires - file.created == 100


async def test_no_file_is_kept_for_longer_than_the_store_says(files: FileStore) -> None:
    file = await files.put("a", "batch", parts([b"x"]), ttl_s=TTL_S + 1)
    assert file.expires - file.created == TTL_S


async def test_what_was_never_finished_is_no_file_and_expires(files: FileStore, redis: Redis) -> None:
    writer = files.writer(new_file_id(), "a", "batch")
    await writer.write(b"x" * BLOCK_BYTES)
    assert (await files.page(10)) == ([], False)
    ttls = [await redis.ttl(key) async for key in redis.scan_iter("*")]
    assert len(ttls) == 1
    assert 0 < ttls[0] <= 3600


async def test_of_two_writers_of_one_file_the_first_to_finish_makes_it(files: FileStore) -> None:
    one, other = (files.writer("file-1", "a", "batch") for _ in range(2))
    await one.write(b"1" * BLOCK_BYTES + b"1")
    await other.write(b"2" * BLOCK_BYTES + b"22")
    finished = [await other.finish(), await one.finish()]
    assert finished == [await files.get("file-1")] * 2
    assert await read(files, finished[0]) == b"2" * BLOCK_BYTES + b"22"


async def test_a_deleted_file_leaves_nothing(files: FileStore, redis: Redis) -> None:
    file = await files.put("a", "batch", parts([b"x" * (BLOCK_BYTES + 1)]))
    await files.delete(file.id)
    assert [key async for key in redis.scan_iter("*")] == []
    for ask in (files.get(file.id), files.delete(file.id), files.page(1, after=file.id), read(files, file)):
        with pytest.raises(UnknownFileError):
            await ask


async def test_pages_come_in_order_without_what_has_expired(files: FileStore, redis: Redis) -> None:
    made = [await files.put(str(number), "batch", parts([b"x"])) for number in range(5)]
    other = await files.put("out", "batch_output", parts([b"x"]))
    await redis.delete(f"antiphon:{{{made[2].id}}}:file")
    kept = [*made[:2], *made[3:]]
    assert await files.page(10, newest_first=False) == ([*kept, other], False)
    assert await files.page(2) == ([other, made[4]], True)
    assert await files.page(2, after=made[3].id) == ([made[1], made[0]], False)
    assert await files.page(9, purpose="batch") == (kept[::-1], False)
    assert await files.page(4, purpose="batch") == (kept[::-1], False)
    assert await redis.zcard("antiphon:{files}:ids") == 5


async def test_a_store_that_is_away_is_said_to_be() -> None:
    async with connect("unix:///nowhere/at/all") as redis:
        for ask in (FileStore(redis, TTL_S).put("a", "batch", parts([b"x"])), FileStore(redis, TTL_S).page(1)):
            with pytest.raises(StoreUnavailableError):
                await ask


async def test_files_are_kept_on_a_cluster(cluster_url: str) -> None:
    async with connect(cluster_url) as cluster:
        files = FileStore(cluster, TTL_S)
        data = b"x" * BLOCK_BYTES + b"y"
        one, other = [await files.put("a", "batch", parts([data])) for _ in range(2)]
        assert await files.page(10, newest_first=False) == ([one, other], False)
        assert await read(files, one) == data
        await files.delete(one.id)
        assert await files.page(10) == ([other], False)
