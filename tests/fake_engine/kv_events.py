"""KV events as SGLang makes and publishes them, in both wire forms."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

from tests.fake_engine.faults import Faults
from tests.fake_engine.options import EngineVersion

END: Final = (-1).to_bytes(8, "big", signed=True)
GPU: Final = "GPU"

Event = dict[str, Any] | list[Any]


def first_digest(salt: str | None, salts: bool) -> bytes:
    """What the chain of a namespace's block hashes begins with. An `extra_key` does not count."""
    return b"" if salt is None or not salts else sha256(b"sglang-cache-salt-v1\0" + salt.encode()).digest()


def chain(before: bytes, ids: bytes, page_bytes: int) -> list[bytes]:
    """A digest a page; the first 8 bytes of it are the block's hash."""
    digests = []
    for at in range(0, len(ids), page_bytes):
        before = sha256(before + ids[at : at + page_bytes]).digest()
        digests.append(before)
    return digests


def block_hash(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)


class EventRecorder:
    """Events since the last `take`, in the order in which the tree changed."""

    def __init__(self, page_size: int, version: EngineVersion) -> None:
        self._page = page_size
        self._positional = version == "0.5.17"
        self._events: list[Event] = []

    def stored(self, parent: bytes | None, digests: Sequence[bytes], ids: Sequence[int], salt: str | None) -> None:
        before = None if parent is None else block_hash(parent)
        hashes = [block_hash(digest) for digest in digests]
        if self._positional:
            for at, one in enumerate(hashes):
                page = list(ids[at * self._page : (at + 1) * self._page])
                self._events.append(["BlockStored", [one], before, page, self._page, None, GPU])
                before = one
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, dict) and last["type"] == "BlockStored" and last["block_hashes"][-1] == before:
            last["block_hashes"] += hashes
            last["token_ids"] += ids
            return
        event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": before, "token_ids": list(ids)}
        event |= {"block_size": self._page, "lora_id": None, "medium": GPU}
        self._events.append(event if salt is None else event | {"cache_salt": salt})

    def removed(self, digests: Sequence[bytes]) -> None:
        hashes = [block_hash(digest) for digest in digests]
        last = self._events[-1] if self._events else None
        if self._positional:
            self._events.append(["BlockRemoved", hashes, GPU])
        elif isinstance(last, dict) and last["type"] == "BlockRemoved":
            last["block_hashes"] += hashes
        else:
            self._events.append({"type": "BlockRemoved", "block_hashes": hashes, "medium": GPU})

    def cleared(self) -> None:
        self._events.append(["AllBlocksCleared"] if self._positional else {"type": "AllBlocksCleared"})

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    """SGLang's --kv-events-config, as far as we use it."""

    endpoint: str
    topic: str = ""
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000

    @classmethod
    def read(cls, config: str) -> PublisherConfig:
        values = json.loads(config)
        known = ("endpoint", "topic", "replay_endpoint", "buffer_steps")
        return cls(**{name: values[name] for name in known if name in values})


def offset(endpoint: str, rank: int) -> str:
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + rank}"


class EventPublisher:
    """One rank's: a PUB socket, and a ROUTER that sends again what the buffer still holds."""

    def __init__(self, config: PublisherConfig, rank: int, faults: Faults) -> None:
        self._config = config
        self._rank = rank
        self._faults = faults
        self._topic = config.topic.encode()
        self._next = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._sending: deque[tuple[float, int, bytes]] = deque()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._replies = zmq.asyncio.Context()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._socket = self._context.socket(zmq.PUB)
        self._socket.linger = 0
        self._socket.set_hwm(100_000)
        self._socket.bind(offset(self._config.endpoint, self._rank))
        if self._config.replay_endpoint is not None:
            router = self._replies.socket(zmq.ROUTER)
            router.linger = 0
            router.bind(offset(self._config.replay_endpoint, self._rank))
            self._tasks.append(asyncio.create_task(self._replay(router)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._context.destroy(linger=0)
        self._replies.destroy(linger=0)

    def publish(self, events: list[Event]) -> None:
        if not events:
            return
        payload = msgspec.msgpack.encode([time.time(), events, self._rank])
        number, self._next = self._next, self._next + 1
        self._buffer.append((number, payload))
        if self._faults.drop_events > 0:
            self._faults.drop_events -= 1
        elif self._faults.lag_events_s:
            loop = asyncio.get_running_loop()
            self._sending.append((loop.time() + self._faults.lag_events_s, number, payload))
            loop.call_later(self._faults.lag_events_s, self._send_due)
        else:
            self._send(number, payload)

    def _send_due(self) -> None:
        while self._sending and self._sending[0][0] <= asyncio.get_running_loop().time() + 1e-3:
            _, number, payload = self._sending.popleft()
            self._send(number, payload)

    def _send(self, number: int, payload: bytes) -> None:
        if not self._socket.closed:
            self._socket.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    async def _replay(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3:
                continue
            client, _, first = frames
            for number, payload in list(self._buffer):
                if number >= int.from_bytes(first, "big"):
                    await router.send_multipart([client, b"", self._topic, number.to_bytes(8, "big"), payload])
            await router.send_multipart([client, b"", b"", END, b""])
