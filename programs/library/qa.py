"""Question answering: many questions about one or several documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from programs.library.answering import Answer, Questioner
from programs.runtime.context import ProgramContext

Question = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


async def qa(
    context: ProgramContext,
    documents: Annotated[list[str], Field(min_length=1)],
    questions: Annotated[list[Question], Field(min_length=1)],
    max_tokens: Annotated[int, Field(ge=16)] = 200,
) -> dict[str, Any]:
    """Answer questions about documents of any length, citing the passages that say so."""
    asker = Questioner(context, questions, max_tokens)
    readings = [reading for document in dict.fromkeys(documents) for reading in await asker.readings(document)]
    found = await asker.answers(readings)
    merged = await context.fork(asker.merged(*one) for one in zip(questions, found, strict=True))
    return {"answers": [_answer(question, answer) for question, answer in zip(questions, merged, strict=True)]}


def _answer(question: str, answer: Answer | None) -> dict[str, Any]:
    cited = [asdict(citation) for citation in answer.citations] if answer else []
    return {
        "question": question,
        "answer": answer.text if answer else "",
        "citations": cited,
        "unanswered": answer is None,
    }
