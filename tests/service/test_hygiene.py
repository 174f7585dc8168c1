"""Volatile lines and unordered tools, as clients send them, and what a front makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.errors import HygieneFileError
from service.hygiene_file import hygiene_rules
from service.settings import Settings
from tests.conftest import Front, front_on, running_front
from tests.fake_engine.running import FakeEngine
from tests.model_files import CHATML, tiny_model_dir
from tests.service.talk import ask, assistant, client_of, prompt_of, respond, reusable, seen_by, user


def system(time: str, nonce: str = "1") -> dict[str, Any]:
    return {
        "role": "system",
        "content": f"x-anthropic-billing-header: cch={nonce}\nYou are brief.\nCurrent time: 2026-11-30 {time}",
    }


def text_of(front: Front, ids: list[int]) -> str:
    return front.services.sessions.model.tokenizer.decode(ids, skip_special_tokens=False)


async def test_a_clock_in_the_system_prompt_is_pinned_to_the_sessions_first_value(front: Front) -> None:
    async with client_of(front) as client:
        first = await ask(client, [system("10:00"), user("hello")])
        second = await ask(client, [system("10:05", "2"), user("hello"), assistant(first), user("more")])
    assert second.antiphon["session_id"] == first.antiphon["session_id"]
    assert prompt_of(second)[: len(seen_by(first))] == seen_by(first)
    assert second.antiphon["cached_tokens"] >= reusable(seen_by(first))
    assert [(one["rule"], one["message_index"], one["after"]) for one in second.antiphon["changes"]] == [
        ("billing-nonce", 0, None),
        ("current-time", 0, "2026-11-30 10:00"),
    ]
    assert "10:05" not in text_of(front, prompt_of(second))
    assert "billing" not in text_of(front, prompt_of(first))


async def test_a_new_conversation_begins_with_the_time_it_was_sent(front: Front) -> None:
    async with client_of(front) as client:
        await ask(client, [system("10:00"), user("hello")])
        later = await ask(client, [system("11:00"), user("hello")])
    assert "11:00" in text_of(front, prompt_of(later))
    assert [one["rule"] for one in later.antiphon["changes"]] == ["billing-nonce"]


async def test_instructions_that_tell_the_time_are_pinned_too(front: Front) -> None:
    async with client_of(front) as client:
        first = await respond(client, "hello", instructions=system("10:00")["content"])
        told = {"instructions": system("10:05")["content"], "previous_response_id": first.id}
        second = await respond(client, "more", **told)
        third = await respond(client, "more", **{**told, "previous_response_id": second.id})
    for last, answer in ((first, second), (second, third)):
        assert prompt_of(answer)[: len(seen_by(last))] == seen_by(last)
        assert answer.antiphon["miss_reason"] is None
    assert second.antiphon["changes"][-1]["after"] == "2026-11-30 10:00"


async def test_the_time_that_a_user_tells_is_left_alone(front: Front) -> None:
    async with client_of(front) as client:
        answer = await ask(client, [user("Current time: 2026-11-30 10:00")])
    assert "10:00" in text_of(front, prompt_of(answer))
    assert answer.antiphon["changes"] == []


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


async def test_tools_in_another_order_are_the_same_tools(store: str, tmp_path: Path) -> None:
    directory = tiny_model_dir(tmp_path / "tiny", "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML)
    town, day = {"type": "string"}, {"type": "number"}
    tools = [tool("look", town=town, day=day), tool("go", town=town)]
    again = [tool("go", town=town), tool("look", day=day, town=town)]
    async with front_on({}, store, directory) as (front, _), client_of(front) as client:
        first = await ask(client, "hello", tools=tools, tool_choice="none")
        resent = [user("hello"), assistant(first), user("more")]
        second = await ask(client, resent, tools=again, tool_choice="none")
    assert prompt_of(second)[: len(seen_by(first))] == seen_by(first)
    assert second.antiphon["miss_reason"] is None
    assert first.antiphon["changes"] == [
        {"rule": "tool-order", "message_index": None, "before": "look, go", "after": "go, look"}
    ]
    assert second.antiphon["changes"] == []


async def test_an_operator_adds_rules_or_turns_them_off(engine: FakeEngine, store: str, tmp_path: Path) -> None:
    model_dir = tiny_model_dir(tmp_path / "tiny")
    file = tmp_path / "rules.yaml"
    file.write_text("rules:\n- {name: build, pattern: 'build (?P<value>\\d+)$', action: pin}\n")
    resent: list[Any] = []
    for hygiene, time in ((str(file), "10:00"), ("off", "10:05")):
        settings = Settings(engines=(engine.url,), model_dir=model_dir, store_url=store, hygiene=hygiene)
        async with running_front(settings) as front, client_of(front) as client:
            first = await ask(client, [system("10:00"), {"role": "system", "content": "build 7"}, user("hello")])
            head = [system(time), {"role": "system", "content": "build 8"}]
            second = await ask(client, [*head, user("hello"), assistant(first), user("more")])
            resent.append([one["rule"] for one in second.antiphon["changes"]])
            assert ("build 8" in text_of(front, prompt_of(second))) == (hygiene == "off")
    assert resent == [["billing-nonce", "build"], []]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("rules: [{name: a, pattern: '(', action: pin}]", "rule 'a': not a regular expression"),
        ("rules: [{name: a, pattern: b, action: pin}]", r"name it in the pattern: \(\?P<value>"),
        ("rules: [{name: a, pattern: b, action: burn}]", r"rules.0.action: Input should be 'pin' or 'remove'"),
        ("rules: [{name: a, pattern: '(b+)+', action: remove}]", "bound it"),
        ("rule: []", "rule: Extra inputs are not permitted"),
        ("rules: [", "rules.yaml: while parsing"),
    ],
)
def test_a_file_of_rules_that_cannot_be_used_says_why(tmp_path: Path, written: str, why: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(written)
    with pytest.raises(HygieneFileError, match=why):
        hygiene_rules(str(file))


def test_a_file_of_rules_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HygieneFileError, match=r"nowhere\.yaml cannot be read: No such file"):
        hygiene_rules(str(tmp_path / "nowhere.yaml"))
