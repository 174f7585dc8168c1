"""What prompts must be: told by the template's plain rendering, the ids that the engine has seen, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from programs.errors import TemplateError
from programs.model import ChatModel
from tests.programs.answers import CUT, Step, Written
from tests.programs.clients import TOOL, Exchange
from tests.programs.families import Family

Json = dict[str, Any]


@dataclass(frozen=True)
class Expected:
    """A conversation as its template shows it. Texts are compared as `_alike` makes them."""

    family: Family
    model: ChatModel
    steps: tuple[Step, ...]

    def check(self, exchanges: Sequence[Exchange]) -> list[bool]:
        """Whether each prompt extends the ledger whole, in the template's own opinion; raises where one should and
        does not."""
        assert [one.output_ids for one in exchanges] == [list(_output(step.answer)) for step in self.steps]
        texts = [self._alike(self.prompt(turn, one.dropped)) for turn, one in enumerate(exchanges)]
        for exchange, text in zip(exchanges, texts, strict=True):
            assert self._decoded(exchange.prompt_ids) == text
        extended = []
        for turn in range(1, len(exchanges)):
            ledger, prompt_ids = exchanges[turn - 1].ids, exchanges[turn].prompt_ids
            kept = self.kept(ledger, texts[turn])
            assert prompt_ids[:kept] == ledger[:kept]
            self._check_spellings(turn, prompt_ids, texts[turn])
            extended.append(kept == len(ledger))
        return extended

    def prompt(self, turn: int, dropped: Sequence[int] = ()) -> str:
        """The template's plain text of the prompt that asks for answer number `turn`, without the dropped messages."""
        messages: list[Json] = []
        for number, step in enumerate(self.steps[: turn + 1]):
            messages += _new(step, number)
            if number < turn:
                messages.append(shown(self.family, step.answer, number))
        messages = [message for index, message in enumerate(messages) if index not in dropped]
        tools = {"tools": [{"type": "function", "function": TOOL}]} if self._tools else {}
        return self.model.template.render(messages, add_generation_prompt=True, now=datetime.now(UTC), arguments=tools)

    @cached_property
    def _tools(self) -> bool:
        return any(step.answer.calls for step in self.steps)

    @cached_property
    def first_tokens(self) -> int:
        """About how many tokens the first prompt has."""
        return len(self.model.tokenizer.encode(self.prompt(0), after_control=False))

    def kept(self, ledger: list[int], text: str) -> int:
        """How many of the ledger's ids a prompt of this text must begin with.

        All, if the text begins with theirs. Else those before the place where the two part, or, where that place is
        within text that is encoded anew, those before the last control token in front of it.
        """
        told = self._decoded(ledger)
        differs = (at for at, (one, other) in enumerate(zip(told, text, strict=False)) if one != other)
        common = told[: next(differs, min(len(told), len(text)))]
        if common == told:
            return len(ledger)
        count = len(ledger)
        while not common.startswith(self._decoded(ledger[:count])):
            count -= 1
        if self._resumes(text[len(self._decoded(ledger[:count])) :]):
            return count
        controls = self.model.tokenizer.control_ids
        while count and ledger[count - 1] not in controls:
            count -= 1
        return count

    def _resumes(self, rest: str) -> bool:
        """Whether `rest` begins with something that is not encoded together with what is before it."""
        controls = self.model.tokenizer.control_pattern
        if controls is not None and controls.match(rest):
            return True
        return any(rest.startswith(self._alike(step.answer.content.strip())) for step in self.steps if step.answer.said)

    def _check_spellings(self, turn: int, prompt_ids: list[int], text: str) -> None:
        """Each earlier answer that is shown stands there id by id, in order; thoughts only where they are shown."""
        position = 0
        for step in self.steps[:turn]:
            answer = step.answer
            if not self._shows(text, answer):
                continue
            whole = bool(answer.reasoning) and answer.reasoning in text
            ids = list(answer.kept if whole else answer.said)
            position = _find(prompt_ids, ids, position) + len(ids)

    def _shows(self, text: str, answer: Written) -> bool:
        calls = self.family.calls([call.tidy for call in answer.calls]) if answer.calls and self.family.calls else ""
        return self._alike(answer.content.strip()) in text and calls.strip() in text

    def _decoded(self, ids: Sequence[int]) -> str:
        return self._alike(self.model.tokenizer.decode(ids, skip_special_tokens=False))

    def _alike(self, text: str) -> str:
        """`text` with all that was generated in the spelling that the template would give it."""
        for step in self.steps:
            for written, tidy in step.answer.loose:
                text = text.replace(written, tidy)
        return re.sub(f"{CUT}+", CUT, text)


def can_show(family: Family, model: ChatModel, *answers: Written) -> bool:
    """Whether the template shows all of these answers, each followed by its calls' results, in the family's words."""
    messages: list[Json] = [{"role": "user", "content": "Question."}]
    for number, answer in enumerate(answers):
        messages.append(shown(family, answer, number))
        ids = (call["id"] for call in messages[-1].get("tool_calls", ()))
        messages += [{"role": "tool", "content": "Result.", "tool_call_id": call_id} for call_id in ids]
    arguments = {"tools": [{"type": "function", "function": TOOL}]}
    try:
        text = model.template.render(
            messages, add_generation_prompt=bool(answers[-1].calls), now=datetime.now(UTC), arguments=arguments
        )
    except TemplateError:
        return False
    spell = family.calls or (lambda calls: calls[0].values[0][1])
    return all(
        answer.content in text
        and answer.reasoning in text
        and (not answer.calls or spell(answer.calls).strip() in text)
        for answer in answers
    )


def shown(family: Family, answer: Written, number: int = 0) -> Json:
    """An answer as the family's template wants to be given it."""
    message: Json = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message[family.reasoning_field] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": _function(family, call.name, call.tidy.json),
            }
            for index, call in enumerate(answer.calls)
        ]
        if not answer.content and family.null_content:
            message["content"] = None
    return message


def _function(family: Family, name: str, arguments: str) -> Json:
    return {"name": name, "arguments": arguments if family.arguments_as_text else json.loads(arguments)}


def _new(step: Step, number: int) -> list[Json]:
    if not step.of_tools:
        return [{"role": "user", "content": text} for text in step.texts]
    return [
        {"role": "tool", "content": text, "tool_call_id": f"call_{number - 1}_{index}"}
        for index, text in enumerate(step.texts)
    ]


def _output(answer: Written) -> tuple[int, ...]:
    return answer.ids[: answer.limit]


def _find(ids: list[int], part: list[int], start: int) -> int:
    for position in range(start, len(ids) - len(part) + 1):
        if ids[position : position + len(part)] == part:
            return position
    raise AssertionError(f"{part} is not in {ids[start:]}")
