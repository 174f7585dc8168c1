"""What `/admin` takes and answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from router.registry.rollout import Rollout
from router.registry.spec import DEFAULT_VERSION, ReplicaSpec, default_name
from router.registry.status import ReplicaState, ReplicaStatus

Weight = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]


class AddReplica(BaseModel):
    """A server to add to the fleet."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(description="Where SGLang answers, such as http://10.0.0.7:30000.")
    name: str | None = Field(default=None, description="By default the host and port of the URL.")
    version: str = Field(default=DEFAULT_VERSION, description="The pool it joins.")
    replaces: str | None = Field(
        default=None, description="A server that is to be drained: its newest sessions are prefilled here first."
    )
    force: bool = Field(default=False, description="Add it even if it does not answer, or differs from its pool.")

    def spec(self) -> ReplicaSpec:
        """Raises RegistryError."""
        url = self.url.rstrip("/")
        return ReplicaSpec(self.name or default_name(url), url, self.version, replaces=self.replaces)


class SetRollout(BaseModel):
    """Weights of versions for new sessions; those left out get none. Sessions stay with the version they have."""

    model_config = ConfigDict(extra="forbid")

    weights: dict[str, Weight] = Field(description='As in {"stable": 95, "canary": 5}.')


class ReplicaObject(BaseModel):
    """A replica: a server, or one DP rank of it."""

    object: Literal["replica"] = "replica"
    name: str = Field(description="The server's name; `server/rank` where it has several DP ranks.")
    server: str
    url: str
    rank: int | None = None
    version: str
    source: str | None = Field(default=None, description="Where it comes from; only the store's can be deleted.")
    state: ReplicaState
    reason: str = Field(default="", description="Why it is not ready.")
    in_flight: int = 0
    cached_tokens: int | None = Field(default=None, description="What its prefix cache is known to hold.")
    gone_in_s: float | None = Field(default=None, description="Of one that was deleted: when it goes.")

    @classmethod
    def of(cls, status: ReplicaStatus, source: str | None, gone_in_s: float | None) -> ReplicaObject:
        return cls(
            name=status.name,
            server=status.server,
            url=status.url,
            rank=status.rank,
            version=status.version,
            source=source,
            state=status.state,
            reason=status.reason,
            in_flight=status.in_flight,
            cached_tokens=status.cached_tokens,
            gone_in_s=gone_in_s,
        )


class SourceObject(BaseModel):
    """Where replicas come from."""

    object: Literal["source"] = "source"
    name: str
    replicas: int
    trouble: str = Field(default="", description="What keeps it from knowing the present list; the last one stays.")


class ReplicaList(BaseModel):
    """All replicas, and all sources in the order in which their word counts."""

    object: Literal["list"] = "list"
    data: list[ReplicaObject]
    sources: list[SourceObject]


class RemovedReplica(BaseModel):
    """A replica on its way out."""

    object: Literal["replica.deleted"] = "replica.deleted"
    name: str
    gone_in_s: float = Field(description="It gets nothing new, and what it has in flight may end meanwhile.")


class RolloutObject(BaseModel):
    """Which version new sessions get."""

    object: Literal["rollout"] = "rollout"
    weights: dict[str, int]
    before: dict[str, int] | None = Field(description="What a rollback returns to; null: nothing was rolled out.")
    withdrawn: list[str] = Field(description="Versions that a rollback took out: sessions pinned to them move.")

    @classmethod
    def of(cls, rollout: Rollout) -> RolloutObject:
        before = None if rollout.before is None else dict(rollout.before)
        return cls(weights=dict(rollout.weights), before=before, withdrawn=sorted(rollout.withdrawn))
