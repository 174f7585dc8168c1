"""N-gram speculation on a real model: how much is accepted, what it gains, and whether the answers stay the same."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Any

from tokenizers import Tokenizer

from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.load import random_ids
from scripts.gpu.server import ServerSpec
from scripts.gpu.wire import Generated, Wire

_CODE = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        self.balance = self.balance - amount
        return self.balance
"""
_TEXT = (
    "The lighthouse stands on a narrow spit of rock at the mouth of the bay. It was built in 1874 from granite that "
    "was brought by barge, and for a hundred years a keeper lit its lamp every evening. Today the lamp is electric, "
    "the keeper's house is a museum, and the spit can be reached on foot at low tide."
)
PROMPTS = {
    "copying": (
        f"Repeat this text word for word:\n\n{_TEXT}",
        f"Repeat this program exactly as it is:\n\n{_CODE}",
        f"Write this program again and rename the class to Wallet:\n\n{_CODE}",
        f"Make a list with one line for each sentence of this text:\n\n{_TEXT}",
    ),
    "writing": (
        "Tell a short story about a fox who learns to swim.",
        "Explain to a child why the sky is blue.",
        "What should one look for when buying a used bicycle?",
        "Describe a day in a small harbour town.",
    ),
}
_TOKENS = 256


async def measure(context: Context) -> dict[str, Any]:
    """The same prompts to both servers, greedily: one at a time, again, and all at once."""
    plain, guessing = context.servers
    tokenizer = Tokenizer.from_file(str(context.host.model("real") / "tokenizer.json"))
    result: dict[str, Any] = {}
    dice = random.Random(14)  # what warms up teaches the corpus nothing
    for kind, prompts in PROMPTS.items():
        ids = [_encoded(tokenizer, prompt) for prompt in prompts]
        async with Wire(plain.url) as without, Wire(guessing.url) as speculating:
            for wire in (without, speculating):
                await _each(wire, [random_ids(dice, length) for length in (80, 160)])
                await _together(wire, [random_ids(dice, 80) for _ in prompts])
            sides = {
                "alone": (await _each(without, ids), await _each(speculating, ids)),
                "again": (await _each(without, ids), await _each(speculating, ids)),
                "at_once": (await _together(without, ids), await _together(speculating, ids)),
            }
        result[kind] = {name: _compared(*pair) for name, pair in sides.items()}
    return result


def _encoded(tokenizer: Tokenizer, prompt: str) -> list[int]:
    chat = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    return list(tokenizer.encode(chat, add_special_tokens=False).ids)


_Timed = tuple[list[Generated], float]


async def _each(wire: Wire, prompts: list[list[int]]) -> _Timed:
    started = time.perf_counter()
    done = [await wire.generate(ids, _TOKENS, ignore_eos=False) for ids in prompts]
    return done, time.perf_counter() - started


async def _together(wire: Wire, prompts: list[list[int]]) -> _Timed:
    started = time.perf_counter()
    done = await asyncio.gather(*(wire.generate(ids, _TOKENS, ignore_eos=False) for ids in prompts))
    return list(done), time.perf_counter() - started


def _compared(plain: _Timed, guessing: _Timed) -> dict[str, Any]:
    rates = [sum(one.produced for one in done) / seconds for done, seconds in (plain, guessing)]
    lengths = [float(one.meta["spec_accept_length"]) for one in guessing[0] if "spec_accept_length" in one.meta]
    return {
        "requests": len(plain[0]),
        "plain_tokens_per_s": round(rates[0], 1),
        "speculating_tokens_per_s": round(rates[1], 1),
        "speed_up": round(rates[1] / rates[0], 3),
        "accept_length": round(statistics.mean(lengths), 2) if lengths else None,
        "equal_outputs": sum(one.ids == other.ids for one, other in zip(plain[0], guessing[0], strict=True)),
        "output_tokens": [sum(one.produced for one in done) for done, _ in (plain, guessing)],
        "agree_up_to": [_agreement(one.ids, other.ids) for one, other in zip(plain[0], guessing[0], strict=True)],
    }


def _agreement(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def speculation() -> list[Experiment]:
    plain = ServerSpec("plain", "real", "triton", 1, tokens=65536, gib=9)
    guessing = ServerSpec("ngram", "real", "triton", 1, tokens=65536, gib=9, extra=("--speculative-algorithm", "NGRAM"))
    return [Experiment("ngram", (plain, guessing), measure, needs_s=60)]
