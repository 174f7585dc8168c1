"""A model's tokenizer, split in two: control tokens, and everything a person can type."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as HfTokenizer

from programs.errors import TokenizerError

_ANCHOR = "\ufdee"
"""A noncharacter that stands for "a control token came before" when text is encoded on its own."""

_CACHED_TEXTS = 4_096
_CACHED_TEXT_CHARS = 16_384
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that only a template or the model may write. `lstrip`/`rstrip` swallow the whitespace beside it."""

    id: int
    text: str
    special: bool
    lstrip: bool
    rstrip: bool


class Tokenizer:
    """Encodes text that is known to hold no control tokens, and decodes ids.

    `digest` tells it from other tokenizers, `spelling_digest` also from itself under a chat template that makes control
    tokens of others. A control token is an added token that the tokenizer marks special, that
    lies outside the base vocabulary, or that the chat template itself writes. All others (Gemma's runs of newlines,
    say) are ordinary text.

    Raises TokenizerError when `tokenizer_json` is not a tokenizer.
    """

    def __init__(self, tokenizer_json: str, template_source: str = "") -> None:
        try:
            description = json.loads(tokenizer_json)
            self._whole = HfTokenizer.from_str(tokenizer_json)
            self._whole.no_truncation()
            self._whole.no_padding()
        except Exception as error:  # the library raises bare Exception for every malformed file
            raise TokenizerError(f"tokenizer.json is not a tokenizer: {error}") from error
        controls = _control_tokens(description, template_source)
        self.controls = {token.text: token for token in controls}
        self.control_ids = frozenset(token.id for token in controls)
        self.control_pattern = _alternation(self.controls)
        self.digest = blake2b(tokenizer_json.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        self.spelling_digest = _spelling_digest(self.digest, self.control_ids)
        self._plain = _without(description, self.control_ids)
        self._encode_cached = lru_cache(_CACHED_TEXTS)(self._encode_after_control)

    @classmethod
    def load(cls, directory: Path, template_source: str = "") -> Tokenizer:
        """The tokenizer in `directory`. Raises TokenizerError when it is missing or broken."""
        path = directory / "tokenizer.json"
        try:
            return cls(path.read_text(encoding="utf-8"), template_source)
        except TokenizerError as error:
            raise TokenizerError(f"{directory}: {error}") from error
        except OSError as error:
            raise TokenizerError(f"cannot read {path}: {error.strerror}") from error

    def encode(self, text: str, *, after_control: bool) -> Sequence[int]:
        """The ids of `text`, none of them a control token, whatever the text spells.

        `after_control` says that a control token stands before it in the prompt; some tokenizers spell the very start
        of a prompt differently.
        """
        text = text.replace(_ANCHOR, "\ufffd")
        if not after_control:
            return self._plain.encode(text, add_special_tokens=False).ids
        if len(text) > _CACHED_TEXT_CHARS:
            return self._encode_after_control(text)
        return self._encode_cached(text)

    def encode_raw(self, text: str, *, around: bool = True) -> array[int]:
        """As an engine encodes a text that it is given: what control tokens it spells are read as such, and what the
        tokenizer puts `around` a text is added.
        """
        return array("I", self._whole.encode(text, add_special_tokens=around).ids)

    def _encode_after_control(self, text: str) -> array[int]:
        return array("I", self._plain.encode(_ANCHOR + text, add_special_tokens=False).ids[1:])

    def encode_located(self, text: str) -> tuple[array[int], array[int]]:
        """What `encode` gives for `text` after a control token, and the first character of each id.

        The starts never fall. An id that begins inside a character has the start of the id before it, so that text may
        be cut wherever the starts rise.
        """
        encoding = self._plain.encode(_ANCHOR + text.replace(_ANCHOR, "\ufffd"), add_special_tokens=False)
        if len(encoding.ids) == 1:
            return array("I"), array("I")
        starts, ends = (np.array(encoding.offsets[1:]).T - 1).clip(0)  # without the anchor
        inside = np.flatnonzero(starts[1:] < np.maximum.accumulate(ends)[:-1]) + 1
        starts[inside] = 0
        located = np.maximum.accumulate(starts).astype(np.uint32)
        return array("I", encoding.ids[1:]), array("I", located.tobytes())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._whole.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        return self._whole.decode([token_id], skip_special_tokens=False)

    def id_of(self, text: str) -> int | None:
        """The id of the one token spelled exactly `text`, if there is one."""
        return self._whole.token_to_id(text)

    @property
    def vocabulary_size(self) -> int:
        return self._whole.get_vocab_size()


def _spelling_digest(digest: str, control_ids: frozenset[int]) -> str:
    controls = ",".join(map(str, sorted(control_ids)))
    return blake2b(f"{digest} {controls}".encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _control_tokens(description: dict[str, Any], template_source: str) -> list[ControlToken]:
    vocabulary = description["model"].get("vocab", {})
    base = vocabulary if isinstance(vocabulary, dict) else {piece for piece, _ in vocabulary}
    return [
        ControlToken(token["id"], token["content"], token["special"], token["lstrip"], token["rstrip"])
        for token in description.get("added_tokens", [])
        if _is_control(token, base, template_source)
    ]


def _is_control(token: dict[str, Any], base: Any, template_source: str) -> bool:
    text = token["content"]
    if token["special"]:
        return True
    return bool(text.strip()) and (text not in base or text in template_source)


def _without(description: dict[str, Any], control_ids: frozenset[int]) -> HfTokenizer:
    """The same tokenizer for text alone: it matches no control token and adds none."""
    added = description.get("added_tokens", [])
    kept = [token for token in added if token["id"] not in control_ids]
    model = dict(description["model"])
    if isinstance(model.get("vocab"), dict):
        # an added token gets its id from the vocabulary, or else the next free one: keep those that stay where they are
        model["vocab"] = {**model["vocab"], **{token["content"]: token["id"] for token in kept}}
    plain = {**description, "model": model, "added_tokens": kept, "post_processor": None}
    tokenizer = HfTokenizer.from_str(json.dumps({**plain, "truncation": None, "padding": None}))
    tokenizer.add_special_tokens([AddedToken(_ANCHOR, normalized=False, special=True)])
    return tokenizer


def _alternation(texts: dict[str, ControlToken]) -> re.Pattern[str] | None:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
