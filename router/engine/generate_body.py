"""The body of SGLang's `POST /generate` as a client sends it, and what of it an engine is given."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias, cast

import orjson

from router.errors import EngineRefusedError

_PASSED = (
    "text",
    "input_ids",
    "image_data",
    "video_data",
    "audio_data",
    "modalities",
    "sampling_params",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "token_ids_logprob",
    "return_text_in_logprobs",
    "return_prompt_token_ids",
    "require_reasoning",
    "max_thinking_tokens",
    "lora_path",
    "stream",
)
"""An engine gets these and no others: one that it does not expect can end it."""

_REFUSED = (
    "input_embeds",
    "session_params",
    "custom_logit_processor",
    "positional_embed_overrides",
    "bootstrap_host",
    "bootstrap_room",
    "return_hidden_states",
    "kv_hints",
)
"""Without these the answer would be to another question. Everything else is about where and how it is served, and that
is not for a client to say."""

_MEDIA = ("image_data", "video_data", "audio_data")
_INLINE = re.compile(r"(?:data:[^,]*,)?[A-Za-z0-9+/=_\-\s]*")
_MOST_SAMPLES = 128
_MOST_TOP_LOGPROBS = 256
_DIGEST_BYTES = 16

Prompt: TypeAlias = "str | array[int]"


@dataclass(frozen=True)
class GenerateBody:
    """A checked body. `fields` are what an engine is given besides what is ours to say.

    `prompts` are all of a list, or the one there is; `salts` names the cache of each of them, and is as long.
    """

    fields: Mapping[str, Any]
    prompts: tuple[Prompt, ...]
    several: bool
    stream: bool
    prefills: bool
    """Nothing is to be generated: the prompts are to be computed, or scored."""
    rids: tuple[str, ...]
    """The client's names for its prompts; empty when it gave none."""
    salts: tuple[str | None, ...]
    session: str | None
    samples: int
    variant: str | None
    """A digest of what makes other KV of the same ids, images and adapters; None without any."""

    @classmethod
    def read(cls, raw: bytes, vocabulary_size: int) -> GenerateBody:
        """Raises EngineRefusedError for what no engine should be given: the text says what is wrong."""
        body = _object(raw)
        for name in _REFUSED:
            if body.get(name) not in (None, False):
                raise EngineRefusedError(f"{name} is not taken by this server")
        prompts, several = _prompts(body, vocabulary_size)
        sampling = _sampling(body)
        _check_logprobs(body, vocabulary_size)
        return cls(
            fields={name: body[name] for name in _PASSED if body.get(name) is not None},
            prompts=prompts,
            several=several,
            stream=_flag(body, "stream"),
            prefills=all(one.get("max_new_tokens") == 0 for one in sampling),
            rids=_rids(body, len(prompts), several),
            salts=_salts(body, len(prompts)),
            session=_text(body, "session_id"),
            samples=int(sampling[0].get("n") or 1),
            variant=_variant(body),
        )

    def named(self, rids: Sequence[str], dp_rank: int | None) -> bytes:
        """The body that an engine gets, under names of ours. With several samples it names them itself."""
        body = dict(self.fields)
        if self.samples == 1:
            body["rid"] = list(rids) if self.several else rids[0]
        if any(self.salts):
            # 0.5.17 ignores `cache_salt` and isolates by `extra_key`; later versions isolate by both
            salts = [salt or "" for salt in self.salts]
            body["cache_salt"] = body["extra_key"] = salts if self.several else salts[0]
        if dp_rank is not None:
            body["routed_dp_rank"] = dp_rank
        return orjson.dumps(body)

    def renamed(self, answer: bytes, rids: Sequence[str]) -> bytes:
        """An engine's JSON with the client's own names in it. Ours stand nowhere else: they are random."""
        for ours, theirs in zip(rids, self.rids, strict=False):
            answer = answer.replace(orjson.dumps(ours), orjson.dumps(theirs))
        return answer


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise EngineRefusedError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise EngineRefusedError("the body is not a JSON object")
    return body


def _prompts(body: Mapping[str, Any], vocabulary_size: int) -> tuple[tuple[Prompt, ...], bool]:
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise EngineRefusedError("Either text or input_ids should be provided.")
    if text is not None:
        several = isinstance(text, list)
        texts = text if several else [text]
        if not texts or not all(isinstance(one, str) for one in texts):
            raise EngineRefusedError("text is a string, or a list of strings that is not empty")
        return tuple(texts), several
    if not isinstance(ids, list) or not ids:
        raise EngineRefusedError("input_ids cannot be empty.")
    several = isinstance(ids[0], list)
    return tuple(_ids(one, vocabulary_size) for one in (ids if several else [ids])), several


