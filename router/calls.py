"""The tool calls of a finished answer, read by the engine's own parser, on whichever replica is there to do it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from router.errors import EngineUnavailableError, NoReplicaError
from router.fleet import Fleet
from router.placer import Placer
from router.replica import Replica
from router.request import ParsedText
from router.resume import ResumeLimits

_MOST_TRIES = 3


class CallParser:
    """An answer that has been generated is not lost because a replica died before it was read."""

    def __init__(self, fleet: Fleet, placer: Placer, clock: Callable[[], float], limits: ResumeLimits) -> None:
        self._fleet = fleet
        self._placer = placer
        self._clock = clock
        self._limits = limits

    async def parse(self, name: str, text: str, tools: Sequence[str]) -> ParsedText:
        """By the replica called `name`, or another when that is gone; with none there, one is waited for, for a while.

        Raises NoReplicaError, EngineUnavailableError and EngineRefusedError.
        """
        until = self._clock() + self._limits.wait_s
        tries = 0
        while True:
            replica = self._choose(name)
            try:
                if replica is None:
                    raise self._placer.none_available()
                parser = replica.info.tool_call_parser if replica.info else None
                return await replica.client.parse_calls(text, tools, parser)
            except EngineUnavailableError as error:
                tries += 1
                if tries >= _MOST_TRIES or replica is None:
                    raise
                self._fleet.lost(replica, str(error))
            except NoReplicaError:
                if self._clock() >= until:
                    raise
            await asyncio.sleep(self._limits.pause_s)

    def _choose(self, name: str) -> Replica | None:
        replicas = self._fleet.replicas
        if name in replicas and replicas[name].available:
            return replicas[name]
        return next((one for one in replicas.values() if one.available), None)
