"""What of a batch is done, in requests and in tokens."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from programs.runtime.context import Progress

_FAILED = re.compile(r"(\d+) failed")


class BatchUsage(msgspec.Struct):
    """Tokens of the answers, added up."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, other: BatchUsage) -> None:
        self.input_tokens += other.input_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens
        self.reasoning_tokens += other.reasoning_tokens

    @classmethod
    def read(cls, usage: Any) -> BatchUsage:
        """Of the `usage` of a chat completion or a response; of anything else, none."""
        if not isinstance(usage, dict):
            return cls()
        if "prompt_tokens" in usage:
            prompt, output = "prompt_tokens", "completion_tokens"
        else:
            prompt, output = "input_tokens", "output_tokens"
        return cls(
            usage.get(prompt, 0),
            usage.get(f"{prompt}_details", {}).get("cached_tokens", 0),
            usage.get(output, 0),
            usage.get(f"{output}_details", {}).get("reasoning_tokens", 0),
        )


class BatchCounts(msgspec.Struct):
    """Requests. `completed` and `failed` exclude each other."""

    completed: int = 0
    failed: int = 0
    total: int = 0

    def add(self, *, succeeded: bool) -> None:
        if succeeded:
            self.completed += 1
        else:
            self.failed += 1


def progress_of(counts: BatchCounts) -> Progress:
    """Counts as the progress of the batch's job: the message says how many failed."""
    return Progress(counts.completed + counts.failed, counts.total, f"{counts.failed} failed")


def counts_in(progress: Progress) -> BatchCounts:
    """What `progress_of` was given. A job that has not said anything has counted nothing."""
    said = _FAILED.fullmatch(progress.message)
    failed = int(said[1]) if said else 0
    return BatchCounts(progress.done - failed, failed, progress.total)
