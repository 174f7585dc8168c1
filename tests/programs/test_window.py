from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.errors import ContextLengthError
from programs.message import Message, Role, ToolCall
from programs.window import Window, WindowPolicy, anticipate, fit


def of(roles: str) -> list[Message]:
    """One message a letter: s(ystem), d(eveloper), u(ser), a(ssistant), c(all of a tool), t(ool)."""
    names: dict[str, Role] = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "c": "assistant"}
    messages: list[Message] = []
    call = 0
    for letter in roles:
        if letter == "c":
            call += 1
            messages.append(Message("assistant", tool_calls=(ToolCall(f"call_{call}", "f", "{}"),)))
        elif letter == "t":
            messages.append(Message("tool", "42", tool_call_id=f"call_{call}"))
        else:
            messages.append(Message(names[letter], letter))
    return messages


def fitted(roles: str, limit: int, boundary: int = 0, pinned: Sequence[int] = (), size: int = 10) -> Window:
    """Every message takes ten tokens."""
    return fit(of(roles), [size] * len(roles), WindowPolicy(limit), boundary, pinned)


def test_what_fits_is_left_alone() -> None:
    assert fitted("suaua", 50) == Window(0, (0, 1, 2, 3, 4), (), 50, moved=False)


def test_turns_are_dropped_from_the_start_down_to_the_low_water_mark() -> None:
    window = fitted("s" + "ua" * 5 + "u", 110)
    assert window == Window(7, (0, 7, 8, 9, 10, 11), (1, 2, 3, 4, 5, 6), 60, moved=True)


def test_then_the_boundary_stays_until_the_window_is_full_again() -> None:
    assert [fitted("s" + "ua" * turns + "u", 110, 7).boundary for turns in (6, 7, 8)] == [7, 7, 13]


def test_a_tool_loop_is_dropped_whole() -> None:
    window = fitted("uctctaua" + "u", 80)
    assert window.dropped == (0, 1, 2, 3, 4, 5)


def test_a_result_that_comes_a_turn_late_keeps_both_turns_together() -> None:
    assert fitted("ucutaua" + "u", 70).dropped == (0, 1, 2, 3, 4)


def test_a_result_that_comes_after_its_call_was_dropped_is_dropped_too() -> None:
    assert fitted("ucuau" + "ta", 100, boundary=2).dropped == (0, 1, 5)


def test_user_messages_in_a_row_are_one_turn() -> None:
    assert fitted("uauu", 30).dropped == (0, 1)
    assert fitted("uausu", 40).kept == (2, 3, 4)


def test_system_messages_and_pinned_turns_stay_wherever_they_are() -> None:
    window = fitted("suadua" + "uaua" + "u", 90, pinned=[4])
    assert {0, 3, 4, 5, 10} <= set(window.kept)
    assert window.dropped == (1, 2, 6, 7)


def test_much_that_must_stay_does_not_make_the_window_slide_at_every_turn() -> None:
    sizes = [80] + [2] * 200
    boundaries = []
    boundary = 0
    for turns in range(1, 80):
        messages = of("s" + "ua" * turns + "u")
        boundary = fit(messages, sizes[: len(messages)], WindowPolicy(100), boundary).boundary
        boundaries.append(boundary)
    assert len(set(boundaries)) < 80 / 2


def test_a_long_question_leaves_some_of_the_conversation() -> None:
    roles = "ua" * 5 + "u"
    window = fit(of(roles), [5] * 10 + [70], WindowPolicy(100))
    assert window.kept == (8, 9, 10)


def test_what_cannot_fit_is_said() -> None:
    with pytest.raises(ContextLengthError, match=r"newest turn takes 20 tokens and system .* take 10: .* has 25 for"):
        fit(of("suauu"), [10] * 5, WindowPolicy(40, reserve=10, overhead=5))
    with pytest.raises(ContextLengthError, match="newest turn takes 10"):
        fitted("uaua" + "u", 40, pinned=[0, 2])


def test_a_conversation_cut_shorter_than_its_boundary_shows_its_newest_turn() -> None:
    assert fitted("uau", 100, boundary=40) == Window(2, (2,), (0, 1), 10, moved=False)


def test_messages_that_are_all_system_fit_or_do_not() -> None:
    assert fitted("sd", 20).kept == (0, 1)
    assert fitted("", 20) == Window(0, (), (), 0, moved=False)
    with pytest.raises(ContextLengthError):
        fitted("sd", 19)


@pytest.mark.parametrize("bad", [{"limit": 0}, {"limit": 9, "reserve": 9}, {"limit": 9, "overhead": -1}, {"low": 1.0}])
def test_a_senseless_policy_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        WindowPolicy(**{"limit": 100, **bad})


def test_the_move_is_told_before_it_comes() -> None:
    policy = WindowPolicy(100)
    boundary, told = 0, None
    moves = 0
    for turns in range(60):
        asking = of("s" + "ua" * turns + "u")
        window = fit(asking, [5] * len(asking), policy, boundary)
        if window.moved:
            moves += 1
            assert told is not None
            assert told.boundary == window.boundary
            assert told.kept == window.kept[:-1]
        else:
            assert told is None or told.boundary > window.boundary
        boundary = window.boundary
        answered = of("s" + "ua" * (turns + 1))
        told = anticipate(answered, [5] * len(answered), policy, boundary)
    assert moves > 5


