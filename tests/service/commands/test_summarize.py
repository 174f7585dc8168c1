"""`antiphon summarize` against a front and a worker."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Front
from tests.fake_engine.running import FakeEngine
from tests.service.commands.test_ask import run, said
from tests.service.working import working


async def test_a_summary_is_printed_and_a_job_as_json(
    front: Front, engine: FakeEngine, store: str, tmp_path: Path
) -> None:
    tokenizer = front.services.sessions.model.tokenizer
    prompts: list[str] = []

    def reply(ids: object) -> list[int]:
        prompts.append(tokenizer.decode(list(ids)))  # type: ignore[call-overload]
        return [*tokenizer.encode(f"Summary {len(prompts)}.", after_control=True), 0]

    engine.script.reply = reply
    report = tmp_path / "report.md"
    report.write_text("# Rent\n\n" + "The rent is high. " * 40, encoding="utf-8")
    async with working(front, engine, store):
        assert await said(front, "summarize", str(report), "--focus", "money") == "Summary 1.\n"
        assert "What matters most: money." in prompts[0]
        options = ("--method", "refine", "--chunk-tokens", "100", "--max-tokens", "30", "--json")
        job = json.loads(await said(front, "summarize", str(report), *options))
        assert job["output"] == {"summary": f"Summary {len(prompts)}.", "chunks": len(prompts) - 1, "levels": 0}
        assert job["progress"]["done"] == job["output"]["chunks"] > 3
        refused = await run(front, "summarize", str(report), "--chunk-tokens", "20", "--focus", "all of it " * 5_000)
        assert refused.exit_code == 1
        assert "tokens for a part of the document" in refused.stderr
