"""The session store: the ledger in Redis (or Valkey), and the only place that knows its keys.

Every key of a session carries the session's hash tag, so that one script can touch them all on a Redis Cluster:

| key | type | holds |
|---|---|---|
| `antiphon:{tag}:branch:<id>` | hash | `branch` (msgpack), `turns` (count), `last` (uid of the last turn) |
| `antiphon:{tag}:turns:<id>` | list | the branch's own turns (msgpack) |
| `antiphon:{tag}:chain:<digest>` | string | the place (branch, turns) at which a canonical history ends |
| `antiphon:{tag}:response:<id>` | string | a stored response: its place and its JSON |
| `antiphon:{tag}:conversation:<id>` | hash | `place` of its head, `object` (JSON) |
| `antiphon:{tag}:claim:<id>` | string | who is adding a turn to that conversation |
| `antiphon:{digest}:answer` | string | where an answer was given last, to say what a client changed before it |

All of them expire when their session has not been used for `ttl_s`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from programs.errors import StoreUnavailableError, TurnConflictError
from programs.ledger import Branch, History, Turn

_CACHED_HISTORIES = 256
_CLAIM_MS = 15_000
_CLAIM_RENEWAL_S = 5.0
_APPEND_PATIENCE_S = 5.0
_APPEND_RETRY_S = 0.1

_APPEND = """
-- KEYS: branch, turns, chain, [response], [conversation], then every ancestor's branch and turns
-- ARGV: own turns expected, turn's uid, turn, branch, place, ttl, response or '', conversation given, place it is at
if redis.call('HGET', KEYS[1], 'last') == ARGV[2] then return 1 end
local own = tonumber(redis.call('HGET', KEYS[1], 'turns') or '0')
if own ~= tonumber(ARGV[1]) then return 0 end
local response, conversation = nil, nil
local rest = 4
if ARGV[7] ~= '' then response, rest = KEYS[rest], rest + 1 end
if ARGV[8] == '1' then conversation, rest = KEYS[rest], rest + 1 end
for i = rest, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return 0 end
end
if conversation and redis.call('HGET', conversation, 'place') ~= ARGV[9] then return 0 end
redis.call('HSET', KEYS[1], 'turns', own + 1, 'last', ARGV[2], 'branch', ARGV[4])
redis.call('RPUSH', KEYS[2], ARGV[3])
redis.call('SET', KEYS[3], ARGV[5])
if response then redis.call('SET', response, ARGV[7]) end
if conversation then redis.call('HSET', conversation, 'place', ARGV[5]) end
for i = 1, #KEYS do redis.call('EXPIRE', KEYS[i], ARGV[6]) end
return 1
"""

_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a session's tree a history ends: after a branch's first `own` turns."""

    branch: str
    own: int

    def __str__(self) -> str:
        return f"{self.branch}:{self.own}"

    @classmethod
    def parse(cls, text: str) -> Place:
        branch, own = text.split(":")
        return cls(branch, int(own))


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was answered, and the place its turn ends at."""

    place: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation: its head's place (empty before the first turn) and the JSON of its own fields."""

    place: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """Where an answer was given: its session's tag, and the place its turn ends at."""

    tag: str
    place: str


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn to append after `history`, on `history`'s branch or a new one."""

    history: History
    turn: Turn
    response: tuple[str, bytes] | None = None
    """Id and body of a response to store with it."""
    conversation: tuple[str, str] | None = None
    """Id of a conversation whose head moves here, and the place that head must still be at."""
    answer: bytes | None = None
    """A digest by which the turn's answer is found again (`SessionStore.answer`)."""

    @property
    def place(self) -> Place:
        return Place(self.history.branch.id, self.history.own + 1)


