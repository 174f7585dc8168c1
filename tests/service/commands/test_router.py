"""`antiphon router`: the fleet of a running front."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from router.registry.spec import ReplicaSpec
from router.registry.status import ReplicaStatus
from service.cli import app
from tests.fake_engine.running import FakeEngine
from tests.service.fleet import Operated, operated

GIVEN = ReplicaSpec("given", "http://10.0.0.1:30000")


async def run(front: Operated | str, *arguments: str) -> Result:
    url = front if isinstance(front, str) else front.url
    runner = CliRunner(env={"NO_COLOR": "1", "ANTIPHON_API_KEY": None})
    return await asyncio.to_thread(runner.invoke, app, ["router", *arguments, "--url", url])


async def said(front: Operated | str, *arguments: str) -> str:
    result = await run(front, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


async def refused(front: Operated | str, *arguments: str) -> str:
    result = await run(front, *arguments)
    assert result.exit_code == 1, result.output
    return result.stderr.strip()


@pytest.fixture
async def front(store: str, model_dir: Path) -> AsyncIterator[Operated]:
    async with operated(store, model_dir, [GIVEN]) as front:
        yield front


async def test_the_fleet_is_a_table(front: Operated) -> None:
    reason = "page size 64, the pool has 16"
    front.fleet.shown = [
        ReplicaStatus("given/0", "given", GIVEN.url, "stable", "ready", rank=0, in_flight=3, cached_tokens=4096),
        ReplicaStatus("given/1", "given", GIVEN.url, "stable", "kept_out", reason, rank=1),
    ]
    header, first, second = (await said(front, "replicas")).splitlines()
    assert header.split() == ["name", "version", "state", "in", "flight", "cached", "tokens", "from", "url", "why"]
    assert first.split() == ["given/0", "stable", "ready", "3", "4096", "settings", GIVEN.url]
    assert second.split(maxsplit=8) == ["given/1", "stable", "kept", "out", "0", "–", "settings", GIVEN.url, reason]
    listed = json.loads(await said(front, "replicas", "--json"))
    assert [one["name"] for one in listed["data"]] == ["given/0", "given/1"]


async def test_a_servers_life(front: Operated) -> None:
    added = await said(front, "add", "new=http://127.0.0.1:1", "--version", "canary", "--force")
    assert added == "new is in the fleet: version canary, starting"
    assert await said(front, "drain", "new") == "new drains: 0 in flight"
    assert await said(front, "undrain", "new") == "new takes load again"
    assert await said(front, "remove", "new") == "new gets nothing new, and is gone in 30 s"
    assert re.search(r"draining .* gone in [23]\d s; has not been asked yet", await said(front, "replicas"))
    assert await said(front, "remove", "new", "--drain", "0") == "new gets nothing new, and is gone in 0 s"
    assert set(await front.rows()) == {"given"}


async def test_a_rollout_and_back(front: Operated) -> None:
    assert await said(front, "rollout") == "new sessions: stable 100 %"
    await said(front, "add", "new=http://127.0.0.1:1", "--version", "canary", "--force")
    told = await said(front, "rollout", "stable=95", "canary=5")
    assert told.splitlines() == ["new sessions: stable 95 %, canary 5 %", "a rollback returns to: stable 100 %"]
    assert (await said(front, "rollback")).splitlines() == ["new sessions: stable 100 %", "withdrawn: canary"]
    assert json.loads(await said(front, "rollout", "--json"))["weights"] == {"stable": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "nonsense"), "'nonsense' is not the URL of an SGLang server"),
        (("add", "http://127.0.0.1:1"), "add it all the same with force"),
        (("remove", "given"), "given comes from settings; take it out there, or drain it here"),
        (("drain", "nobody"), "there is no replica nobody"),
        (("undrain", "a name/of any? kind"), "there is no replica a name/of any? kind"),
        (("rollout", "stable"), "'stable' is not VERSION=WEIGHT"),
        (("rollout", "stable=0.5"), "'stable=0.5' is not VERSION=WEIGHT"),
        (("rollout", "stable=1", "stable=2"), "'stable=2' is not VERSION=WEIGHT"),
        (("rollout", "canary=1"), "no replica serves version canary"),
        (("rollback",), "nothing to roll back to"),
    ],
)
async def test_what_is_refused_says_why_in_one_line(front: Operated, arguments: tuple[str, ...], message: str) -> None:
    told = await refused(front, *arguments)
    assert told.startswith("antiphon: ")
    assert message in told
    assert "\n" not in told


async def test_a_front_that_does_not_answer(engine: FakeEngine) -> None:
    told = await refused("http://127.0.0.1:1", "replicas")
    assert told == (
        "antiphon: nothing answers at http://127.0.0.1:1; start a front with 'antiphon up', "
        "or say with --url where one is"
    )
    assert "is not the URL of a front" in await refused("nonsense", "replicas")
    assert "answers 404, but not as a front of ours does" in await refused(engine.url, "replicas")
