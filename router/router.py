"""The router: token ids in, token deltas out, from whichever replica is best placed to make them."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from router.engine.client import EngineClient, ServerInfo
from router.errors import EngineBusyError, EngineError, EngineRefusedError, EngineUnavailableError, NoReplicaError
from router.placement import Candidate, choose
from router.request import Delta, GenerateRequest, ParsedText, Sampling

_PROBE_RID = "antiphon-probe-"
_RID_LENGTH = 32
_RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Watch:
    """How closely replicas are watched, in seconds."""

    probe_every_s: float = 10.0
    retry_every_s: float = 1.0
    probe_timeout_s: float = 30.0


@dataclass(slots=True)
class Replica:
    """A server and what is known of it. `proven` is when it last produced a token (monotonic seconds)."""

    client: EngineClient
    info: ServerInfo | None = None
    available: bool = False
    proven: float | None = None
    in_flight: int = 0
    trouble: str = "has not answered yet"
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.client.name


class Router:
    """Places requests on replicas and watches that they can generate.

    A replica is available while a real one-token generation on it has succeeded since its last failure. Use as an
    async context manager: inside it, replicas are watched.
    """

    def __init__(
        self,
        clients: Sequence[EngineClient],
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replicas = {client.name: Replica(client) for client in clients}
        self._watch = watch or Watch()
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Router:
        self._tasks = [asyncio.create_task(self._keep_watch(replica)) for replica in self.replicas.values()]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(replica.client.aclose() for replica in self.replicas.values()))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta]:
        """Deltas from the best placed replica; from another one while nothing has come and the first cannot.

        Raises NoReplicaError when none can, EngineRefusedError when the request is at fault, and EngineBrokeError when
        a stream ends after its first delta.
        """
        tried: set[str] = set()
        busy: EngineBusyError | None = None
        for _ in range(max(2, len(self.replicas))):
            replica = self._place(request, tried)
            tried.add(replica.name)
            started = False
            try:
                async with aclosing(self._generate_on(replica, request)) as deltas:
                    async for delta in deltas:
                        started = True
                        yield delta
                    return
            except EngineBusyError as error:
                busy = error
            except EngineUnavailableError as error:
                if started:
                    raise
                self._lost(replica, str(error))
        raise NoReplicaError(str(busy), _RETRY_AFTER_S) if busy else self._none_available()

    async def parse_calls(self, name: str, text: str, tools: Sequence[str]) -> ParsedText:
        """The tool calls in finished `text`, as the replica called `name` reads them (or another, when it is gone).

        Raises NoReplicaError, EngineUnavailableError and EngineRefusedError.
        """
        others = (one for one in self.replicas.values() if one.available)
        replica = self.replicas[name] if self.replicas[name].available else next(others, None)
        if replica is None:
            raise self._none_available()
        parser = replica.info.tool_call_parser if replica.info else None
        return await replica.client.parse_calls(text, tools, parser)

    async def _generate_on(self, replica: Replica, request: GenerateRequest) -> AsyncGenerator[Delta]:
        replica.in_flight += 1
        try:
            async with aclosing(replica.client.generate(request)) as deltas:
                async for delta in deltas:
                    if delta.token_ids:
                        replica.proven = self._clock()
                    yield delta
        finally:
            replica.in_flight -= 1

    def _place(self, request: GenerateRequest, tried: set[str]) -> Replica:
        candidates = [Candidate(one.name, one.available, one.in_flight) for one in self.replicas.values()]
        name = choose(candidates, request.home, tried)
        if name is None:
            raise self._none_available()
        return self.replicas[name]

    def _none_available(self) -> NoReplicaError:
        troubles = "; ".join(f"{one.name} {one.trouble}" for one in self.replicas.values())
        return NoReplicaError(f"no engine can take this request now: {troubles}", _RETRY_AFTER_S)

    def _lost(self, replica: Replica, trouble: str) -> None:
        """Ask whether it still lives, at once: until then it takes nothing more."""
        replica.available = False
        replica.trouble = trouble
        replica.wake.set()

    @property
    def info(self) -> ServerInfo | None:
        """What the replicas say of themselves; None until one has."""
        return next((one.info for one in self.replicas.values() if one.info), None)

    def idle(self, name: str) -> bool:
        """Whether the replica could take more, and has nothing to do."""
        replica = self.replicas.get(name)
        return replica is not None and replica.available and replica.in_flight == 0

    def in_flight(self) -> int:
        """Requests that replicas are working on."""
        return sum(replica.in_flight for replica in self.replicas.values())

    def trouble(self) -> str | None:
        """Why nothing could be generated now, or None when it could."""
        if any(one.available for one in self.replicas.values()):
            return None
        return str(self._none_available())

    async def _keep_watch(self, replica: Replica) -> None:
        while True:
            replica.wake.clear()
            if not self._lately_proven(replica):
                await self._probe(replica)
            pause = self._watch.probe_every_s if replica.available else self._watch.retry_every_s
            # not wait_for: before Python 3.12 it may swallow the cancellation that ends us
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await replica.wake.wait()

    def _lately_proven(self, replica: Replica) -> bool:
        if not replica.available or replica.proven is None:
            return False
        return self._clock() - replica.proven < self._watch.probe_every_s

    async def _probe(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(self._watch.probe_timeout_s):
                info = await replica.client.server_info()
                await self._generate_one_token(replica)
        except EngineRefusedError as error:
            self._failed(replica, f"refuses a one-token generation: {error}")
        except EngineError as error:
            self._failed(replica, str(error))
        except TimeoutError:
            self._failed(replica, f"has generated nothing in {self._watch.probe_timeout_s:g} s")
        else:
            replica.info, replica.available, replica.trouble = info, True, ""

    async def _generate_one_token(self, replica: Replica) -> None:
        rid = f"{_PROBE_RID}{time.time_ns():0{_RID_LENGTH - len(_PROBE_RID)}d}"[:_RID_LENGTH]
        request = GenerateRequest(rid, array("I", (0,)), Sampling(max_new_tokens=1, temperature=0.0))
        async with aclosing(self._generate_on(replica, request)) as deltas:
            async for _ in deltas:
                pass

    def _failed(self, replica: Replica, trouble: str) -> None:
        replica.available = False
        replica.trouble = trouble
