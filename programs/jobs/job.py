"""A job: one run of a program, from its submission to its one outcome."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Literal

import msgspec

from programs.runtime.context import Progress

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
OUTCOMES: tuple[JobState, ...] = ("succeeded", "failed", "cancelled")

_ID_BYTES = 16


def new_job_id() -> str:
    """`job_` and 32 hex digits."""
    return f"job_{secrets.token_hex(_ID_BYTES)}"


class JobSpec(msgspec.Struct, frozen=True):
    """What is to be run. `parameters` is JSON; `created` is in seconds since the epoch, `deadline_s` counts from it."""

    id: str
    program: str
    version: str
    parameters: bytes
    created: float
    deadline_s: float | None = None
    tenant: str = "default"


class JobError(msgspec.Struct, frozen=True):
    """Why a job failed, in one line, and by a word that programs may act on."""

    code: str
    message: str


class Succeeded(msgspec.Struct, frozen=True, tag="succeeded"):
    """Both JSON."""

    output: bytes
    provenance: bytes


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    error: JobError


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """Someone asked for it."""


Outcome = Succeeded | Failed | Cancelled


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the store has it. `ended` is None exactly as long as `outcome` is."""

    spec: JobSpec
    state: JobState
    progress: Progress
    started: float | None
    """When a worker took it first."""
    outcome: Outcome | None
    ended: float | None

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def error(self) -> JobError | None:
        return self.outcome.error if isinstance(self.outcome, Failed) else None


def state_of(outcome: Outcome | None, *, leased: bool) -> JobState:
    match outcome:
        case Succeeded():
            return "succeeded"
        case Failed():
            return "failed"
        case Cancelled():
            return "cancelled"
        case None:
            return "running" if leased else "queued"
