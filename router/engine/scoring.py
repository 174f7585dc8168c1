"""How likely a model finds given continuations of a prompt: what is sent to `/generate` for it, and what comes back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Score:
    """The log-probability of each token of one continuation, and how many tokens of the prompt were cached."""

    logprobs: tuple[float, ...]
    cached_tokens: int


def score_body(
    prompt_ids: array[int], continuations: Sequence[array[int]], cache_salt: str | None, dp_rank: int | None = None
) -> dict[str, Any]:
    """The body of `POST /generate`. The list is one request, and is answered in its order.

    SGLang reports a logprob for every token after the one at `logprob_start_len`, and reuses no cached token from that
    one on.
    """
    body: dict[str, Any] = {
        "input_ids": [(prompt_ids + continuation).tolist() for continuation in continuations],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": len(prompt_ids) - 1,
    }
    if dp_rank is not None:
        body["routed_dp_rank"] = dp_rank
    if cache_salt is not None:
        body["cache_salt"] = body["extra_key"] = cache_salt
    return body


def read_scores(answers: Any, continuations: Sequence[array[int]]) -> tuple[Score, ...]:
    """Raises LookupError, TypeError or ValueError when the answer is not SGLang's."""
    if len(answers) != len(continuations):
        raise ValueError(f"{len(continuations)} continuations, {len(answers)} answers")
    return tuple(map(_score, answers, continuations))


def _score(answer: Any, continuation: array[int]) -> Score:
    meta = answer["meta_info"]
    reported = meta["input_token_logprobs"][-len(continuation) :]
    if [token_id for _, token_id, *_ in reported] != continuation.tolist():
        raise ValueError("logprobs of other tokens than were asked for")
    return Score(tuple(float(logprob) for logprob, *_ in reported), int(meta.get("cached_tokens") or 0))
