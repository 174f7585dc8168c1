"""Replicas that were given at start."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from router.registry.spec import ReplicaSpec, check_distinct


class FixedSource:
    """A list that never changes. Raises RegistryError when two of it have one name or one URL."""

    name = "settings"
    trouble = ""

    def __init__(self, specs: Sequence[ReplicaSpec]) -> None:
        check_distinct(specs)
        self._specs = tuple(specs)

    async def watch(self) -> AsyncGenerator[tuple[ReplicaSpec, ...]]:
        yield self._specs
