"""Room for requests, given and taken as replicas would, for tests of admission."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from router.admission import Lane
from router.errors import NoReplicaError
from router.request import Priority


class Ask(NamedTuple):
    name: int
    tokens: int
    lane: Lane = "chat"
    tenant: str = "a"
    priority: Priority = "interactive"
    never: bool = False


@dataclass
class Room:
    """`free` tokens of every lane. `given` is what was placed, `refused` what found no room, in order."""

    free: dict[Lane, int]
    given: list[Ask] = field(default_factory=list)
    refused: list[Ask] = field(default_factory=list)
    returned: int = 0

    def fits(self, asked: Ask) -> bool:
        return asked.tokens <= self.free[asked.lane]

    def place(self, asked: Ask) -> Ask | None:
        if asked.never:
            raise NoReplicaError("nothing serves that", 1.0)
        if not self.fits(asked):
            self.refused.append(asked)
            return None
        self.free[asked.lane] -= asked.tokens
        self.given.append(asked)
        return asked

    def give_back(self, place: Ask) -> None:
        self.returned += 1
        self.end(place)

    def end(self, place: Ask) -> None:
        self.free[place.lane] += place.tokens

    @property
    def order(self) -> list[int]:
        """Names in the order in which they were placed."""
        return [one.name for one in self.given]


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now
