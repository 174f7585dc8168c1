"""Which threads and flags make the CPU engine start and run fastest.

`python -m scripts.engine_flags --model DIR --out FILE` starts the default profile's engine once for each variant, one
setting changed at a time, and measures: seconds until SGLang itself says that it is ready and until we have seen a
token; tokens a second of prefill (long prompts that are not cached) and of decoding, with one and with four streams,
each the median of some rounds. Run it on a machine that does nothing else. Writes JSON and, beside it, the same as a
Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import secrets
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from router.engine.client import EngineClient
from router.engine.preflight import pick_port
from router.engine.profile import EngineProfile, load_profile
from router.engine.server import EngineLaunch, EngineServer
from router.errors import EngineStartError
from router.request import GenerateRequest, Sampling

PREFILL_TOKENS = 1000
DECODE_TOKENS = 64
STREAMS = (1, 4)
ROUNDS = 3
_HEADER = "| | SGLang ready, s | token seen, s | prefill, tok/s | decode, 1 stream | decode, 4 |"
_READY = "ready to roll"
_READY_WAIT_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Variant:
    """The default profile with something changed; fields of a profile, by name."""

    name: str
    changes: dict[str, Any]

    def of(self, profile: EngineProfile) -> EngineProfile:
        """Raises nothing: what a variant asks for is checked by SGLang."""
        environment = {**profile.environment, **self.changes.get("environment", {})}
        return profile.model_copy(update={**self.changes, "environment": environment})


@dataclass(frozen=True)
class Figures:
    """Seconds, and tokens a second. `sglang_ready_s` is when SGLang's own log said so."""

    name: str
    changes: dict[str, Any]
    sglang_ready_s: float | None = None
    ready_s: float | None = None
    prefill: float | None = None
    decode_1: float | None = None
    decode_4: float | None = None
    failed: str | None = None


def variants(cpus: int) -> Iterator[Variant]:
    """The profile as it is, then each setting changed alone."""
    yield Variant("as it is", {})
    for threads in sorted({1, 2, cpus}):
        yield Variant(f"threads {threads}", {"threads": threads})
    yield Variant("threads spin", {"environment": {"OMP_WAIT_POLICY": "ACTIVE", "KMP_BLOCKTIME": "200"}})
    yield Variant("KMP_BLOCKTIME 1", {"environment": {"KMP_BLOCKTIME": "1"}})
    for size in (512, 8192):
        yield Variant(f"chunks of {size}", {"chunked_prefill_size": size})
    yield Variant("no chunks", {"chunked_prefill_size": -1})
    yield Variant("no overlap", {"extra_args": ("--disable-overlap-schedule",)})
    for size in (1, 64):
        yield Variant(f"page {size}", {"page_size": size})
    yield Variant("intel_amx", {"attention_backend": "intel_amx"})
    yield Variant("no warm-up", {"extra_args": ("--skip-server-warmup",)})


async def measure(variant: Variant, profile: EngineProfile, model: Path, interpreter: Path, log: Path) -> Figures:
    launch = EngineLaunch(variant.of(profile), model, interpreter, pick_port("127.0.0.1"), log, os.environ)
    started = time.monotonic()
    server = await EngineServer.start(launch)
    try:
        watching = asyncio.create_task(_says_ready(server, started))
        await server.wait_ready()
        ready_s = time.monotonic() - started
        # SGLang says so after a request of its own, which may be later than we are served.
        await asyncio.wait([watching], timeout=_READY_WAIT_S)
        sglang_ready_s = round(watching.result(), 1) if watching.done() else None
        watching.cancel()
        async with aiohttp.ClientSession() as session:
            client = EngineClient("engine", server.url, session)
            await _rates(client, 1)  # what is compiled or allocated at first use
            one, four = [await _median_rates(client, streams) for streams in STREAMS]
        return Figures(
            variant.name,
            variant.changes,
            sglang_ready_s=sglang_ready_s,
            ready_s=round(ready_s, 1),
            prefill=round(one[0], 1),
            decode_1=round(one[1], 1),
            decode_4=round(four[1], 1),
        )
    except EngineStartError as error:
        return Figures(variant.name, variant.changes, failed=str(error))
    finally:
        await server.stop()


