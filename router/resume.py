"""Going on from where a stream broke, on another replica: what is asked of it, and when that cannot be exact. Pure."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from router.request import Delta, Finish, GenerateRequest, Sampling


@dataclass(frozen=True, slots=True)
class ResumeLimits:
    """How hard a stream that broke is kept alive. Times are seconds.

    `wait_s` is how long a replica is waited for, so that one that its supervisor starts again can go on itself;
    `stall_s` without a delta in mid-stream counts as broken.
    """

    most: int = 8
    wait_s: float = 120.0
    pause_s: float = 0.1
    stall_s: float = 60.0


@dataclass(eq=False, slots=True)
class Progress:
    """How far a generation has come, whichever replicas made it. `version` is theirs, once one has begun."""

    request: GenerateRequest
    ids: array[int] = field(default_factory=lambda: array("I"))
    resumes: int = 0
    version: str | None = None
    _cached: int = 0

    def add(self, delta: Delta) -> Delta:
        """`delta` as the client gets it: what was cached is what the first replica had."""
        if not self.ids and not self.resumes:
            self._cached = delta.cached_tokens
        self.ids.extend(delta.token_ids)
        return replace(delta, cached_tokens=self._cached, resumes=self.resumes) if self.resumes else delta

    def end(self, finish: Finish, replica: str) -> Delta:
        """The last delta, when all that it waited for had come before the stream broke."""
        return self.add(Delta((), replica, finish))

    def begin_again(self) -> None:
        """Nothing of it has been shown."""
        del self.ids[:]
        self.version = None

    def asked(self, rid: str) -> GenerateRequest:
        """What the next replica is asked for."""
        request = continued(self.request, self.ids, rid)
        return request if self.version is None else replace(request, version=self.version)


def obstacle(sampling: Sampling) -> str | None:
    """Why a generation with tokens behind it cannot go on elsewhere as it would have; None when it can.

    A seed is none: SGLang's dice are a hash of the seed and the token's place in the whole sequence, and a resumed
    stream's tokens have the same places.
    """
    if sampling.json_schema is not None:
        return "its grammar cannot be entered in the middle"
    if sampling.presence_penalty:
        return "its presence_penalty counts what was generated before, once"
    if sampling.repetition_penalty not in (None, 1.0):
        return "its repetition_penalty counts what was generated before"
    return None


def completed(request: GenerateRequest, emitted: Sequence[int]) -> Finish | None:
    """How the generation has ended, if it had when its stream broke."""
    if emitted and emitted[-1] in request.sampling.stop_token_ids:
        return Finish("stop", matched=emitted[-1])
    if len(emitted) >= request.sampling.max_new_tokens:
        return Finish("length")
    return None


def continued(request: GenerateRequest, emitted: Sequence[int], rid: str) -> GenerateRequest:
    """The request for what comes after `emitted`; with nothing emitted, the same request under another id.

    A frequency penalty is a sum over what the running request has generated: what came before is put into the biases,
    which SGLang adds to the logits as it subtracts the penalty.
    """
    if not emitted:
        return replace(request, rid=rid)
    sampling = replace(
        request.sampling,
        max_new_tokens=request.sampling.max_new_tokens - len(emitted),
        logit_bias=_biased(request.sampling, emitted),
    )
    prompt_ids = request.prompt_ids + array("I", emitted)
    urgency = replace(request.urgency, deadline_s=None)
    return replace(request, rid=rid, prompt_ids=prompt_ids, sampling=sampling, home=None, urgency=urgency)


def _biased(sampling: Sampling, emitted: Sequence[int]) -> tuple[tuple[int, float], ...]:
    if not sampling.frequency_penalty:
        return sampling.logit_bias
    bias = dict(sampling.logit_bias)
    for token_id, count in Counter(emitted).items():
        bias[token_id] = bias.get(token_id, 0.0) - sampling.frequency_penalty * count
    return tuple(bias.items())
