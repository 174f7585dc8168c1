"""SGLang's HTTP endpoints over the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from tests.fake_engine import info
from tests.fake_engine.chat_wire import ChatStream, chat_answer
from tests.fake_engine.engine import Engine
from tests.fake_engine.parsers import split_calls
from tests.fake_engine.request import ContractError, RefusedError, Request, each, parse
from tests.fake_engine.wire import DONE, EventStream, answer, event, frame

MAX_BODY = 1 << 28


def json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def failure(message: str, kind: str, status: int) -> web.Response:
    return json({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status)


class Endpoints:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._options = engine.options

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        reads: dict[str, Callable[[Engine], object]] = {
            "/model_info": info.model_info,
            "/get_model_info": info.model_info,
            "/server_info": info.server_info,
            "/get_server_info": info.server_info,
            "/v1/models": info.models,
        }
        if self._options.version == "0.5.17":
            reads["/get_load"] = info.get_load
        for path, read in reads.items():
            app.router.add_get(path, self._reader(read))
        app.router.add_get("/health", self.health)
        app.router.add_get("/health_generate", self.health)
        app.router.add_get("/v1/loads", self.loads)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_route("*", "/generate", self.generate)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_route("*", "/flush_cache", self.flush_cache)
        app.router.add_post("/abort_request", self.abort_request)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/release_memory_occupation", self.release_memory)
        app.router.add_post("/resume_memory_occupation", self.resume_memory)
        app.router.add_post("/update_weights_from_disk", self.update_weights)
        app.router.add_post("/parse_function_call", self.parse_function_call)
        app.router.add_get("/fake/state", self.fake_state)
        app.router.add_post("/fake/faults", self.fake_faults)
        return app

    def _reader(self, read: Callable[[Engine], object]) -> Callable[[web.Request], Any]:
        async def handler(_: web.Request) -> web.Response:
            return json(read(self._engine))

        return handler

    async def generate(self, http: web.Request) -> web.StreamResponse:
        if http.method not in ("POST", "PUT"):
            return json({"detail": "Method Not Allowed"}, 405)
        raw = await http.read()
        if (status := self._engine.faults.take_failure()) is not None:
            return failure("injected", str(status), status)
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            return failure(f"1 validation error: JSON decode error: {error}", "Bad Request", 400)
        try:
            if isinstance(body, dict) and (bodies := each(body)) is not None:
                return await self._each(bodies)
            request = self._parsed(body)
        except ContractError as error:
            return json({"error": str(error)}, 400)
        except RefusedError as error:
            return await self._refuse(http, str(error), bool(body.get("stream")))
        return await (self._stream(http, request) if request.stream else self._once(request))

    def _parsed(self, body: Any) -> Request:
        request = parse(body, self._options, self._engine.speller)
        self._engine.check(request)
        return request

    async def _each(self, bodies: list[dict[str, Any]]) -> web.Response:
        """One answer for a list of prompts, in its order; the first that fails stands for all."""
        if bodies[0].get("stream"):
            raise ContractError("the fake engine streams one prompt, not a list")
        answers = await asyncio.gather(*(self._once(request) for request in [self._parsed(body) for body in bodies]))
        failed = next((answer for answer in answers if answer.status != 200), None)
        parts = [answer.body for answer in answers if isinstance(answer.body, bytes)]
        return failed or web.Response(body=b"[%b]" % b",".join(parts), content_type="application/json")

    async def chat(self, http: web.Request) -> web.StreamResponse:
        raw = await http.read()
        if (status := self._engine.faults.take_failure()) is not None:
            return failure("injected", str(status), status)
        if (chat := self._engine.model.chat) is None:
            return failure("this fake engine has no chat template: its tokenizer is no model directory", "None", 400)
        try:
            body = orjson.loads(raw)
            request = chat.request(body, self._options)
            self._engine.check(request)
        except orjson.JSONDecodeError as error:
            return failure(f"1 validation error: JSON decode error: {error}", "Bad Request", 400)
        except (ContractError, RefusedError) as error:
            return failure(str(error), "BadRequestError", 400)
        if request.stream:
            return await self._stream(http, request, body)
        return await self._once(request, body)

    async def _refuse(self, http: web.Request, message: str, stream: bool) -> web.StreamResponse:
        if not stream:
            return json({"error": {"message": message}}, 400)
        error = {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
        response = await self._open_stream(http)
        await response.write(event({"error": error}) + DONE)
        return response

    async def _open_stream(self, http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(http)
        return response

    async def _stream(
        self, http: web.Request, request: Request, chat: dict[str, Any] | None = None
    ) -> web.StreamResponse:
        """`chat`: the body of a chat completion, whose wire differs."""
        async with self._engine.holding(request):
            response = await self._open_stream(http)
            transport = http.transport
            assert transport is not None
            if chat is not None:
                request.emit = ChatStream(request, chat, transport, self._options)
            else:
                request.emit = EventStream(request, transport, self._options, self._engine.faults.take_cut())
            await self._compute(request)
            if not transport.is_closing():
                transport.write(frame(DONE))
        return response

    async def _once(self, request: Request, chat: dict[str, Any] | None = None) -> web.Response:
        async with self._engine.holding(request):
            await self._compute(request)
        assert request.finish is not None
        if request.finish["type"] == "abort" and (status := request.finish.get("status_code")) is not None:
            message = request.finish["message"]
            if status == 400:
                return json({"error": {"message": message}}, 400)
            return failure(message, str(status), status)
        return json(chat_answer(request, chat, self._options) if chat is not None else answer(request, self._options))

    async def _compute(self, request: Request) -> None:
        """Returns when the request finished. aiohttp cancels us when the client goes away: then it is aborted."""
        try:
            await asyncio.sleep(self._engine.faults.take_delay())
            self._engine.submit(request)
            await request.done
        except asyncio.CancelledError:
            self._engine.client_gone(request)
            raise

    async def abort_request(self, http: web.Request) -> web.Response:
        body = orjson.loads(await http.read() or b"{}")
        rid, everything = str(body.get("rid") or ""), bool(body.get("abort_all"))
        # Matched by prefix, but only if the server also knows the exact rid.
        if everything or rid in self._engine.held:
            self._engine.abort(rid, everything)
        return web.Response()

    async def parse_function_call(self, http: web.Request) -> web.Response:
        text = orjson.loads(await http.read())["text"]
        if self._options.tool_call_parser is None or text in self._engine.script.calls:
            return json(self._engine.script.parse(text))
        said, calls = split_calls(text)
        numbered = enumerate(calls)
        parsed = [{"tool_index": at, "name": call.name, "parameters": call.arguments} for at, call in numbered]
        return json({"normal_text": said, "calls": parsed})

    async def tokenize(self, http: web.Request) -> web.Response:
        body = orjson.loads(await http.read())
        speller = self._engine.speller
        if speller is None:  # `--skip-tokenizer-init`: the real one has None where it has its tokenizer
            trouble = "'NoneType' object has no attribute 'encode'"
            return failure(f"Internal server error during tokenization: {trouble}", "InternalServerError", 500)
        prompt, special = body["prompt"], bool(body.get("add_special_tokens", True))
        several = isinstance(prompt, list)
        ids = [speller.encode(text, special) for text in (prompt if several else [prompt])]
        counts = [len(one) for one in ids]
        length = self._options.context_length
        told = {"tokens": ids, "count": counts} if several else {"tokens": ids[0], "count": counts[0]}
        return json({**told, "max_model_len": length})

    async def health(self, _: web.Request) -> web.Response:
        if not self._engine.started:
            return web.Response(status=503)
        self._engine.weights.touch()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._engine.scheduler.go.wait(), self._options.health_timeout_s)
            return web.Response()
        return web.Response(status=503)

    async def loads(self, http: web.Request) -> web.Response:
        include = frozenset(filter(None, http.query.get("include", "").split(",")))
        return json(info.loads(self._engine, include or frozenset({"all"})))

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=info.metrics(self._engine), content_type="text/plain")

    async def release_memory(self, _: web.Request) -> web.Response:
        self._engine.weights.release(self._engine.state.idle)
        self._engine.flush()
        return json(None)

    async def resume_memory(self, _: web.Request) -> web.Response:
        self._engine.weights.resume()
        return json(None)

    async def update_weights(self, http: web.Request) -> web.Response:
        body = orjson.loads(await http.read())
        path = str(body["model_path"])
        done = await self._engine.swap(path, body.get("weight_version"))
        said = "Succeeded to update model weights." if done else f"Failed to get weights iterator: no {path}."
        return json({"success": done, "message": said, "num_paused_requests": 0}, 200 if done else 400)

    async def flush_cache(self, _: web.Request) -> web.Response:
        if self._engine.flush():
            return web.Response(
                text="Cache flushed.\nPlease check backend logs for more details. "
                "(When there are running or waiting requests, the operation will not be performed.)\n"
            )
        return web.Response(status=400, text="Cache not flushed because there are pending requests.\n")

    async def fake_state(self, _: web.Request) -> web.Response:
        state = asdict(self._engine.state) | {"finished": len(self._engine.state.finished)}
        return json(state | {"cached_pages": sum(rank.pool.tree.pages for rank in self._engine.ranks)})

    async def fake_faults(self, http: web.Request) -> web.Response:
        try:
            self._engine.set_faults(orjson.loads(await http.read()))
        except KeyError as error:
            return json({"error": f"no such fault: {error}"}, 400)
        return json(asdict(self._engine.faults))
