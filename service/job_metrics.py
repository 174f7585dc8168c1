"""Jobs, for Prometheus: as the store counted them when someone last asked for metrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from programs.errors import StoreUnavailableError
from programs.jobs.queue import JobCounts, JobQueue


class JobCollector(Collector):
    """Every front over one store says the same. A registry calls `collect`."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._counts: JobCounts | None = None

    async def refresh(self) -> None:
        """Before each collection. While the store is away nothing is said of jobs."""
        try:
            self._counts = await self._queue.counts()
        except StoreUnavailableError:
            self._counts = None

    def describe(self) -> Iterable[Metric]:
        """Nothing need be collected to know that no names clash."""
        return ()

    def collect(self) -> Iterable[Metric]:
        counts = self._counts
        if counts is None:
            return
        jobs = GaugeMetricFamily("antiphon_jobs", "Jobs that have not ended, by state.", labels=["state"])
        jobs.add_metric(["queued"], counts.queued)
        jobs.add_metric(["running"], counts.running)
        ended = CounterMetricFamily("antiphon_jobs_ended", "Jobs that have ended, by outcome.", labels=["outcome"])
        for state, count in counts.ended.items():
            ended.add_metric([state], count)
        workers = GaugeMetricFamily("antiphon_workers", "Workers that were heard of lately.")
        workers.add_metric([], counts.workers)
        yield from (jobs, ended, workers)
