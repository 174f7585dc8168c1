"""SGLang's `/tokenize` and `/detokenize`, answered by the front's own tokenizer."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, cast

from fastapi import APIRouter, Request
from pydantic import Field

from service.body import read_body
from service.openapi import json_body
from service.schema.sampling import WireModel
from service.services import services_of

router = APIRouter()

TokenId = Annotated[int, Field(ge=0, lt=2**32)]


class TokenizeBody(WireModel):
    prompt: str | list[str]
    add_special_tokens: bool = True


class DetokenizeBody(WireModel):
    tokens: list[TokenId] | list[list[TokenId]]
    skip_special_tokens: bool = True


@router.post("/tokenize", openapi_extra=json_body(TokenizeBody))
@router.post("/v1/tokenize", openapi_extra=json_body(TokenizeBody))
async def tokenize(request: Request) -> dict[str, Any]:
    """The ids of a text, or of several, as an engine has them of a prompt: control tokens that it spells are read."""
    services = services_of(request)
    body = await read_body(request, TokenizeBody, services.settings.max_body_bytes)
    encode, around = services.sessions.model.tokenizer.encode_raw, body.add_special_tokens
    several = isinstance(body.prompt, list)
    texts = body.prompt if isinstance(body.prompt, list) else [body.prompt]
    ids = await asyncio.to_thread(lambda: [encode(text, around=around).tolist() for text in texts])
    told = {"tokens": ids, "count": list(map(len, ids))} if several else {"tokens": ids[0], "count": len(ids[0])}
    info = services.router.info
    return {**told, "max_model_len": info.context_length if info else services.sessions.model.context_length}


@router.post("/detokenize", openapi_extra=json_body(DetokenizeBody))
@router.post("/v1/detokenize", openapi_extra=json_body(DetokenizeBody))
async def detokenize(request: Request) -> dict[str, Any]:
    """The text of ids, or of several lists of them."""
    services = services_of(request)
    body = await read_body(request, DetokenizeBody, services.settings.max_body_bytes)
    decode, skip = services.sessions.model.tokenizer.decode, body.skip_special_tokens
    tokens = cast("list[Any]", body.tokens)
    if tokens and isinstance(tokens[0], list):
        return {"text": [decode(ids, skip_special_tokens=skip) for ids in tokens]}
    return {"text": decode(tokens, skip_special_tokens=skip)}
