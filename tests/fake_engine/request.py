"""One generation: what was asked, how far it is, and SGLang's rules for what may be asked."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fake_engine.language import Speller, Spelling, pack
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.radix import TOKEN_BYTES, Namespace, Node

DEFAULT_NEW_TOKENS = 128

_INT, _FLOAT, _TEXT, _BOOL, _LIST = (int,), (int, float), (str,), (bool,), (list,)
SAMPLING_FIELDS: dict[str, tuple[type, ...]] = {
    "max_new_tokens": _INT,
    "stop": (str, list),
    "stop_token_ids": _LIST,
    "stop_regex": (str, list),
    "temperature": _FLOAT,
    "top_p": _FLOAT,
    "top_k": _INT,
    "min_p": _FLOAT,
    "frequency_penalty": _FLOAT,
    "presence_penalty": _FLOAT,
    "repetition_penalty": _FLOAT,
    "min_new_tokens": _INT,
    "n": _INT,
    "json_schema": _TEXT,
    "regex": _TEXT,
    "ebnf": _TEXT,
    "structural_tag": _TEXT,
    "ignore_eos": _BOOL,
    "skip_special_tokens": _BOOL,
    "spaces_between_special_tokens": _BOOL,
    "no_stop_trim": _BOOL,
    "stream_interval": _INT,
    "logit_bias": (dict,),
    "sampling_seed": _INT,
    "custom_params": (),
    "beam_width": _INT,
    "watermark": (dict,),
    "choice": _LIST,
}
"""All there are, with the types each takes; () takes any."""


_OWN = ("cache_salt", "extra_key", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num")
"""What each prompt of a list may have of its own, if it is a list too."""


class RefusedError(ValueError):
    """SGLang's ValueError: 400 without streaming, an error event in a 200 with it."""


class ContractError(ValueError):
    """The body is not a /generate body: 400 with the bare message, streaming or not."""


@dataclass(frozen=True, slots=True)
class Sampling:
    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    skip_special_tokens: bool
    no_stop_trim: bool
    stream_interval: int


@dataclass(eq=False, slots=True)
class Request:
    """`prompt` and `fill` are packed ids. `fill` is what prefill computes: the prompt, and what was retracted."""

    rid: str
    prompt: bytes
    namespace: Namespace
    sampling: Sampling
    stream: bool
    rank: int | None
    """The DP rank that it asks for, then the one that has it; None with one rank."""
    top_logprobs: int | None
    logprob_start: int | None
    """The first prompt token whose logprob is reported, without a value; None: those of the output alone."""
    spelling: Spelling | None
    body: dict[str, Any]
    done: asyncio.Future[None]
    received_s: float = field(default_factory=time.monotonic)

    weight_version: str = "default"

    # Progress, written by the scheduler only.
    fill: bytes = b""
    filled: int = 0
    """Tokens of `fill` whose KV exists."""
    script: tuple[int, ...] | None = None
    """What it is to write, if a test says so."""
    prompt_logprobs: list[list[Any]] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    state: int = 0
    cached_tokens: int = 0
    retractions: int = 0
    admitted: bool = False
    finish: dict[str, Any] | None = None
    to_finish: dict[str, Any] | None = None
    fresh: list[bytes] = field(default_factory=list)
    """JSON-escaped text of the tokens since its stream last sent one."""
    node: Node | None = None
    tree_pages: int = 0
    own_pages: int = 0
    """Pages it shares through the tree, and pages it holds outside it."""
    emit: Callable[[], None] | None = None
    """Called after every token of a stream, and once when it finishes."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // TOKEN_BYTES

    @property
    def fill_tokens(self) -> int:
        return len(self.fill) // TOKEN_BYTES

    @property
    def reusable(self) -> bytes:
        """What a cached prefix may stand for: some token must be computed, and each whose logprob is asked for."""
        end = self.fill_tokens - 1 if self.logprob_start is None else min(self.fill_tokens - 1, self.logprob_start)
        return self.fill[: end * TOKEN_BYTES]

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + len(self.output)

    @property
    def text(self) -> str:
        """The answer's text so far, without what stopped it."""
        if self.spelling is None:
            return ""
        text = self.spelling.finish() if self.finish else self.spelling.text
        matched = self.finish.get("matched") if self.finish else None
        if isinstance(matched, str) and (at := text.find(matched)) >= 0:
            return text[: at + len(matched)] if self.sampling.no_stop_trim else text[:at]
        return text


def parse(body: object, options: FakeEngineOptions, speller: Speller | None) -> Request:
    """Raises ContractError or RefusedError with SGLang's words where it has any."""
    if not isinstance(body, dict):
        raise ContractError("invalid type: not a map, expected struct GenerateRequest")
    ids = _prompt(body, speller)
    packed = _pack(ids)
    sampling = _sampling(body, len(ids), options, speller)
    if len(ids) >= options.context_length:
        raise RefusedError(
            f"The input ({len(ids)} tokens) is longer than the model's "
            f"context length ({options.context_length} tokens)."
        )
    wanted = _object(body, "sampling_params").get("max_new_tokens")
    if wanted is not None and wanted + len(ids) > options.context_length:
        raise RefusedError(
            f"Requested token count exceeds the model's maximum context length of {options.context_length} tokens. "
            f"You requested a total of {wanted + len(ids)} tokens: {len(ids)} tokens from the input messages and "
            f"{wanted} tokens for the completion. Please reduce the number of tokens in the input messages or the "
            f"completion to fit within the limit."
        )
    salt = _text(body, "cache_salt") if options.salts else None
    return Request(
        rid=_text(body, "rid") or uuid.uuid4().hex,
        prompt=packed,
        namespace=(salt or None, _text(body, "extra_key")),
        sampling=sampling,
        stream=bool(body.get("stream")),
        rank=_rank(body, options),
        top_logprobs=int(body.get("top_logprobs_num") or 0) if body.get("return_logprob") else None,
        logprob_start=_logprob_start(body),
        spelling=Spelling(speller, sampling.skip_special_tokens) if speller else None,
        body={name: value for name, value in body.items() if name not in ("input_ids", "text")},
        done=asyncio.get_running_loop().create_future(),
        fill=packed,
    )


