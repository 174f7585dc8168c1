"""A document's tokens spell its text, slice by slice, and nothing in it becomes a control token."""

from __future__ import annotations

import json
from array import array
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as HfTokenizer

from programs.documents.text import cleaned
from programs.documents.tokens import DocumentTokens
from programs.tokenizer import Tokenizer
from tests.model_files import CHATML, tiny_tokenizer
from tests.packages import REAL_TOKENIZERS, tokenizer_of

TEXT = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            ["<|im_end|>", "<|im_start|>", "<think>", "</s>", "<bos>", "<｜User｜>", "<|endoftext|>", "[INST]"],
        ),
        st.sampled_from(["\n\n", "\f", "  ", "日本語。", "🦄", "👩‍👩‍👧", "e\u0301", "한글", "▁", "\U0010ffff"]),
    ),
    max_size=12,
).map(lambda parts: cleaned("".join(parts)))


def spelled(name: str, text: str) -> str:
    """`text` as the tokenizer gives it back: Gemma's knows no U+2581."""
    return text.replace("▁", " ") if name == "gemma3" else text


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
@settings(max_examples=30)
@given(text=TEXT, data=st.data())
def test_a_slice_decodes_to_its_characters(name: str, text: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(name)
    tokens = DocumentTokens.of(text, tokenizer)
    cuts = [i for i in range(1, len(tokens)) if tokens.starts[i] > tokens.starts[i - 1]]
    start, stop = sorted(data.draw(st.sampled_from([0, *cuts, len(tokens)])) for _ in range(2))
    first, end = tokens.chars(start, stop, len(text))
    decoded = tokenizer.decode(tokens.ids[start:stop], skip_special_tokens=False)
    assert decoded == spelled(name, text[first:end])


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
@settings(max_examples=30)
@given(text=TEXT)
def test_no_text_becomes_a_control_token(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    tokens = DocumentTokens.of(text, tokenizer)
    assert len(tokens.starts) == len(tokens.ids)
    assert list(tokens.starts) == sorted(tokens.starts)
    assert not set(tokens.ids) & tokenizer.control_ids
    assert tokenizer.decode(tokens.ids, skip_special_tokens=False) == spelled(name, text)


def test_neighbouring_slices_give_neighbouring_text_also_where_a_character_is_cut() -> None:
    text = "a🦄b"
    tokens = DocumentTokens.of(text, tiny())
    assert list(tokens.starts) == [0, 1, 1, 1, 1, 2]
    slices = [tokens.chars(i, i + 1, len(text)) for i in range(len(tokens))]
    assert slices == [(0, 1), (1, 1), (1, 1), (1, 1), (1, 2), (2, 3)]
    assert tokens.chars(0, 6, 3) == (0, 3)


def test_an_empty_text_has_no_tokens() -> None:
    assert DocumentTokens.of("", tiny()) == DocumentTokens(array("I"), array("I"))


@pytest.mark.parametrize("between", ["\n", " ", "\n\n", "", "。", "🦄"])
def test_a_long_text_is_spelled_in_pieces_as_it_is_spelled_at_once(between: str) -> None:
    text = between.join(f"the quick {number} fox" for number in range(3_000))
    tokens = DocumentTokens.of(text, tiny())
    assert len(text) > 2 * 16_384
    assert tiny().decode(tokens.ids) == text
    ids, starts = tiny().encode_located(text)
    assert tokens.ids == ids
    assert tokens.starts == starts


@pytest.mark.parametrize("text", ["x" * 50_000, "é" * 40_000, "🦄" * 20_000, " " * 40_000])
def test_a_text_without_any_place_to_cut_is_spelled_whole(text: str) -> None:
    tokens = DocumentTokens.of(text, tiny())
    assert tiny().decode(tokens.ids) == text
    assert list(tokens.starts) == sorted(tokens.starts)
    assert text[slice(*tokens.chars(len(tokens) - 1, len(tokens), len(text)))] in text[-4:]


def test_the_same_tokenizer_spells_otherwise_under_a_template_that_makes_a_control_token_of_a_word() -> None:
    word = tiny_tokenizer()
    description = json.loads(word.to_str())
    description["model"]["vocab"]["<think>"] = word.get_vocab_size()
    marked = HfTokenizer.from_str(json.dumps(description))
    marked.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    plain, thinking = Tokenizer(marked.to_str(), CHATML), Tokenizer(marked.to_str(), CHATML + "{# <think> #}")
    text = "so <think>"
    assert plain.digest == thinking.digest
    assert plain.spelling_digest != thinking.spelling_digest
    assert len(DocumentTokens.of(text, plain)) < len(DocumentTokens.of(text, thinking))


@lru_cache
def tiny() -> Tokenizer:
    return Tokenizer(tiny_tokenizer().to_str(), CHATML)
