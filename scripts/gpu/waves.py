"""Which servers run at once. Most of a server's start is spent importing, so several start together; they are
measured one after another, while the others do nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scripts.gpu.experiment import Experiment
from scripts.gpu.server import ServerSpec


@dataclass
class Wave:
    experiments: list[Experiment] = field(default_factory=list)

    @property
    def servers(self) -> list[ServerSpec]:
        """Each once, in the order in which they are named."""
        return list(dict.fromkeys(spec for experiment in self.experiments for spec in experiment.servers))

    def fits(self, other: Experiment, gib: float, most: int) -> bool:
        specs = list(dict.fromkeys([*self.servers, *other.servers]))
        if any(spec.alone for spec in specs):
            return not self.experiments or specs == self.servers
        return not self.experiments or (len(specs) <= most and sum(spec.gib for spec in specs) <= gib)


def waves(experiments: Iterable[Experiment], gib: float, most: int) -> list[Wave]:
    """In the order given. `gib` is one GPU's memory, `most` how many servers start at once."""
    found: list[Wave] = [Wave()]
    for experiment in experiments:
        if not found[-1].fits(experiment, gib, most):
            found.append(Wave())
        found[-1].experiments.append(experiment)
    return [wave for wave in found if wave.experiments]
