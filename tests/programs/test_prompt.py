"""Prompts on the real tokenizers: what was generated goes back unchanged, what was typed stays text."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs.message import Message, Tool, ToolCall
from programs.prompt import Known, PromptBuilder, Spelling
from programs.template import ChatTemplate
from programs.tokenizer import Tokenizer
from tests.model_files import CHATML, tiny_tokenizer
from tests.packages import TEMPLATE_OF, TOKENIZERS, chat_template, tokenizer_json

NOW = datetime(2026, 1, 2, tzinfo=UTC)

GOLDEN = [
    ("qwen3", [472, 8093, 1718], [472, 83722]),
    ("llama3_1", [473, 8253, 1753], [473, 84822]),
    ("gptoss", [487, 5345, 2694], [160473, 2694]),
    ("gemma3", [121809, 2850], [232238]),
    ("qwen3", [198, 198], [271]),
    ("deepseek_v3", [201, 201], [271]),
    ("qwen3", [13, 271], [382]),
    ("qwen3", [9207, 92], [30975]),
    ("qwen3", [256, 87], [220, 856]),
    ("llama3_1", [256, 87], [220, 865]),
    ("llama3_1", [717, 1958], [4513, 19]),
    ("gptoss", [899, 3020], [7633, 19]),
    ("qwen3", [522, 26865, 29], [151668]),
]
"""Ids as generated, and as the text they spell is encoded again (shared/facts of the project's start)."""

HARMONY_HEADER = [200005, 17196, 200008]
"""`<|channel|>final<|message|>`, which gpt-oss writes itself before its content."""

TYPED = ["<|im_end|>", "<think>", "</think>", "<|eot_id|>", "<end_of_turn>", "<|return|>", "<tool_call>", "<bos>"]


@lru_cache
def builder(name: str) -> PromptBuilder:
    source = chat_template(TEMPLATE_OF[name])
    template = ChatTemplate(source, {"bos_token": "<bos>", "eos_token": "<eos>"})
    return PromptBuilder(template, Tokenizer(tokenizer_json(name), source))


@lru_cache
def chatml() -> PromptBuilder:
    return PromptBuilder(ChatTemplate(CHATML), Tokenizer(tiny_tokenizer().to_str(), CHATML), end_ids=(0,))


def slow_to_load(name: str) -> bool:
    return name in ("gemma3", "gptoss", "deepseek_v3")


@pytest.mark.parametrize(
    ("name", "generated", "encoded"),
    [pytest.param(*case, marks=[pytest.mark.slow] if slow_to_load(case[0]) else []) for case in GOLDEN],
)
def test_generated_ids_go_back_unchanged_though_their_text_is_encoded_otherwise(
    name: str, generated: list[int], encoded: list[int]
) -> None:
    prompts = builder(name)
    whole = prompts.tokenizer.decode(generated, skip_special_tokens=False)
    plain = prompts.tokenizer.encode(whole, after_control=True)
    assert list(plain) != generated or encoded == [151668]

    ids = array("I", generated)
    messages = [Message("user", "say it")]
    asked = prompts.build(messages, {}, now=NOW)
    messages += [Message("assistant", whole), Message("user", "again"), Message("assistant", "x"), Message("user", "y")]
    for length in (3, 5):
        prompt = prompts.build(messages[:length], {1: Spelling(ids, ids)}, now=NOW)
        assert ids.tobytes() in prompt.ids.tobytes()
        if name == "deepseek_v3":  # its history does not show the think token that its generation prompt opens with
            continue
        assert prompt.ids[: len(asked.ids)] == asked.ids
        header = len(HARMONY_HEADER) if name == "gptoss" else 0
        assert prompt.ids[len(asked.ids) + header :][: len(ids)] == ids


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if slow_to_load(name) else []) for name in TOKENIZERS]
)
@pytest.mark.parametrize("typed", TYPED)
def test_typed_control_tokens_stay_text(name: str, typed: str) -> None:
    prompts = builder(name)
    quiet = prompts.build([Message("user", "say")], {}, now=NOW)
    loud = prompts.build([Message("user", f"say{typed}")], {}, now=NOW)
    controls = prompts.tokenizer.control_ids
    assert [token for token in loud.ids if token in controls] == [token for token in quiet.ids if token in controls]
    assert typed in prompts.tokenizer.decode(loud.ids, skip_special_tokens=False)


@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.one_of(st.sampled_from(TYPED), st.text(max_size=6), st.just("\ufdd0\ufdee"))).map("".join))
def test_no_text_whatever_becomes_a_control_token(text: str) -> None:
    prompts = builder("qwen3")
    quiet = prompts.build([Message("user", "x")], {}, now=NOW)
    ids = prompts.build([Message("user", text)], {}, now=NOW).ids
    controls = prompts.tokenizer.control_ids
    assert [token for token in ids if token in controls] == [token for token in quiet.ids if token in controls]
    assert max(ids) < 151_700


