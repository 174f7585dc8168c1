"""The FastAPI application: settings in, one typed Services built, routes put together."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from programs.anticipation import AnticipationBudget, Anticipator
from programs.batches import Cancellations
from programs.documents.extraction import ExtractionLimits
from programs.documents.extractor import Extractor
from programs.documents.store import DocumentStore
from programs.files import FileStore
from programs.hygiene import HygieneRule
from programs.jobs.store import JobStore
from programs.model import ChatModel
from programs.probe import probe
from programs.runtime.registry import ProgramRegistry
from programs.session import Sessions
from programs.store import SessionStore, connect
from programs.verdict import TemplateProbe
from service import (
    admin,
    batches,
    chat,
    compaction,
    conversations,
    documents,
    engine_admin,
    files,
    health,
    jobs,
    models,
    native,
    placements,
    programs,
    responses,
    tokenize,
)
from service.auth import require_key
from service.body import refused
from service.errors import EXPECTED_ERRORS, ErrorBody, error_body
from service.hygiene_file import hygiene_rules
from service.job_metrics import JobCollector
from service.metrics import Metrics
from service.registry import routed
from service.services import Services
from service.serving_profile import load_serving_profile
from service.settings import Settings
from service.sgl.interpreter import SglInterpreter
from service.sgl.programs import sgl_programs
from service.sse import ClientGoneError

_log = logging.getLogger("antiphon.service")

_CLIENT_CLOSED_REQUEST = 499
_MODULES = (
    chat,
    responses,
    compaction,
    conversations,
    models,
    native,
    tokenize,
    files,
    batches,
    documents,
    programs,
    jobs,
    admin,
    engine_admin,
    placements,
    health,
)


def create_app(settings: Settings) -> FastAPI:
    """The front. The model's files are read here, so that a wrong directory is known before anything listens."""
    model = ChatModel.load(settings.model_dir, settings.model_name)
    probed = probe(model.template, model.tokenizer)
    _log.info("%s: %s", model.name, probed.summary)
    rules = hygiene_rules(settings.hygiene)
    profile = load_serving_profile(settings.serving_profile)
    frontend = SglInterpreter(settings.engine_python, profile.directory, settings.foreign_environment)
    in_sglang = sgl_programs(frontend, profile.sgl_programs)
    runnable = ProgramRegistry([*profile.load_programs(), *in_sglang.values()])

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with _services(settings, model, probed, rules, runnable) as services:
            app.state.services = services
            yield

    described = "/openapi.json" if settings.api_key is None else None  # FastAPI's own routes ask for no key
    app = FastAPI(title="Antiphon", lifespan=lifespan, dependencies=[Depends(require_key)], openapi_url=described)
    for module in _MODULES:
        app.include_router(module.router)
    for expected in EXPECTED_ERRORS:
        app.add_exception_handler(expected, _expected)
    app.add_exception_handler(RequestValidationError, _bad_parameter)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)
    return app


@asynccontextmanager
async def _services(
    settings: Settings,
    model: ChatModel,
    probed: TemplateProbe,
    rules: tuple[HygieneRule, ...],
    runnable: ProgramRegistry,
) -> AsyncIterator[Services]:
    redis = connect(settings.store_url)
    store = SessionStore(redis, settings.session_ttl_s)
    job_store = JobStore(redis, settings.job_ttl_s)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
            routed(settings, model, redis, http) as (router, control),
        ):
            anticipator = Anticipator(router, AnticipationBudget(settings.anticipated_tokens_per_minute))
            sessions = Sessions(model, store, router, anticipator, rules=rules, default_history=settings.history)
            try:
                yield Services(
                    settings=settings,
                    store=store,
                    router=router,
                    sessions=sessions,
                    metrics=Metrics(anticipator.count, router, JobCollector(job_store.queue)),
                    control=control,
                    probed=probed,
                    files=FileStore(redis, settings.file_ttl_s),
                    documents=DocumentStore(redis, settings.document_ttl_s),
                    extractor=Extractor(ExtractionLimits(characters=settings.document_characters)),
                    programs=runnable,
                    jobs=job_store,
                    batches=JobStore(redis, settings.job_ttl_s, queue="batches"),
                    cancellations=Cancellations(redis, settings.job_ttl_s),
                )
            finally:
                await anticipator.aclose()
    finally:
        await store.aclose()


async def _expected(_: Request, error: Exception) -> Response:
    return _response(error_body(error))


async def _bad_parameter(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    return _response(error_body(refused({**first, "loc": first["loc"][1:]})))  # without "query" or "path"


async def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _http(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else "error"
    return _response(ErrorBody(status, str(detail), "invalid_request_error"))


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _response(error_body(error))


def _response(body: ErrorBody) -> Response:
    headers = {} if body.retry_after_s is None else {"Retry-After": str(body.retry_after_s)}
    return JSONResponse(body.as_json(), status_code=body.status, headers=headers)
