"""A session of many turns, its answers spelled as no tokenizer would spell them."""

from __future__ import annotations

import random
from array import array
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from programs.finder import new_response_id
from programs.message import Message, Tool
from programs.model import ChatModel
from programs.session import Sessions
from programs.turn import AfterResponse, FinishedTurn, Resend, TurnRequest
from router.request import ParsedCall, Sampling
from tests.bench.conversation import text
from tests.bench.scripted_engine import ScriptedEngine

Answers = Literal["text", "thoughts", "calls"]
"""What answers are made of: text, thoughts and text, or the same after a loop of thoughts and calls."""
Way = Literal["resend", "previous_response_id"]

CHARACTERS = 2_000
"""Of a question, an answer, a tool's result and thoughts."""
LOOP = 2
"""Calls before an answer."""
TOOL = Tool("look", '{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}')
CALL = ParsedCall("look", '{"at": 1.50}')
CALL_TEXT = '<tool_call>\n{"name": "look", "arguments": {"at": 1.50}}\n</tool_call>'


@dataclass
class LongSession:
    """What its client knows of it, and how long its last prompt was, in tokens."""

    model: ChatModel
    engine: ScriptedEngine
    answers: Answers
    messages: tuple[Message, ...] = ()
    response: str | None = None
    tokens: int = 0
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    async def grow(self, sessions: Sessions, tokens: int) -> None:
        """Ask one question after another until a prompt has that many tokens."""
        asked = self.model.prompts.build((self.question(1),), {}, now=datetime.now(UTC))
        self.engine.end = next(token for token in asked.ids if token in self.model.end_ids)
        while self.tokens < tokens:
            said = self.question(CHARACTERS)
            for _ in range(LOOP if self.answers == "calls" else 0):
                finished = await self._turn(sessions, said, CALL_TEXT)
                said = Message("tool", text(self.dice, CHARACTERS), tool_call_id=finished.calls[0].id)
            await self._turn(sessions, said, text(self.dice, CHARACTERS))

    def question(self, characters: int) -> Message:
        return Message("user", text(self.dice, characters))

    def request(self, said: Message, way: Way) -> TurnRequest:
        """The turn that says `said` after all that was said."""
        known = way == "previous_response_id" and self.response is not None
        return TurnRequest(
            tenant="bench",
            origin=AfterResponse(self.response or "") if known else Resend(),
            messages=(said,) if known else (*self.messages, said),
            sampling=Sampling(max_new_tokens=0),
            max_tokens=10 * CHARACTERS,
            tools=(TOOL,) if self.answers == "calls" else (),
        )

    async def _turn(self, sessions: Sessions, said: Message, answer: str) -> FinishedTurn:
        self.engine.answer = self._spelled(answer)
        self.engine.calls = (CALL,) if answer == CALL_TEXT else ()
        request = self.request(said, "previous_response_id")
        response = new_response_id(sessions.finder.tag(request))
        request = replace(request, response_id=response, record=lambda finished: b"{}")
        async with aclosing(sessions.run(request)) as events:
            *_, finished = [event async for event in events]
        assert isinstance(finished, FinishedTurn)
        self.response, self.tokens = response, len(finished.prompt_ids)
        answered = Message("assistant", finished.content, tool_calls=finished.calls)
        self.messages = (*self.messages, said, answered)
        return finished

    def _spelled(self, answer: str) -> array[int]:
        """Its control tokens whole, all else in pieces of five characters."""
        if self.answers != "text":
            answer = f"<think>\n{text(self.dice, CHARACTERS)}\n</think>\n\n{answer}"
        tokenizer, ids = self.model.tokenizer, array("I")
        position = 0
        while position < len(answer):
            control = tokenizer.control_pattern and tokenizer.control_pattern.match(answer, position)
            if control:
                ids.append(tokenizer.controls[control[0]].id)
                position = control.end()
            else:
                end = min(position + 5, (answer.find("<", position + 1) + 1 or len(answer) + 1) - 1)
                ids.extend(tokenizer.encode(answer[position:end], after_control=True))
                position = end
        return ids
