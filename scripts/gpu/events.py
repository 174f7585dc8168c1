"""KV events: everything that was computed is announced, once, with the very ids; and it can be asked for again."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from router.engine.preflight import pick_port
from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.load import random_ids
from scripts.gpu.server import HOST, ServerSpec
from scripts.gpu.wire import Wire

_PAGE = 16
_PROMPTS = (640, 1000, 257)
_SETTLE_S = 1.5
_END = -1
_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")


@dataclass(frozen=True)
class Stored:
    hashes: list[Any]
    parent: Any
    ids: list[int]
    block_size: int
    medium: str | None


@dataclass
class Heard:
    """What came from a publisher. Events are positional arrays in SGLang 0.5.17, tagged maps later."""

    numbers: list[int] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    form: str = ""

    def add(self, number: int, payload: bytes) -> None:
        self.numbers.append(number)
        batch = msgspec.msgpack.decode(payload)
        for event in batch[1] if isinstance(batch, list) else batch["events"]:
            self.form = "array" if isinstance(event, list) else "map"
            kind, fields = _read(event)
            self.kinds[kind] += 1
            if kind == "BlockStored":
                self.stored.append(_stored(fields))
            elif kind == "AllBlocksCleared":
                self.stored.clear()

    @property
    def gaps(self) -> int:
        return sum(after != before + 1 for before, after in zip(self.numbers, self.numbers[1:], strict=False))

    def sequences(self) -> list[list[int]]:
        """The token sequences that the blocks spell, followed from the root; one for every leaf."""
        before: dict[Any, list[int]] = {None: []}
        leaves: dict[Any, None] = {}
        for stored in self.stored:
            parent = stored.parent
            for at, block in enumerate(stored.hashes):
                ids = stored.ids[at * stored.block_size : (at + 1) * stored.block_size]
                before[block] = before.get(parent, []) + ids
                leaves.pop(parent, None)
                leaves[block] = None
                parent = block
        return [before[leaf] for leaf in leaves]


def _read(event: list[Any] | dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(event, list):
        return str(event[0]), dict(zip(_STORED, event[1:], strict=False))
    return str(event["type"]), event


def _stored(fields: dict[str, Any]) -> Stored:
    return Stored(
        list(fields["block_hashes"]),
        fields["parent_block_hash"],
        list(fields["token_ids"]),
        int(fields["block_size"]),
        fields.get("medium"),
    )


async def measure(context: Context) -> dict[str, Any]:
    config = json.loads(context.server.spec.extra[-1])
    heard = Heard()
    listener = asyncio.create_task(_listen(_reached(config["endpoint"]), config["topic"], heard))
    try:
        await asyncio.sleep(0.5)
        async with Wire(context.server.url) as wire:
            await wire.flush()
            dice = random.Random(11)
            sent = []
            for length in _PROMPTS:
                ids = random_ids(dice, length)
                sent.append(ids + (await wire.generate(ids, 33)).ids)
            await asyncio.sleep(_SETTLE_S)
    finally:
        listener.cancel()
        with suppress(asyncio.CancelledError):
            await listener
    again = await _replay(_reached(config["replay_endpoint"]), heard.numbers[0] if heard.numbers else 0)
    spelt = heard.sequences()
    # The KV of the last id is not computed.
    expected = [ids[: (len(ids) - 1) // _PAGE * _PAGE] for ids in sent]
    return {
        "form": heard.form,
        "batches": len(heard.numbers),
        "gaps": heard.gaps,
        "events": dict(heard.kinds),
        "media": dict(Counter(str(stored.medium) for stored in heard.stored)),
        "stored_tokens": sum(len(stored.ids) for stored in heard.stored),
        "expected_tokens": sum(len(ids) for ids in expected),
        "sequences_spelt_exactly": sum(any(ids == one[: len(ids)] for one in spelt) for ids in expected),
        "sequences_sent": len(expected),
        "replayed_batches": len(again.numbers),
        "replay_is_the_same": again.numbers == heard.numbers and again.stored == heard.stored,
    }


def _reached(endpoint: str) -> str:
    return endpoint.replace("*", HOST)


async def _listen(endpoint: str, topic: str, heard: Heard) -> None:
    import zmq.asyncio  # comes with SGLang

    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        while True:
            _, number, payload = await socket.recv_multipart()
            heard.add(int.from_bytes(number, "big"), payload)


async def _replay(endpoint: str, first: int, patience_s: float = 3.0) -> Heard:
    import zmq.asyncio

    heard = Heard()
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        await socket.send_multipart([b"", first.to_bytes(8, "big")])
        with suppress(TimeoutError):
            while True:
                frames = await asyncio.wait_for(socket.recv_multipart(), patience_s)
                number = int.from_bytes(frames[-2], "big", signed=True)
                if number == _END:
                    break
                heard.add(number, frames[-1])
    return heard


def publishing(ports: Iterable[int]) -> tuple[str, str]:
    endpoint, replay = (f"tcp://*:{port}" for port in ports)
    config = {"publisher": "zmq", "topic": "kv-events", "endpoint": endpoint, "replay_endpoint": replay}
    return ("--kv-events-config", json.dumps(config))


def events() -> list[Experiment]:
    extra = publishing((pick_port(HOST), pick_port(HOST)))
    spec = ServerSpec("kv-events", "small", "triton", _PAGE, tokens=32768, context=8192, gib=8, extra=extra)
    return [Experiment("kv-events", (spec,), measure, needs_s=15, on_cpu=True)]
