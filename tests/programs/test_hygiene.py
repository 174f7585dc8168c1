from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.hygiene import (
    DEFAULT_RULES,
    MAX_LINE_CHARS,
    MAX_PINS,
    HygieneChange,
    HygieneRule,
    clean,
    mask,
    ordered_tools,
)
from programs.message import Message, Role, Tool, chain, chain_seed

BILLING = "x-anthropic-billing-header: cc_version=2.1.15.c5f; cc_entrypoint=cli; cch=a3f19;"

NOW_LINES = [
    ("Current date: 2026-07-28", "2026-07-28"),
    ("current date and time: 2026-07-28T10:22:33.123Z", "2026-07-28T10:22:33.123Z"),
    (
        "Current date/time: 7/28/2026, 10:22:33 AM (Europe/Berlin, UTC+2:00)",
        "7/28/2026, 10:22:33 AM (Europe/Berlin, UTC+2:00",
    ),
    ("- **Current time:** 10:22 PM UTC", "10:22 PM UTC"),
    ("  Today's date: Tuesday, July 28th, 2026", "Tuesday, July 28th, 2026"),
    ("Today Date: 28 Jul 2026", "28 Jul 2026"),
    ("Today is Tuesday.", "Tuesday"),
    ("The current date is 2026-07-28.", "2026-07-28"),
    ("It is now 10:22.", "10:22"),
    ("<current_datetime>2026-07-28 10:22:33+02:00</current_datetime>", "2026-07-28 10:22:33+02:00"),
    ('"currentDate": "2026-07-28",', "2026-07-28"),
    ("# Current timestamp = 1785225753", "1785225753"),
    (
        "Now: Tue Jul 28 2026 10:22:33 GMT+0200 (Central European Summer Time)",
        "Tue Jul 28 2026 10:22:33 GMT+0200 (Central European Summer Time",
    ),
    ("Current time in Paris: 10:22", "10:22"),
    ("Current date (YYYY-MM-DD): 2026-07-28", "2026-07-28"),
]

PROSE = [
    "Knowledge cutoff: 2023-10",
    "Current version: 2026.07",
    "Current date format: YYYY-MM-DD",
    "The meeting is on 2026-07-28.",
    "The current date is 2026-07-28 and the user is called Ann.",
    "Remember that the current date is 2026-07-28.",
    "Today we discuss 3 topics from 2026.",
    "Today: 3 of 10 tasks are done",
    "Now: 3",
    "Current time: ask the user",
    "Current user: 2026-07-28",
    "Date: 2026-07-28",
    "You quote the x-anthropic-billing-header: cch=1; to nobody.",
    "Current date: 2026-07-28" + " " * MAX_LINE_CHARS + ".",
]


def system(content: str) -> Message:
    return Message("system", content)


@pytest.mark.parametrize(("line", "value"), NOW_LINES)
def test_a_line_that_says_the_time_is_pinned_to_its_first_value(line: str, value: str) -> None:
    first = clean([system(f"Be kind.\n{line}\nBe brief.")], {}, DEFAULT_RULES)
    assert first.changes == ()
    assert list(first.pins.values()) == [value]
    later = "1999-12-31 23:59"
    second = clean([system(f"Be kind.\n{line.replace(value, later)}\nBe brief.")], first.pins, DEFAULT_RULES)
    assert second.messages == first.messages == (system(f"Be kind.\n{line}\nBe brief."),)
    assert second.pins == first.pins
    assert [(change.rule, change.message_index, change.before) for change in second.changes] == [
        ("current-time", 0, later)
    ]


@pytest.mark.parametrize("line", PROSE)
def test_other_lines_are_left_alone(line: str) -> None:
    cleaned = clean([system(line)], {}, DEFAULT_RULES)
    assert cleaned.messages == mask([system(line)], DEFAULT_RULES) == (system(line),)
    assert cleaned.pins == {}


def test_a_billing_nonce_is_removed_with_its_line() -> None:
    cleaned = clean([system(f"{BILLING}\r\nYou are a coding agent.")], {}, DEFAULT_RULES)
    assert cleaned.messages == (system("You are a coding agent."),)
    assert cleaned.changes == (HygieneChange("billing-nonce", 0, BILLING[:59] + "…", None),)


def test_a_message_of_which_nothing_is_left_stays_in_its_place() -> None:
    messages = [system(BILLING), Message("user", "Hi")]
    assert clean(messages, {}, DEFAULT_RULES).messages == (system(""), Message("user", "Hi"))


