"""Steps: what a program has computed is stored under what it was computed from, and not computed again.

A step is one prefill, generation or selection. Its digest is over its kind, the model, the ids and how they are to be
used, and over how often the same was asked for before in the same run: a program that is run again after a crash asks
the same questions in the same order and is given the stored answers.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol, TypeVar

import msgspec

from programs.errors import StoreUnavailableError
from programs.message import DIGEST_BYTES
from router.errors import EngineBrokeError, EngineUnavailableError, NoReplicaError, QueueFullError

T = TypeVar("T")

_PASSING = (EngineUnavailableError, EngineBrokeError, NoReplicaError, QueueFullError, StoreUnavailableError)
"""What a later try may not meet again."""


class StepStore(Protocol):
    """Where one run's steps are kept."""

    async def get(self, digest: str) -> bytes | None:
        """The stored output, if there is one."""

    async def put(self, digest: str, output: bytes) -> bytes:
        """Store an output unless there is one; what is stored. The first writer wins."""


class MemoryStepStore:
    """Steps kept in this process, for runs that need not outlive it."""

    def __init__(self) -> None:
        self.outputs: dict[str, bytes] = {}

    async def get(self, digest: str) -> bytes | None:
        return self.outputs.get(digest)

    async def put(self, digest: str, output: bytes) -> bytes:
        return self.outputs.setdefault(digest, output)


class StepOutput(msgspec.Struct, frozen=True):
    """What a step gave and what it took. A prefill gives neither text nor scores."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int = 0
    text: str = ""
    finish: str = ""
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a step is computed from. `how` is JSON: the sampling, or the choices."""

    kind: str
    model: str
    prompt_ids: array[int]
    how: bytes = b""

    def digest(self, occurrence: int) -> str:
        """Names the step in its run; `occurrence` counts steps with the same inputs from 0."""
        hashed = blake2b(self.prompt_ids.tobytes(), digest_size=DIGEST_BYTES)
        for part in (self.kind.encode(), self.model.encode(), self.how, b"%d" % occurrence):
            hashed.update(b"%d:" % len(part) + part)
        return hashed.hexdigest()


@dataclass(frozen=True, slots=True)
class StepRetry:
    """How long a step is tried: seconds in all since its first failure, and between two tries at first and at most."""

    for_s: float = 300.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 20.0


@dataclass(slots=True)
class Usage:
    """What the steps of a run took, each counted once: those that were found stored as well."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def add(self, output: StepOutput) -> None:
        self.steps += 1
        self.prompt_tokens += output.prompt_tokens
        self.cached_tokens += output.cached_tokens
        self.output_tokens += output.output_tokens


@dataclass
class Steps:
    """The steps of one run."""

    store: StepStore
    retry: StepRetry = field(default_factory=StepRetry)
    usage: Usage = field(default_factory=Usage)
    _asked: Counter[str] = field(default_factory=Counter)

    async def take(self, inputs: StepInputs, compute: Callable[[], Awaitable[StepOutput]]) -> StepOutput:
        """The stored output of this step, or else what `compute` gives, or another process gave sooner.

        Raises what `persist` does.
        """
        first = inputs.digest(0)
        digest = inputs.digest(self._asked[first])
        self._asked[first] += 1
        packed = await self.persist(lambda: self.store.get(digest))
        if packed is None:
            computed = msgspec.json.encode(await self.persist(compute))
            packed = await self.persist(lambda: self.store.put(digest, computed))
        output = msgspec.json.decode(packed, type=StepOutput)
        self.usage.add(output)
        return output

    async def persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` gives. What passes (an engine that is gone, full or breaks off, a store that is away) is tried
        again for a while; then, and for all else, raises what `attempt` raised."""
        clock = asyncio.get_running_loop().time
        pause, until = self.retry.first_pause_s, 0.0
        while True:
            try:
                return await attempt()
            except _PASSING as error:
                until = until or clock() + self.retry.for_s
                wait = max(pause * random.uniform(0.5, 1.5), _asked_to_wait_s(error))
                if clock() + wait >= until:
                    raise
            await asyncio.sleep(wait)
            pause = min(2 * pause, self.retry.longest_pause_s)


def _asked_to_wait_s(error: Exception) -> float:
    return error.retry_after_s if isinstance(error, NoReplicaError | QueueFullError) else 0.0
