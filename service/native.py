"""SGLang's own endpoints: what `sglang.lang` and other clients of an engine call, over the whole pool."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import PlainTextResponse, Response

from programs.tokenizer import Tokenizer
from router.engine.generate_body import GenerateBody, Prompt
from router.errors import EngineRefusedError, RouterError
from router.native import NativeRequest
from router.request import Urgency
from service.body import read_body, read_bytes, refused
from service.errors import ServiceError, error_body
from service.schema.sampling import WireModel
from service.schema.urgency import UrgencyFields
from service.services import Services, services_of
from service.sse import DONE, EventStream, while_connected
from service.turns import DEFAULT_TENANT

router = APIRouter()

_MAX_BODY = 64 * 1024
_THREAD_CHARS = 100_000
"""Longer texts are encoded in a thread, so that other requests go on."""


class AbortBody(WireModel):
    rid: str = ""
    abort_all: bool = False


@router.post("/generate")
@router.put("/generate")
async def generate(request: Request) -> Response:
    """SGLang's `/generate`, passed through to one replica and its answer passed back as it is."""
    services = services_of(request)
    asked = await _native_request(request, services)
    answers = services.router.relay(asked)
    first = await while_connected(request, anext(answers))
    if asked.body.stream:
        return EventStream(_events(first, answers))
    await answers.aclose()
    return Response(first, media_type="application/json")


@router.post("/abort_request")
async def abort_request(request: Request) -> Response:
    """Ends what was asked for under exactly this `rid`. All of them cannot be: others' are among them."""
    services = services_of(request)
    wanted = await read_body(request, AbortBody, _MAX_BODY)
    if wanted.abort_all:
        raise ServiceError("abort_all is not taken by this server: name a rid", param="abort_all")
    services.router.abort(wanted.rid)
    return Response()


@router.get("/model_info")
@router.get("/get_model_info")
async def model_info(request: Request) -> dict[str, Any]:
    """An engine's own words: frontends choose a chat template by the path in them."""
    return await services_of(request).router.model_info()


@router.get("/server_info")
@router.get("/get_server_info")
async def server_info(request: Request) -> dict[str, Any]:
    """The pool as if it were one engine, as far as clients of an engine look. `max_total_num_tokens` is all caches'."""
    services = services_of(request)
    info = services.router.info
    if info is None:
        raise services.router.placer.none_available()
    replicas = [one.info for one in services.router.replicas.values() if one.info]
    return {
        "model_path": info.model_path,
        "served_model_name": services.sessions.model.name,
        "version": info.version,
        "status": "ready" if services.router.trouble() is None else "starting",
        "context_length": info.context_length,
        "max_req_input_len": info.max_prompt_tokens + 1,
        "page_size": info.page_size,
        "max_total_num_tokens": sum(one.max_total_tokens for one in replicas),
        "chunked_prefill_size": info.chunked_prefill_size,
        "tool_call_parser": info.tool_call_parser,
        "weight_version": info.weight_version,
        "skip_tokenizer_init": not info.tokenizes,
        "dp_size": 1,  # which replica takes a request is not for clients to say
        "internal_states": [],
        "antiphon": {"replicas": len(services.router.replicas)},
    }


@router.get("/health_generate")
async def health_generate(request: Request) -> Response:
    """200 while some replica was seen to generate."""
    return Response(status_code=200 if services_of(request).router.trouble() is None else 503)


@router.get("/flush_cache")
@router.post("/flush_cache")
async def flush_cache(request: Request, everyone: bool = False) -> Response:
    """The cache is everyone's: a program that asks for a flush gets 200 and none, `?everyone=true` gets one."""
    if not everyone:
        return PlainTextResponse("Nothing was flushed: this cache is shared. ?everyone=true flushes it for all.\n")
    if await services_of(request).router.flush():
        return PlainTextResponse("Cache flushed.\n")
    return PlainTextResponse("Cache not flushed because there are pending requests.\n", status_code=400)


async def _native_request(request: Request, services: Services) -> NativeRequest:
    raw = await read_bytes(request, services.settings.max_body_bytes)
    model = services.sessions.model
    body = GenerateBody.read(raw, model.vocabulary_size)
    if sum(len(one) for one in body.prompts if isinstance(one, str)) > _THREAD_CHARS:
        prompts = await asyncio.to_thread(_encoded, body.prompts, model.tokenizer)
    else:
        prompts = _encoded(body.prompts, model.tokenizer)
    _check_lengths(prompts, body, services)
    return NativeRequest(body, prompts, _urgency(request))


def _encoded(prompts: tuple[Prompt, ...], tokenizer: Tokenizer) -> tuple[array[int], ...]:
    """For placing alone: the engine gets the text itself."""
    return tuple(tokenizer.encode_raw(one) if isinstance(one, str) else one for one in prompts)


def _check_lengths(prompts: tuple[array[int], ...], body: GenerateBody, services: Services) -> None:
    """What an engine would refuse only after parts of it were computed, or would not survive."""
    info = services.router.info
    most = info.context_length if info else services.sessions.model.context_length
    for prompt in prompts:
        if not prompt and body.variant is None:
            raise EngineRefusedError("the prompt is empty")
        if len(prompt) >= most:
            raise EngineRefusedError(
                f"The input ({len(prompt)} tokens) is longer than the model's context length ({most} tokens)."
            )


def _urgency(request: Request) -> Urgency:
    """An engine's body has no fields for it, and a client of an engine no way to add any: headers say it."""
    tier, user = request.headers.get("x-antiphon-service-tier"), request.headers.get("x-antiphon-user")
    try:
        return UrgencyFields.model_validate({"service_tier": tier, "user": user}).urgency(DEFAULT_TENANT)
    except ValidationError as error:
        raise refused(error.errors(include_url=False, include_context=False)[0]) from error


async def _events(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """As an engine streams. An error that comes too late for the status line is an event, as it would be there."""
    async with aclosing(rest) as answers:
        yield _event(first)
        try:
            async for answer in answers:
                yield _event(answer)
        except RouterError as error:
            body = error_body(error)
            yield _event(orjson.dumps({"error": {"message": body.message, "type": body.type, "code": body.status}}))
    yield DONE


def _event(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"
