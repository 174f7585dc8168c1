"""A session as its client holds it."""

from __future__ import annotations

from programs.message import Message, ToolCall
from programs.workloads.thinking_chat import TOOLS
from programs.workloads.traffic import TOOL_S, Ask, Conversation, Step, Talk

ASKS = (Ask("one", 0.0, 20), Ask("two", 3.0, 30))
CHAT = Talk("a", 0.0, "chat", "be brief", ASKS)
AGENT = Talk("b", 0.0, "chat", "be brief", ASKS, TOOLS, ("first", "second"), loop=1)


def calling(*names: str) -> Message:
    return Message("assistant", tool_calls=tuple(ToolCall(name, "get_weather", "{}") for name in names))


def test_everything_said_is_sent_again() -> None:
    chat = Conversation(CHAT)
    assert chat.advance() == Step(0.0, 20)
    chat.answer(Message("assistant", "well"))
    assert chat.advance() == Step(3.0, 30)
    assert [message.content for message in chat.messages] == ["be brief", "one", "well", "two"]
    chat.answer(Message("assistant", "good"))
    assert chat.advance() is None


def test_calls_are_answered_at_once() -> None:
    agent = Conversation(AGENT)
    agent.advance()
    agent.answer(calling("x", "y"))
    assert agent.advance() == Step(TOOL_S, 20)
    results = [(message.tool_call_id, message.content) for message in agent.messages[-2:]]
    assert results == [("x", '{"record": "first"}'), ("y", '{"record": "second"}')]


def test_past_the_bound_calls_are_answered_with_the_next_question() -> None:
    agent = Conversation(AGENT)
    agent.advance()
    agent.answer(calling("x"))
    agent.advance()
    agent.answer(calling("x"))
    assert agent.advance() == Step(3.0, 30)
    assert [message.role for message in agent.messages[-2:]] == ["tool", "user"]


def test_calls_that_nobody_would_read_the_answer_to_end_the_session() -> None:
    agent = Conversation(AGENT)
    for _ in range(4):
        assert agent.advance() is not None
        agent.answer(calling("x"))
    assert agent.advance() is None
