"""What a batch leaves: a file of answers, and one of what failed."""

from __future__ import annotations

from hashlib import blake2b

import orjson

from programs.files import FileStore, FileWriter
from service.batch.lines import BatchRequest
from service.batch.outcome import Ending
from service.batch.parameters import batch_of
from service.batch.sender import Answer

_UNDONE: dict[Ending, dict[str, str]] = {
    "expired": {
        "code": "batch_expired",
        "message": "This request could not be executed before the completion window expired.",
    },
    "cancelled": {
        "code": "batch_cancelled",
        "message": "This request was not executed before the batch was cancelled.",
    },
}


class BatchOutput:
    """Writes both files of the batch that `job` is, line by line, in the order of the input.

    Written again, after a worker died over it, they are the same files.
    """

    def __init__(self, files: FileStore, job: str, ttl_s: int | None) -> None:
        self._answers = _writer(files, job, "output", ttl_s)
        self._failures = _writer(files, job, "error", ttl_s)

    async def answered(self, request: BatchRequest, answer: Answer) -> None:
        response = {
            "status_code": answer.status,
            "request_id": answer.request_id or f"req_{request.digest}",
            "body": orjson.Fragment(answer.body),
        }
        writer = self._answers if answer.succeeded else self._failures
        await writer.write(_line(request, {"response": response, "error": None}))

    async def undone(self, request: BatchRequest, ending: Ending) -> None:
        await self._failures.write(_line(request, {"response": None, "error": _UNDONE[ending]}))

    async def finish(self) -> tuple[str | None, str | None]:
        """Ids of the two files; None for one that would be empty."""
        return await _finished(self._answers), await _finished(self._failures)


def _writer(files: FileStore, job: str, what: str, ttl_s: int | None) -> FileWriter:
    file_id = f"file-{blake2b(f'{job}:{what}'.encode(), digest_size=16).hexdigest()}"
    return files.writer(file_id, f"{batch_of(job)}_{what}.jsonl", "batch_output", ttl_s=ttl_s)


async def _finished(writer: FileWriter) -> str | None:
    return (await writer.finish()).id if writer.size else None


def _line(request: BatchRequest, rest: dict[str, object]) -> bytes:
    return orjson.dumps({"id": f"batch_req_{request.digest}", "custom_id": request.custom_id, **rest}) + b"\n"
