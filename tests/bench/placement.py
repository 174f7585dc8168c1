"""What placing a prompt costs, finding out who holds how much of it included: `python -m tests.bench.placement`.

Every replica is told of by KV events, as an engine tells them, until its cache is full: one system prompt that all of
them hold, and conversations that each holds alone. Then prompts are placed that begin like those conversations, at
several depths. Prints a table and writes docs/results/bench-placement.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shlex
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import psutil

from router.index.fingerprints import Fingerprints
from router.index.kv_events import decode_batch
from router.index.prefix_index import PrefixIndex
from router.placement import Wanted, choose
from router.standing import Standing
from tests.bench.front import versions

PAGE = 16
SYSTEM_TOKENS = 2_048
PROMPT_TOKENS = 32_768
CHUNK_TOKENS = 8_192
"""Of one prefill step: what one event tells."""
VOCABULARY = 150_000
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much of the conversation is held, beyond the system prompt."""


@dataclass(frozen=True)
class Plan:
    replicas: int
    blocks: int
    prompts: int


@dataclass(frozen=True)
class Microseconds:
    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Microseconds:
        p50, p99 = np.percentile(np.array(seconds) * 1e6, (50, 99))
        return cls(round(float(p50), 1), round(float(p99), 1))


@dataclass(frozen=True)
class Told:
    """`bytes_a_block` is the process's growth (RSS) over the blocks that the index then knew."""

    blocks: int
    prefixes: int
    bytes_a_block: float
    table_bytes_a_block: float
    apply_us_a_block: float


@dataclass(frozen=True)
class Row:
    """Of prompts that a replica holds to this part of their length; all hold the system prompt they begin with."""

    depth: float
    fingerprints: Microseconds
    lookup: Microseconds
    choice: Microseconds
    whole: Microseconds
    whole_cpu: Microseconds
    """What this thread computed of the whole: the rest is waiting for a core."""


class Fleet:
    """Replicas of one model whose caches are full of conversations."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.index = PrefixIndex(PAGE)
        self.standings = [Standing(name(replica)) for replica in range(plan.replicas)]
        self.conversations = (plan.blocks - SYSTEM_TOKENS // PAGE) // ((PROMPT_TOKENS - SYSTEM_TOKENS) // PAGE)
        self._system = ids(0, SYSTEM_TOKENS)
        self._hashes = random.Random(1)

    def fill(self) -> Told:
        before, spent = rss(), 0.0
        for replica in range(self.plan.replicas):
            self.index.set_capacity(name(replica), self.plan.blocks * PAGE, PAGE)
            for payload in self._payloads(replica):
                started = time.thread_time()
                self.index.apply(name(replica), decode_batch(payload).events)
                spent += time.thread_time() - started
        grown = rss() - before
        sizes = [self.index.size(name(replica)) for replica in range(self.plan.replicas)]
        blocks = sum(size.blocks for size in sizes)
        return Told(
            blocks=blocks,
            prefixes=self.index.prefixes,
            bytes_a_block=round(grown / blocks, 1),
            table_bytes_a_block=round(sum(size.bytes for size in sizes) / blocks, 1),
            apply_us_a_block=round(spent * 1e6 / blocks, 2),
        )

    def row(self, depth: float) -> Row:
        dice = random.Random(int(depth * 100))
        spent: list[tuple[float, float, float, float, float]] = []
        kept = SYSTEM_TOKENS + int(depth * (PROMPT_TOKENS - SYSTEM_TOKENS)) // PAGE * PAGE
        for number in range(self.plan.prompts):
            replica = dice.randrange(self.plan.replicas)
            held = self._conversation(replica, dice.randrange(self.conversations))
            prompt = held[:kept] + ids(10**9 + number, PROMPT_TOKENS + 1 - kept)
            started, cpu = time.perf_counter(), time.thread_time()
            prints = Fingerprints.of(prompt, None, PAGE)
            printed = time.perf_counter()
            found = self.index.held(prints)
            looked = time.perf_counter()
            placement = choose(self.standings, Wanted(len(prompt), found, room=self.index.room))
            ended, cpu = time.perf_counter(), time.thread_time() - cpu
            spent.append((printed - started, looked - printed, ended - looked, ended - started, cpu))
            assert placement is not None
            assert placement.name == name(replica) or depth == 0
            assert len(found) == self.plan.replicas
            assert found[name(replica)] == kept
        return Row(depth, *map(Microseconds.of, zip(*spent, strict=True)))

    def _conversation(self, replica: int, number: int) -> array[int]:
        return self._system + ids(1 + replica * 10_007 + number, PROMPT_TOKENS - SYSTEM_TOKENS)

    def _payloads(self, replica: int) -> Iterator[bytes]:
        system = list(range(1, SYSTEM_TOKENS // PAGE + 1))
        yield stored(system, None, self._system)
        for number in range(self.conversations):
            conversation, parent = self._conversation(replica, number), system[-1]
            for at in range(SYSTEM_TOKENS, PROMPT_TOKENS, CHUNK_TOKENS):
                part = conversation[at : at + CHUNK_TOKENS]
                hashes = [self._hashes.getrandbits(64) for _ in range(len(part) // PAGE)]
                yield stored(hashes, parent, part)
                parent = hashes[-1]


def stored(hashes: list[int], parent: int | None, part: array[int]) -> bytes:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": part.tolist()}
    return msgspec.msgpack.encode([0.0, [event | {"block_size": PAGE, "lora_id": None, "medium": "GPU"}], 0])


def ids(seed: int, count: int) -> array[int]:
    return array("I", np.random.default_rng(seed).integers(VOCABULARY, size=count, dtype=np.uint32).tobytes())


def name(replica: int) -> str:
    return f"engine-{replica}:30000"


def rss() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def shown(row: Row) -> str:
    parts = (row.fingerprints, row.lookup, row.choice, row.whole, row.whole_cpu)
    return f"{row.depth:6.2f}" + "".join(f"{part.p50:12.1f}{part.p99:8.1f}" for part in parts)


HEADINGS = (
    "  held"
    + "".join(f"{part + ' p50':>10}{'p99':>10}" for part in ("prints", "lookup", "choice", "whole", "cpu"))
    + "  µs"
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.placement", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/bench-placement.json"))
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=100_000, help="of each replica's cache")
    parser.add_argument("--prompts", type=int, default=1_000, help="placed at each depth")
    arguments = parser.parse_args()
    plan = Plan(arguments.replicas, arguments.blocks, arguments.prompts)
    fleet = Fleet(plan)
    told = fleet.fill()
    print(f"{told.blocks} blocks, {told.prefixes} prefixes: each {told.bytes_a_block} B, {told.apply_us_a_block} µs")
    print(HEADINGS)
    rows = [fleet.row(depth) for depth in DEPTHS]
    print(*map(shown, rows), sep="\n")
    result = {
        "command": f"python -m tests.bench.placement {shlex.join(sys.argv[1:])}".strip(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "plan": asdict(plan),
        "prompt_tokens": PROMPT_TOKENS,
        "page_size": PAGE,
        "told": asdict(told),
        "rows": [asdict(row) for row in rows],
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
