"""The model: which token follows a prefix, and how tokens are spelled."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import orjson
from tokenizers import Tokenizer

from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.radix import TOKEN_BYTES

CUT: Final = "\ufffd"
_MASK: Final = (1 << 64) - 1


def pack(ids: Sequence[int]) -> bytes:
    """Token ids as bytes, four a token. Raises OverflowError outside 0…2**32-1, TypeError for a non-integer."""
    return array("I", ids).tobytes()


def unpack(ids: bytes) -> list[int]:
    return array("I", ids).tolist()


class Language:
    """The next token is a hash of all tokens before it. The hash runs along: a token costs the same anywhere."""

    def __init__(self, options: FakeEngineOptions, vocabulary: Sequence[int]) -> None:
        self._vocabulary = tuple(token for token in vocabulary if token != options.eos_token_id)
        self._eos = options.eos_token_id
        self._end = int(options.end_probability * (1 << 32))
        self._seed = options.seed

    def read(self, ids: bytes, salt: int = 0) -> int:
        """The state after `ids`. `salt` stands for the sampler's dice; 0 is greedy."""
        return zlib.crc32(ids, self._seed ^ salt)

    @staticmethod
    def advance(state: int, token: int) -> int:
        return zlib.crc32(token.to_bytes(TOKEN_BYTES, "little"), state)

    def next(self, state: int, may_end: bool) -> int:
        mixed = (state * 0x9E3779B97F4A7C15 + 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed ^= mixed >> 32
        if may_end and (mixed >> 32) < self._end:
            return self._eos
        return self._vocabulary[(mixed & 0xFFFFFFFF) % len(self._vocabulary)]

    def logprobs(self, ids: bytes, start: int) -> list[list[Any]]:
        """`[logprob, token, None]` for each token from `start` on, the first without a value.

        The token that the language itself would have written is the likeliest.
        """
        tokens = unpack(ids)
        found: list[list[Any]] = [[None, tokens[start], None]]
        state = self.read(ids[: (start + 1) * TOKEN_BYTES])
        for token in tokens[start + 1 :]:
            after = self.advance(state, token)
            likely = self.next(state, True) == token
            found.append([-0.125 if likely else -1.0 - (after & 0xFFFF) / 4096, token, None])
            state = after
        return found


class Speller:
    """Ids to text, for tokenizers whose decoder works byte by byte (all byte-level and byte-fallback ones)."""

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(file))
        added = self.tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        self._pieces: dict[int, tuple[str, bytes] | None] = {}

    @cached_property
    def plain_ids(self) -> tuple[int, ...]:
        """Every id that is whole text on its own and not a control token."""
        size = self.tokenizer.get_vocab_size()
        texts = self.tokenizer.decode_batch([[token] for token in range(size)], skip_special_tokens=True)
        return tuple(token for token, text in enumerate(texts) if text and CUT not in text)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_plain(self, text: str) -> list[int]:
        """Without what a tokenizer puts around a text."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [one.ids for one in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special)

    def piece(self, token: int, skip_special: bool) -> tuple[str, bytes] | None:
        """The token's text, and the same escaped for JSON. None if it is only part of a character."""
        if skip_special and token in self._special:
            return "", b""
        try:
            return self._pieces[token]
        except KeyError:
            text = self.decode((token,), skip_special=False)
            whole = None if CUT in text else (text, orjson.dumps(text)[1:-1])
            self._pieces[token] = whole
            return whole


class Spelling:
    """One answer's text as it grows. Bytes of an unfinished character are held back until it is whole."""

    __slots__ = ("_held", "_skip_special", "_speller", "parts")

    def __init__(self, speller: Speller, skip_special: bool) -> None:
        self._speller = speller
        self._skip_special = skip_special
        self._held: list[int] = []
        self.parts: list[str] = []

    def alone(self, token: int) -> str:
        """The text of a token by itself."""
        return self._speller.decode((token,), skip_special=False)

    def push(self, token: int) -> bytes:
        """The text this token adds, escaped for JSON."""
        if not self._held and (whole := self._speller.piece(token, self._skip_special)) is not None:
            self.parts.append(whole[0])
            return whole[1]
        self._held.append(token)
        text = self._speller.decode(self._held, self._skip_special)
        if text.endswith(CUT):
            return b""
        self._held.clear()
        self.parts.append(text)
        return orjson.dumps(text)[1:-1]

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def tail(self, characters: int) -> str:
        """At least the last `characters` and everything the last token added."""
        parts: list[str] = []
        for part in reversed(self.parts):
            parts.append(part)
            if len(parts) > 1:
                characters -= len(part)
            if characters <= 0:
                break
        return "".join(reversed(parts))

    def finish(self) -> str:
        """The whole text; a character that was cut shows as U+FFFD."""
        if self._held:
            self.parts.append(self._speller.decode(self._held, self._skip_special))
            self._held.clear()
        return "".join(self.parts)