def each(body: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The bodies of a list of prompts, each of which is a request of its own; None for one prompt."""
    name = next((name for name in ("input_ids", "text") if _is_list_of_prompts(body.get(name))), None)
    if name is None:
        return None
    count = len(body[name])
    rid = body.get("rid") or uuid.uuid4().hex
    named = rid if isinstance(rid, list) else [f"{rid}_{number}" for number in range(count)]
    lists = {own: body[own] for own in _OWN if isinstance(body.get(own), list)} | {name: body[name], "rid": named}
    for own, values in lists.items():
        if len(values) != count:
            raise RefusedError(f"The length of {own} should be equal to the batch size.")
    return [{**body, **{own: values[number] for own, values in lists.items()}} for number in range(count)]


def _is_list_of_prompts(prompts: Any) -> bool:
    return isinstance(prompts, list) and bool(prompts) and isinstance(prompts[0], list | str)


def _logprob_start(body: dict[str, Any]) -> int | None:
    start = body.get("logprob_start_len")
    return start if body.get("return_logprob") and start is not None and start >= 0 else None


def too_long(request: Request, options: FakeEngineOptions) -> dict[str, Any] | None:
    """The scheduler's own check of the input's length: the finish reason it answers with, or None."""
    if request.prompt_tokens < options.max_input_tokens:
        return None
    message = (
        f"Input length ({request.prompt_tokens} tokens) exceeds the maximum allowed length "
        f"({options.max_input_tokens} tokens). Use a shorter input or enable --allow-auto-truncate."
    )
    return {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}


def _prompt(body: dict[str, Any], speller: Speller | None) -> list[int]:
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise RefusedError("Either text, input_ids or input_embeds should be provided.")
    if text is not None:
        if not isinstance(text, str):
            raise ContractError("invalid type: expected a text or a list of texts")
        if speller is None:
            raise RefusedError("The engine initialized with skip_tokenizer_init=True cannot accept text prompts.")
        return speller.encode(text)
    if not isinstance(ids, list):
        raise ContractError("invalid type: expected a value or an array of values for TokenIdsOrList")
    if not ids:
        raise RefusedError("input_ids cannot be empty.")
    return ids


def _pack(ids: list[int]) -> bytes:
    try:
        return pack(ids)
    except (TypeError, OverflowError) as error:
        raise ContractError(f"invalid token id: {error}") from error


def _sampling(body: dict[str, Any], prompt: int, options: FakeEngineOptions, speller: Speller | None) -> Sampling:
    given = _object(body, "sampling_params")
    _check_fields(given)
    new, low = given.get("max_new_tokens", DEFAULT_NEW_TOKENS), given.get("min_new_tokens") or 0
    temperature = given.get("temperature")
    temperature = 1.0 if temperature is None else float(temperature)
    if temperature < 0:
        raise RefusedError(f"temperature must be a non-negative finite number, got {temperature}.")
    if new is not None and new < 0:
        raise RefusedError(f"max_new_tokens must be at least 0, got {new}.")
    if new is not None and low > new:
        raise RefusedError(f"min_new_tokens must be in [0, max_new_tokens({new})], got {low}.")
    if given.get("n", 1) != 1:
        raise RefusedError("the fake engine answers once: n must be 1")
    stop = given.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if stop and speller is None:
        raise RefusedError("stop strings need a tokenizer, and skip_tokenizer_init is set")
    room = max(0, options.max_request_tokens - prompt - 1)
    return Sampling(
        max_new_tokens=room if new is None else min(new, room),
        min_new_tokens=min(low, room),
        temperature=temperature,
        seed=given.get("sampling_seed"),
        stop=stop,
        stop_token_ids=frozenset(given.get("stop_token_ids") or ()),
        ignore_eos=bool(given.get("ignore_eos")),
        skip_special_tokens=bool(given.get("skip_special_tokens", True)),
        no_stop_trim=bool(given.get("no_stop_trim")),
        stream_interval=int(given.get("stream_interval") or options.stream_interval),
    )


def _check_fields(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name not in SAMPLING_FIELDS:
            listed = ", ".join(f"`{field}`" for field in SAMPLING_FIELDS)
            raise ContractError(f"unknown field `{name}`, expected one of {listed}")
        kinds = SAMPLING_FIELDS[name]
        if value is not None and kinds and (not isinstance(value, kinds) or isinstance(value, bool) != (bool in kinds)):
            raise ContractError(f"invalid type: {type(value).__name__} for {name}")


def _object(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ContractError(f"invalid type: expected a map for {name}")
    return value


def _rank(body: dict[str, Any], options: FakeEngineOptions) -> int | None:
    rank: int | None = body.get("routed_dp_rank")
    if rank is not None and not 0 <= rank < options.dp_size:
        raise RefusedError(f"routed_dp_rank={rank} out of range [0, {options.dp_size})")
    return rank


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ContractError(f"invalid type: expected a string for {name}")
    return value
