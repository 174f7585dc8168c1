"""One table turns an error into a status, a type and a code, in OpenAI's shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from programs.errors import (
    ContextLengthError,
    DocumentEmptyError,
    DocumentEncryptedError,
    DocumentTooLargeError,
    DocumentTypeError,
    DocumentUnreadableError,
    ProgramParametersError,
    StoreUnavailableError,
    TemplateRefusedError,
    TurnConflictError,
    UnknownConversationError,
    UnknownDocumentError,
    UnknownFileError,
    UnknownJobError,
    UnknownProgramError,
    UnknownResponseError,
)
from router.errors import (
    DeadlineError,
    EngineBrokeError,
    EngineRefusedError,
    EngineUnavailableError,
    NoReplicaError,
    QueueFullError,
    RegistryConflictError,
    RegistryError,
    RegistryStoreError,
    UnknownReplicaError,
)


class ServiceError(Exception):
    """A request that the HTTP layer itself refuses."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class HygieneFileError(Exception):
    """A file of hygiene rules cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error as a client sees it."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


_INVALID = "invalid_request_error"
_SERVER = "server_error"
_RETRY_AFTER_S = 5

_TABLE: tuple[tuple[type[Exception], int, str, str | None, str | None], ...] = (
    (ContextLengthError, 400, _INVALID, "context_length_exceeded", "messages"),
    (TemplateRefusedError, 400, _INVALID, "template_refused", "messages"),
    (UnknownResponseError, 400, _INVALID, "previous_response_not_found", "previous_response_id"),
    (UnknownConversationError, 404, _INVALID, "conversation_not_found", "conversation"),
    (UnknownDocumentError, 404, _INVALID, "document_not_found", "document"),
    (DocumentTypeError, 415, _INVALID, "document_type", "file"),
    (DocumentTooLargeError, 413, _INVALID, "document_too_large", "file"),
    (DocumentEmptyError, 400, _INVALID, "document_empty", "file"),
    (DocumentEncryptedError, 400, _INVALID, "document_encrypted", "file"),
    (DocumentUnreadableError, 400, _INVALID, "document_unreadable", "file"),
    (UnknownFileError, 404, _INVALID, "file_not_found", "file_id"),
    (UnknownProgramError, 404, _INVALID, "program_not_found", "name"),
    (ProgramParametersError, 400, _INVALID, "invalid_value", "parameters"),
    (UnknownJobError, 404, _INVALID, "job_not_found", "job_id"),
    (TurnConflictError, 409, "conflict_error", "turn_conflict", "conversation"),
    (EngineRefusedError, 400, _INVALID, "engine_refused", None),
    (QueueFullError, 429, "rate_limit_error", "queue_full", None),
    (DeadlineError, 504, _SERVER, "deadline_exceeded", None),
    (NoReplicaError, 503, _SERVER, "engine_unavailable", None),
    (EngineUnavailableError, 503, _SERVER, "engine_unavailable", None),
    (EngineBrokeError, 503, _SERVER, "engine_broke_off", None),
    (UnknownReplicaError, 404, _INVALID, "replica_not_found", "name"),
    (RegistryConflictError, 409, "conflict_error", "registry_conflict", None),
    (RegistryStoreError, 503, _SERVER, "store_unavailable", None),
    (RegistryError, 400, _INVALID, "registry_refused", None),
    (StoreUnavailableError, 503, _SERVER, "store_unavailable", None),
)
EXPECTED_ERRORS: tuple[type[Exception], ...] = (ServiceError, *(row[0] for row in _TABLE))


def error_body(error: Exception) -> ErrorBody:
    """What a client is told of `error`. One that is in no row is our own fault, and its text stays with us."""
    if isinstance(error, ServiceError):
        kind = "authentication_error" if error.status == 401 else _INVALID
        return ErrorBody(error.status, str(error), kind, error.code, error.param)
    for kind_of_error, status, kind, code, param in _TABLE:
        if isinstance(error, kind_of_error):
            return ErrorBody(status, str(error), kind, code, param, _retry_after_s(error, status))
    return ErrorBody(500, "The server failed on this request; its log says why.", _SERVER, "internal_error")


def _retry_after_s(error: Exception, status: int) -> int | None:
    """Whole seconds, never sooner than the error itself says."""
    if isinstance(error, QueueFullError | NoReplicaError):
        return max(1, math.ceil(error.retry_after_s))
    return _RETRY_AFTER_S if status == 503 else None
