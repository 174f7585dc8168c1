"""Why a session's turns went where they did."""

from __future__ import annotations

import asyncio

from typer.testing import CliRunner

from service.cli import app
from tests.conftest import Front
from tests.service.talk import ask, assistant, client_of, get, user


async def two_turns(front: Front) -> str:
    async with client_of(front) as client:
        first = await ask(client, "hello")
        await ask(client, [user("hello"), assistant(first), user("more")])
        return str(first.antiphon["session_id"])


async def test_a_sessions_placements_are_told_newest_first(front: Front) -> None:
    session = await two_turns(front)
    second, first = (await get(front, f"/admin/placements?session={session}")).json()["data"]
    assert (first["reason"], first["home"], first["cached_tokens"]) == ("balance", None, 0)
    assert (second["reason"], second["home"], second["replica"]) == ("home", "replica-0", "replica-0")
    assert second["prompt_tokens"] > second["cached_tokens"] > first["prompt_tokens"] - 4
    assert set(second["costs"]) == {"replica-0"}
    assert (second["version"], second["lane"]) == ("stable", "chat")


async def test_a_session_that_is_not_known_is_an_error_that_says_where_to_look(front: Front) -> None:
    answer = await get(front, "/admin/placements?session=nobody")
    assert answer.status_code == 404
    assert "antiphon.session_id" in answer.json()["error"]["message"]


async def test_the_command_says_it_in_words(front: Front) -> None:
    session = await two_turns(front)
    ran = await asyncio.to_thread(CliRunner().invoke, app, ["router", "explain", session, "--url", front.url])
    assert ran.exit_code == 0, ran.output
    assert "at home: the replica that had the turn before" in ran.output
    assert "where the first token was to be expected soonest" in ran.output
    lost = await asyncio.to_thread(CliRunner().invoke, app, ["router", "explain", "nobody", "--url", front.url])
    assert lost.exit_code == 1
    assert "remembers no placement of session 'nobody'" in lost.output