def test_two_lines_of_one_kind_have_a_pin_each() -> None:
    first = clean([system("Now: 10:00\nNow: 11:00")], {}, DEFAULT_RULES)
    second = clean([system("Now: 12:00\nNow: 13:00")], first.pins, DEFAULT_RULES)
    assert second.messages == (system("Now: 10:00\nNow: 11:00"),)


def test_pins_are_bounded() -> None:
    lines = "\n".join(f"Current time in Zone{number}: 10:{number % 60:02}" for number in range(MAX_PINS + 20))
    assert len(clean([system(lines)], {}, DEFAULT_RULES).pins) == MAX_PINS


def test_a_head_rule_leaves_a_system_message_in_the_middle_alone() -> None:
    messages = [system("Now: 10:00"), Message("user", "Hi"), Message("developer", "Now: 10:05")]
    pins = clean([system("Now: 09:00")], {}, DEFAULT_RULES).pins
    assert clean(messages, pins, DEFAULT_RULES).messages == (system("Now: 09:00"), *messages[1:])


def test_a_system_rule_gives_each_occurrence_its_own_first_value() -> None:
    rule = replace(DEFAULT_RULES[1], where="system")
    turn_one = [system("Now: 10:00"), Message("user", "Hi")]
    turn_two = [system("Now: 10:05"), Message("user", "Hi"), Message("assistant", "Yes?"), system("Now: 10:05")]
    pins = clean(turn_one, {}, [rule]).pins
    assert [message.content for message in clean(turn_two, pins, [rule]).messages] == [
        "Now: 10:00", "Hi", "Yes?", "Now: 10:05",
    ]  # fmt: skip


def test_a_resent_history_has_the_digest_it_had() -> None:
    def digests(content: str) -> list[bytes]:
        return list(chain(chain_seed("tenant"), mask([system(content), Message("user", "Hi")], DEFAULT_RULES)))

    sent = f"{BILLING}\nYou help.\nCurrent date: 2026-07-28\n"
    assert digests(sent) == digests("x-anthropic-billing-header: cch=1\r\nYou help.\r\nCurrent date: 2026-07-29")
    assert digests(sent) == digests("You help.\nCurrent date: 2026-07-29")
    assert digests(sent) != digests("You help!\nCurrent date: 2026-07-28")
    assert digests(sent) != digests("You help.\nCurrent time: 2026-07-28")


@pytest.mark.parametrize(
    ("pattern", "action", "said"),
    [
        ("(", "remove", "not a regular expression"),
        ("Request: .{0,9}", "pin", "name it in the pattern"),
        ("(?P<value>(a+)*b)", "pin", "bound it"),
        (r"(\w|\d)*x", "remove", "bound it"),
        ("(?:x+){20}", "remove", "bound it"),
        ("(?:(a{1,9}))+", "remove", "bound it"),
    ],
)
def test_a_bad_rule_is_refused(pattern: str, action: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"rule 'mine': .*{said}"):
        HygieneRule("mine", pattern, action)


@pytest.mark.parametrize(
    "pattern", [r"Id: (?P<value>\w+)\s*$", "(?:a|b)?c+", r"[(+*]+\)*", r"(?i:x)+(?P<value>[^()]*)"]
)
def test_a_plain_rule_is_taken(pattern: str) -> None:
    assert HygieneRule("mine", pattern, "remove") == HygieneRule("mine", pattern, "remove", "head")


def test_a_rule_of_ones_own_ignores_case_and_what_follows() -> None:
    rule = HygieneRule(name="request", pattern=r"Request id: (?P<value>\w+)", action="pin")
    pins = clean([system("request ID: one, please")], {}, [rule]).pins
    assert clean([system("request ID: two, please")], pins, [rule]).messages == (system("request ID: one, please"),)


@pytest.mark.parametrize(
    "unit",
    ["1", "1 ", "12:34 ", "may ", "Current ", "at of ", "today:1 ", '"', "europe/", "1,,,,", "x-an", "t1", "utc+"],
)
def test_no_line_takes_long(unit: str) -> None:
    room = MAX_LINE_CHARS - 20
    lines = [f"{start}{unit * (room // len(unit))}{end}" for start in ("Current time: ", "") for end in ("", "!?", "é")]
    content = "\n".join(lines * 20)
    started = time.perf_counter()
    clean([system(content)], {}, DEFAULT_RULES)
    assert (time.perf_counter() - started) / len(lines * 20) < 0.002


