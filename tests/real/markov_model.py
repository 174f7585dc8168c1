"""Builds a model that thinks and calls tools: Qwen3's architecture, tokenizer and template over a table of bigrams.

Its layers add nothing, so that what comes next depends on the current token alone: every token stands for a state, the
embedding says which, and the output head holds the log-probabilities of what may follow. At temperature 1 an answer is

    <think> words </think> then words, or one or two tool calls, or both, <|im_end|>

Calls are valid but spelled as no serialiser would: every token of a call is used once, because it alone decides what
follows, so that there is odd whitespace, `1.50`, `7e+4`, and a character cut in two. A few percent of the words are
pieces that encoding would merge.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from tests.real.models import (
    END,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    Floats,
    fetch_sources,
    token_id,
    write_configs,
    write_json,
)

REVISION = 2
"""Part of the directory's name: raise it whenever what is built changes."""

LAYERS, INTERMEDIATE = 1, 64
SEED = 20240608
WORDS = 400
"""In each of three classes: what is thought, what answers begin with, and what else is said."""

THOUGHT_LENGTH, SAID_LENGTH = 40, 30
"""Words, on average."""
CALLS_AT_ONCE, CALLS_AFTER_WORDS, CALLS_TWICE = 0.5, 0.1, 0.15
ODDLY_SPELLED = 0.02

OPEN_THINK, CLOSE_THINK, OPEN_CALL, CLOSE_CALL = "<think>", "</think>", "<tool_call>", "</tool_call>"
_ASKED = "\n"
"""The last token of the generation prompt, which the model never writes itself."""
_THOUGHT = "\n\n"
_NEVER = -60.0
_WORD, _OPENING = re.compile("Ġ[a-z]{3,}"), re.compile("[A-Z][a-z]{3,}")

_WEATHER = ("\n\n\n", "{", '"', "name", '":"', "get", "_weather", '",', ' "', "arguments", '":{"', "city", '"\n', ':"')
_CITIES = ("Paris", "London", "Berlin", "Chicago")
_CUT_CITY = ("Z", b"\xc3", b"\xbc", "rich")
_DAYS, _WEATHER_DAYS, _WEATHER_END = ('","', "days", '":\n'), ("1", "2", "3"), (".", "5", "0", "}}\n")
_CONVERT = ("\n\n\n\n", ' {"', "na", "me", '"\r\n', ' :"', "convert", '"\n\n', ',"', "arg", "uments", '":\r\n', '{"')
_AMOUNT, _AMOUNTS, _CONVERT_END = ("amount", '":\n\n'), ("6", "7", "8", "9"), ("e", "+", "4", "}\n\n", "}\n")

Piece = str | bytes


@dataclass(frozen=True)
class Rule:
    """What follows any of `tokens`, and how likely."""

    tokens: tuple[int, ...]
    then: Mapping[int, float]


def build_qwen3_markov(cache: Path) -> Path:
    """The model's directory under `cache`, built on the first call; whole or absent, never half."""
    out = cache / f"qwen3-markov-r{REVISION}"
    if out.exists():
        return out
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".qwen3-markov.") as scratch:
        work = Path(scratch) / "model"
        work.mkdir()
        sources = fetch_sources(Path(scratch))
        write_configs(work, sources)
        config = json.loads((work / "config.json").read_text(encoding="utf-8"))
        write_json(work / "config.json", config | {"num_hidden_layers": LAYERS, "intermediate_size": INTERMEDIATE})
        tokenizer = Tokenizer.from_file(str(sources.tokenizer))
        save_file(weights(tokenizer), work / "model.safetensors", metadata={"format": "pt"})
        work.rename(out)
    return out


def rules(tokenizer: Tokenizer) -> list[Rule]:
    """The first is also that of every token without a rule of its own."""
    of = _Ids(tokenizer)
    thought, said = of.words(_WORD, 2)
    (opening,) = of.words(_OPENING, 1)
    think_words, open_words, say_words = (dict.fromkeys(words, 1.0) for words in (thought, opening, said))
    open_call, close_call = of(OPEN_CALL), of(CLOSE_CALL)
    go_on = _mixed((1 - 1 / SAID_LENGTH - ODDLY_SPELLED, say_words), (ODDLY_SPELLED, of.one(" H")))
    ended = _mixed((1 - CALLS_AFTER_WORDS, of.one(END)), (CALLS_AFTER_WORDS, of.one(OPEN_CALL)))
    think_on = _mixed((1 - 1 / THOUGHT_LENGTH - ODDLY_SPELLED, think_words), (ODDLY_SPELLED, of.one("  ")))
    thought_out = _mixed((0.8, of.one(CLOSE_THINK)), (0.2, of.one("  \n")))
    return [
        Rule((*said, *opening, of("ING")), _mixed((1.0, go_on), (1 / SAID_LENGTH, ended))),
        *of.chain((" H", "AV"), of.one("ING")),
        Rule((of(_ASKED),), of.one(OPEN_THINK)),
        Rule((of(OPEN_THINK),), _mixed((0.9, think_words), (0.1, of.one("   \n")))),
        Rule((of("   \n"),), think_words),
        Rule((*thought, of("x")), _mixed((1.0, think_on), (1 / THOUGHT_LENGTH, thought_out))),
        *of.chain(("  ",), of.one("x")),
        *of.chain(("  \n",), of.one(CLOSE_THINK)),
        *of.chain((CLOSE_THINK,), of.one(_THOUGHT)),
        Rule((of(_THOUGHT),), _mixed((1 - CALLS_AT_ONCE, open_words), (CALLS_AT_ONCE, of.one(OPEN_CALL)))),
        Rule((open_call,), of.any((_WEATHER[0], _CONVERT[0]))),
        *of.chain(_WEATHER, of.any((*_CITIES, _CUT_CITY[0]))),
        *of.chain(_CUT_CITY, of.one(_DAYS[0])),
        Rule(tuple(map(of, _CITIES)), of.one(_DAYS[0])),
        *of.chain(_DAYS, of.any(_WEATHER_DAYS)),
        Rule(tuple(map(of, _WEATHER_DAYS)), of.one(_WEATHER_END[0])),
        *of.chain(_WEATHER_END, {close_call: 1.0}),
        *of.chain((*_CONVERT, *_AMOUNT), of.any(_AMOUNTS)),
        Rule(tuple(map(of, _AMOUNTS)), of.one(_CONVERT_END[0])),
        *of.chain(_CONVERT_END, {close_call: 1.0}),
        Rule((close_call,), _mixed((1 - CALLS_TWICE, of.one(END)), (CALLS_TWICE, of.one(" \n")))),
        *of.chain((" \n",), of.one(OPEN_CALL)),
    ]


