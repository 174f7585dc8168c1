"""What SGLang's /generate writes, byte for byte where it matters, and cheap where it repeats."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import orjson

from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.request import Request

HIGH_WATER: Final = 256 * 1024
"""Above this many unsent bytes a stream skips events and sends the sum later, as SGLang does to a slow reader."""

DONE: Final = b"data: [DONE]\n\n"


def event(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def frame(data: bytes) -> bytes:
    """One HTTP/1.1 chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(request: Request, options: FakeEngineOptions) -> dict[str, Any]:
    """The whole answer: without streaming, and in a cumulative stream's last event."""
    value: dict[str, Any] = {"output_ids": request.output, "meta_info": meta_info(request, options, 0)}
    return {"text": request.text, **value} if request.spelling is not None else value


def meta_info(request: Request, options: FakeEngineOptions, since: int) -> dict[str, Any]:
    """`since`: the first output token whose logprobs are reported. Nothing else depends on it."""
    now = time.time()
    received = now - (time.monotonic() - request.received_s)
    meta: dict[str, Any] = {"id": request.rid, "finish_reason": request.finish}
    if request.finish is not None and not request.admitted and "status_code" not in request.finish:
        # Aborted while it waited: nothing is known but its age.
        return meta | {"weight_version": request.weight_version, "e2e_latency": now - received, "completion_tokens": 0}
    meta |= {
        "prompt_tokens": request.prompt_tokens,
        "weight_version": request.weight_version,
        "num_retractions": request.retractions,
    }
    if options.enable_metrics:
        if options.version != "0.5.17":
            meta |= {"storage_prefetch_wait": 0.0, "storage_staging_wait": 0.0}
        meta |= {"forward_entry_time": received, "prefill_finished_time": now, "queue_time": 0.0}
    if request.top_logprobs is not None:
        meta |= _logprobs(request, request.top_logprobs, since)
    count = len(request.output)
    meta |= {"reasoning_tokens": 0, "completion_tokens": count, "cached_tokens": request.cached_tokens}
    if request.finish is not None and options.version != "0.5.17":
        told = count or request.finish["type"] != "abort"
        meta["weight_versions"] = [{"version": request.weight_version, "start": 0, "end": count}] if told else []
    cached = {"device": request.cached_tokens, "host": 0} if request.cached_tokens else None
    meta |= {"cached_tokens_details": cached, "dp_rank": request.rank}
    return meta if request.finish is None else meta | _times(received, now, count, options)


def _times(received: float, now: float, count: int, options: FakeEngineOptions) -> dict[str, Any]:
    if not options.enable_metrics:
        return {"e2e_latency": now - received, "response_sent_to_client_ts": now}
    times = {"e2e_latency": now - received, "request_received_ts": received}
    if options.version != "0.5.17":
        times["first_token_latency"] = now - received
    times |= {"api_server_dispatch_finish_ts": received, "response_sent_to_client_ts": now, "request_finished_ts": now}
    return times | ({"decode_throughput": count / max(now - received, 1e-6)} if count > 1 else {})


def _logprobs(request: Request, top: int, since: int) -> dict[str, Any]:
    """Made up but consistent: certain of what it wrote."""
    fresh = request.output[since:]
    spelling = request.spelling if request.body.get("return_text_in_logprobs") else None
    of_prompt = [(logprob, token) for logprob, token, _ in request.prompt_logprobs]
    found: dict[str, Any] = {
        "input_token_logprobs": [[value, token, spelling and spelling.alone(token)] for value, token in of_prompt],
        "output_token_logprobs": [[-0.125, token, spelling and spelling.alone(token)] for token in fresh],
        "output_token_logprobs_length": len(request.output),
    }
    if top:
        found["input_top_logprobs"] = [None] * len(request.prompt_logprobs)
        found["output_top_logprobs"] = [[[-0.125 - rank, token + rank, None] for rank in range(top)] for token in fresh]
    return found


class EventStream:
    """Writes one request's events straight to its connection: a token costs one small join and one write."""

    def __init__(
        self, request: Request, transport: asyncio.Transport, options: FakeEngineOptions, cut_after: int | None
    ) -> None:
        self._request = request
        self._transport = transport
        self._options = options
        self._cut_after = cut_after
        self._incremental = options.incremental_streaming
        self._interval = request.sampling.stream_interval
        self._sent = 0
        self._sent_parts = 0
        self._text = b""
        self._ids = b""
        self._head = self._meta = b""
        self._retractions = -1

    def __call__(self) -> None:
        """Something changed: a token more, or the end."""
        request, transport = self._request, self._transport
        if transport.is_closing():
            return
        count = len(request.output)
        if self._cut_after is not None and count >= self._cut_after:
            transport.abort()
            return
        if request.finish is not None:
            transport.write(frame(self._last_event()))
        elif (not self._sent or count - self._sent >= self._interval) and (
            transport.get_write_buffer_size() <= HIGH_WATER
        ):
            transport.write(frame(self._event(count)))

    def _event(self, count: int) -> bytes:
        request = self._request
        if request.top_logprobs is not None:
            return self._logprob_event(count)
        if self._retractions != request.retractions:
            self._prepare()
        fresh = request.output[self._sent :]
        ids = b"%d" % fresh[0] if len(fresh) == 1 else b",".join(b"%d" % token for token in fresh)
        text = b"".join(request.fresh)
        request.fresh.clear()
        tail = b"}}\n\n" if self._sent else b',"response_sent_to_client_ts":%.6f}}\n\n' % time.time()
        if not self._incremental:
            text = self._text = self._text + text
            ids = self._ids = self._ids + b"," + ids if self._sent else ids
        self._sent = count
        if (spelling := request.spelling) is None:
            return b'data: {"output_ids":[%b]%b%d%b%b' % (ids, self._head, count, self._meta, tail)
        self._sent_parts = len(spelling.parts)
        return b'data: {"text":"%b","output_ids":[%b]%b%d%b%b' % (text, ids, self._head, count, self._meta, tail)

    def _prepare(self) -> None:
        """Everything of meta_info but the count of tokens stays as it is until a retraction or the end."""
        self._retractions = self._request.retractions
        packed = orjson.dumps(meta_info(self._request, self._options, 0))
        before, _, after = packed.partition(b'"completion_tokens":')
        self._head = b',"meta_info":' + before + b'"completion_tokens":'
        self._meta = after[after.index(b",") : -1]

    def _logprob_event(self, count: int) -> bytes:
        request = self._request
        since = self._sent if self._incremental else 0
        value: dict[str, Any] = {
            "output_ids": request.output[since:count],
            "meta_info": meta_info(request, self._options, since),
        }
        if not self._sent:
            value["meta_info"]["response_sent_to_client_ts"] = time.time()
        if (spelling := request.spelling) is not None:
            value["text"] = "".join(spelling.parts[self._sent_parts :]) if self._incremental else spelling.text
            self._sent_parts = len(spelling.parts)
        request.fresh.clear()
        self._sent = count
        return event(value)

    def _last_event(self) -> bytes:
        request, options = self._request, self._options
        if not self._incremental:
            return event(answer(request, options))
        value: dict[str, Any] = {
            "output_ids": request.output[self._sent :],
            "meta_info": meta_info(request, options, self._sent),
        }
        if request.spelling is not None:
            value["text"] = request.text[sum(map(len, request.spelling.parts[: self._sent_parts])) :]
        return event(value)
