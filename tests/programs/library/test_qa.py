"""Questions about documents: what is asked, what comes back, and what it costs."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from programs.documents.document import Document, Page
from programs.errors import ContextLengthError, ProgramParametersError
from programs.library.qa import qa
from programs.runtime.program import Program
from tests.fake_engine.radix import TOKEN_BYTES
from tests.programs.library.lab import Lab, running_lab

QA = Program.of(qa)
LEASE = "The lease begins on 1 March 2024. It ends on 28 February 2029. The rent is 1,250 euros\na month."
RENT, END, PETS = "What is the rent?", "When does it end?", "Are pets allowed?"
ANSWERS = {
    RENT: ("1,250 euros.", ["the rent is 1,250 euros a month"]),
    END: ("On 28 February 2029.", ["It ends on 28 February 2029.", "It renews itself."]),
    PETS: (None, []),
}


@pytest.fixture
async def lab(store: str, model_dir: Path) -> AsyncIterator[Lab]:
    async with running_lab(store, model_dir) as lab:
        yield lab


def written(answer: str | None, *quotes: str) -> str:
    return json.dumps({"answer": answer, "quotes": quotes}, ensure_ascii=False)


def asked(prompt: str) -> str:
    return str(re.findall(r"not say\): (.*)", prompt)[-1])


def from_lease(prompt: str) -> str:
    answer, quotes = ANSWERS[asked(prompt)]
    return written(answer, *quotes)


async def answers(
    lab: Lab, says: Callable[[str], str], documents: list[str], *questions: str, **more: Any
) -> list[dict[str, Any]]:
    """Each citation has been checked against its document."""
    lab.replies(says)
    run = await lab.run(QA, documents=documents, questions=list(questions), **more)
    found: list[dict[str, Any]] = run.output["answers"]
    assert [one["question"] for one in found] == list(questions)
    for citation in (citation for one in found for citation in one["citations"]):
        text = (await lab.documents.get(citation["document"])).text
        assert text[citation["start"] : citation["end"]] == citation["quote"] != ""
    return found


def quotes(answer: dict[str, Any]) -> list[str]:
    return [citation["quote"] for citation in answer["citations"]]


async def test_answers_cite_the_characters_that_they_quote(lab: Lab) -> None:
    pages = (Page(1, 0, 50), Page(2, 50, len(LEASE)))
    lease = "doc_1"
    await lab.documents.put(Document(lease, "lease.pdf", "application/pdf", 100, LEASE, pages, 0.0))

    rent, end, pets = await answers(lab, from_lease, [lease], RENT, END, PETS)

    assert (rent["answer"], quotes(rent)) == ("1,250 euros.", ["The rent is 1,250 euros\na month"])
    assert [citation["page"] for one in (rent, end) for citation in one["citations"]] == [2, 1]
    assert (end["answer"], quotes(end)) == ("On 28 February 2029.", ["It ends on 28 February 2029."])
    assert pets == {"question": PETS, "answer": "", "citations": [], "unanswered": True}
    assert not rent["unanswered"]


async def test_many_questions_cost_the_document_once(lab: Lab) -> None:
    document = await lab.document(" ".join(f"Clause {number} says little." for number in range(100)))
    questions = [f"What does clause {number} say?" for number in range(8)]
    lab.replies(lambda prompt: written("Little."))

    run = await lab.run(QA, documents=[document], questions=questions)

    shared, *others = [len(one.prompt) // TOKEN_BYTES for one in lab.engine.state.finished]
    of_questions = sum(length - shared for length in others)
    state = lab.engine.state
    assert len(others) == len(questions)
    assert shared > 1_000
    assert shared % 64 == 0
    assert shared < state.prefilled_tokens <= shared + of_questions
    assert run.provenance.prompt_tokens - run.provenance.cached_tokens == state.prefilled_tokens


@pytest.mark.parametrize("questions", [1, 3])
async def test_every_character_of_a_long_document_reaches_a_prompt(lab: Lab, questions: int) -> None:
    text = "\n\n".join(f"Section {number}. It has {number * 37} words. Some of them are long." for number in range(300))
    asking = [f"What is in section {number}?" for number in range(questions)]

    await answers(lab, lambda prompt: written(None), [await lab.document(text)], *asking)

    for question in asking:
        covered = 0
        shown = [_passage(prompt) for prompt in lab.prompts if f"): {question}" in prompt]
        for passage in sorted(shown, key=text.index):
            assert text.index(passage) <= covered
            covered = text.index(passage) + len(passage)
        assert covered == len(text)
        assert len(shown) > 2


def _passage(prompt: str) -> str:
    return prompt[prompt.index("<document>\n") + 11 : prompt.index("\n</document>")]


async def test_what_pieces_answer_is_put_together_and_cites_what_it_is_from(lab: Lab) -> None:
    filler = "Nothing is said here. " * 120
    text = f"The ship sank in 1912. {filler} The ship sank in 1915, some say. {filler} It was found in 1985. {filler}"

    def says(prompt: str) -> str:
        if "was read in another text" in prompt:
            listed = re.findall(r"^(\d)\. .*: (.*)$", prompt, re.MULTILINE)
            return json.dumps({"answer": "In 1912.", "from": [int(n) for n, said in listed if "1912" in said]})
        return next(
            (written(year, f"The ship sank in {year}") for year in ("1912", "1915") if year in prompt), written(None)
        )

    (answer,) = await answers(lab, says, [await lab.document(text)], "When did it sink?")

    assert (answer["answer"], quotes(answer)) == ("In 1912.", ["The ship sank in 1912"])
    assert sum("was read in another text" in prompt for prompt in lab.prompts) == 1
    assert (lab.progress[0].done, lab.progress[0].total) == (0, len(lab.prompts) - 1)
    assert (lab.progress[-1].done, lab.progress[-1].total) == (len(lab.prompts), len(lab.prompts))


async def test_an_answer_that_one_document_alone_has_is_taken_as_it_is(lab: Lab) -> None:
    lease, letter = (
        await lab.document(LEASE, "lease.txt"),
        await lab.document("Dear Sir, the roof leaks.", "letter.txt"),
    )

    def says(prompt: str) -> str:
        return from_lease(prompt) if "lease.txt" in prompt else written(None)

    (answer,) = await answers(lab, says, [letter, lease, letter], RENT)

    assert answer["answer"] == "1,250 euros."
    assert [citation["document"] for citation in answer["citations"]] == [lease]
    assert len(lab.prompts) == 2


@pytest.mark.parametrize("cut", ["It is 2029 " + "and so on, " * 50, "So it says. " * 50])
async def test_an_answer_that_is_cut_off_keeps_its_whole_sentences_once(lab: Lab, cut: str) -> None:
    long = written("It ends on 28 February 2029.\nSo it says. " + cut)

    (answer,) = await answers(lab, lambda prompt: long, [await lab.document(LEASE)], END, max_tokens=100)

    assert answer["answer"] == "It ends on 28 February 2029.\nSo it says."
    assert quotes(answer) == ["It ends on 28 February 2029."]


async def test_a_sentence_that_is_cut_off_is_better_than_none(lab: Lab) -> None:
    long = written("It ends on 28 February 2029, the document says " + "and so on, " * 50)

    (answer,) = await answers(lab, lambda prompt: long, [await lab.document(LEASE)], END, max_tokens=100)

    assert answer["answer"].startswith("It ends on 28 February 2029, the document says and")


async def test_a_model_that_cannot_write_json_is_asked_again_without(lab: Lab) -> None:
    told = iter(['{ "ans', "The rent is 1,250 euros a month, it seems."])

    (answer,) = await answers(lab, lambda prompt: next(told), [await lab.document(LEASE)], RENT)

    assert (answer["answer"], answer["unanswered"]) == ("The rent is 1,250 euros a month, it seems.", False)


async def test_an_answer_in_the_words_of_the_document_is_itself_looked_for(lab: Lab) -> None:
    said = written("I think so. The lease begins on 1 March 2024.", "These words are nowhere.")

    (answer,) = await answers(lab, lambda prompt: said, [await lab.document(LEASE)], "When does it begin?")

    assert quotes(answer) == ["The lease begins on 1 March 2024."]


async def test_answers_that_leave_no_room_for_a_document_are_refused(lab: Lab) -> None:
    with pytest.raises(ContextLengthError, match="too few to read a document in"):
        await answers(lab, from_lease, [await lab.document(LEASE)], RENT, max_tokens=3_000)


@pytest.mark.parametrize(
    "parameters", [{"documents": [], "questions": ["a"]}, {"documents": ["a"], "questions": [" "]}]
)
async def test_a_run_without_a_document_or_a_question_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ProgramParametersError):
        QA.arguments(parameters)
