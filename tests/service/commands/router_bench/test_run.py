"""Whole comparisons over fake replicas, small enough for a test."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from programs.workloads.mixes import Texts
from service.commands.router_bench.contenders import CONTENDERS, Contender, ContenderError
from service.commands.router_bench.report import table_of, warnings
from service.commands.router_bench.run import RouterPlan, RouterResult, Watch, run
from tests.fake_engine import FakeEngineOptions
from tests.fake_engine.fleet import running_fleet
from tests.model_files import agent_model_dir

TEXTS = Texts(
    ("be kind to whoever asks " * 20,) * 2, ("hello there, how are you today my friend?",) * 3, "the fox " * 900
)
SILENT = Watch(lambda *_: None, lambda: None, lambda *_: None)


async def compared(model: Path, contenders: tuple[Contender, ...], **changes: Any) -> RouterResult:
    options = FakeEngineOptions(
        tokenizer=model,
        model_path=model.name,
        eos_token_id=0,
        context_length=4096,
        writes="agent",
        reasoning_parser="qwen3",
        tool_call_parser="qwen25",
    )
    async with running_fleet(2, options) as fleet:
        chosen: dict[str, Any] = {"workloads": ("thinking",), "smg": "smg", "load": 20.0, "seconds": 1.0} | changes
        engines = tuple(engine.url for engine in fleet)
        plan = RouterPlan(engines=engines, model=model, contenders=contenders, seed=1, **chosen)
        return await run(plan, TEXTS, SILENT)


@pytest.mark.slow
async def test_contenders_are_measured_alike(tmp_path: Path) -> None:
    result = await compared(agent_model_dir(tmp_path / "agent"), (CONTENDERS["antiphon"], CONTENDERS["round-robin"]))
    ours, plain = result.rounds
    assert (ours.contender, plain.contender) == ("antiphon", "round-robin")
    assert ours.errors == plain.errors == ()
    assert ours.all.requests == plain.all.requests > 3
    assert ours.all.prompt_tokens - ours.all.cached_tokens <= sum(ours.prefilled)
    assert plain.all.prompt_tokens - plain.all.cached_tokens == sum(plain.prefilled)
    assert ours.all.cached_ratio > plain.all.cached_ratio > 0

    written = json.loads(json.dumps(result.as_json()))
    assert written["rounds"][1]["figures"]["all"]["requests"] == plain.all.requests
    assert written["plan"]["contenders"] == ["antiphon", "round-robin"]
    console = Console(width=160, record=True, file=StringIO())
    console.print(table_of("thinking", result.of("thinking")))
    shown = [line.split() for line in console.export_text().splitlines()]
    assert [row[0] for row in shown if len(row) > 9 and row[0] != "cached"] == ["antiphon", "round-robin"]
    assert not [line for line in warnings(result, cores=64) if "busy" in line]


async def test_a_front_that_dies_is_quoted(model_dir: Path, tmp_path: Path) -> None:
    smg = tmp_path / "smg"
    smg.write_text(f"#!{sys.executable}\nprint('port taken')\nraise SystemExit(3)\n", encoding="utf-8")
    smg.chmod(0o755)
    with pytest.raises(ContenderError, match=r"smg: exited with code 3\n  port taken"):
        await compared(model_dir, (CONTENDERS["smg"],), smg=str(smg))
