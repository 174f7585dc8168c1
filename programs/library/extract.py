"""What documents say, as a value of a JSON Schema: asked of every part of them, and put together."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field

from programs.errors import ExtractionError
from programs.library.guide import guide
from programs.library.merge import ABSENT, Conflict, Found, filled, merged, missing
from programs.library.pieces import pieces
from programs.library.schema_check import check_schema
from programs.library.schema_forms import SchemaForms
from programs.runtime.context import ProgramContext
from programs.runtime.program import Program
from programs.runtime.prompt import Passage, Prompt

_LARGER = 4
"""How many times its budget an answer is given that did not end within it."""
_SLACK_TOKENS = 32
"""Room for numbers that get longer."""
_ASK = "Extract what the text below says, as JSON of this JSON Schema:"
_RULES = "What the text does not say is null or an empty array. Make nothing up."
_ALL = "Now with everything that is required."
_LONGEST_INTEGER = 20
_TRIES = 3
"""To complete a value: a grammar does not hold everything that a schema says."""


async def extract(
    context: ProgramContext,
    documents: Annotated[list[str], Field(min_length=1)],
    schema: dict[str, Any],
    instructions: str | None = None,
    max_tokens: Annotated[int, Field(ge=16)] = 1024,
    chunk_tokens: Annotated[int | None, Field(ge=16)] = None,
) -> dict[str, Any]:
    """Extract from documents what a JSON Schema describes, merged over their parts."""
    budget = min(max_tokens, context.context_length // 4)
    run = await asyncio.to_thread(lambda: _Extraction(context, check_schema(schema), instructions, budget))
    parts = await run.parts(documents, chunk_tokens)
    run.total = len(parts)
    found = await context.fork(run.found(part) for part in parts)
    result = await asyncio.to_thread(merged, run.forms, found)
    value, lacking = result.value, missing(run.forms, schema, result.value)
    if value is ABSENT or not run.forms.valid(value, schema):
        value = await run.completed(value, parts[_richest(found)])
    conflicts = [_conflict(one) for one in result.conflicts]
    return {"value": value, "conflicts": conflicts, "missing": lacking, "chunks": len(parts)}


def _require_possible(arguments: Mapping[str, Any]) -> None:
    check_schema(arguments["schema"])


EXTRACT = Program.of(extract, check=_require_possible)
"""A schema that nothing satisfies is refused when a run is asked for."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A passage, and which of how many it is of its document."""

    passage: Passage
    number: int
    count: int

    @property
    def name(self) -> str:
        return f"part {self.number} of {self.count} of {self.passage.document.document.name}"


@dataclass
class _Extraction:
    """One run. `budget` is what an answer may take at first."""

    context: ProgramContext
    forms: SchemaForms
    instructions: str | None
    budget: int
    total: int = 0
    done: int = 0
    relaxed: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.relaxed = guide(self.forms, relaxed=True)

    @property
    def most(self) -> int:
        """What an answer may take in the end."""
        return min(self.budget * _LARGER, self.context.context_length // 3)

    async def parts(self, documents: list[str], chunk_tokens: int | None) -> list[_Part]:
        taken = self.context.length(self._asked((), _ALL)) + self.most + _SLACK_TOKENS
        parts: list[_Part] = []
        for document in dict.fromkeys(documents):
            passages = pieces(await self.context.document(document), self.context.context_length - taken, chunk_tokens)
            parts += (_Part(passage, number, len(passages)) for number, passage in enumerate(passages, 1))
        return parts

    async def found(self, part: _Part) -> Found:
        value = await self._answer(self._asked((part.passage,)), self.relaxed, part.name)
        self._progress(part.name)
        return Found(value, part.passage.document.document.id, part.number)

    async def completed(self, partial: Any, part: _Part) -> Any:
        """A valid value that holds what was found: the model is asked for all of it once more.

        Raises ExtractionError when its answers stay invalid.
        """
        self.total += 1
        wrong = ""
        for _ in range(_TRIES):
            prompt = self._again(part.passage, partial, wrong)
            answer = await self._answer(prompt, guide(self.forms), part.name)
            value = filled(partial, answer)
            if not self.forms.valid(value, self.forms.root):
                value = answer
            wrong = next(self.forms.complaints(value, self.forms.root), "")
            if not wrong:
                self._progress("completed")
                return value
        raise ExtractionError(f"the model's answers do not satisfy the schema, {wrong}")

    async def _answer(self, prompt: Prompt, schema: dict[str, Any], name: str) -> Any:
        for tokens in (self.budget, self.most):
            generated = await self.context.generate(prompt, max_tokens=tokens, json_schema=schema)
            if generated.finish != "length":
                try:
                    return _read(generated.text)
                except ValueError as error:
                    raise ExtractionError(
                        f"the answer for {name} is no JSON ({error}): does the engine have a grammar backend?"
                    ) from error
        raise ExtractionError(
            f"the answer for {name} does not end within {self.most} tokens: give the schema's strings maxLength and "
            "its arrays maxItems, or ask for more max_tokens or smaller chunk_tokens"
        )

    def _progress(self, message: str) -> None:
        self.done += 1
        self.context.progress(self.done, self.total, message)

    def _asked(self, passage: tuple[Passage, ...], more: str = "") -> Prompt:
        schema = json.dumps(self.forms.root, ensure_ascii=False)
        begun = f"{_ASK}\n{schema}\n{_RULES} {self.instructions or ''}\n\nText:\n"
        return Prompt((begun, *passage, f"\n\n{more}JSON:"))

    def _again(self, passage: Passage, partial: Any, wrong: str) -> Prompt:
        """With what was found so far, where there is room for it."""
        known = "" if partial is ABSENT else f"Found so far:\n{json.dumps(partial, ensure_ascii=False)}\n\n"
        refused = f"Your last answer is not what the schema asks for, {wrong}\n\n" if wrong else ""
        prompts = [self._asked((passage,), f"{more}{_ALL} ") for more in (known + refused, refused, "")]
        room = self.context.context_length - self.most
        return next((prompt for prompt in prompts if self.context.length(prompt) <= room), prompts[-1])


def _read(text: str) -> Any:
    """JSON, in which numbers that 64 bits do not hold are null and half characters are question marks.

    Raises ValueError.
    """
    value = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=lambda name: None)
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) < _LONGEST_INTEGER else None


def _float(digits: str) -> float | None:
    return number if math.isfinite(number := float(digits)) else None


def _richest(found: list[Found]) -> int:
    """Where most was found, the first of several such places."""
    return max(range(len(found)), key=lambda index: _count(found[index].value))


def _count(value: Any) -> int:
    if isinstance(value, dict | list):
        return sum(map(_count, value.values() if isinstance(value, dict) else value))
    return value is not None


def _conflict(conflict: Conflict) -> dict[str, Any]:
    return {"path": conflict.path, "values": [asdict(one) for one in conflict.found]}
