"""What a prompt costs that goes on from a long ledger: `python -m tests.bench.prompt --model DIR [DIR …]`.

Measured from the request to the moment the engine is asked, at one client: finding and reading the ledger, rendering,
spelling, comparing. Beside it, in the same run, the naive way: all messages rendered, all of the text encoded. Prints
tables and writes docs/results/bench-prompt.json.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import aiohttp
import uvloop
from tokenizers import Tokenizer as HfTokenizer

from programs.anticipation import AnticipationBudget, Anticipator
from programs.message import Message
from programs.model import ChatModel
from programs.session import Sessions
from programs.store import SessionStore, connect
from router.registry.spec import ReplicaSpec
from router.router import Router
from service.valkey import store_url, valkey_argv
from tests.bench.front import versions
from tests.bench.long_session import Answers, LongSession, Way
from tests.bench.scripted_engine import ScriptedEngine
from tests.bench.stopwatch import Stopwatch

Front = Literal["same", "other"]
"""The one that made the session, or one that reads it for the first time."""

NEW_CHARACTERS = 400
CASES: tuple[tuple[Way, Front], ...] = (
    ("previous_response_id", "same"),
    ("resend", "same"),
    ("previous_response_id", "other"),
    ("resend", "other"),
)
TOP = 10


@dataclass(frozen=True)
class Plan:
    tokens: int
    runs: int
    naive_runs: int


@dataclass(frozen=True)
class Milliseconds:
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: list[float]) -> Milliseconds:
        cuts = statistics.quantiles(seconds, n=100, method="inclusive")
        return cls(*(round(cuts[percent - 1] * 1e3, 2) for percent in (50, 90, 99)))


@dataclass(frozen=True)
class Row:
    """`stages` are medians in milliseconds. Of the ledger, the prompt begins with `kept_tokens`.

    `encoded_characters` is the most that any prompt had encoded: what is new, and what the template writes around it.
    """

    model: str
    answers: Answers
    by: Way
    front: Front
    turns: int
    ledger_tokens: int
    prompt_tokens: int
    prompt: Milliseconds
    cpu: Milliseconds
    """Of `prompt`, what this thread computed: the rest is waiting, for the store or for a core."""
    stages_ms: dict[str, float]
    prompt_characters: int
    new_characters: int
    encoded_characters: int
    naive: Milliseconds
    naive_ratio: float


@dataclass
class Bench:
    """A session that has grown long, and the front that it grew on."""

    session: LongSession
    engine: ScriptedEngine
    sessions: Sessions
    open_front: Callable[[], tuple[SessionStore, Sessions]]
    naive_tokenizer: HfTokenizer
    plan: Plan

    async def row(self, way: Way, kind: Front) -> Row:
        whole, naive, watches = list[tuple[float, float]](), list[float](), list[Stopwatch]()
        for number in range(self.plan.runs):
            whole.append(await self.prompt(self.question(), way, kind))
            watches.append(Stopwatch())
            with watches[-1].attached():
                await self.prompt(self.question(), way, kind)
            if number % (self.plan.runs // self.plan.naive_runs) == 0:
                naive.append(self.naively(self.question()))
        prompt, cpu = (Milliseconds.of(list(seconds)) for seconds in zip(*whole, strict=True))
        slow = Milliseconds.of(naive)
        stages = {name for watch in watches for name in watch.seconds}
        median = {name: statistics.median(watch.seconds[name] for watch in watches) for name in stages}
        return Row(
            model=self.session.model.name,
            answers=self.session.answers,
            by=way,
            front=kind,
            turns=sum(message.role == "assistant" for message in self.session.messages),
            ledger_tokens=self.session.tokens,
            prompt_tokens=len(self.engine.asked),
            prompt=prompt,
            cpu=cpu,
            stages_ms={name: round(seconds * 1e3, 3) for name, seconds in sorted(median.items())},
            prompt_characters=len(self.rendered(self.question())),
            new_characters=NEW_CHARACTERS,
            encoded_characters=max(watch.characters for watch in watches),
            naive=slow,
            naive_ratio=round(slow.p50 / prompt.p50, 1),
        )

    def question(self) -> Message:
        return self.session.question(NEW_CHARACTERS)

    async def prompt(self, said: Message, way: Way, kind: Front) -> tuple[float, float]:
        """Seconds until the engine is asked, and of computing until then. Then the client leaves: nothing is stored."""
        async with self.front(kind) as sessions:
            request = self.session.request(said, way)
            started, cpu = time.perf_counter(), time.thread_time()
            async with aclosing(sessions.run(request)) as events:
                await anext(events)
            return self.engine.asked_at - started, self.engine.asked_cpu - cpu

    @asynccontextmanager
    async def front(self, kind: Front) -> AsyncIterator[Sessions]:
        if kind == "same":
            yield self.sessions
            return
        store, sessions = self.open_front()
        await store.ping()
        yield sessions
        await store.aclose()

    def naively(self, said: Message) -> float:
        started = time.perf_counter()
        text = self.rendered(said)
        self.naive_tokenizer.encode(text, add_special_tokens=False)
        return time.perf_counter() - started

    def rendered(self, said: Message) -> str:
        model, request = self.session.model, self.session.request(said, "resend")
        shown = [model.prompts.dialect.show(message) for message in request.messages]
        tools = [json.loads(tool.definition) for tool in request.tools] or None
        return model.template.render(
            shown, add_generation_prompt=True, now=datetime.now(UTC), arguments={"tools": tools}
        )

    async def profile(self, way: Way) -> list[dict[str, Any]]:
        """The functions that take longest themselves, over as many prompts as were measured."""
        requests = [self.question() for _ in range(self.plan.runs)]
        profiler = cProfile.Profile()
        profiler.enable()
        for said in requests:
            await self.prompt(said, way, "same")
        profiler.disable()
        stats = pstats.Stats(profiler)
        slowest = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:TOP]  # type: ignore[attr-defined]
        return [
            {"function": _name(function), "calls": calls / self.plan.runs, "ms": round(own / self.plan.runs * 1e3, 3)}
            for function, (_, calls, own, _, _) in slowest
        ]


def _name(function: tuple[str, int, str]) -> str:
    path, line, name = function
    return name if path == "~" else f"{Path(path).name}:{line} {name}"


async def measure(directory: Path, answers: Answers, url: str, plan: Plan) -> tuple[list[Row], list[dict[str, Any]]]:
    async with aiohttp.ClientSession() as http:
        engine = ScriptedEngine(http)
        model = ChatModel.load(directory)
        async with Router(lambda spec: engine, [ReplicaSpec(engine.name, engine.url)]) as router:
            anticipator = Anticipator(router, AnticipationBudget())

            def open_front() -> tuple[SessionStore, Sessions]:
                store = SessionStore(connect(url), ttl_s=3600)
                return store, Sessions(model, store, router, anticipator)

            while router.trouble():
                await asyncio.sleep(0.01)
            store, sessions = open_front()
            session = LongSession(model, engine, answers)
            await session.grow(sessions, plan.tokens)
            naive = HfTokenizer.from_file(str(directory / "tokenizer.json"))
            bench = Bench(session, engine, sessions, open_front, naive, plan)
            rows = [await bench.row(way, kind) for way, kind in CASES]
            slowest = await bench.profile("resend")
            await anticipator.aclose()
            await store.aclose()
            return rows, slowest


@contextmanager
def running_store(directory: Path) -> Iterator[str]:
    socket = directory / "s"
    with subprocess.Popen(valkey_argv(directory, socket), stdout=subprocess.DEVNULL) as process:
        while not socket.exists():
            time.sleep(0.01)
        try:
            yield store_url(socket)
        finally:
            process.terminate()


def kinds_of(directory: Path) -> tuple[Answers, ...]:
    return ("thoughts", "calls") if ChatModel.load(directory).think else ("text",)


def shown(row: Row) -> str:
    stages = ", ".join(f"{name} {ms:.2f}" for name, ms in row.stages_ms.items())
    return (
        f"{row.answers:9}{row.by:21}{row.front:6}{row.prompt_tokens:8}"
        f"{row.prompt.p50:8.2f}{row.prompt.p90:8.2f}{row.prompt.p99:8.2f}{row.cpu.p50:8.2f}"
        f"{row.naive.p50:9.1f}{row.naive_ratio:7.1f}{row.encoded_characters:9}  {stages}"
    )


HEADINGS = (
    f"{'answers':9}{'continued by':21}{'front':6}{'tokens':>8}{'p50':>8}{'p90':>8}{'p99':>8}{'cpu':>8}"
    f"{'naive':>9}{'times':>7}{'encoded':>9}  stages (ms)"
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.prompt", description=__doc__)
    parser.add_argument("--model", type=Path, nargs="+", required=True, help="directories with tokenizer and template")
    parser.add_argument("--out", type=Path, default=Path("docs/results/bench-prompt.json"))
    parser.add_argument("--tokens", type=int, default=100_000, help="length of the ledger")
    parser.add_argument("--runs", type=int, default=300, help="measured prompts of each kind")
    parser.add_argument("--naive-runs", type=int, default=20, help="of them also built naively")
    arguments = parser.parse_args()
    plan = Plan(arguments.tokens, arguments.runs, arguments.naive_runs)
    rows, profiles = list[Row](), dict[str, Any]()
    print(HEADINGS)
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as scratch, running_store(Path(scratch)) as url:
        for directory in arguments.model:
            for answers in kinds_of(directory):
                measured, slowest = uvloop.run(measure(directory, answers, url, plan))
                rows += measured
                profiles[f"{measured[0].model}, {answers}, resend"] = slowest
                print(*map(shown, measured), sep="\n", flush=True)
    for name, slowest in profiles.items():
        print(f"\n{name}: own time a prompt, profiled")
        print(*(f"{one['ms']:8.3f} ms {one['calls']:9.1f} × {one['function']}" for one in slowest), sep="\n")
    told = {
        "command": f"python -m tests.bench.prompt {shlex.join(sys.argv[1:])}",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "plan": asdict(plan),
        "rows": [asdict(row) for row in rows],
        "profiles": profiles,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    main()
