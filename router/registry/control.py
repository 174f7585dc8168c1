"""What an operator may do to the fleet while it runs, and what is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from router.errors import EngineError, RegistryConflictError, RegistryError, UnknownReplicaError
from router.registry.agreement import PoolFacts
from router.registry.inspection import Inspection
from router.registry.merged import MergedSource
from router.registry.rollout import Rollout
from router.registry.spec import ReplicaSpec
from router.registry.status import ReplicaStatus

Look = Callable[[ReplicaSpec], Awaitable[Inspection]]


class FleetView(Protocol):
    """What the running fleet knows of its replicas."""

    def statuses(self) -> Sequence[ReplicaStatus]: ...

    def pool(self, version: str) -> PoolFacts | None:
        """What the replicas of a version agreed on; None while there are none."""
        ...


class RegistryControl:
    """Commands of operators. Each reads the shared store first, so that two fronts do not work past each other.

    All raise RegistryStoreError while the store is away. `look` asks a server what it is.
    """

    def __init__(self, source: MergedSource, fleet: FleetView, look: Look) -> None:
        self.source = source
        self._store = source.store
        self._fleet = fleet
        self._look = look

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        """Of every replica, those included that the fleet has not met yet."""
        known = self._fleet.statuses()
        met = {status.server for status in known}
        draining = {spec.name for spec in self.source.specs if spec.draining}
        every = (*known, *(_unmet(spec) for spec in self.source.specs if spec.name not in met))
        return tuple(_drained(status) if status.server in draining else status for status in every)

    async def add(self, spec: ReplicaSpec, *, force: bool = False) -> bool:
        """Add a replica to the store; False when it is there already, just so.

        Unless `force`, its server must answer as SGLang does and agree with its pool: RegistryError says where it does
        not. Raises RegistryConflictError when another replica has its name or its URL, UnknownReplicaError when there
        is none that it could replace.
        """
        await self._store.refresh()
        if not self._is_new(spec):
            return False
        if spec.replaces is not None:
            await self._known(spec.replaces)
        if not force:
            await self._check(spec)
        await self._store.add(spec)
        return True

    def _is_new(self, spec: ReplicaSpec) -> bool:
        for other in self.source.specs:
            if other.name == spec.name and other.url != spec.url:
                raise RegistryConflictError(f"{other.name} is already the name of {other.url}; choose another")
            if other.url == spec.url and other.name != spec.name:
                raise RegistryConflictError(f"{other.url} is already the replica {other.name}")
            if other.name == spec.name:
                return self._is_changed(other, spec)
        return True

    def _is_changed(self, known: ReplicaSpec, spec: ReplicaSpec) -> bool:
        if known.version == spec.version and known.name not in self._store.state.leaving:
            return False
        self._own(known.name, f"serves version {known.version} by", "change its version there")
        return True

    async def _check(self, spec: ReplicaSpec) -> None:
        try:
            seen = await self._look(spec)
        except EngineError as error:
            raise RegistryError(f"{error}; start it first, or add it all the same with force") from error
        trouble = seen.trouble(self._fleet.pool(spec.version))
        if trouble is not None:
            raise RegistryConflictError(
                f"{spec.name} cannot join the pool {spec.version}: {trouble}; give it another version, "
                f"or add it with force (it is kept out while it differs)"
            )

    async def remove(self, name: str, drain_s: float) -> None:
        """Let it drain, then be gone. Raises RegistryConflictError when it is not the store's to remove.

        A removal that the store only remembered would shadow what a file or a cluster says, long after all have
        forgotten it; draining does what is needed meanwhile, and is seen.
        """
        await self._known(name)
        self._own(name, "comes from", "take it out there, or drain it here")
        await self._store.remove(name, drain_s)

    async def drain(self, name: str) -> None:
        """Nothing new goes to it; what it has in flight ends there. Raises UnknownReplicaError."""
        await self._known(name)
        await self._store.drain(name)

    async def undrain(self, name: str) -> None:
        """It takes load again, and a removal is taken back. Raises UnknownReplicaError and RegistryConflictError."""
        await self._known(name)
        await self._store.undrain(name)
        if self._spec(name).draining:
            self._own(name, "is drained by", "undrain it there")

    async def set_weights(self, weights: Mapping[str, int]) -> Rollout:
        """Raises RegistryError for weights that cannot be, RegistryConflictError for versions without a replica."""
        await self._store.refresh()
        rollout = self._store.state.rollout.changed(weights)
        versions = {spec.version for spec in self.source.specs}
        missing = sorted(version for version, weight in weights.items() if weight and version not in versions)
        if missing:
            raise RegistryConflictError(
                f"no replica serves version {', '.join(missing)}; there are {', '.join(sorted(versions)) or 'none'}"
            )
        await self._store.set_rollout(rollout)
        return rollout

    async def roll_back(self) -> Rollout:
        """Raises RegistryConflictError when nothing was rolled out."""
        await self._store.refresh()
        try:
            rollout = self._store.state.rollout.rolled_back()
        except RegistryError as error:
            raise RegistryConflictError(str(error)) from error
        await self._store.set_rollout(rollout)
        return rollout

    async def _known(self, name: str) -> None:
        await self._store.refresh()
        names = [spec.name for spec in self.source.specs]
        if name in names:
            return
        server = name.rpartition("/")[0]
        if server in names:
            raise UnknownReplicaError(f"{name} is a DP rank of {server}; name the server, its ranks go together")
        raise UnknownReplicaError(f"there is no replica {name}; there are {', '.join(names) or 'none'}")

    def _spec(self, name: str) -> ReplicaSpec:
        return next(spec for spec in self.source.specs if spec.name == name)

    def _own(self, name: str, relation: str, remedy: str) -> None:
        origin = self.source.origin(name)
        if origin is not None and origin is not self._store:
            raise RegistryConflictError(f"{name} {relation} {origin.name}; {remedy}")


def _unmet(spec: ReplicaSpec) -> ReplicaStatus:
    return ReplicaStatus(spec.name, spec.name, spec.url, spec.version, "starting", "has not been asked yet")


def _drained(status: ReplicaStatus) -> ReplicaStatus:
    """A fleet that has not been told yet would still say otherwise."""
    return replace(status, state="draining") if status.state in ("ready", "warming", "starting") else status
