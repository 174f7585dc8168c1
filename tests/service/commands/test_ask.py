"""`antiphon ask` and `antiphon compare` against a front and a worker."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from service.cli import app
from tests.conftest import Front
from tests.fake_engine.running import FakeEngine
from tests.service.talk import get
from tests.service.working import working
from tests.up_process import heed_interrupts

LEASE = "The lease begins on 1 March 2024. The rent is 1,250 euros\na month. Cats are allowed."
ANSWERS = {
    "What is the rent?": ("1,250 euros a month.", ["the rent is 1,250 euros a month"]),
    "Are dogs allowed?": (None, []),
}


@pytest.fixture
async def staffed(front: Front, engine: FakeEngine, store: str) -> AsyncIterator[Front]:
    """A front with a worker, over an engine that knows the lease."""
    tokenizer = front.services.sessions.model.tokenizer

    def reply(ids: array[int]) -> list[int] | None:
        text = _reply(tokenizer.decode(ids))
        return None if text is None else [*tokenizer.encode(text, after_control=True), 0]

    engine.script.reply = reply
    async with working(front, engine, store):
        yield front


def _reply(prompt: str) -> str | None:
    if "Notes on several documents" in prompt:
        return "Both name a rent."
    answer, quotes = ANSWERS.get(
        re.findall(r"not say\): (.*)", prompt)[0], ("The rent is named.", ["The rent is 1,250"])
    )
    return json.dumps({"answer": answer, "quotes": quotes})


async def run(front: Front | str, *arguments: str, stdin: bytes | None = None) -> Result:
    url = front if isinstance(front, str) else front.url
    runner = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200", "ANTIPHON_API_KEY": None})
    return await asyncio.to_thread(runner.invoke, app, [*arguments, "--url", url], input=stdin)


async def said(front: Front, *arguments: str, stdin: bytes | None = None) -> str:
    result = await run(front, *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def lease(tmp_path: Path) -> Path:
    path = tmp_path / "lease.txt"
    path.write_text(LEASE, encoding="utf-8")
    return path


async def test_answers_are_printed_with_where_they_stand(staffed: Front, lease: Path) -> None:
    answer = await said(staffed, "ask", str(lease), *ANSWERS)

    start = LEASE.index("The rent")
    assert answer.splitlines() == [
        "What is the rent?",
        "1,250 euros a month.",
        f"  lease.txt, characters {start}-{LEASE.index(' Cats') - 1}  “The rent is 1,250 euros a month”",
        "",
        "Are dogs allowed?",
        "Not to be found there.",
    ]


async def test_a_question_may_be_about_standard_input(staffed: Front) -> None:
    answer = await said(staffed, "ask", "-", "What is the rent?", stdin=LEASE.encode())

    assert answer.startswith("1,250 euros a month.\n  standard input, characters ")


async def test_as_json_the_job_is_printed(staffed: Front, lease: Path) -> None:
    job = json.loads(await said(staffed, "ask", str(lease), "What is the rent?", "--json"))

    assert (job["status"], job["program"]) == ("succeeded", "qa")
    assert job["output"]["answers"][0]["answer"] == "1,250 euros a month."


async def test_files_are_compared(staffed: Front, lease: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("The rent is 1,250 euros, too.", encoding="utf-8")

    answer = await said(staffed, "compare", str(lease), str(other), "--aspect", "rent")

    assert [line.rstrip() for line in answer.splitlines()] == [
        "Both name a rent.",
        "",
        "From:",
        "  lease.txt, characters 34-51  “The rent is 1,250”",
        "  other.txt, characters 0-17  “The rent is 1,250”",
    ]


async def test_what_is_no_file_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    for arguments, complaint in [
        (["ask", str(tmp_path / "leese.txt"), "What is the rent?"], "there is no file"),
        (["ask", "What is the rent?"], "there is no file"),
        (["ask", str(tmp_path)], "no question"),
        (["compare", str(tmp_path)], "two files or more"),
    ]:
        result = await run("http://127.0.0.1:9", *arguments)
        assert result.exit_code == 2
        assert complaint in " ".join(result.stderr.split())


async def test_a_stopped_service_is_answered_with_how_to_start_it(lease: Path) -> None:
    result = await run("http://127.0.0.1:9", "ask", str(lease), "What is the rent?")

    assert result.exit_code == 1
    assert "nothing answers at http://127.0.0.1:9; start a front with 'antiphon up'" in result.stderr


async def test_a_job_that_fails_says_why(staffed: Front, lease: Path) -> None:
    result = await run(staffed, "ask", str(lease), "What is the rent?", "--max-tokens", "3000")

    assert result.exit_code == 1
    assert re.fullmatch(r"antiphon: job_\w+ failed: .*too few to read a document in\n", result.stderr)


async def test_ctrl_c_cancels_the_job(front: Front, lease: Path) -> None:
    """There is no worker, so that the job is waiting when it is cancelled."""
    command = [sys.executable, "-m", "service.cli", "ask", str(lease), "What is the rent?", "--url", front.url]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, preexec_fn=heed_interrupts)
    async with asyncio.timeout(30):
        while not (jobs := (await get(front, "/v1/jobs")).json()["data"]):
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()

    assert (process.returncode, errors) == (130, b"antiphon: interrupted\n")
    assert (await get(front, f"/v1/jobs/{jobs[0]['id']}")).json()["status"] == "cancelled"
