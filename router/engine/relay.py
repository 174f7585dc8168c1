"""SGLang's `/generate` as it is: a body as an engine takes it, and the engine's own words back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import aiohttp
import orjson

from router.engine.wire import CONNECT_TIMEOUT_S, DONE, JSON_HEADERS, abort_error, chunk_error, payloads, refusal, said
from router.errors import EngineBrokeError, EngineUnavailableError


class EngineRelay:
    """One server by URL. `abort` tells it, without waiting, that a request is not wanted any more."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession, abort: Callable[[str], None]) -> None:
        self._name = name
        self._url = url
        self._session = session
        self._abort = abort

    async def answer(self, body: bytes, rids: Sequence[str]) -> bytes:
        """What the server answers to a body that asks for no stream.

        Being cancelled aborts `rids` there. Raises EngineRefusedError and EngineUnavailableError.
        """
        finished = False
        try:
            async with self._post(body) as response:
                answer = await response.read()
                finished = True
                if response.status != 200:
                    raise refusal(self._name, response.status, answer)
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreached(error) from error
        finally:
            if not finished:
                self._abort_all(rids)

    async def events(self, body: bytes, rids: Sequence[str]) -> AsyncGenerator[bytes]:
        """The JSON of each event of a stream, in order.

        Leaving early aborts `rids` on the server. Raises EngineRefusedError (the request is at fault) and
        EngineUnavailableError (nothing was generated) before the first event, EngineBrokeError after it.
        """
        began = finished = False
        try:
            async with self._post(body) as response:
                if response.status != 200:
                    raise refusal(self._name, response.status, await response.read())
                async with aclosing(payloads(response.content)) as told:
                    async for payload in told:
                        if payload == DONE:
                            finished = True
                            continue
                        if not began:
                            self._check_first(payload)
                            began = True
                        yield payload
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if finished:
                return
            if began:
                raise EngineBrokeError(f"{self._name} broke off in mid-stream: {said(error)}") from error
            raise self._unreached(error) from error
        finally:
            if not finished:
                self._abort_all(rids)
        if not began:
            raise EngineUnavailableError(f"{self._name} ended its stream before it began")
        if not finished:
            raise EngineBrokeError(f"{self._name} ended its stream before the generation ended")

    def _post(self, body: bytes) -> aiohttp.client._RequestContextManager:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        return self._session.post(f"{self._url}/generate", data=body, headers=JSON_HEADERS, timeout=timeout)

    def _check_first(self, payload: bytes) -> None:
        """A stream answers 200 before anything is looked at: its first event says what a status line would have."""
        try:
            event = orjson.loads(payload)
            if "error" in event:
                raise chunk_error(self._name, event["error"])
            reason = event["meta_info"].get("finish_reason") or {}
            if reason.get("type") == "abort" and reason.get("status_code") is not None:
                raise abort_error(self._name, reason)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineUnavailableError(f"{self._name} does not stream as SGLang does: {error!r}") from error

    def _unreached(self, error: BaseException) -> EngineUnavailableError:
        return EngineUnavailableError(f"cannot reach {self._name} at {self._url}: {said(error)}")

    def _abort_all(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._abort(rid)