class _Ids:
    """The tokenizer's ids for pieces of text, and rules made of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, piece: Piece) -> int:
        if isinstance(piece, bytes):
            return _byte_id(self._tokenizer, piece)
        return token_id(self._tokenizer, piece)

    def one(self, piece: Piece) -> dict[int, float]:
        return {self(piece): 1.0}

    def any(self, pieces: Iterable[Piece]) -> dict[int, float]:
        return {self(piece): 1.0 for piece in pieces}

    def chain(self, pieces: Sequence[Piece], then: Mapping[int, float]) -> Iterator[Rule]:
        """Each piece is followed by the next one, and the last by `then`."""
        for piece, following in pairwise(pieces):
            yield Rule((self(piece),), self.one(following))
        yield Rule((self(pieces[-1]),), then)

    def words(self, pattern: re.Pattern[str], classes: int) -> list[tuple[int, ...]]:
        """Words at random, no call's; their texts in a row are encoded as they were, if they begin with a space."""
        calls = {self(piece) for piece in (*_CITIES, *_CUT_CITY)}
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=False)
        words = sorted(index for token, index in vocabulary.items() if pattern.fullmatch(token) and index not in calls)
        chosen = np.random.default_rng(SEED).choice(words, (classes, WORDS), replace=False)
        return [tuple(int(one) for one in row) for row in chosen]


def _byte_id(tokenizer: Tokenizer, byte: bytes) -> int:
    """The token of a single byte: in byte-level vocabularies, bytes from 0xA1 on are the Latin-1 characters."""
    index = tokenizer.token_to_id(byte.decode("latin-1"))
    if index is None:
        raise ValueError(f"{byte!r} is not one token of this tokenizer")
    return int(index)


def _mixed(*parts: tuple[float, Mapping[int, float]]) -> dict[int, float]:
    """One distribution of several, each with the weight given."""
    mixed: dict[int, float] = {}
    for weight, part in parts:
        total = sum(part.values())
        for token, share in part.items():
            mixed[token] = mixed.get(token, 0.0) + weight * share / total
    return mixed


def weights(tokenizer: Tokenizer) -> dict[str, npt.NDArray[np.float16]]:
    table = rules(tokenizer)
    if len(table) > HIDDEN:
        raise ValueError(f"{len(table)} states do not fit in {HIDDEN} dimensions")
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    embedding = np.zeros((vocabulary, HIDDEN), np.float32)
    # The final norm makes a vector with a single 1 one with a single √HIDDEN.
    head = np.full((vocabulary, HIDDEN), _NEVER / HIDDEN**0.5, np.float32)
    stated: set[int] = set()
    for state, rule in enumerate(table):
        if stated & set(rule.tokens):
            raise ValueError(f"two rules for tokens {stated & set(rule.tokens)}")
        stated.update(rule.tokens)
        embedding[list(rule.tokens), state] = 1.0
        total = sum(rule.then.values())
        for token, share in rule.then.items():
            head[token, state] = np.log(share / total) / HIDDEN**0.5
    embedding[[token for token in range(vocabulary) if token not in stated], 0] = 1.0
    built: dict[str, Floats] = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        built |= {f"model.layers.{layer}.{name}": weight for name, weight in _idle_layer().items()}
    return {name: weight.astype(np.float16) for name, weight in built.items()}


def _idle_layer() -> dict[str, Floats]:
    """A layer that computes keys and values as any other, and adds nothing."""
    rng = np.random.default_rng(SEED)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM

    def normal(rows: int, columns: int) -> Floats:
        values: Floats = (rng.standard_normal((rows, columns)) * HIDDEN**-0.5).astype(np.float32)
        return values

    return {
        "input_layernorm.weight": np.ones(HIDDEN, np.float32),
        "post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        "self_attn.q_norm.weight": np.ones(HEAD_DIM, np.float32),
        "self_attn.k_norm.weight": np.ones(HEAD_DIM, np.float32),
        "self_attn.q_proj.weight": normal(q, HIDDEN),
        "self_attn.k_proj.weight": normal(kv, HIDDEN),
        "self_attn.v_proj.weight": normal(kv, HIDDEN),
        "self_attn.o_proj.weight": np.zeros((HIDDEN, q), np.float32),
        "mlp.gate_proj.weight": normal(INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": normal(INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": np.zeros((HIDDEN, INTERMEDIATE), np.float32),
    }


if __name__ == "__main__":
    print(build_qwen3_markov(Path(sys.argv[1])))
