"""Which version a session gets: weights for new sessions, a pin for those that have one. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import MappingProxyType

from router.errors import RegistryError
from router.registry.spec import DEFAULT_VERSION, check_version

_HASH_BYTES = 8
_MOST_VERSIONS = 16
_MOST_WEIGHT = 1_000_000


@dataclass(frozen=True, slots=True)
class Rollout:
    """Weights of versions for new sessions.

    A session stays with the version it was pinned to, also when that version's weight falls to 0, and until it is
    withdrawn. Every front that knows the same weights gives one session the same version.
    """

    weights: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({DEFAULT_VERSION: 1}))
    before: Mapping[str, int] | None = None
    """What held before the newest version had its first session: where `rolled_back` returns to."""
    withdrawn: frozenset[str] = frozenset()
    """Versions that keep not even the sessions they have."""

    def __post_init__(self) -> None:
        for weights in (self.weights, self.before):
            if weights is not None:
                _check(weights)

    def choice(self, session: str, pinned: str | None = None) -> tuple[str, ...]:
        """Versions for a session, best first: those after the first are for when it has no replica at all.

        A weighted rendezvous: when weights change, only as many sessions change as the difference says.
        """
        weighted = (version for version, weight in self.weights.items() if weight)
        ranked = sorted(weighted, key=lambda version: (_distance(session, version, self.weights[version]), version))
        if pinned is None or pinned in self.withdrawn:
            return tuple(ranked)
        return (pinned, *(version for version in ranked if version != pinned))

    def changed(self, weights: Mapping[str, int]) -> Rollout:
        """With other weights. A version that had none and gets some begins a rollout: `before` is what held until then.

        Raises RegistryError when the weights cannot be.
        """
        begins = any(weight and not self.weights.get(version) for version, weight in weights.items())
        admitted = {version for version, weight in weights.items() if weight}
        return Rollout(dict(weights), self.weights if begins else self.before, self.withdrawn - admitted)

    def rolled_back(self) -> Rollout:
        """As before the newest version came in. Versions that lose all their weight are withdrawn: their sessions move.

        Raises RegistryError when nothing was rolled out.
        """
        if self.before is None:
            raise RegistryError("nothing has been rolled out, so there is nothing to roll back to; set weights instead")
        before = self.before
        lost = {version for version, weight in self.weights.items() if weight and not before.get(version)}
        return replace(self, weights=before, before=None, withdrawn=self.withdrawn | lost)


def _distance(session: str, version: str, weight: int) -> float:
    """Exponentially distributed with rate `weight`: the least of several is each one's in proportion to its weight."""
    digest = blake2b(f"{version}\0{session}".encode(), digest_size=_HASH_BYTES).digest()
    uniform = (int.from_bytes(digest, "big") + 1) / (1 << 8 * _HASH_BYTES)
    return -math.log(uniform) / weight


def _check(weights: Mapping[str, int]) -> None:
    if len(weights) > _MOST_VERSIONS:
        raise RegistryError(f"{len(weights)} versions are too many: at most {_MOST_VERSIONS} have a weight")
    for version, weight in weights.items():
        check_version(version)
        if not 0 <= weight <= _MOST_WEIGHT:
            raise RegistryError(f"the weight {weight} of {version} is not between 0 and {_MOST_WEIGHT}")
    if not any(weights.values()):
        raise RegistryError("no version has a weight, so that new sessions could go nowhere; give one of them some")