@dataclass
class Chat:
    """A conversation that grows."""

    messages: list[Message] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def add(self, message: Message, size: int) -> None:
        self.messages.append(message)
        self.sizes.append(size)


LOW = st.floats(0.5, 0.9)
SIZE = st.integers(1, 60)
STEP = st.tuples(st.sampled_from("uuuuacctts"), SIZE, st.integers(0, 3))


def grown(steps: list[tuple[str, int, int]]) -> Chat:
    chat = Chat()
    for letter, size, call in steps:
        roles: dict[str, Role] = {"u": "user", "a": "assistant", "s": "system"}
        if letter == "c":
            chat.add(Message("assistant", tool_calls=(ToolCall(f"call_{call}", "f", "{}"),)), size)
        elif letter == "t":
            chat.add(Message("tool", "42", tool_call_id=f"call_{call}"), size)
        else:
            chat.add(Message(roles[letter], letter), size)
    return chat


def unpaired(messages: Sequence[Message], kept: Sequence[int]) -> list[int]:
    """Results that are shown without the call that they answer."""
    made: dict[str, int] = {}
    missing = []
    for index, message in enumerate(messages):
        made.update((call.id, index) for call in message.tool_calls)
        if message.role == "tool" and message.tool_call_id in made and index in kept:
            missing += [index] if made[message.tool_call_id] not in kept else []
    return missing


@given(
    st.lists(STEP, max_size=30),
    st.integers(1, 400),
    st.integers(0, 40),
    LOW,
    st.integers(0, 40),
    st.sets(st.integers(0, 30)),
)
def test_a_window_fits_or_it_is_said_that_it_cannot(
    steps: list[tuple[str, int, int]], budget: int, reserve: int, low: float, boundary: int, pinned: set[int]
) -> None:
    chat = grown(steps)
    messages, sizes = chat.messages, chat.sizes
    policy = WindowPolicy(budget + reserve, reserve=reserve, low=low)
    must_stay = {index for index, message in enumerate(messages) if message.role in ("system", "developer")}
    must_stay |= {index for index in pinned if index < len(messages)}
    try:
        window = fit(messages, sizes, policy, boundary, pinned)
    except ContextLengthError:
        assert sum(sizes) > budget
        return
    assert window.tokens == sum(sizes[index] for index in window.kept) <= budget
    assert sorted((*window.kept, *window.dropped)) == list(range(len(messages)))
    assert must_stay <= set(window.kept)
    assert unpaired(messages, window.kept) == []
    newest = max((index for index, message in enumerate(messages) if message.role == "user"), default=0)
    late = [index for index in range(newest, len(messages)) if index not in window.kept]
    assert all(messages[index].role == "tool" for index in late)
    again = fit(messages, sizes, policy, window.boundary, pinned)
    assert (again.boundary, again.kept, again.moved) == (window.boundary, window.kept, False)


@given(st.lists(STEP, max_size=30), st.integers(1, 200), LOW)
def test_the_boundary_never_moves_back(steps: list[tuple[str, int, int]], budget: int, low: float) -> None:
    chat = grown(steps)
    boundary = 0
    for count in range(len(steps) + 1):
        try:
            window = fit(chat.messages[:count], chat.sizes[:count], WindowPolicy(budget, low=low), boundary)
        except ContextLengthError:
            continue
        assert window.boundary >= boundary
        assert window.moved == (window.boundary > boundary)
        assert unpaired(chat.messages, window.kept) == []
        boundary = window.boundary


TURN = st.tuples(st.integers(1, 100), st.lists(st.integers(1, 30), max_size=4), st.integers(1, 100))


@given(st.lists(TURN, min_size=20, max_size=60), st.integers(0, 60), LOW, st.integers(100, 400))
def test_a_long_chat_moves_its_window_seldom_and_forward_only(
    turns: list[tuple[int, list[int], int]], system: int, low: float, room: int
) -> None:
    policy = WindowPolicy(room + system, low=low)
    chat = Chat()
    chat.add(Message("system", "s"), system)
    boundary, moves, call = 0, 0, 0

    def ask() -> None:
        nonlocal boundary, moves
        window = fit(chat.messages, chat.sizes, policy, boundary)
        assert window.boundary >= boundary
        assert window.moved == (window.boundary > boundary)
        boundary, moves = window.boundary, moves + window.moved

    for question, loop, answer in turns:
        chat.add(Message("user", "u"), question)
        try:
            ask()
            for size in loop:
                call += 1
                chat.add(Message("assistant", tool_calls=(ToolCall(f"call_{call}", "f", "{}"),)), 1)
                chat.add(Message("tool", "42", tool_call_id=f"call_{call}"), size)
                ask()
        except ContextLengthError:
            assert question + sum(loop) + len(loop) > room
            return
        chat.add(Message("assistant", "a"), answer)
    total = sum(chat.sizes[1:])
    assert moves <= math.ceil(total / ((1 - low) * room)) + 1
