"""The lines of a batch's input: what each asks for, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import msgspec
import orjson
from pydantic import Field, ValidationError

from programs.message import DIGEST_BYTES
from service.errors import ServiceError
from service.schema.chat import ChatRequest
from service.schema.responses import ResponsesRequest
from service.schema.sampling import JsonObject, WireModel

Endpoint = Literal["/v1/chat/completions", "/v1/responses"]

MOST_REQUESTS = 50_000
_MOST_ERRORS = 100
"""No more are told of; whoever sent a wrong file knows by then."""
_BODIES: dict[Endpoint, type[ChatRequest | ResponsesRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/responses": ResponsesRequest,
}


class LineError(msgspec.Struct, frozen=True):
    """What is wrong with an input. `line` counts from 1; None: it is not one line's fault."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchLine(WireModel):
    custom_id: str = Field(min_length=1, max_length=512)
    method: Literal["POST"]
    url: str
    body: JsonObject


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One request of a batch. `digest` names it, and is another for each line, even of the same words."""

    custom_id: str
    body: dict[str, Any]
    digest: str

    @classmethod
    def read(cls, number: int, line: bytes) -> BatchRequest:
        """Of a line that was found to be right."""
        digest = blake2b(b"%d:" % number + line, digest_size=DIGEST_BYTES).hexdigest()
        parsed = orjson.loads(line)
        return cls(parsed["custom_id"], parsed["body"], digest)


class InputCheck:
    """Judges the lines of one input, given in order. Blank ones count, but ask for nothing."""

    def __init__(self, endpoint: Endpoint, models: Collection[str]) -> None:
        self.requests = 0
        self.model: str | None = None
        """Of the first request."""
        self._endpoint = endpoint
        self._models = models
        self._lines = 0
        self._seen: set[bytes] = set()
        """Digests of custom ids: those of 50,000 lines are to be remembered, and may be long."""
        self._errors: list[LineError] = []

    @property
    def full(self) -> bool:
        """Whether further lines would change nothing."""
        return self.requests > MOST_REQUESTS or len(self._errors) >= _MOST_ERRORS

    @property
    def errors(self) -> tuple[LineError, ...]:
        """After the last line."""
        if self.requests > MOST_REQUESTS:
            return (LineError("too_many_requests", f"a batch has up to {MOST_REQUESTS} requests; send several"),)
        if self.requests == 0:
            return (LineError("empty_file", "the input file has no requests in it"),)
        return tuple(self._errors)

    def add(self, line: bytes) -> None:
        self._lines += 1
        if not line.strip():
            return
        self.requests += 1
        try:
            self._check(line)
        except _WrongLineError as error:
            self._errors.append(LineError(error.code, str(error), self._lines, error.param))

    def _check(self, line: bytes) -> None:
        request = _parsed(line)
        if request.url != self._endpoint:
            raise _WrongLineError("invalid_url", f"the batch is for {self._endpoint}, not for '{request.url}'", "url")
        seen = blake2b(request.custom_id.encode(), digest_size=DIGEST_BYTES).digest()
        if seen in self._seen:
            raise _WrongLineError(
                "duplicate_custom_id", f"custom_id '{request.custom_id}' is on an earlier line too", "custom_id"
            )
        self._seen.add(seen)
        self._check_body(request.body)

    def _check_body(self, given: dict[str, Any]) -> None:
        try:
            body = _BODIES[self._endpoint].model_validate_json(orjson.dumps(given))
            messages = body.as_messages()
        except ValidationError as error:
            raise _wrong_field(error, "body") from error
        except ServiceError as error:
            raise _WrongLineError("invalid_value", str(error), f"body.{error.param}") from error
        if not messages:
            raise _WrongLineError("invalid_value", "input holds no message", "body.input")
        if body.stream:
            raise _WrongLineError("invalid_value", "the answers of a batch are not streamed", "body.stream")
        if body.model not in self._models:
            known = ", ".join(f"'{name}'" for name in self._models)
            raise _WrongLineError(
                "model_not_found", f"the model '{body.model}' does not exist; there is {known}", "body.model"
            )
        self.model = self.model or body.model


class _WrongLineError(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def _parsed(line: bytes) -> BatchLine:
    try:
        return BatchLine.model_validate(orjson.loads(line))  # by the parser that will read it again
    except orjson.JSONDecodeError as error:
        raise _WrongLineError("invalid_json_line", "this line is not JSON") from error
    except ValidationError as error:
        raise _wrong_field(error) from error


def _wrong_field(error: ValidationError, *within: str) -> _WrongLineError:
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(step) for step in (*within, *first["loc"]))
    if first["type"] == "missing":
        return _WrongLineError("missing_required_parameter", f"'{where}' is missing", where)
    message = first["msg"].removeprefix("Value error, ")
    return _WrongLineError("invalid_value", f"{where}: {message}" if where else message, where or None)
