"""Sampling fields that the chat and the responses API share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from router.request import Sampling
from service.errors import ServiceError

_ANY_OBJECT = orjson.dumps({"type": "object"}).decode()

_TEMPLATES_OWN = {"messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception"}


_INT64 = 2**63


def _fits(value: dict[str, Any]) -> dict[str, Any]:
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise ValueError(f"cannot be passed on: {error}") from error
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_fits)]
"""Any JSON object that an engine can be given: numbers within 64 bits, nested no deeper than a parser follows."""


def _no_reserved_names(arguments: dict[str, Any]) -> dict[str, Any]:
    reserved = sorted(_TEMPLATES_OWN & arguments.keys())
    if reserved:
        raise ValueError(f"{reserved[0]} is set by the server")
    return arguments


TemplateArguments = Annotated[JsonObject, AfterValidator(_no_reserved_names)]
"""Arguments of the chat template, `enable_thinking` for one."""

Stop = str | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)] | None


class WireModel(BaseModel):
    """Values of the wrong type are refused, not converted; fields that no one knows are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class JsonSchema(WireModel):
    name: str = "answer"
    schema_: JsonObject = Field(alias="schema", default_factory=dict)
    strict: bool | None = None


class ResponseFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_given(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema is required when type is 'json_schema'")
        return self

    def as_schema(self) -> str | None:
        """The JSON Schema that the answer must obey, as JSON; None for free text."""
        return schema_text(self.type, self.json_schema.schema_ if self.json_schema else None)


def schema_text(kind: str, schema: dict[str, Any] | None) -> str | None:
    """A response format's schema as JSON; that of any object for `json_object`."""
    if kind == "json_schema":
        return orjson.dumps(schema or {}).decode()
    return _ANY_OBJECT if kind == "json_object" else None


class SamplingFields(WireModel):
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=_INT64)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-_INT64, lt=_INT64)
    stop: Stop = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None

    def sampling(self, json_schema: str | None) -> Sampling:
        """As the router takes it; `max_new_tokens` is filled in when the prompt's length is known."""
        return Sampling(
            max_new_tokens=0,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k == 0 else self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            seed=self.seed,
            stop=self._stop(),
            json_schema=json_schema,
            logit_bias=self._logit_bias(),
        )

    def _stop(self) -> tuple[str, ...]:
        if self.stop is None or self.stop == "":
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def _logit_bias(self) -> tuple[tuple[int, float], ...]:
        try:
            return tuple((int(token_id), bias) for token_id, bias in (self.logit_bias or {}).items())
        except ValueError as error:
            raise ServiceError(
                "logit_bias maps token ids, as decimal strings, to numbers", param="logit_bias"
            ) from error
