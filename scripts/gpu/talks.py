"""Conversations through the whole front (Valkey, `antiphon serve`, engine), held by the clients that our tests use."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.server import Server, ServerSpec
from scripts.gpu.wire import Wire
from tests.real.front import Stack, running_stack
from tests.real.talk import Chained, Resending, Seen

QUESTIONS = (
    "Hi, who are you and what can you do?",
    "Name three fruits and say how each tastes.",
    "Write a short poem about the last one.",
    "What is 12 + 30? Show how you work it out.",
    "Tell me a joke about a programmer, please.",
    "Write a tiny Python function that adds two numbers.",
    "Summarise what we said in a list.",
    "Say goodbye in French and in German.",
)


@dataclass(frozen=True)
class Turn:
    """What one turn found in the cache, and what it could have found: `held` is P+N−1 of the turn before, paged."""

    prompt: int
    produced: int
    cached: int
    held: int
    extends: bool | None
    """Whether the prompt begins with every id of the turn before; None where the ids are not shown."""

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "produced": self.produced,
            "cached": self.cached,
            "held": self.held,
            **({} if self.extends is None else {"extends": self.extends}),
        }


@contextmanager
def front_over(context: Context, server: Server) -> Iterator[Stack]:
    model = context.host.model(server.spec.model)
    with tempfile.TemporaryDirectory(prefix="antiphon-proof-") as directory:
        Path(directory).chmod(0o700)
        with running_stack(server.url, model, Path(directory)) as stack:
            yield stack


@asynccontextmanager
async def client_of(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with stack.front.client() as client:
        yield client


def talk(client: openai.AsyncOpenAI, way: str, answer: int) -> Resending | Chained:
    if way == "resend":
        return Resending(client, {"temperature": 1.0, "max_tokens": answer})
    return Chained(client, {"temperature": 1.0, "max_output_tokens": answer})


def turns_of(seen: list[Seen], page: int) -> list[Turn]:
    before = [None, *seen[:-1]]
    return [_turn(earlier, turn, page) for earlier, turn in zip(before, seen, strict=True)]


def _turn(before: Seen | None, turn: Seen, page: int) -> Turn:
    held = floor(len(before.ids) - 1, page) if before else 0
    extends = turn.prompt_ids[: len(before.ids)] == before.ids if before else None
    return Turn(len(turn.prompt_ids), len(turn.output_ids), turn.cached_tokens, held, extends)


def floor(tokens: int, page: int) -> int:
    return tokens - tokens % page


async def straight(wire: Wire, questions: tuple[str, ...], answer: int, page: int) -> list[Turn]:
    """The same by SGLang's own chat endpoint, as a client that resends everything: text goes back, ids do not."""
    messages: list[dict[str, str]] = []
    turns: list[Turn] = []
    held = 0
    for question in questions:
        messages.append({"role": "user", "content": question})
        body = {"model": "proof", "messages": messages, "temperature": 1.0, "max_tokens": answer}
        reply = await wire.post("/v1/chat/completions", body)
        usage, text = reply["usage"], reply["choices"][0]["message"]["content"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        turns.append(Turn(usage["prompt_tokens"], usage["completion_tokens"], cached, held, None))
        held = floor(usage["prompt_tokens"] + usage["completion_tokens"] - 1, page)
        messages.append({"role": "assistant", "content": text})
    return turns


def turned(questions: tuple[str, ...], by: int) -> tuple[str, ...]:
    """Every dialogue begins with another question."""
    start = by % len(questions)
    return questions[start:] + questions[:start]


def summed(dialogues: list[list[Turn]]) -> dict[str, Any]:
    """First turns have nothing to find and do not count."""
    later = [turn for turns in dialogues for turn in turns[1:]]
    held, prompt = sum(turn.held for turn in later), sum(turn.prompt for turn in later)
    cached = sum(turn.cached for turn in later)
    shown = [turn.extends for turn in later if turn.extends is not None]
    return {
        "dialogues": len(dialogues),
        "later_turns": len(later),
        "extend_exactly": sum(shown) if shown else None,
        "found_everything_held": sum(turn.cached >= turn.held for turn in later),
        "held_tokens": held,
        "cached_tokens": cached,
        "prompt_tokens": prompt,
        "cached_of_held": round(sum(min(turn.cached, turn.held) for turn in later) / max(1, held), 4),
        "cached_of_prompt": round(cached / max(1, prompt), 4),
        "turns": [[turn.as_json() for turn in turns] for turns in dialogues],
    }


async def measure(context: Context) -> dict[str, Any]:
    """Dialogues at temperature 1, several at once; by resending, by `previous_response_id`, and past the front."""
    server, sizes = context.server, context.sizes
    page, questions = server.spec.page, QUESTIONS[: sizes.turns]
    result: dict[str, Any] = {"page_size": page, "temperature": 1.0, "answer_tokens": sizes.answer}

    async def dialogue(client: openai.AsyncOpenAI, way: str, number: int) -> list[Turn]:
        saying = talk(client, way, sizes.answer)
        return turns_of([await saying.say(question) for question in turned(questions, number)], page)

    async with Wire(server.url) as wire:
        with front_over(context, server) as stack:
            async with client_of(stack) as client:
                for way in ("resend", "previous_response_id"):
                    await wire.flush()
                    done = await asyncio.gather(*(dialogue(client, way, n) for n in range(sizes.dialogues)))
                    result[way] = summed(list(done))
        await wire.flush()
        orders = (turned(questions, number) for number in range(sizes.dialogues))
        alone = await asyncio.gather(*(straight(wire, order, sizes.answer, page) for order in orders))
        result["sglang_alone"] = summed(list(alone))
    return result


def real(page: int, **rest: Any) -> ServerSpec:
    return ServerSpec(f"real-page-{page}", "real", "triton", page, tokens=65536, gib=9, **rest)


def talks() -> list[Experiment]:
    measured = [
        Experiment(f"front-page-{page}", (real(page),), measure, needs_s=45, on_cpu=page == 64) for page in (1, 64)
    ]
    random_weights = ServerSpec("narrow-page-1", "narrow", "triton", 1, tokens=65536, gib=9, slow=True)
    return [*measured, Experiment("front-random-weights", (random_weights,), measure, needs_s=45)]
