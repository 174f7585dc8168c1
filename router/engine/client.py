"""SGLang's wire, 0.5.17 to 0.5.23: the only place that knows it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from router.engine.control import EngineControl
from router.engine.relay import EngineRelay
from router.engine.scoring import Score, read_scores, score_body
from router.engine.wire import CONNECT_TIMEOUT_S, JSON_HEADERS, abort_error, chunk_error, events, refusal, said
from router.errors import EngineBrokeError, EngineUnavailableError
from router.request import (
    Delta,
    Finish,
    FinishType,
    GenerateRequest,
    ParsedCall,
    ParsedText,
    Sampling,
    TokenLogprob,
    prefill_of,
)

_CONTROL_TIMEOUT_S = 10.0
_CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself. Lengths are tokens; a prompt may have `max_prompt_tokens` of the context's."""

    version: str
    model_path: str
    served_model_name: str
    context_length: int
    max_prompt_tokens: int
    page_size: int
    max_total_tokens: int
    tool_call_parser: str | None
    dp_size: int = 1
    weight_version: str | None = None
    kv_events_config: str | None = None
    """The server's own JSON text; None: it publishes no KV events."""
    max_running_requests: int | None = None
    """Of each DP rank."""
    chunked_prefill_size: int | None = None
    """None: a prompt is prefilled in one piece, however long."""
    attention_backend: str | None = None
    tokenizes: bool = True
    """False: started with `--skip-tokenizer-init`, it knows ids alone."""


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What one DP rank has to do. `prefilled_tokens` and `prefill_s` are totals since its start, None where unknown."""

    rank: int
    waiting_tokens: int
    """Of waiting prompts, those that are not cached."""
    prefilled_tokens: int | None
    prefill_s: float | None


class EngineClient:
    """One SGLang server by URL, or one DP rank of it. `name` is what answers and metrics call it."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession, dp_rank: int | None = None) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self.dp_rank = dp_rank
        self._session = session
        self._aborts: set[asyncio.Task[None]] = set()

    @property
    def control(self) -> EngineControl:
        """The same server, to be asked for other things than tokens."""
        return EngineControl(self.name, self.url, self._session)

    @property
    def relay(self) -> EngineRelay:
        """The same server, for bodies and answers that are not ours."""
        return EngineRelay(self.name, self.url, self._session, self.abort_soon)

    async def server_info(self) -> ServerInfo:
        """Raises EngineUnavailableError when the server cannot say."""
        info = await self._json("GET", "/server_info")
        models = await self._json("GET", "/v1/models")
        try:
            context_length = int(models["data"][0]["max_model_len"])
            return ServerInfo(
                version=str(info["version"]),
                model_path=str(info["model_path"]),
                served_model_name=str(info["served_model_name"]),
                context_length=context_length,
                max_prompt_tokens=int(info.get("max_req_input_len") or context_length) - 1,
                page_size=int(info["page_size"]),
                max_total_tokens=int(info["max_total_num_tokens"]),
                tool_call_parser=info.get("tool_call_parser"),
                **_options(info),
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineUnavailableError(f"{self.name} does not describe itself as SGLang does: {error!r}") from error

    def of_rank(self, rank: int) -> EngineClient:
        """The same server, for what goes to its DP rank `rank` alone."""
        return EngineClient(f"{self.name}/{rank}", self.url, self._session, rank)

    async def loads(self) -> tuple[RankLoad, ...]:
        """Raises EngineUnavailableError and EngineRefusedError when the server cannot say."""
        answer = await self._json("GET", "/v1/loads")
        try:
            return tuple(_rank_load(load) for load in answer["loads"])
        except (KeyError, TypeError, ValueError) as error:
            raise EngineUnavailableError(f"{self.name} does not report loads as SGLang does: {error!r}") from error

    async def generates(self) -> bool:
        """Whether tokens come out of it, as SGLang itself tells: a busy server's count, whoever asked for them.

        Waits for as long as SGLang does, 20 s unless it was started otherwise.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.get(f"{self.url}/health_generate", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def parse_calls(self, text: str, tools: Sequence[str], parser: str | None) -> ParsedText:
        """The tool calls in finished `text`, by the engine's own parser; with no `parser` named it tries all it has.

        `tools` are the definitions, as JSON. Raises EngineUnavailableError and EngineRefusedError.
        """
        body = {"text": text, "tools": [orjson.Fragment(tool) for tool in tools], "tool_call_parser": parser}
        parsed = await self._json("POST", "/parse_function_call", orjson.dumps(body))
        calls = tuple(ParsedCall(call["name"], call["parameters"]) for call in parsed["calls"])
        return ParsedText(parsed["normal_text"], calls)

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """The ids of `text` by the server's own tokenizer, nothing added to them.

        Raises EngineUnavailableError and EngineRefusedError.
        """
        body = orjson.dumps({"prompt": text, "add_special_tokens": False})
        answer = await self._json("POST", "/tokenize", body)
        try:
            return tuple(map(int, answer["tokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise EngineUnavailableError(f"{self.name} does not tokenize as SGLang does: {error!r}") from error

    async def _json(
        self, method: str, path: str, body: bytes | None = None, timeout_s: float | None = _CONTROL_TIMEOUT_S
    ) -> Any:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.request(
                method, self.url + path, data=body, headers=JSON_HEADERS, timeout=timeout
            ) as response:
                answer = await response.read()
                if response.status != 200:
                    raise refusal(self.name, response.status, answer)
                return orjson.loads(answer)
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            raise EngineUnavailableError(f"cannot reach {self.name} at {self.url}: {said(error)}") from error

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        """The generation's deltas; the last one carries `finish`.

        Leaving early aborts the generation on the server. Raises EngineRefusedError (the request is at fault),
        EngineUnavailableError (nothing was generated) or EngineBrokeError (the stream ended too soon).
        """
        finished = False
        try:
            async with aclosing(self._stream(request)) as deltas:
                async for delta in deltas:
                    finished = finished or delta.finish is not None
                    yield delta
        finally:
            if not finished:
                self.abort_soon(request.rid)

    async def prefill(self, prompt_ids: array[int], cache_salt: str | None) -> int:
        """Have the prompt computed and cached: how many of its tokens were cached before. Raises as `generate` does."""
        cached = 0
        async with aclosing(self.generate(prefill_of(prompt_ids, cache_salt))) as deltas:
            async for delta in deltas:
                cached = delta.cached_tokens
        return cached

    async def score(
        self, prompt_ids: array[int], continuations: Sequence[array[int]], cache_salt: str | None
    ) -> tuple[Score, ...]:
        """How likely the model finds each continuation of a prompt, token by token; none of them may be empty.

        The prompt's tokens that are cached are reused, but those of its last page. Raises EngineUnavailableError and
        EngineRefusedError.
        """
        body = orjson.dumps(score_body(prompt_ids, continuations, cache_salt, self.dp_rank))
        answers = await self._json("POST", "/generate", body, timeout_s=None)
        try:
            return read_scores(answers, continuations)
        except (LookupError, TypeError, ValueError) as error:
            raise EngineUnavailableError(f"{self.name} does not score as SGLang does: {error!r}") from error

    async def _stream(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        reader = _ChunkReader(self.name)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.post(
                self.url + "/generate",
                data=orjson.dumps(generate_body(request, self.dp_rank)),
                headers=JSON_HEADERS,
                timeout=timeout,
            ) as response:
                if response.status != 200:
                    raise refusal(self.name, response.status, await response.read())
                async for event in events(response.content):
                    yield self._read(reader, event)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if reader.finished:
                return
            if reader.seen:
                raise EngineBrokeError(f"{self.name} broke off in mid-stream: {said(error)}") from error
            raise EngineUnavailableError(f"cannot reach {self.name} at {self.url}: {said(error)}") from error
        if not reader.finished:
            raise EngineBrokeError(f"{self.name} ended its stream before the generation ended")

    def _read(self, reader: _ChunkReader, event: bytes) -> Delta:
        try:
            return reader.read(event)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            kind = EngineBrokeError if reader.seen else EngineUnavailableError
            raise kind(f"{self.name} does not stream as SGLang does: {error!r}") from error

    def abort_soon(self, rid: str) -> None:
        """Abort without waiting: whoever left is not there to wait. Closing the connection would do it, but later."""
        task = asyncio.get_running_loop().create_task(self._abort(rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def aclose(self) -> None:
        """Wait, not for long, until the server has been told of every request that was left."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=_CLOSE_S)

    async def _abort(self, rid: str) -> None:
        timeout = aiohttp.ClientTimeout(total=_CONTROL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.post(self.url + "/abort_request", json={"rid": rid}, timeout=timeout):
                pass
        except (aiohttp.ClientError, TimeoutError, OSError, RuntimeError):
            return  # a server that cannot be reached generates for no one


def _options(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a server may leave out of its description."""
    state = (info.get("internal_states") or [{}])[0]
    running = state.get("effective_max_running_requests_per_dp") or info.get("max_running_requests")
    chunk = int(info.get("chunked_prefill_size") or 0)
    return {
        "dp_size": int(info.get("dp_size") or 1),
        "weight_version": info.get("weight_version"),
        "kv_events_config": info.get("kv_events_config") or None,
        "max_running_requests": int(running) if running else None,
        "chunked_prefill_size": chunk if chunk > 0 else None,
        "attention_backend": info.get("attention_backend"),
        "tokenizes": not info.get("skip_tokenizer_init"),
    }


def _rank_load(load: Mapping[str, Any]) -> RankLoad:
    tokens, busy_us = load.get("total_prefill_uncached_tokens"), load.get("total_prefill_busy_us")
    return RankLoad(
        rank=int(load["dp_rank"] or 0),
        waiting_tokens=int(load["num_waiting_uncached_tokens"]),
        prefilled_tokens=None if tokens is None else int(tokens),
        prefill_s=None if busy_us is None else int(busy_us) / 1e6,
    )


class _ChunkReader:
    """Turns the chunks of one stream into deltas, whether the server sends all ids each time or only the new ones."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ids = 0
        self._logprobs = 0
        self.seen = False
        self.finished = False

    def read(self, event: bytes) -> Delta:
        chunk = orjson.loads(event)
        if "error" in chunk:
            raise chunk_error(self._name, chunk["error"])
        meta = chunk["meta_info"]
        ids = chunk.get("output_ids") or []
        total = int(meta["completion_tokens"])
        fresh = ids[len(ids) - max(0, total - self._ids) :]
        finish = _finish(meta.get("finish_reason"))
        if finish is not None and finish.type == "abort" and not total:
            raise abort_error(self._name, meta["finish_reason"])
        delta = Delta(
            token_ids=tuple(fresh),
            replica=self._name,
            finish=finish,
            cached_tokens=int(meta.get("cached_tokens") or 0),
            logprobs=tuple(self._fresh_logprobs(meta, len(fresh))),
        )
        self._ids = total
        self.seen = self.seen or bool(fresh)
        self.finished = finish is not None
        return delta

    def _fresh_logprobs(self, meta: Mapping[str, Any], count: int) -> Iterator[TokenLogprob]:
        chosen = meta.get("output_token_logprobs") or []
        top = meta.get("output_top_logprobs") or []
        first = len(chosen) - count
        for index in range(max(0, first), len(chosen)):
            logprob, token_id, *_ = chosen[index]
            others = top[index] if index < len(top) and top[index] else []
            yield TokenLogprob(token_id, logprob, tuple((one[1], one[0]) for one in others))


def generate_body(request: GenerateRequest, dp_rank: int | None = None) -> dict[str, Any]:
    """The body of `POST /generate`. Holds nothing that some supported version would choke on."""
    body: dict[str, Any] = {
        "input_ids": request.prompt_ids.tolist(),
        "sampling_params": _sampling_params(request.sampling),
        "stream": True,
        "rid": request.rid,
    }
    if dp_rank is not None:
        body["routed_dp_rank"] = dp_rank
    if request.cache_salt is not None:
        # 0.5.17 ignores `cache_salt` and isolates by `extra_key`; later versions isolate by both
        body["cache_salt"] = request.cache_salt
        body["extra_key"] = request.cache_salt
    if request.top_logprobs is not None:
        body["return_logprob"] = True
        body["top_logprobs_num"] = request.top_logprobs
    return body


_SAMPLING_NAMES = {"seed": "sampling_seed"}


def _sampling_params(sampling: Sampling) -> dict[str, Any]:
    params: dict[str, Any] = {"max_new_tokens": sampling.max_new_tokens}
    for name in (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "json_schema",
    ):
        value = getattr(sampling, name)
        if value is not None:
            params[_SAMPLING_NAMES.get(name, name)] = value
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        params["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logit_bias:
        params["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    return params


def _finish(reason: Any) -> Finish | None:
    if reason is None:
        return None
    kind: FinishType = reason["type"] if reason["type"] in ("stop", "length") else "abort"
    return Finish(kind, reason.get("matched"), reason.get("message"))
