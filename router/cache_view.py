"""What replicas have cached, as far as this front can know."""

from __future__ import annotations

from router.flight import Flight
from router.index.fingerprints import Fingerprints
from router.index.prefix_index import PrefixIndex
from router.replica import Replica
from router.request import GenerateRequest

_STEP = 16


class CacheView:
    """Follows the KV events of replicas that publish them; of others, what was sent there is taken to be cached."""

    def __init__(self) -> None:
        self.index = PrefixIndex(_STEP)

    def prints(self, request: GenerateRequest) -> Fingerprints:
        return Fingerprints.of(request.prompt_ids, request.cache_salt, _STEP)

    def held(self, prints: Fingerprints) -> dict[str, int]:
        """How many of the prompt's tokens each replica has, by name."""
        return self.index.held(prints)

    def follow(self, replica: Replica) -> None:
        """The replica begins to generate, perhaps anew."""
        if replica.info is not None:
            self.index.clear(replica.name)
            self.index.set_capacity(replica.name, replica.info.max_total_tokens, replica.info.page_size)

    def forget(self, name: str) -> None:
        """There is no such replica any more."""
        self.index.forget(name)

    def cached_tokens(self, replica: Replica) -> int | None:
        """How much is known to be cached there; None while nothing tells."""
        size, page = self.index.size(replica.name), replica.info.page_size if replica.info else 0
        return size.blocks * page if size.blocks else None

    def sent(self, flight: Flight, prints: Fingerprints) -> None:
        """The flight's prompt is cached on its replica now."""
        self.index.routed(flight.replica.name, prints, prints.length)

    def held_at_end(self, flight: Flight) -> None:
        """The flight has ended: so is what it generated, but for the last token."""
        info = flight.replica.info
        if flight.output_ids and info is not None and info.kv_events_config is None:
            ids = flight.request.prompt_ids + flight.output_ids[:-1]
            self.sent(flight, Fingerprints.of(ids, flight.request.cache_salt, _STEP))