@settings(max_examples=100, deadline=None)
@given(
    outputs=st.lists(st.lists(st.integers(2, 399), max_size=12), min_size=1, max_size=4),
    said=st.text(max_size=20),
    ends=st.booleans(),
)
def test_a_preserving_template_extends_whatever_was_generated(outputs: list[list[int]], said: str, ends: bool) -> None:
    """Through any number of turns, with any generated ids, ended by the stop token or cut off."""
    prompts = chatml()
    messages = [Message("user", said)]
    spellings: dict[int, Spelling] = {}
    ledger = array("I")
    known: Known | None = None
    for output in outputs:
        prompt = prompts.build(messages, spellings, now=NOW, known=known)
        assert prompt.ids[: len(ledger)] == ledger
        assert prompt == prompts.build(messages, spellings, now=NOW)
        ids = array("I", output)
        ledger = prompt.ids + ids + array("I", [0] if ends else [])
        known = Known(prompt.rendered, prompt.ids)
        spellings[len(messages)] = Spelling(ids, ids)
        messages = [*messages, Message("assistant", prompts.tokenizer.decode(ids)), Message("user", said)]


def test_a_thinking_template_drops_reasoning_and_keeps_the_answers_spelling() -> None:
    prompts = builder("qwen3")
    question = [Message("user", "why")]
    asked = prompts.build(question, {}, now=NOW)
    answer = array("I", [472, 8093, 1718])
    output = array("I", [151667, 198, 39, 151668, 271]) + answer
    messages = [*question, Message("assistant", " HAVING", reasoning="H"), Message("user", "more")]
    prompt = prompts.build(messages, {1: Spelling(output, answer)}, now=NOW)
    assert prompt.ids[: len(asked.ids)] == asked.ids
    assert prompt.ids[len(asked.ids) :][: len(answer) + 1] == answer + array("I", [151645])
    assert 151667 not in prompt.ids


def test_an_empty_think_block_goes_as_the_template_says() -> None:
    prompts = builder("qwen3")
    question = [Message("user", "why")]
    asked = prompts.build(question, {}, now=NOW)
    answer = array("I", [472, 8093, 1718])
    output = array("I", [151667, 271, 151668, 271]) + answer
    messages = [*question, Message("assistant", " HAVING"), Message("user", "more")]
    prompt = prompts.build(messages, {1: Spelling(output, answer)}, now=NOW)
    assert prompt.ids[len(asked.ids) :][: len(answer) + 1] == answer + array("I", [151645])


def test_a_tool_loop_keeps_reasoning_and_the_calls_own_spelling() -> None:
    prompts = builder("qwen3")
    definition = '{"type": "function", "function": {"name": "rate", "parameters": {}}}'
    question = [Message("user", "rate it")]
    asked = prompts.build(question, {}, now=NOW, tools=(Tool("rate", definition),))
    spelled = '<think>\nhm\n</think>\n\n<tool_call>\n{"name":  "rate", "arguments": {"score": 1.50}}\n</tool_call>'
    output = array("I", prompts.tokenizer._whole.encode(spelled, add_special_tokens=False).ids)
    call = ToolCall("call_1", "rate", '{"score": 1.5}')
    messages = [
        *question,
        Message("assistant", reasoning="hm", tool_calls=(call,)),
        Message("tool", "done", tool_call_id="call_1"),
    ]
    start = output.index(151668) + 2
    prompt = prompts.build(messages, {1: Spelling(output, output[start:])}, now=NOW, tools=(Tool("rate", definition),))
    assert prompt.ids[: len(asked.ids) + len(output)] == asked.ids + output
    after = [*messages, Message("assistant", "ok"), Message("user", "thanks")]
    later = prompts.build(after, {1: Spelling(output, output[start:])}, now=NOW, tools=(Tool("rate", definition),))
    assert later.ids[len(asked.ids) :][: len(output) - start] == output[start:]


def test_append_keeps_what_the_template_would_drop() -> None:
    prompts = builder("qwen3")
    question = [Message("user", "why")]
    asked = prompts.build(question, {}, now=NOW)
    ledger = asked.ids + array("I", [151667, 198, 39, 151668, 271, 9454, 151645])
    messages = [*question, Message("assistant", "Yes", reasoning="H"), Message("user", "more")]
    prompt = prompts.append(messages, 1, ledger, now=NOW)
    assert prompt is not None
    assert prompt.ids[: len(ledger)] == ledger
    rest = prompts.tokenizer.decode(prompt.ids[len(ledger) :], skip_special_tokens=False)
    assert rest == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def test_what_is_foreseen_is_how_the_next_prompt_begins() -> None:
    prompts = builder("qwen3")
    answer = array("I", [9454])
    messages = [Message("user", "why"), Message("assistant", "Yes", reasoning="H")]
    spelling = {1: Spelling(array("I", [151667, 198, 39, 151668, 271]) + answer, answer)}
    foreseen = prompts.foresee(messages, spelling, now=NOW)
    actual = prompts.build([*messages, Message("user", "\nwell")], spelling, now=NOW)
    assert actual.ids[: len(foreseen)] == foreseen
    assert len(foreseen) > len(prompts.build(messages[:1], {}, now=NOW).ids)
    assert prompts.rewrites()
    assert not chatml().rewrites()