def _ids(ids: object, vocabulary_size: int) -> array[int]:
    """An id that the model has no row for ends an engine."""
    try:
        packed = array("I", cast("list[int]", ids))
    except (TypeError, OverflowError) as error:
        raise EngineRefusedError(f"input_ids holds what is no token id: {error}") from error
    if not packed:
        raise EngineRefusedError("input_ids cannot be empty.")
    if max(packed) >= vocabulary_size:
        raise EngineRefusedError(f"input_ids holds {max(packed)}, and the model's ids end at {vocabulary_size - 1}")
    return packed


def _sampling(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = body.get("sampling_params") or {}
    listed = given if isinstance(given, list) else [given]
    if not all(isinstance(one, dict) for one in listed):
        raise EngineRefusedError("sampling_params is an object, or a list of them")
    for one in listed:
        count = one.get("n") or 1
        if not isinstance(count, int) or not 1 <= count <= _MOST_SAMPLES:
            raise EngineRefusedError(f"n must be from 1 to {_MOST_SAMPLES}, got {count!r}")
    return listed


def _check_logprobs(body: Mapping[str, Any], vocabulary_size: int) -> None:
    for count in _leaves(body.get("top_logprobs_num")):
        if not isinstance(count, int) or not 0 <= count <= min(_MOST_TOP_LOGPROBS, vocabulary_size):
            raise EngineRefusedError(f"top_logprobs_num must be from 0 to {_MOST_TOP_LOGPROBS}, got {count!r}")
    for start in _leaves(body.get("logprob_start_len")):
        if not isinstance(start, int) or start < -1:
            raise EngineRefusedError(f"logprob_start_len must be -1 or more, got {start!r}")
    for token_id in _leaves(body.get("token_ids_logprob")):
        if not isinstance(token_id, int) or not 0 <= token_id < vocabulary_size:
            raise EngineRefusedError(f"token_ids_logprob holds {token_id!r}, which is no token id")


def _rids(body: Mapping[str, Any], count: int, several: bool) -> tuple[str, ...]:
    """As an engine would name a list's prompts: one name is the beginning of all."""
    rid = body.get("rid")
    if rid is None:
        return ()
    if isinstance(rid, str):
        return tuple(f"{rid}_{index}" for index in range(count)) if several else (rid,)
    if several and isinstance(rid, list) and len(rid) == count and all(isinstance(one, str) for one in rid):
        return tuple(rid)
    raise EngineRefusedError("rid is a string, or a list of as many strings as there are prompts")


def _each(body: Mapping[str, Any], name: str, count: int) -> tuple[str | None, ...]:
    value = body.get(name)
    listed = value if isinstance(value, list) else [value] * count
    if len(listed) != count or not all(one is None or isinstance(one, str) for one in listed):
        raise EngineRefusedError(f"{name} is a string, or a list of as many strings as there are prompts")
    return tuple(one or None for one in listed)


def _salts(body: Mapping[str, Any], count: int) -> tuple[str | None, ...]:
    return tuple(map(_salt, _each(body, "cache_salt", count), _each(body, "extra_key", count)))


def _salt(salt: str | None, key: str | None) -> str | None:
    """One name for both: a client's words only ever narrow what its prompts share."""
    if salt is None or key is None or salt == key:
        return salt or key
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in (salt.encode(), key.encode()):
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()


def _variant(body: Mapping[str, Any]) -> str | None:
    """Refuses what an engine would open as a file of its own host, or fetch from its own network."""
    given = {name: body[name] for name in (*_MEDIA, "lora_path") if body.get(name)}
    if not given:
        return None
    for one in _leaves([given.get(name) for name in _MEDIA]):
        if not isinstance(one, str) or not _INLINE.fullmatch(one):
            raise EngineRefusedError("images and the like are taken as base64 or data: URLs only")
    return blake2b(orjson.dumps(given), digest_size=_DIGEST_BYTES).hexdigest()


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    elif value is not None:
        yield value


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise EngineRefusedError(f"{name} is a string")
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise EngineRefusedError(f"{name} is true or false")
    return bool(value)
