"""What the router is asked for and what it gives back: token ids in, token deltas out."""

from __future__ import annotations

import secrets
from array import array
from dataclasses import dataclass, field
from typing import Literal

FinishType = Literal["stop", "length", "abort"]
Priority = Literal["interactive", "batch", "anticipation"]
"""In this order they are served: someone waits for it, no one does, it may never be needed."""


@dataclass(frozen=True, slots=True)
class Urgency:
    """How a request waits where it has to: tenants have equal shares, and after `deadline_s` seconds it gives up."""

    tenant: str = "default"
    priority: Priority = "interactive"
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens. A field left at None is left to the model's own default."""

    max_new_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    json_schema: str | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation. `rid` has a fixed length: SGLang aborts by prefix."""

    rid: str
    prompt_ids: array[int]
    sampling: Sampling
    home: str | None = None
    """Name of the replica that holds this session's prefix, if any does."""
    cache_salt: str | None = None
    session: str | None = None
    version: str | None = None
    """The pool that its session is pinned to."""
    urgency: Urgency = Urgency()
    top_logprobs: int | None = None
    """None: no logprobs. Zero and more: the chosen token's, and that many alternatives."""
    shown: bool = True
    """Whether someone sees its tokens as they come. What no one has seen may be begun again."""


def prefill_of(
    prompt_ids: array[int], cache_salt: str | None = None, *, home: str | None = None, version: str | None = None
) -> GenerateRequest:
    """A request that has its prompt computed and cached, and nothing generated. No one waits for it."""
    return GenerateRequest(
        rid=secrets.token_hex(16),
        prompt_ids=prompt_ids,
        sampling=Sampling(max_new_tokens=0),
        home=home,
        cache_salt=cache_salt,
        version=version,
        urgency=Urgency("antiphon", "anticipation"),
    )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, logprob), most likely first."""


@dataclass(frozen=True, slots=True)
class Finish:
    """How a generation ended. `matched` is the stop token's id or the stop string, if one ended it."""

    type: FinishType
    matched: int | str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """The next token ids of a generation. The last delta carries `finish` and the counts.

    `resumes` is how often it had to go on from another replica so far, or to begin again there.
    """

    token_ids: tuple[int, ...]
    replica: str
    finish: Finish | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = field(default=())
    resumes: int = 0


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call that the engine's parser found; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedText:
    """Finished text as the engine's parser reads it: the calls, and what is left when they are taken out."""

    normal_text: str
    calls: tuple[ParsedCall, ...]
