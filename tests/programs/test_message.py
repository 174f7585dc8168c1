"""The canonical form of messages, and the chain by which a resent history is found again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.message import Message, ToolCall, canonical, chain, chain_seed, in_call_order

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
MESSAGES = st.lists(st.builds(Message, role=ROLES, content=st.text(max_size=5)), max_size=5)


def calling(arguments: str, name: str = "look", call_id: str = "call_1") -> Message:
    return Message("assistant", tool_calls=(ToolCall(call_id, name, arguments),))


@pytest.mark.parametrize(
    "again",
    [
        Message("assistant", " one\r\ntwo\n"),
        Message("assistant", "one\rtwo"),
        Message("assistant", "one\ntwo", reasoning="because"),
        Message("assistant", "one\ntwo", tool_call_id="call_1"),
    ],
)
def test_what_clients_change_on_the_way_does_not_count(again: Message) -> None:
    assert canonical(again) == canonical(Message("assistant", "one\ntwo"))


@pytest.mark.parametrize(
    "other",
    [
        Message("user", "one\ntwo"),
        Message("assistant", "one two"),
        Message("assistant", "one\n\ntwo"),
        Message("assistant", "One\ntwo"),
        Message("assistant", "one\ntwo", name="bob"),
        replace(calling("{}"), content="one\ntwo"),
    ],
)
def test_what_was_said_counts(other: Message) -> None:
    assert canonical(other) != canonical(Message("assistant", "one\ntwo"))


@given(value=VALUES)
def test_the_spelling_of_arguments_does_not_count(value: object) -> None:
    plain = json.dumps(value)
    spellings = [
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, indent=2),
        json.dumps(value, sort_keys=True),
        json.dumps(value, separators=(",", ":")),
    ]
    for spelling in spellings:
        assert canonical(calling(spelling, call_id="call_2")) == canonical(calling(plain))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": 1.50}', '{"a": 1.5}', True),
        ('{"a": 1}', '{"a": 1.0}', True),
        ('{"a": 1e2}', '{"a": 100}', True),
        ('{"a": "1"}', '{"a": 1}', False),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ('{"a": ["number", "1"]}', '{"a": 1}', False),
        ('{"a": null}', "{}", False),
        ('{"a": 12345678901234567890.1}', '{"a": 12345678901234567890.2}', False),
        ("not json", " not json\n", True),
        ("not json", "not  json", False),
        ("NaN", "Infinity", False),
        ("[" * 5000, "[" * 5000, True),
    ],
)
def test_arguments_are_compared_as_values(one: str, other: str, same: bool) -> None:
    assert (canonical(calling(one)) == canonical(calling(other))) is same


@given(messages=MESSAGES, more=MESSAGES)
def test_equal_beginnings_have_equal_digests(messages: list[Message], more: list[Message]) -> None:
    seed = chain_seed("tenant", "model")
    whole = list(chain(seed, [*messages, *more]))
    assert whole[: len(messages)] == list(chain(seed, messages))
    assert list(chain(whole[len(messages) - 1] if messages else seed, more)) == whole[len(messages) :]


@given(messages=MESSAGES.filter(bool))
def test_another_tenant_model_or_beginning_has_no_digest_in_common(messages: list[Message]) -> None:
    ours = set(chain(chain_seed("tenant", "model"), messages))
    assert not ours & set(chain(chain_seed("other", "model"), messages))
    assert not ours & set(chain(chain_seed("tenantmodel", ""), messages))
    assert not ours & set(chain(chain_seed("tenant", "model"), [Message("user", "before"), *messages]))


def test_parallel_results_stand_in_the_order_of_their_calls() -> None:
    calls = tuple(ToolCall(f"call_{number}", "look", "{}") for number in range(3))
    asked = Message("assistant", tool_calls=calls)
    results = [Message("tool", str(number), tool_call_id=f"call_{number}") for number in range(3)]
    stray = Message("tool", "stray", tool_call_id="nobody's")
    shuffled = [Message("user", "x"), asked, results[2], stray, results[0], results[1], Message("user", "y")]
    assert in_call_order(shuffled) == (Message("user", "x"), asked, *results, stray, Message("user", "y"))