async def _says_ready(server: EngineServer, started: float) -> float:
    while not any(_READY in line for line in server.child.last_lines):  # noqa: ASYNC110 - another process's
        await asyncio.sleep(_POLL_S)
    return time.monotonic() - started


async def _median_rates(client: EngineClient, streams: int) -> tuple[float, float]:
    rounds = [await _rates(client, streams) for _ in range(ROUNDS)]
    return median(prefill for prefill, _ in rounds), median(decode for _, decode in rounds)


async def _rates(client: EngineClient, streams: int) -> tuple[float, float]:
    """Prefill and decode rates with so many at once, tokens a second of all together."""
    prompts = [array("I", random.choices(range(1000, 40000), k=PREFILL_TOKENS)) for _ in range(streams)]
    started = time.monotonic()
    await asyncio.gather(*(_generate(client, prompt, 1) for prompt in prompts))
    prefill_s = time.monotonic() - started
    started = time.monotonic()
    await asyncio.gather(*(_generate(client, prompt, DECODE_TOKENS) for prompt in prompts))
    decode_s = time.monotonic() - started
    return streams * PREFILL_TOKENS / prefill_s, streams * DECODE_TOKENS / decode_s


async def _generate(client: EngineClient, prompt: array[int], tokens: int) -> None:
    """With a bias against ending that no end token's logit outweighs."""
    no_end = tuple((token, -1000.0) for token in (0, 2))
    request = GenerateRequest(secrets.token_hex(16), prompt, Sampling(tokens, temperature=0.0, logit_bias=no_end))
    async with aclosing(client.generate(request)) as deltas:
        async for _ in deltas:
            pass


def table(figures: Sequence[Figures]) -> str:
    """Markdown; the best of each column in bold."""
    columns = (("sglang_ready_s", min), ("ready_s", min), ("prefill", max), ("decode_1", max), ("decode_4", max))
    best = {
        name: choose((value for one in figures if (value := getattr(one, name)) is not None), default=None)
        for name, choose in columns
    }
    rows = [_HEADER, "|---|---|---|---|---|---|"]
    for one in figures:
        if one.failed is not None:
            rows.append(f"| {one.name} | {one.failed.partition(';')[0]} | | | | |")
            continue
        cells = [_cell(getattr(one, name), best[name]) for name, _ in columns]
        rows.append(f"| {one.name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _cell(value: float | None, best: float | None) -> str:
    if value is None:
        return "–"
    return f"**{value:g}**" if value == best else f"{value:g}"


def report(profile: EngineProfile, measured: Sequence[Figures]) -> dict[str, Any]:
    return {
        "profile": {"id": profile.id, "hash": profile.content_hash},
        "cpus": len(os.sched_getaffinity(0)),
        "processor": platform.processor() or platform.machine(),
        "load": os.getloadavg(),
        "prefill_tokens": PREFILL_TOKENS,
        "decode_tokens": DECODE_TOKENS,
        "rounds": ROUNDS,
        "variants": [asdict(one) for one in measured],
    }


def write(out: Path, content: dict[str, Any], measured: Sequence[Figures]) -> None:
    out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(table(measured), encoding="utf-8")


async def run(chosen: Sequence[Variant], model: Path, interpreter: Path, out: Path) -> None:
    """After each engine everything so far is written."""
    profile = load_profile("cpu-smollm2")
    measured: list[Figures] = []
    for variant in chosen:
        figures = await measure(variant, profile.with_model(model), model, interpreter, out.with_suffix(".log"))
        measured.append(figures)
        print(json.dumps(asdict(figures)), flush=True)
        await asyncio.to_thread(write, out, report(profile, measured), measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; the table is written beside it")
    parser.add_argument("--python", type=Path, default=Path(".venv-engine/bin/python"), help="the one that has SGLang")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="these variants alone")
    arguments = parser.parse_args()
    known = list(variants(len(os.sched_getaffinity(0))))
    if unknown := set(arguments.only) - {one.name for one in known}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(one.name for one in known)}")
    chosen = [one for one in known if not arguments.only or one.name in arguments.only]
    asyncio.run(run(chosen, arguments.model, arguments.python, arguments.out))


if __name__ == "__main__":
    main()
