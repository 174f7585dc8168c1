from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.difference import Difference, first_difference
from programs.message import Message, Role, ToolCall, canonical

CHAT = [
    Message("system", "You are kind."),
    Message("user", "How far is the moon from here, roughly, in kilometres?"),
    Message("assistant", "About 384,400 km.", reasoning="Mean distance."),
    Message("user", "And the sun?"),
]


def calling(*arguments: str, name: str = "weather") -> list[Message]:
    return [Message("assistant", tool_calls=tuple(ToolCall("call_1", name, one) for one in arguments))]


def changed(index: int, **fields: Any) -> list[Message]:
    return [replace(one, **fields) if number == index else one for number, one in enumerate(CHAT)]


def test_the_same_history_has_no_difference() -> None:
    mangled = [
        Message("system", " You are kind.\r\n"),
        *CHAT[1:2],
        Message("assistant", "About 384,400 km.\n"),
        *CHAT[3:],
    ]
    assert first_difference(CHAT, CHAT) is None
    assert first_difference(CHAT, mangled) is None
    assert first_difference(CHAT[:2], mangled) is None
    assert first_difference(calling('{"a": 1.50, "b": "é"}'), calling('{"b":"\\u00e9","a":1.5}')) is None


def test_one_digit_is_shown_with_what_is_around_it() -> None:
    assert first_difference(CHAT, changed(2, content="About 384,500 km.")) == Difference(
        2, "assistant", "content", '"About 384,400 km." → "About 384,500 km."'
    )
    assert first_difference(CHAT, changed(1, content=CHAT[1].content.replace("roughly", "exactly"))) == Difference(
        1,
        "user",
        "content",
        '"…the moon from here, roughly, in kilometr…" → "…the moon from here, exactly, in kilometr…"',
    )


@pytest.mark.parametrize(
    ("fields", "field", "diff"),
    [
        ({"role": "developer"}, "role", "system → developer"),
        ({"name": "Ann"}, "name", '"" → "Ann"'),
        ({"content": "You are kind.\n\tAlways."}, "content", '"You are kind." → "You are kind.\\n\\tAlways."'),
        ({"content": ""}, "content", '"You are kind." → ""'),
    ],
)
def test_what_changed_is_named(fields: dict[str, str], field: str, diff: str) -> None:
    found = first_difference(CHAT, changed(0, **fields))
    assert found is not None
    assert (found.message_index, found.role, found.field, found.diff) == (0, "system", field, diff)


@pytest.mark.parametrize(
    ("old", "new", "diff"),
    [
        (['{"day": 1}'], ['{"day":2}'], '"weather({"day": 1})" → "weather({"day": 2})"'),
        (["{}"], ["{}", "{}"], "1 calls → 2 calls"),
        (["not json"], ["no json"], '"weather(not json)" → "weather(no json)"'),
        (["1.00000000000000000001"], ["1"], '"weather(1.0)" → "weather(1)"'),
        (
            ['{"n": 1.00000000000000000001}'],
            ['{"n": 1.00000000000000000002}'],
            '"….00000000000000000001}" → "….00000000000000000002}"',
        ),
    ],
)
def test_a_call_is_shown_in_one_spelling(old: list[str], new: list[str], diff: str) -> None:
    found = first_difference(calling(*old), calling(*new))
    assert found is not None
    assert (found.field, found.diff.replace('\\"', '"')) == ("tool_calls", diff)


def test_messages_left_out_in_front_are_counted() -> None:
    found = first_difference(CHAT, [CHAT[0], CHAT[3], Message("assistant", "Far.")])
    assert found == Difference(
        1, "user", "removed", '2 messages no longer there, first (user): "How far is the moon from here, roughly, …"'
    )


def test_a_history_that_ends_early_has_lost_its_end() -> None:
    assert first_difference(CHAT, CHAT[:3]) == Difference(
        3, "user", "removed", '1 message no longer there, first (user): "And the sun?"'
    )


def test_messages_put_in_are_counted() -> None:
    found = first_difference(CHAT, [CHAT[0], Message("user", "Context: none"), *CHAT[1:]])
    assert found == Difference(1, "user", "inserted", '1 message new, first (user): "Context: none"')


ROLES: st.SearchStrategy[Role] = st.sampled_from(["user", "assistant"])
CALLS = st.lists(st.builds(ToolCall, st.just("id"), st.text(max_size=3), st.text(max_size=50)), max_size=2).map(tuple)
MESSAGES = st.lists(
    st.builds(Message, ROLES, st.text(max_size=60), name=st.none() | st.text(max_size=50), tool_calls=CALLS), max_size=4
)


@given(MESSAGES, MESSAGES)
def test_a_difference_is_told_exactly_where_meanings_part(ledger: list[Message], sent: list[Message]) -> None:
    found = first_difference(ledger, sent)
    same = [canonical(old) == canonical(new) for old, new in zip(ledger, sent, strict=False)]
    if found is None:
        assert all(same)
        assert len(sent) >= len(ledger)
    else:
        assert same[: found.message_index] == [True] * found.message_index
        assert found.message_index == len(sent) or not same[found.message_index]
        assert found.role == ledger[found.message_index].role
        assert 0 < len(found.diff) <= 120
        assert found.diff.isprintable()
