"""Prompts of programs: they only grow, and what is typed or uploaded stays text, in every family's template."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from programs.errors import TemplateError
from programs.message import Message
from programs.model import ChatModel
from programs.runtime.prompt import Passage, Prompt, PromptWriter
from programs.template import ChatTemplate
from programs.tokenizer import Tokenizer
from tests.model_files import CHATML, tiny_tokenizer
from tests.programs.families import FAMILIES, Family, model_of
from tests.programs.runtime.given import open_document
from tests.programs.test_tokenizer import TEXT, TYPED

NOW = datetime(2026, 1, 2, tzinfo=UTC)
QUICK = ("qwen2_5", "qwen3", "qwen3_6", "llama3_1", "deepseekv3", "lfm2_2_5")
EVERY_FAMILY = [
    pytest.param(family, marks=[] if family.name in QUICK else [pytest.mark.slow], id=family.name)
    for family in FAMILIES
]
THINKING_OFF = {"enable_thinking": False, "thinking": False}


@lru_cache
def writer(family: Family) -> PromptWriter:
    return PromptWriter(model_of(family), NOW)


@lru_cache
def chatml(template: str = CHATML) -> PromptWriter:
    tokenizer = Tokenizer(tiny_tokenizer().to_str(), template)
    model = ChatModel("tiny", 0, 128, tokenizer, ChatTemplate(template), {}, frozenset({0}), tokenizer.vocabulary_size)
    return PromptWriter(model, NOW)


def parts_of(prompts: PromptWriter, texts: list[tuple[bool, str]]) -> tuple[str | Passage, ...]:
    """Each text as it is, or as what a document has in its middle."""
    tokenizer = prompts.model.tokenizer
    documents = [open_document(text, tokenizer) for _, text in texts]
    return tuple(
        document.passage(len(document) // 4) if spliced else text
        for (spliced, text), document in zip(texts, documents, strict=True)
    )


MERGING = ("a", "s", "ing", " lazy", " ", "\n", "\n\n", "1", "23")
"""What tokenizers like to make one token of with what stands beside it."""
PARTS = st.lists(st.tuples(st.booleans(), TEXT), max_size=4)


@pytest.mark.parametrize("family", EVERY_FAMILY)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(texts=PARTS, more=PARTS, system=st.none() | TEXT)
def test_what_is_added_leaves_the_ids_before_it_as_they_are(
    family: Family, texts: list[tuple[bool, str]], more: list[tuple[bool, str]], system: str | None
) -> None:
    prompts = writer(family)
    prompt = Prompt(parts_of(prompts, texts), system)
    longer = prompt.then(*parts_of(prompts, more))
    before, after = prompts.open_ids(prompt), prompts.closed_ids(longer)
    assert after[: len(before)] == before
    assert prompts.open_ids(longer) == after[: len(prompts.open_ids(longer))]
    assert prompts.closed_ids(prompt)[: len(before)] == before
    assert prompts.room(longer, 10) == prompts.context_length - 10 - len(after)


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_neighbours_do_not_merge(family: Family) -> None:
    prompts = writer(family)
    for left, right in product(MERGING, MERGING):
        prompt = Prompt((left,))
        before, after = prompts.open_ids(prompt), prompts.closed_ids(prompt.then(right))
        assert after[: len(before)] == before
        assert prompts.model.tokenizer.decode(after).count(left + right) >= 1


@pytest.mark.parametrize("family", EVERY_FAMILY)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(texts=PARTS, system=st.none() | TEXT)
def test_no_text_and_no_document_spells_a_control_token(
    family: Family, texts: list[tuple[bool, str]], system: str | None
) -> None:
    prompts = writer(family)
    controls = prompts.model.tokenizer.control_ids
    # a template may leave out a system message of nothing but white space
    harmless = prompts.closed_ids(Prompt(("a",), "a" if system and system.strip() else system))
    ids = prompts.closed_ids(Prompt(parts_of(prompts, texts), system))
    assert [one for one in ids if one in controls] == [one for one in harmless if one in controls]


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_prompt_is_what_the_template_says(family: Family) -> None:
    prompts = writer(family)
    model = prompts.model
    ids = prompts.closed_ids(Prompt(("Read this.\n\nOne, two", "; three.")))
    told = {name: value for name, value in THINKING_OFF.items() if name in model.template.variables}
    whole = model.prompts.build((Message("user", "Read this.\n\nOne, two; three."),), {}, now=NOW, arguments=told).ids
    assert model.tokenizer.decode(ids, skip_special_tokens=False) == model.tokenizer.decode(
        whole, skip_special_tokens=False
    )


@pytest.mark.parametrize("typed", [*TYPED, "\ufdd0", "\ufdee"])
def test_typed_control_tokens_are_shown_as_they_are_typed(typed: str) -> None:
    prompts = chatml()
    document = open_document(f"b {typed}", prompts.model.tokenizer)
    ids = prompts.closed_ids(Prompt((f"a {typed}", document.passage()), f"c {typed}"))
    shown = typed if typed.isascii() or not "\ufdd0" <= typed <= "\ufdef" else None
    text = prompts.model.tokenizer.decode(ids, skip_special_tokens=False)
    assert (ids.count(1), ids.count(0)) == (3, 2), "what opens three messages and closes two"
    if shown:
        assert text.count(shown) == 3 + {"<|im_end|>": 2, "<|im_start|>": 3}.get(typed, 0)


def test_a_passage_goes_in_by_its_ids() -> None:
    prompts = chatml()
    document = open_document("the quick brown fox jumps over a lazy dog", prompts.model.tokenizer)
    passage = document.passage(2, 5)
    before = prompts.open_ids(Prompt(("Read: ",)))
    assert prompts.open_ids(Prompt(("Read: ", passage))) == before + document.tokens.ids[2:5]
    assert len(document.passage().ids) == len(document)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_6", "qwen3_8", "glm4moe", "nemotron_3_nano"])
def test_a_model_that_can_be_told_not_to_think_is_told(name: str) -> None:
    prompts = writer(next(family for family in FAMILIES if family.name == name))
    think = prompts.model.think
    assert think is not None
    ids = list(prompts.closed_ids(Prompt(("Why?",))))
    assert ids.count(think.open) == ids.count(think.close) == 1


@pytest.mark.slow
def test_a_template_without_system_messages_has_the_user_say_it() -> None:
    prompts = writer(next(family for family in FAMILIES if family.name == "gemma"))
    ids = prompts.closed_ids(Prompt(("Why?",), "Be brief."))
    assert "Be brief.\n\nWhy?" in prompts.model.tokenizer.decode(ids)


@pytest.mark.parametrize(
    "template", ["{{ 'nothing of it' }}", "{% for m in messages %}{{ m.content + m.content }}{% endfor %}"]
)
def test_a_template_that_does_not_show_a_message_once_is_refused(template: str) -> None:
    with pytest.raises(TemplateError, match=r"shows a message [02] times, not once"):
        chatml(template).open_ids(Prompt(("a",)))


def test_writing_a_prompt_twice_gives_the_same_ids() -> None:
    prompts = chatml()
    prompt = Prompt(("a",), "b")
    first = prompts.open_ids(prompt)
    first.append(5)
    assert prompts.open_ids(prompt) == first[:-1]
    assert isinstance(first, array)


def test_a_text_is_not_taken_for_its_letters() -> None:
    with pytest.raises(TypeError, match="made of parts"):
        Prompt("text")  # type: ignore[arg-type]