class SessionStore:
    """Reads and appends. An append is one script: all of it happens or none does.

    Every method raises StoreUnavailableError when the store cannot be reached or cannot take a write.
    """

    def __init__(self, redis: Redis, ttl_s: int) -> None:
        self._redis = redis
        self._ttl_s = ttl_s
        self._append_script = redis.register_script(_APPEND)
        self._release_script = redis.register_script(_RELEASE)
        self._histories: OrderedDict[tuple[str, str], History] = OrderedDict()

    async def ping(self) -> None:
        async with translated():
            await self._redis.ping()

    async def aclose(self) -> None:
        await self._redis.aclose()

    async def find(self, tag: str, digests: Sequence[bytes]) -> tuple[int, Place] | None:
        """The longest stored history among `digests` (shortest first): its index and place."""
        if not digests:
            return None
        async with translated():
            keys = [_key(tag, "chain", digest.hex()) for digest in digests]
            found = await cast("Awaitable[list[bytes | None]]", self._redis.mget(keys))
        for index in range(len(digests) - 1, -1, -1):
            place = found[index]
            if place is not None:
                return index, Place.parse(place.decode())
        return None

    async def read(self, tag: str, place: Place) -> History | None:
        """The history that ends at `place`, or None when it has expired. Reads only what the last read did not."""
        cached = self._histories.get((tag, place.branch))
        if cached is not None and cached.own == place.own:
            self._histories.move_to_end((tag, place.branch))
            return cached
        if cached is not None and cached.own < place.own:
            history = await self._read_rest(tag, place, cached)
        else:
            history = await self._read_all(tag, place)
        if history is not None:
            self._remember(history)
        return history

    async def _read_rest(self, tag: str, place: Place, cached: History) -> History | None:
        async with translated():
            rest = await self._range(tag, place.branch, cached.own, place.own)
        if len(rest) != place.own - cached.own:
            return None
        return cached.extended(rest)

    async def _read_all(self, tag: str, place: Place) -> History | None:
        async with translated():
            packed = await cast(
                "Awaitable[bytes | None]", self._redis.hget(_key(tag, "branch", place.branch), "branch")
            )
            if packed is None:
                return None
            branch = msgspec.msgpack.decode(packed, type=Branch)
            inherited, own = await self._read_turns(tag, branch, place.own)
        expected = [ancestor.turns for ancestor in branch.lineage]
        if [len(turns) for turns in inherited] != expected or len(own) != place.own:
            return None
        return History.read(branch, inherited, own)

    async def _read_turns(self, tag: str, branch: Branch, own: int) -> tuple[list[list[Turn]], list[Turn]]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for ancestor in branch.lineage:
                pipeline.lrange(_key(tag, "turns", ancestor.branch), 0, ancestor.turns - 1)
            pipeline.lrange(_key(tag, "turns", branch.id), 0, own - 1)
            *inherited, last = [[_turn(packed) for packed in one] for one in await pipeline.execute()]
        return inherited, last

    async def _range(self, tag: str, branch: str, start: int, stop: int) -> list[Turn]:
        packed = await cast("Awaitable[list[bytes]]", self._redis.lrange(_key(tag, "turns", branch), start, stop - 1))
        return [_turn(one) for one in packed]

    def _remember(self, history: History) -> None:
        key = (history.branch.tag, history.branch.id)
        self._histories[key] = history
        self._histories.move_to_end(key)
        while len(self._histories) > _CACHED_HISTORIES:
            self._histories.popitem(last=False)

    async def append(self, new: NewTurn) -> History:
        """Append a turn and all that belongs to it, at once, and return the history that ends with it.

        Raises TurnConflictError when the branch, or the conversation, has grown since `new.history` was read. A store
        that is away for a moment is waited for; appending twice what was appended already changes nothing.
        """
        if not await self._patiently_append(new):
            raise TurnConflictError("another turn was added to this conversation first; read it and send yours again")
        history = new.history.extended((new.turn,))
        self._remember(history)
        await self._note_answer(new)
        return history

    async def _patiently_append(self, new: NewTurn) -> bool:
        deadline = time.monotonic() + _APPEND_PATIENCE_S
        while True:
            try:
                async with translated():
                    return await self._run_append(new)
            except StoreUnavailableError:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(_APPEND_RETRY_S)

    async def _run_append(self, new: NewTurn) -> bool:
        branch, tag = new.history.branch, new.history.branch.tag
        keys = [
            _key(tag, "branch", branch.id),
            _key(tag, "turns", branch.id),
            _key(tag, "chain", new.turn.chain.hex()),
        ]
        stored, head = b"", ""
        if new.response is not None:
            response_id, body = new.response
            keys.append(_key(tag, "response", response_id))
            stored = msgspec.msgpack.encode(StoredResponse(str(new.place), body))
        if new.conversation is not None:
            conversation_id, head = new.conversation
            keys.append(_key(tag, "conversation", conversation_id))
        for ancestor in branch.lineage:
            keys += [_key(tag, "branch", ancestor.branch), _key(tag, "turns", ancestor.branch)]
        arguments: list[str | bytes | int] = [
            new.history.own,
            new.turn.uid,
            msgspec.msgpack.encode(new.turn),
            msgspec.msgpack.encode(branch),
            str(new.place),
            self._ttl_s,
            stored,
            int(new.conversation is not None),
            head,
        ]
        return bool(await self._append_script(keys=keys, args=arguments))

    async def _note_answer(self, new: NewTurn) -> None:
        """In another hash slot than the turn, so after it; it only helps to explain, so it may be lost."""
        if new.answer is None:
            return
        stored = msgspec.msgpack.encode(StoredAnswer(new.history.branch.tag, str(new.place)))
        with suppress(RedisError, OSError):
            await self._redis.set(_key(new.answer.hex(), "answer"), stored, ex=self._ttl_s)

    async def answer(self, digest: bytes) -> StoredAnswer | None:
        """Where the answer with this digest was given last."""
        async with translated():
            packed = await cast("Awaitable[bytes | None]", self._redis.get(_key(digest.hex(), "answer")))
        return None if packed is None else msgspec.msgpack.decode(packed, type=StoredAnswer)

    async def response(self, tag: str, response_id: str) -> StoredResponse | None:
        async with translated():
            packed = await cast("Awaitable[bytes | None]", self._redis.get(_key(tag, "response", response_id)))
        return None if packed is None else msgspec.msgpack.decode(packed, type=StoredResponse)

    async def delete_response(self, tag: str, response_id: str) -> bool:
        """Forget a response; False when there was none. Turns that build on it keep their history."""
        async with translated():
            return bool(await self._redis.delete(_key(tag, "response", response_id)))

    async def create_conversation(self, tag: str, conversation_id: str, body: bytes) -> None:
        key = _key(tag, "conversation", conversation_id)
        async with translated(), self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hset(key, mapping={"place": "", "object": body})
            pipeline.expire(key, self._ttl_s)
            await pipeline.execute()

    async def conversation(self, tag: str, conversation_id: str) -> StoredConversation | None:
        async with translated():
            place, body = await cast(
                "Awaitable[list[bytes | None]]",
                self._redis.hmget(_key(tag, "conversation", conversation_id), ["place", "object"]),
            )
        return None if place is None or body is None else StoredConversation(place.decode(), body)

    async def delete_conversation(self, tag: str, conversation_id: str) -> bool:
        """Forget a conversation; False when there was none. Responses made in it stay."""
        async with translated():
            return bool(await self._redis.delete(_key(tag, "conversation", conversation_id)))

    @asynccontextmanager
    async def claimed(self, tag: str, conversation_id: str, owner: str) -> AsyncIterator[None]:
        """Hold a conversation's head while a turn is made for it.

        Raises TurnConflictError at once when another holds it, so that no work is done in vain; the append's own
        comparison stays the judge. A claim whose holder dies runs out by itself.
        """
        key = _key(tag, "claim", conversation_id)
        async with translated():
            if not await self._redis.set(key, owner, nx=True, px=_CLAIM_MS):
                raise TurnConflictError("another turn of this conversation is in progress; wait for it to end")
        renewal = asyncio.create_task(self._renew(key))
        try:
            yield
        finally:
            renewal.cancel()
            await asyncio.shield(self._release(key, owner))

    async def _renew(self, key: str) -> None:
        while True:
            await asyncio.sleep(_CLAIM_RENEWAL_S)
            try:
                await self._redis.pexpire(key, _CLAIM_MS)
            except RedisError:
                continue

    async def _release(self, key: str, owner: str) -> None:
        try:
            await self._release_script(keys=[key], args=[owner])
        except (RedisError, OSError):
            return  # it runs out by itself


def _key(tag: str, *names: str) -> str:
    return ":".join(("antiphon", f"{{{tag}}}", *names))


def _turn(packed: bytes) -> Turn:
    return msgspec.msgpack.decode(packed, type=Turn)


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Whatever Redis raises becomes a StoreUnavailableError; a cancellation that comes meanwhile is never lost."""
    before = _cancellations()
    try:
        try:
            yield
        finally:
            # before Python 3.12 asyncio.wait_for, under which the client sends, mostly swallows one
            if _cancellations() > before:
                raise asyncio.CancelledError
    except ResponseError as error:
        raise StoreUnavailableError(f"the session store refuses: {error}") from error
    except (RedisError, OSError) as error:
        raise StoreUnavailableError(f"the session store cannot be reached: {error}") from error


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def connect(url: str, **options: Any) -> Redis:
    """A client for `url` (`redis://`, `rediss://` or `unix://`). No connection is made until it is used."""
    return Redis.from_url(url, socket_connect_timeout=2.0, socket_timeout=10.0, **options)
