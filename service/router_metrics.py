"""What the router does, for Prometheus: read off it when someone scrapes. Labels: replicas, words of a fixed list."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.replica import Replica
from router.router import Router


class RouterCollector(Collector):
    """One front's router. A registry calls `collect`."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def describe(self) -> Iterable[Metric]:
        """Nothing need be collected to know that no names clash."""
        return ()

    def collect(self) -> Iterable[Metric]:
        yield from self._placements()
        yield from self._failures()
        yield from self._queue()
        yield from self._replicas()

    def _placements(self) -> Iterable[Metric]:
        placements = CounterMetricFamily("antiphon_placements", "Placements by reason.", labels=["reason"])
        for reason, count in self._router.placer.placements.items():
            placements.add_metric([reason], count)
        yield placements

    def _failures(self) -> Iterable[Metric]:
        counts = self._router.counts
        retries = CounterMetricFamily("antiphon_retries", "Requests begun again elsewhere before their first token.")
        retries.add_metric([], counts.retries)
        resumes = CounterMetricFamily("antiphon_resumes", "Streams that broke, by outcome.", labels=["outcome"])
        hedges = CounterMetricFamily("antiphon_hedges", "Slow first tokens, by outcome.", labels=["outcome"])
        for family, outcomes in ((resumes, counts.resumes), (hedges, counts.hedges)):
            for outcome, count in outcomes.items():
                family.add_metric([outcome], count)
        yield from (retries, resumes, hedges)

    def _queue(self) -> Iterable[Metric]:
        admission = self._router.placer.admission
        requests = GaugeMetricFamily("antiphon_queue_requests", "Waiting for room.", labels=["lane", "priority"])
        tokens = GaugeMetricFamily("antiphon_queue_tokens", "Uncached tokens of them.", labels=["lane", "priority"])
        for (lane, priority), load in admission.waiting_by().items():
            requests.add_metric([lane, priority], load.requests)
            tokens.add_metric([lane, priority], load.tokens)
        shed = CounterMetricFamily("antiphon_shed", "Requests that got no place, by reason.", labels=["reason"])
        for reason, count in admission.shed.items():
            shed.add_metric([reason], count)
        yield from (requests, tokens, shed)

    def _replicas(self) -> Iterable[Metric]:
        for name, text, value in _OF_A_REPLICA:
            family = GaugeMetricFamily(f"antiphon_replica_{name}", text, labels=["replica"])
            for replica in self._router.replicas.values():
                family.add_metric([replica.name], value(replica))
            yield family
        states = GaugeMetricFamily("antiphon_replica_state", "1 for the state it is in.", labels=["replica", "state"])
        cached = GaugeMetricFamily(
            "antiphon_replica_cached_tokens", "Cached there, by its KV events.", labels=["replica"]
        )
        for replica in self._router.replicas.values():
            states.add_metric([replica.name, replica.state], 1)
            tokens = self._router.cache.cached_tokens(replica)
            if tokens is not None:
                cached.add_metric([replica.name], tokens)
        yield from (states, cached)
        yield from self._events()

    def _events(self) -> Iterable[Metric]:
        happened = CounterMetricFamily("antiphon_kv_events", "KV events heard and lost.", labels=["replica", "what"])
        lag = GaugeMetricFamily("antiphon_kv_events_lag_seconds", "Age of the newest.", labels=["replica"])
        for name, counters in self._router.cache.counters():
            for what in ("events", "gaps", "replays", "resyncs", "garbage"):
                happened.add_metric([name, what], getattr(counters, what))
            lag.add_metric([name], counters.lag_s)
        yield from (happened, lag)


def _in_flight(replica: Replica) -> float:
    return replica.in_flight


def _prefill_rate(replica: Replica) -> float:
    return 1 / replica.standing.pace.prefill_s


def _token_s(replica: Replica) -> float:
    return replica.standing.pace.token_s


def _prefilling(replica: Replica) -> float:
    return replica.standing.chat_tokens + replica.standing.document_tokens


def _reported(replica: Replica) -> float:
    return replica.standing.reported_tokens


_OF_A_REPLICA = (
    ("requests_in_flight", "Requests of this front that it works on.", _in_flight),
    ("prefilling_tokens", "Uncached tokens of them before their first.", _prefilling),
    ("waiting_tokens", "Uncached tokens that wait in the engine, whoever sent them.", _reported),
    ("prefill_tokens_per_second", "As measured.", _prefill_rate),
    ("token_seconds", "Between two tokens of a stream, as measured.", _token_s),
)
