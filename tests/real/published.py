"""A fake and a real engine that publish their KV events, side by side."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import zmq
import zmq.asyncio

from router.engine.preflight import pick_port
from router.engine.server import EngineLaunch
from router.index.event_source import EventSource
from tests.fake_engine import FakeEngineOptions, running_fake_engine
from tests.real.engines import profile_for_tests

HOST = "127.0.0.1"
PAGE = 16
TOKENS = 2048
CHUNK = 256
QUIET_S = 0.5
"""SGLang publishes with its next step, and answers replays every 0.1 s."""
_FLUSH_S = 20.0

Json = dict[str, Any]


@dataclass
class Side:
    """One of the two engines. `seen` is how many batches of each rank were looked at already."""

    http: aiohttp.ClientSession
    url: str
    config: str
    seen: Counter[int] = field(default_factory=Counter)

    async def generate(self, ids: Sequence[int], new: int, **body: Any) -> Json:
        sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        body |= {"input_ids": list(ids), "sampling_params": sampling}
        async with self.http.post(self.url + "/generate", json=body) as response:
            answer: Json = await response.json(content_type=None)
            return answer | {"status": response.status}

    async def flush(self) -> None:
        """SGLang refuses while it has anything to do."""
        async with asyncio.timeout(_FLUSH_S):
            while True:
                await asyncio.sleep(QUIET_S)
                async with self.http.post(self.url + "/flush_cache") as response:
                    if response.status == 200:
                        return

    async def get(self, path: str) -> Any:
        async with self.http.get(self.url + path) as response:
            return await response.json()

    async def fresh(self, rank: int = 0) -> list[list[Json]]:
        """The batches since the last call, as they were sent."""
        await asyncio.sleep(QUIET_S)
        source = self.source(rank)
        assert source.replay is not None
        batches: list[list[Json]] = []
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(source.replay)
            await socket.send_multipart([b"", self.seen[rank].to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(5):
                    *_, number, payload = await socket.recv_multipart()
                if number == b"\xff" * 8:
                    return batches
                assert int.from_bytes(number, "big") == self.seen[rank]
                _, events, told = msgspec.msgpack.decode(payload)
                assert told == rank
                batches.append(events)
                self.seen[rank] += 1

    def source(self, rank: int = 0) -> EventSource:
        source = EventSource.of(self.config, self.url, rank)
        assert source is not None
        return source


@dataclass(frozen=True)
class Twins:
    real: Side
    fake: Side

    async def generate(self, ids: Sequence[int], new: int, **body: Any) -> tuple[Json, Json]:
        return await self.real.generate(ids, new, **body), await self.fake.generate(ids, new, **body)

    async def tell_alike(self) -> list[list[Json]]:
        """What both have published since the last time, which is the same: hashes, ids, order and all."""
        real, fake = await self.real.fresh(), await self.fake.fresh()
        assert fake == real
        return real


def fresh(count: int) -> list[int]:
    """Ids that no test has sent before."""
    return random.sample(range(1_000, 40_000), count)


def launch_of(model: Path, python: Path, log: Path, **changes: Any) -> EngineLaunch:
    changes = {"max_total_tokens": TOKENS, "chunked_prefill_size": CHUNK, "kv_events": True, **changes}
    profile = profile_for_tests(model, "qwen3").model_copy(update=changes)
    port = pick_port(HOST, 1 + 2 * profile.dp)
    return EngineLaunch(profile, model, python, port, log, os.environ, events_port=port + 1)


@asynccontextmanager
async def twins_of(url: str) -> AsyncIterator[Twins]:
    async with aiohttp.ClientSession() as http, http.get(url + "/server_info") as response:
        info = await response.json()
        ports = pick_port(HOST, 2 * info["dp_size"])
        config = {"publisher": "zmq", "topic": "kv-events", "bind": True, "endpoint": f"tcp://{HOST}:{ports}"}
        config["replay_endpoint"] = f"tcp://{HOST}:{ports + info['dp_size']}"
        options = FakeEngineOptions(
            model_path=info["served_model_name"],
            tokenizer=Path(info["tokenizer_path"]),
            page_size=info["page_size"],
            context_length=8192,
            max_total_tokens=info["max_total_num_tokens"],
            chunked_prefill_size=info["chunked_prefill_size"],
            dp_size=info["dp_size"],
            overlap_schedule=not info["disable_overlap_schedule"],
            kv_events_config=json.dumps(config),
        )
        async with running_fake_engine(options) as fake:
            yield Twins(Side(http, url, info["kv_events_config"]), Side(http, fake.url, json.dumps(config)))
