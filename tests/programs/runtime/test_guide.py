"""The program in docs/programs.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from programs.runtime.run import run_program
from service.serving_profile import load_serving_profile
from tests.conftest import PAGE
from tests.fake_engine.running import FakeEngine
from tests.programs.runtime.given import Stage

GUIDE = Path(__file__).parents[3] / "docs" / "programs.md"
TOPICS = ["price", "delivery", "warranty", "jurisdiction"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


async def test_the_example_runs_as_it_stands(tmp_path: Path, stage: Stage, engine: FakeEngine) -> None:
    code, profile = blocks("python")[0], blocks("yaml")[0]
    assert len([line for line in code.splitlines() if line]) <= 20
    (tmp_path / "contracts.py").write_text(code, encoding="utf-8")
    (tmp_path / "contracts.yaml").write_text(profile, encoding="utf-8")
    program = load_serving_profile(str(tmp_path / "contracts.yaml")).load_programs()[-1]
    assert program.description == "What a contract says on each topic, and how risky that is."
    result = await run_program(
        program,
        {"document": stage.shelf.ids[0], "topics": TOPICS, "max_tokens": 8},
        model=stage.model,
        engine=stage.engine,
        documents=stage.shelf,
        steps=stage.steps,
    )
    assert [clause["topic"] for clause in result.output] == TOPICS
    assert all(clause["says"] and clause["risk"] in ("low", "medium", "high") for clause in result.output)
    assert result.provenance.steps == 1 + 2 * len(TOPICS)
    document = max(len(one.prompt) // 4 for one in engine.state.finished if one.cached_tokens == 0)
    assert all(one.cached_tokens >= document // PAGE * PAGE for one in list(engine.state.finished)[1:])
