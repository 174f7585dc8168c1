"""A batch as OpenAI's clients see it: everything of it follows from its job."""

from __future__ import annotations

from typing import Any

import msgspec

from programs.jobs.job import Failed, Job, Succeeded
from service.batch.counts import BatchCounts, counts_in
from service.batch.lines import LineError
from service.batch.outcome import BatchOutcome
from service.batch.parameters import BatchParameters, batch_of


def batch_object(job: Job, cancelling_at: float | None) -> dict[str, Any]:
    """`cancelling_at` is when someone asked for the end of it."""
    parameters = BatchParameters.of(job.spec)
    outcome = outcome_of(job)
    counts = counts_in(job.progress) if outcome is None or outcome.request_counts.total == 0 else outcome.request_counts
    status = outcome.status if outcome else _status(counts, cancelling_at)
    return {
        "id": batch_of(job.id),
        "object": "batch",
        "endpoint": parameters.endpoint,
        "model": outcome.model if outcome else None,
        "errors": _errors(outcome.errors) if outcome and outcome.errors else None,
        "input_file_id": parameters.input_file_id,
        "completion_window": parameters.completion_window,
        "status": status,
        "output_file_id": outcome.output_file_id if outcome else None,
        "error_file_id": outcome.error_file_id if outcome else None,
        "created_at": int(job.spec.created),
        "in_progress_at": _seconds(job.started) if counts.total else None,
        "expires_at": int(job.spec.created + parameters.window_s),
        "finalizing_at": _seconds(outcome.finalizing_at) if outcome else None,
        "completed_at": _seconds(job.ended) if status == "completed" else None,
        "failed_at": _seconds(job.ended) if status == "failed" else None,
        "expired_at": _seconds(job.ended) if status == "expired" else None,
        "cancelling_at": _seconds(cancelling_at),
        "cancelled_at": _seconds(job.ended) if status == "cancelled" else None,
        "request_counts": {"total": counts.total, "completed": counts.completed, "failed": counts.failed},
        "usage": outcome.usage.as_json() if outcome else None,
        "metadata": parameters.metadata,
    }


def outcome_of(job: Job) -> BatchOutcome | None:
    """None as long as it has none. A job that broke down, or was cancelled as any job may be, has written nothing."""
    match job.outcome:
        case None:
            return None
        case Succeeded(output):
            return msgspec.json.decode(output, type=BatchOutcome)
        case Failed(error):
            return BatchOutcome("failed", errors=(LineError(error.code, error.message),))
        case _:
            return BatchOutcome("cancelled")


def _status(counts: BatchCounts, cancelling_at: float | None) -> str:
    if cancelling_at is not None:
        return "cancelling"
    if counts.total == 0:
        return "validating"
    return "in_progress" if counts.completed + counts.failed < counts.total else "finalizing"


def _errors(errors: tuple[LineError, ...]) -> dict[str, Any]:
    return {"object": "list", "data": [msgspec.to_builtins(error) for error in errors]}


def _seconds(at: float | None) -> int | None:
    return None if at is None else int(at)
