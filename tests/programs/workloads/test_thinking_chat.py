"""The thinking chat as data: what comes next, and how its figures add up."""

from __future__ import annotations

from dataclasses import replace

from programs.message import Message, ToolCall
from programs.workloads.thinking_chat import Figures, Step, ThinkingChat, reusable_tokens

STEP = Step(chat=0, question=1, prompt=100, output=10, cached=64, reusable=80, first_token_s=0.02)


def calling(*names: str) -> Message:
    calls = (ToolCall(f"call_{number}", name, '{"amount": 1}') for number, name in enumerate(names))
    return Message("assistant", reasoning="hm", tool_calls=tuple(calls))


def test_every_call_gets_its_result_before_the_next_question() -> None:
    chat = ThinkingChat("a", seed=1, questions=2)
    assert chat.advance()
    assert [message.role for message in chat.messages] == ["system", "user"]
    chat.answer(calling("convert", "get_weather"))
    assert chat.advance()
    assert [message.tool_call_id for message in chat.messages[-2:]] == ["call_0", "call_1"]
    assert (chat.fresh, chat.asked, len(chat.known)) == (2, 1, 3)
    chat.answer(Message("assistant", "So it is."))
    assert chat.advance()
    assert (chat.messages[-1].role, chat.asked) == ("user", 2)
    chat.answer(Message("assistant", "Yes."))
    assert not chat.advance()


def test_a_model_that_calls_for_ever_is_asked_the_next_question_with_its_results() -> None:
    chat = ThinkingChat("a", seed=1, questions=2, loop=2)
    for roles in (["user"], ["tool"], ["tool", "user"], ["tool"]):
        assert chat.advance()
        assert [message.role for message in chat.messages[-len(roles) :]] == roles
        chat.answer(calling("convert"))
    assert not chat.advance()


def test_the_same_seed_asks_the_same_and_the_name_comes_first() -> None:
    one, same, other = ThinkingChat("a", seed=1), ThinkingChat("b", seed=1), ThinkingChat("a", seed=2)
    for chat in (one, same, other):
        chat.advance()
    assert one.messages[1:] == same.messages[1:]
    assert one.messages[1:] != other.messages[1:]
    assert [chat.messages[0].content.split(":")[0] for chat in (one, same)] == ["a", "b"]


def test_reusable_is_what_was_held_as_far_as_it_was_certain_in_whole_pages() -> None:
    first, second = [*range(100), 7, 9], [*range(100), 8, 9]
    assert reusable_tokens(200, first, second, prompt=120, page=16) == 96
    assert reusable_tokens(90, first, second, prompt=120, page=16) == 80
    assert reusable_tokens(200, first, second, prompt=96, page=16) == 80
    assert reusable_tokens(200, first, first, prompt=120, page=1) == 102


def test_figures_count_no_more_as_cached_than_was_reusable() -> None:
    figures = Figures.of([STEP, replace(STEP, cached=96, prefilled_ahead=7, first_token_s=0.04)])
    assert figures.cached_of_reusable == 0.9
    assert figures.cached_of_prompt == 0.8
    assert (figures.cached_tokens, figures.reusable_tokens, figures.prefilled_ahead_tokens) == (160, 160, 7)
    assert figures.first_token_p50_ms == 30.0


def test_figures_say_nothing_of_reuse_where_it_is_unknown() -> None:
    figures = Figures.of([STEP, replace(STEP, reusable=None)])
    assert figures.reusable_tokens is None
    assert figures.cached_of_reusable is None
