"""One list of replicas from all sources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from router.registry.rollout import Rollout
from router.registry.source import ReplicaSource
from router.registry.spec import ReplicaSpec
from router.registry.store import ReplicaStore

_SETTLE_S = 2.0


class MergedSource:
    """The union of `sources` by name and URL; of two that give one, the earlier in the list counts.

    The store comes last, so that what was configured is never replaced at run time; but its draining flags hold for
    replicas of any source.
    """

    name = "all sources"

    def __init__(self, sources: Sequence[ReplicaSource], store: ReplicaStore, *, settle_s: float = _SETTLE_S) -> None:
        self.store = store
        self.sources: tuple[ReplicaSource, ...] = (*sources, store)
        self._settle_s = settle_s
        self._lists: dict[int, tuple[ReplicaSpec, ...]] = {}
        self._changed = asyncio.Event()

    @property
    def trouble(self) -> str:
        return "; ".join(f"{source.name}: {source.trouble}" for source in self.sources if source.trouble)

    @property
    def rollout(self) -> Rollout:
        return self.store.state.rollout

    @property
    def specs(self) -> tuple[ReplicaSpec, ...]:
        """The list as it is known now."""
        return merged(self._ordered(), self.store.state.draining)

    def counts(self) -> Mapping[str, int]:
        """How many replicas each source gives, by its name, whether or not an earlier one gives them too."""
        return {source.name: len(specs) for source, specs in zip(self.sources, self._ordered(), strict=True)}

    def origin(self, name: str) -> ReplicaSource | None:
        """The source whose word counts for a replica."""
        for source, specs in zip(self.sources, self._ordered(), strict=True):
            if any(spec.name == name for spec in specs):
                return source
        return None

    async def watch(self) -> AsyncGenerator[tuple[ReplicaSpec, ...]]:
        """The first list comes when every source has given one, or `settle_s` have passed: a front that starts does
        not send load to a replica only to learn at once that it drains."""
        tasks = [asyncio.create_task(self._follow(at)) for at in range(len(self.sources))]
        try:
            await self._settle()
            known: tuple[ReplicaSpec, ...] | None = None
            while True:
                self._changed.clear()
                _raise_failed(tasks)
                specs = self.specs
                if specs != known:
                    known = specs
                    yield specs
                await self._changed.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, at: int) -> None:
        try:
            async with aclosing(self.sources[at].watch()) as lists:
                async for specs in lists:
                    self._lists[at] = specs
                    self._changed.set()
        finally:
            self._changed.set()

    async def _settle(self) -> None:
        try:
            async with asyncio.timeout(self._settle_s):
                while len(self._lists) < len(self.sources):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    def _ordered(self) -> list[tuple[ReplicaSpec, ...]]:
        """The lists of all sources; the store's as it is now, so that a front sees what it wrote itself at once."""
        others = [self._lists.get(at, ()) for at in range(len(self.sources) - 1)]
        return [*others, self.store.state.replicas]


def merged(lists: Iterable[Sequence[ReplicaSpec]], draining: Collection[str]) -> tuple[ReplicaSpec, ...]:
    """The union of lists, the earlier first; those in `draining` drain. No name and no URL is in it twice."""
    names: set[str] = set()
    urls: set[str] = set()
    union: list[ReplicaSpec] = []
    for spec in (spec for specs in lists for spec in specs):
        if spec.name not in names and spec.url not in urls:
            names.add(spec.name)
            urls.add(spec.url)
            union.append(replace(spec, draining=spec.draining or spec.name in draining))
    return tuple(union)


def _raise_failed(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()