TEXTS = st.lists(
    st.one_of(
        st.sampled_from([line for line, _ in NOW_LINES] + PROSE + [BILLING, "", "  "]),
        st.builds("Current time: {:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59)),
        st.text(max_size=30),
    ),
    max_size=5,
).flatmap(lambda lines: st.sampled_from(["\n", "\r\n", "\r", "\u2028"]).map(lambda end: end.join(lines)))
ROLES: st.SearchStrategy[Role] = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
MESSAGES = st.lists(st.builds(Message, ROLES, TEXTS), max_size=6)
RULES = st.sampled_from([DEFAULT_RULES, tuple(replace(rule, where="system") for rule in DEFAULT_RULES)])


@given(MESSAGES, MESSAGES, RULES)
def test_what_people_models_and_tools_wrote_is_never_changed(
    before: list[Message], messages: list[Message], rules: tuple[HygieneRule, ...]
) -> None:
    cleaned = clean(messages, clean(before, {}, rules).pins, rules)
    for made in (cleaned.messages, mask(messages, rules)):
        assert [message.role for message in made] == [message.role for message in messages]
        for old, new in zip(messages, made, strict=True):
            assert new == old or old.role in ("system", "developer")
    assert {change.message_index for change in cleaned.changes} == {
        index for index, old in enumerate(messages) if cleaned.messages[index] != old
    }


@given(MESSAGES, MESSAGES, RULES)
def test_cleaning_is_idempotent_and_keeps_the_mask(
    before: list[Message], messages: list[Message], rules: tuple[HygieneRule, ...]
) -> None:
    once = clean(messages, clean(before, {}, rules).pins, rules)
    twice = clean(once.messages, once.pins, rules)
    assert twice == replace(once, changes=())
    assert mask(once.messages, rules) == mask(messages, rules)


@given(MESSAGES, st.dictionaries(st.text(), st.text()))
def test_without_rules_nothing_changes(messages: list[Message], pins: dict[str, str]) -> None:
    cleaned = clean(messages, pins, ())
    assert (cleaned.messages, cleaned.pins, cleaned.changes) == (tuple(messages), pins, ())
    assert mask(messages, ()) == tuple(messages)


def tool(name: str, **parameters: Any) -> Tool:
    return Tool(name, json.dumps({"type": "function", "function": {"name": name, "parameters": parameters}}))


def test_tools_are_shown_by_name_and_in_the_order_models_know() -> None:
    weather = {
        "function": {
            "parameters": {
                "required": ["where"],
                "properties": {
                    "type": {"description": "of day", "type": "string"},
                    "at": {"default": {"z": 1, "a": 1.50}, "type": "object"},
                    "where": {"enum": ["Zürich", "Bern"], "type": "string"},
                },
                "type": "object",
            },
            "description": "Tells the weather.",
            "name": "weather",
        },
        "type": "function",
    }
    first, second = ordered_tools((Tool("weather", json.dumps(weather)), tool("clock")))
    assert first.name == "clock"
    assert second.definition == (
        '{"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": '
        '{"type": "object", "properties": {"where": {"type": "string", "enum": ["Zürich", "Bern"]}, '
        '"at": {"type": "object", "default": {"a": 1.5, "z": 1}}, '
        '"type": {"type": "string", "description": "of day"}}, "required": ["where"]}}}'
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["type", "properties", "required", "default", "$defs"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def shuffled(value: Any, order: random.Random) -> Any:
    match value:
        case dict():
            return {key: shuffled(value[key], order) for key in order.sample(list(value), len(value))}
        case list():
            return [shuffled(item, order) for item in value]
        case _:
            return value


@given(st.lists(st.tuples(st.text(max_size=3), JSON), max_size=4), st.randoms(use_true_random=False))
def test_one_set_of_tools_has_one_spelling(tools: list[tuple[str, Any]], order: random.Random) -> None:
    sent = tuple(Tool(name, json.dumps(definition)) for name, definition in tools)
    other = [Tool(name, json.dumps(shuffled(definition, order))) for name, definition in tools]
    order.shuffle(other)
    ordered = ordered_tools(sent)
    assert ordered == ordered_tools(tuple(other)) == ordered_tools(ordered)
    assert sorted((one.name, json.dumps(json.loads(one.definition), sort_keys=True)) for one in ordered) == sorted(
        (one.name, json.dumps(json.loads(one.definition), sort_keys=True)) for one in sent
    )
