"""Comparisons: notes on each document, and what is made of them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from programs.errors import ProgramParametersError
from programs.library.compare import compare
from programs.runtime.program import Program
from tests.fake_engine.radix import TOKEN_BYTES
from tests.programs.library.lab import Lab, running_lab

COMPARE = Program.of(compare)
TEXTS = {
    "a.txt": "The rent is 900 euros. Cats are allowed.",
    "b.txt": "The rent is 1,200 euros. The lease ends in 2030.",
    "c.txt": "The roof leaks.",
}
PATTERNS = {"rent": r"The rent is [\d,]+ euros", "pets": r"Cats are \w+", "noise": "[Nn]oise"}


@pytest.fixture
async def lab(store: str, model_dir: Path) -> AsyncIterator[Lab]:
    async with running_lab(store, model_dir) as lab:
        yield lab


def says(prompt: str) -> str:
    if "Notes on several documents" in prompt:
        topic = re.findall(r"Their topic: (.*)", prompt)[0]
        return f"On {topic}: " + " / ".join(re.findall(r"^(.*\.txt: .*)$", prompt, re.MULTILINE))
    text = prompt[prompt.index("<document>") : prompt.index("</document>")]
    wanted = next((pattern for word, pattern in PATTERNS.items() if f"say about {word}?" in prompt), "The .* euros")
    found = re.search(wanted, text)
    return json.dumps(
        {"answer": f"{found[0]}, it says.", "quotes": [found[0]]} if found else {"answer": None, "quotes": []}
    )


async def compared(lab: Lab, names: list[str], **parameters: Any) -> dict[str, Any]:
    lab.replies(says)
    documents = [await lab.document(TEXTS[name], name) for name in names]
    output: dict[str, Any] = (await lab.run(COMPARE, documents=documents, **parameters)).output
    for citation in output["citations"]:
        text = (await lab.documents.get(citation["document"])).text
        assert text[citation["start"] : citation["end"]] == citation["quote"]
    return output


async def test_documents_are_compared_aspect_by_aspect_from_notes_on_each(lab: Lab) -> None:
    output = await compared(lab, ["a.txt", "b.txt"], aspects=["rent", "pets"])

    rent = "On rent: a.txt: The rent is 900 euros, it says. / b.txt: The rent is 1,200 euros, it says."
    pets = "On pets: a.txt: Cats are allowed, it says. / b.txt: says nothing about it"
    assert output["comparison"] == f"## rent\n\n{rent}\n\n## pets\n\n{pets}"
    assert [one["name"] for one in output["by_document"]] == ["a.txt", "b.txt"]
    assert (lab.progress[0].total, lab.progress[-1].done, lab.progress[-1].total) == (4, 6, 6)
    assert [note["note"] for note in output["by_document"][1]["notes"]] == ["The rent is 1,200 euros, it says.", ""]
    assert [one["quote"] for one in output["citations"]] == [
        "The rent is 900 euros",
        "Cats are allowed",
        "The rent is 1,200 euros",
    ]


async def test_each_document_is_prefilled_once_for_all_aspects(lab: Lab) -> None:
    await compared(lab, ["a.txt", "b.txt"], aspects=["rent", "pets", "noise"])

    prefills = [one for one in lab.engine.state.finished if not one.output_ids]
    notes = [one for one in lab.engine.state.finished if b'"json_schema"' in json.dumps(one.body).encode()]
    assert len(prefills) == 2
    assert len(notes) == 6
    assert all(any(note.prompt.startswith(one.prompt[:-TOKEN_BYTES]) for one in prefills) for note in notes)


async def test_a_question_is_a_topic_of_its_own(lab: Lab) -> None:
    output = await compared(lab, ["a.txt", "b.txt"], question="What does it cost?")

    assert output["comparison"].startswith("On What does it cost?: a.txt: The rent is 900 euros")


async def test_without_a_topic_main_points_are_compared(lab: Lab) -> None:
    output = await compared(lab, ["b.txt", "a.txt"])

    assert output["comparison"].startswith("On What is it about, and what are its main points?: b.txt: ")


async def test_what_no_document_speaks_of_is_not_made_up(lab: Lab) -> None:
    output = await compared(lab, ["a.txt", "c.txt"], aspects=["noise"])

    assert output["comparison"] == "None of the documents says anything about it."
    assert output["citations"] == []
    assert not any("Notes on several" in prompt for prompt in lab.prompts)


async def test_more_notes_than_fit_are_compared_in_groups(lab: Lab) -> None:
    lab.replies(
        lambda prompt: json.dumps({"answer": "word " * 90, "quotes": []}) if "<document>" in prompt else "All alike."
    )
    documents = [await lab.document(f"This is text number {number}.", f"{number}.txt") for number in range(20)]

    run = await lab.run(COMPARE, documents=documents, aspects=["rent"], max_tokens=1_000)

    comparing = [prompt for prompt in lab.prompts if "Notes on several documents" in prompt]
    assert run.output["comparison"] == "All alike."
    assert len(comparing) > 2
    assert lab.progress[-1].done == lab.progress[-1].total
    assert all(any(f"{number}.txt" in prompt for prompt in comparing) for number in range(20))
    assert all(len(one.prompt) // TOKEN_BYTES < 3_096 for one in lab.engine.state.finished)


async def test_one_document_is_nothing_to_compare() -> None:
    with pytest.raises(ProgramParametersError):
        COMPARE.arguments({"documents": ["doc_1"]})
