"""A batch as OpenAI's clients see it: everything of it follows from its job."""

from __future__ import annotations

import msgspec

from programs.jobs.job import Failed, Job, Succeeded
from service.batch.counts import BatchCounts, BatchUsage, counts_in
from service.batch.lines import LineError
from service.batch.outcome import BatchOutcome
from service.batch.parameters import BatchParameters, batch_of
from service.schema.batches import (
    BatchError,
    BatchErrors,
    BatchObject,
    BatchRequestCounts,
    BatchStatus,
    BatchTokens,
    InputTokensDetails,
    OutputTokensDetails,
)


def batch_object(job: Job, cancelling_at: float | None) -> BatchObject:
    """`cancelling_at` is when someone asked for the end of it."""
    parameters = BatchParameters.of(job.spec)
    outcome = outcome_of(job)
    counts = counts_in(job.progress) if outcome is None or outcome.request_counts.total == 0 else outcome.request_counts
    status = outcome.status if outcome else _status(counts, cancelling_at)
    return BatchObject(
        id=batch_of(job.id),
        endpoint=parameters.endpoint,
        model=outcome.model if outcome else None,
        errors=_errors(outcome.errors) if outcome and outcome.errors else None,
        input_file_id=parameters.input_file_id,
        completion_window=parameters.completion_window,
        status=status,
        output_file_id=outcome.output_file_id if outcome else None,
        error_file_id=outcome.error_file_id if outcome else None,
        created_at=int(job.spec.created),
        in_progress_at=_seconds(job.started) if counts.total else None,
        expires_at=int(job.spec.created + parameters.window_s),
        finalizing_at=_seconds(outcome.finalizing_at) if outcome else None,
        completed_at=_seconds(job.ended) if status == "completed" else None,
        failed_at=_seconds(job.ended) if status == "failed" else None,
        expired_at=_seconds(job.ended) if status == "expired" else None,
        cancelling_at=_seconds(cancelling_at),
        cancelled_at=_seconds(job.ended) if status == "cancelled" else None,
        request_counts=BatchRequestCounts(total=counts.total, completed=counts.completed, failed=counts.failed),
        usage=_tokens(outcome.usage) if outcome else None,
        metadata=parameters.metadata,
    )


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


def _status(counts: BatchCounts, cancelling_at: float | None) -> BatchStatus:
    if cancelling_at is not None:
        return "cancelling"
    if counts.total == 0:
        return "validating"
    return "in_progress" if counts.completed + counts.failed < counts.total else "finalizing"


def _errors(errors: tuple[LineError, ...]) -> BatchErrors:
    return BatchErrors(data=[BatchError(**msgspec.structs.asdict(error)) for error in errors])


def _tokens(usage: BatchUsage) -> BatchTokens:
    return BatchTokens(
        input_tokens=usage.input_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


def _seconds(at: float | None) -> int | None:
    return None if at is None else int(at)
