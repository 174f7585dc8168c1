"""SGLang's frontend language, its own tests of it included, at a front and at the engine behind it."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from programs.tokenizer import Tokenizer
from service.settings import Settings
from tests.conftest import engine_options, running_front
from tests.fake_engine import FakeEngine
from tests.fake_engine.fleet import running_fleet
from tests.real.engines import BackgroundEngine
from tests.real.front import running_stack
from tests.real.ties import NEAR_TIE

SCRIPT = Path(__file__).parent / "sgl_transcript.py"
CLEAN = {"test_dtype_gen", "test_regex", "test_select", "test_spelled", "test_stream", "test_tree_search"}
"""Those that want no sense of a model: a random one passes them."""
RACY = "test_stream_logprobs"
"""Its program's thread writes what its reader reads: when the reader is late, a piece of logprobs is lost to it."""
_LIMIT_S = 400

Transcript = dict[str, dict[str, Any]]


async def transcript(python: Path, url: str, file: Path) -> Transcript:
    """What the programs were told at `url`."""
    process = await asyncio.create_subprocess_exec(
        *(str(python), str(SCRIPT), url, str(file)),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()[-2000:]
    told: Transcript = json.loads(file.read_text(encoding="utf-8"))
    return told


def words(told: Transcript) -> dict[str, Any]:
    """By test and prompt, what was answered, in an order of its own."""
    return {
        f"{name}: {prompt}": sorted(json.dumps(_plain(answer)) for answer in answers)
        for name, one in told.items()
        for prompt, answers in one["calls"].items()
    }


def outcomes(told: Transcript) -> dict[str, str]:
    return {name: one["outcome"] for name, one in told.items() if name != RACY}


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in ("gaps", "scores")}


def parted(bare: Transcript, ours: Transcript) -> list[str]:
    """Where answers to one prompt differ though the engine was sure of them: at a near tie either may be chosen."""
    found = []
    for name, one in bare.items():
        for prompt, answers in one["calls"].items():
            for first, second in zip(answers, ours[name]["calls"].get(prompt, ()), strict=False):
                if _plain(first) != _plain(second) and not _tied(first, second):
                    found.append(f"{name}: {prompt[-60:]!r}: {first} != {second}")
    return found


def _tied(first: dict[str, Any], second: dict[str, Any]) -> bool:
    if first.get("scores"):
        return bool(max(abs(a - b) for a, b in zip(first["scores"], second["scores"], strict=True)) < NEAR_TIE)
    pairs = enumerate(zip(first["ids"], second["ids"], strict=False))
    at = next((index for index, (one, other) in pairs if one != other), None)
    return at is not None and bool(first["gaps"][at] <= NEAR_TIE)


def flush(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{url}/flush_cache", method="POST"), timeout=30) as answer:
        assert answer.status == 200


@pytest.mark.timeout(900)
async def test_programs_are_told_the_same_by_a_front_and_by_its_engine(
    qwen3_engine: BackgroundEngine, qwen3_random_dir: Path, engine_python: Path, tmp_path: Path
) -> None:
    """Each side begins with an empty cache: what is cached changes how sums are rounded."""
    flush(qwen3_engine.url)
    bare = await transcript(engine_python, qwen3_engine.url, tmp_path / "bare.json")
    with running_stack(qwen3_engine.url, qwen3_random_dir, tmp_path) as stack:
        flush(qwen3_engine.url)
        ours = await transcript(engine_python, stack.front.url, tmp_path / "ours.json")
    assert parted(bare, ours) == []
    same = words(bare).keys() & words(ours).keys()
    assert len(same) > 0.8 * len(words(bare)), "they are not the same programs' prompts any more"
    assert {name for name, one in ours.items() if one["outcome"] == "passed"} >= CLEAN
    assert outcomes(ours) == outcomes(bare)


@asynccontextmanager
async def over_two(store: str, model_dir: Path) -> AsyncIterator[tuple[FakeEngine, str, list[FakeEngine]]]:
    """An engine, and the URL of a front over two others of the same model."""
    options = engine_options(model_dir, model_path=str(model_dir), context_length=16384)
    async with running_fleet(3, options) as (alone, *replicas):
        settings = Settings(engines=tuple(one.url for one in replicas), model_dir=model_dir, store_url=store)
        async with running_front(settings) as front:
            yield alone, front.url, replicas


@pytest.mark.timeout(600)
async def test_programs_over_several_replicas_are_told_what_one_would_tell_them(
    store: str, model_dir: Path, engine_python: Path, tmp_path: Path
) -> None:
    """To the letter: these engines are sure of every token, however they computed it. And most of what the programs'
    calls share is computed once, not on every replica.
    """
    async with over_two(store, model_dir) as (alone, front_url, replicas):
        bare, ours = await asyncio.gather(
            transcript(engine_python, alone.url, tmp_path / "bare.json"),
            transcript(engine_python, front_url, tmp_path / "ours.json"),
        )
        computed = [one.state.prefilled_tokens for one in replicas]
        assert min(computed) > 0
        assert sum(computed) < 1.5 * alone.state.prefilled_tokens, "on every replica it would be twice as much"
    assert words(ours) == words(bare)
    assert outcomes(ours) == outcomes(bare)
    assert sum(len(answers) for answers in words(ours).values()) > 40


TEXTS = [
    "Hi",
    "<|im_start|>user\nHi<|im_end|>",
    " caf\u00e9\u0301 \u65e5\u672c\u8a9e \U0001f600\n\n",
    "a  b\t<think>",
    "x" * 2000,
]


async def test_a_text_is_placed_by_the_ids_that_the_engine_makes_of_it(
    qwen3_engine: BackgroundEngine, qwen3_random_dir: Path
) -> None:
    """As `/generate` encodes it: with what the tokenizer puts around it, and control tokens read."""
    tokenizer = Tokenizer.load(qwen3_random_dir)
    async with httpx.AsyncClient(base_url=qwen3_engine.url, timeout=60) as http:
        for text in TEXTS:
            ids = (await http.post("/tokenize", json={"prompt": text})).json()["tokens"]
            assert tokenizer.encode_raw(text).tolist() == ids
            body = {"text": text, "sampling_params": {"max_new_tokens": 0}}
            assert (await http.post("/generate", json=body)).json()["meta_info"]["prompt_tokens"] == len(ids)
