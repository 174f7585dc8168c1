"""All experiments, most telling first within each run. A host is asked for them by name or by its number of GPUs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from scripts.gpu.backends import backends, precisions
from scripts.gpu.capacity import capacities
from scripts.gpu.events import events
from scripts.gpu.experiment import Experiment
from scripts.gpu.parallel import parallel
from scripts.gpu.resume import resumption
from scripts.gpu.sleep import sleeping
from scripts.gpu.speculation import speculation
from scripts.gpu.talks import talks
from scripts.gpu.tiers import tiers
from scripts.gpu.up import up


class UnknownExperimentError(Exception):
    """There is no experiment of that name."""


def catalog() -> list[Experiment]:
    page_1, page_64, random_weights = talks()
    return [
        *(page_1, page_64, *speculation(), *sleeping(), *resumption(), *up()),
        *(*backends()[:4], random_weights),
        *(*backends()[4:], *events(), *tiers()),
        *precisions(),
        *capacities(),
        *parallel(),
    ]


def chosen(only: Collection[str], gpus: int, device: Literal["cuda", "cpu"]) -> list[Experiment]:
    """By name, in the order of the names; without names, all that need exactly so many GPUs. Raises
    UnknownExperimentError.
    """
    there = {experiment.name: experiment for experiment in catalog()}
    if unknown := [name for name in only if name not in there]:
        raise UnknownExperimentError(f"no experiment {', '.join(unknown)}; there are {', '.join(there)}")
    if only:
        return [there[name] for name in only]
    if device == "cpu":
        return [experiment for experiment in there.values() if experiment.on_cpu]
    return [experiment for experiment in there.values() if experiment.gpus == gpus]
