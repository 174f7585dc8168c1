"""Which servers may be one pool."""

from __future__ import annotations

from dataclasses import replace

import aiohttp
import pytest

from programs.tokenizer import Tokenizer
from programs.tokenizer_probe import tokenizer_probe
from router.engine.client import EngineClient, ServerInfo
from router.registry.agreement import NOT_CHECKED, PoolFacts, TokenizerProbe, agreed, kept_out
from router.registry.inspection import Inspection, inspect
from tests.conftest import engine_options
from tests.fake_engine import EngineVersion, FakeEngineOptions, running_fake_engine
from tests.model_files import tiny_model_dir

INFO = ServerInfo("0.5.23", "/models/qwen3-8b", "qwen3-8b", 32768, 32762, 16, 65536, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"max_total_tokens": 1, "dp_size": 4, "weight_version": "2", "tool_call_parser": "qwen25"}, None),
        ({"served_model_name": "Qwen/qwen3-8b", "model_path": "Qwen/qwen3-8b"}, None),
        ({"served_model_name": "/elsewhere/qwen3-8b"}, None),
        ({"page_size": 64}, "page size 64, the pool has 16"),
        ({"context_length": 4096}, "context length 4096, the pool has 32768"),
        ({"version": "0.5.17"}, "SGLang 0.5.17, the pool has 0.5.23"),
        ({"served_model_name": "llama"}, "model llama, the pool has qwen3-8b"),
        (
            {"served_model_name": "llama", "page_size": 1},
            "model llama, the pool has qwen3-8b; page size 1, the pool has 16",
        ),
    ],
)
def test_a_server_that_differs_is_kept_out_and_told_why(change: dict[str, object], reason: str | None) -> None:
    assert kept_out(replace(INFO, **change), PoolFacts.of(INFO)) == reason  # type: ignore[arg-type]


def test_the_first_server_of_a_pool_agrees_with_itself() -> None:
    assert kept_out(INFO, None) is None
    assert agreed({}) is None


def test_most_servers_say_what_a_pool_is_and_names_decide_between_equals() -> None:
    other = replace(INFO, page_size=64)
    assert agreed({"a": other, "b": INFO, "c": INFO}) == PoolFacts.of(INFO)
    assert agreed({"b": INFO, "a": other}) == PoolFacts.of(other)
    assert agreed({"a": other, "b": INFO}) == PoolFacts.of(other)


@pytest.mark.parametrize(
    ("answered", "trouble"),
    [
        ([5, 6, 7], None),
        ([5, 9, 7], "another tokenizer: token 1 of the probe is 9, ours is 6"),
        ([5, 6], "another tokenizer: the probe has 2 tokens, ours 3"),
        ([], "another tokenizer: the probe has 0 tokens, ours 3"),
    ],
)
def test_a_tokenizer_is_known_by_what_it_does(answered: list[int], trouble: str | None) -> None:
    assert TokenizerProbe("x", (5, 6, 7)).trouble(answered) == trouble


def test_a_tokenizer_counts_before_the_pool_does() -> None:
    wrong = Inspection(INFO, "another tokenizer: …")
    assert wrong.trouble(None) == "another tokenizer: …"
    for fine in ("", NOT_CHECKED):
        assert Inspection(INFO, fine).trouble(None) is None
        assert (
            Inspection(INFO, fine).trouble(replace(PoolFacts.of(INFO), page_size=1)) == "page size 16, the pool has 1"
        )


async def inspected(options: FakeEngineOptions, probe: TokenizerProbe | None) -> Inspection:
    async with running_fake_engine(options) as engine, aiohttp.ClientSession() as session:
        return await inspect(EngineClient("a", engine.url, session), probe)


@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
async def test_a_server_is_asked_what_it_is(version: EngineVersion, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = tiny_model_dir(tmp_path_factory.mktemp("m") / "tiny")
    probe = tokenizer_probe(Tokenizer.load(model))
    ours = engine_options(model, version=version, model_path="org/tiny", max_running_requests=7)
    seen = await inspected(ours, probe)
    assert seen.tokenizer == ""
    assert PoolFacts.of(seen.info) == PoolFacts("tiny", 4096, 4, version)
    assert (seen.info.dp_size, seen.info.weight_version, seen.info.kv_events_config) == (1, "default", None)
    assert (seen.info.max_running_requests, seen.info.chunked_prefill_size, seen.info.tokenizes) == (7, 8192, True)
    other = await inspected(ours, TokenizerProbe(probe.text, (*probe.ids[:-1], 0)))
    assert other.tokenizer.startswith(f"another tokenizer: token {len(probe.ids) - 1} ")


async def test_a_server_without_a_tokenizer_is_not_checked() -> None:
    probe = TokenizerProbe("x", (1,))
    seen = await inspected(FakeEngineOptions(), probe)
    assert (seen.tokenizer, seen.info.tokenizes) == (NOT_CHECKED, False)
    assert (await inspected(FakeEngineOptions(), None)).tokenizer == NOT_CHECKED
