"""What replicas have cached, as far as this front can know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from router.flight import Flight
from router.index.event_source import EventSource
from router.index.event_subscriber import EventCounters, EventSubscriber
from router.index.fingerprints import Fingerprints
from router.index.prefix_index import PrefixIndex
from router.replica import Replica
from router.request import GenerateRequest

_STEP = 16


@dataclass(frozen=True, slots=True)
class _Followed:
    source: EventSource
    subscriber: EventSubscriber
    listening: asyncio.Task[None]


class CacheView:
    """Follows the KV events of replicas that publish them; of others, what was sent there is taken to be cached."""

    def __init__(self) -> None:
        self._index = PrefixIndex(_STEP)
        self._followed: dict[str, _Followed] = {}

    def prints(self, request: GenerateRequest) -> Fingerprints:
        return Fingerprints.of(request.prompt_ids, request.cache_salt, _STEP)

    def held(self, prints: Fingerprints) -> dict[str, int]:
        """How many of the prompt's tokens each replica has, by name."""
        return self._index.held(prints)

    def room(self, name: str) -> int:
        """How many more tokens the replica can cache before it must drop others."""
        return self._index.room(name)

    def follow(self, replica: Replica) -> None:
        """The replica begins to generate, perhaps anew: without events to tell so, nothing is known of it any more."""
        info = replica.info
        if info is None:
            return
        self._index.set_capacity(replica.name, info.max_total_tokens, info.page_size)
        source = EventSource.of(info.kv_events_config, replica.client.url, replica.client.dp_rank or 0)
        followed = self._followed.get(replica.name)
        if followed is not None and followed.source == source:
            return  # its numbers tell that it began anew
        self._unfollow(replica.name)
        self._index.clear(replica.name)
        if source is not None:
            subscriber = EventSubscriber(self._index, replica.name, source)
            listening = asyncio.create_task(subscriber.run())
            self._followed[replica.name] = _Followed(source, subscriber, listening)

    def flushed(self, name: str) -> None:
        """Nothing is cached there any more. Where events tell so, they do it in their order."""
        if name not in self._followed:
            self._index.clear(name)

    def forget(self, name: str) -> None:
        """There is no such replica any more."""
        self._unfollow(name)
        self._index.forget(name)

    async def aclose(self) -> None:
        """Follow none any more."""
        listening = [followed.listening for followed in self._followed.values()]
        for name in list(self._followed):
            self._unfollow(name)
        await asyncio.gather(*listening, return_exceptions=True)

    def counters(self) -> Iterator[tuple[str, EventCounters]]:
        """Of each replica that publishes events, by name."""
        return ((name, followed.subscriber.counters) for name, followed in self._followed.items())

    def cached_tokens(self, replica: Replica) -> int | None:
        """How much its events say is cached there; None when it publishes none."""
        if replica.name not in self._followed or replica.info is None:
            return None
        return self._index.size(replica.name).blocks * replica.info.page_size

    def sent(self, flight: Flight, prints: Fingerprints) -> None:
        """The flight's prompt is cached on its replica now. A replica that is gone meanwhile stays forgotten."""
        if flight.replica.name in self._index:
            self._index.routed(flight.replica.name, prints, prints.length)

    def held_at_end(self, flight: Flight) -> None:
        """The flight has ended: so is what it generated, but for the last token."""
        if flight.output_ids and flight.replica.name not in self._followed:
            ids = flight.request.prompt_ids + flight.output_ids[:-1]
            self.sent(flight, Fingerprints.of(ids, flight.request.cache_salt, _STEP))

    def _unfollow(self, name: str) -> None:
        followed = self._followed.pop(name, None)
        if followed is not None:
            followed.listening.cancel()
