from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from router.checks.engine import EngineFacts, check_engine, read_engine
from router.engine.client import ServerInfo
from router.model.directory import ModelDirectory
from tests.fake_engine.running import FakeEngine
from tests.router.checks.given import the_trouble, worst

URL = "http://gpu1:30000"
INFO = ServerInfo(
    version="0.5.23",
    model_path="/models/tiny",
    served_model_name="tiny",
    context_length=4096,
    max_prompt_tokens=4095,
    page_size=16,
    max_total_tokens=65536,
    tool_call_parser=None,
)


def test_one_that_fits(model_dir: Path) -> None:
    assert worst(check_engine(EngineFacts(URL, INFO), ModelDirectory.read(model_dir))) == "ok"
    assert worst(check_engine(EngineFacts(URL, replace(INFO, model_path="/other")), None)) == "ok"


@pytest.mark.parametrize(
    ("info", "what"),
    [
        (replace(INFO, version="0.5.30"), "SGLang 0.5.30 is newer than what was tried (0.5.17 to 0.5.23)"),
        (replace(INFO, model_path="/models/other"), "it serves /models/other, prompts are built for "),
        (replace(INFO, context_length=8192), "its context is 8192 tokens, the model's 4096"),
    ],
)
def test_one_to_be_wary_of(model_dir: Path, info: ServerInfo, what: str) -> None:
    trouble = the_trouble(check_engine(EngineFacts(URL, info), ModelDirectory.read(model_dir)))
    assert (trouble.check, trouble.status) == (f"engine {URL}", "warning")
    assert trouble.what.startswith(what)


async def test_one_that_is_not_there() -> None:
    trouble = the_trouble(check_engine(await read_engine("http://127.0.0.1:1"), None))
    assert trouble.status == "error"
    assert trouble.what.startswith("http://127.0.0.1:1: cannot reach the engine")
    assert trouble.fix == "curl http://127.0.0.1:1/server_info"


async def test_one_that_answers(engine: FakeEngine) -> None:
    facts = await read_engine(engine.url)
    assert facts.info is not None
    assert facts.info.context_length == 4096
    assert worst(check_engine(facts, None)) == "ok"
