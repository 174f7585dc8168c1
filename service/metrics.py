"""What turns cost and what they found, for Prometheus. Names begin with `antiphon_`; labels are bounded."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from programs.anticipation import AnticipationCount
from programs.turn import FinishedTurn, StartedTurn, TurnEvent
from router.router import Router
from service.errors import error_body
from service.job_metrics import JobCollector
from service.router_metrics import RouterCollector

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_NEXT_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)


class Metrics:
    """One front's counters, in a registry of their own."""

    def __init__(self, anticipated: AnticipationCount, router: Router, jobs: JobCollector) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(RouterCollector(router))
        registry.register(jobs)
        self._jobs = jobs
        self._turns = Counter("antiphon_turns", "Turns by how they ended.", ["outcome"], registry=registry)
        self._tokens = Counter("antiphon_tokens", "Tokens of finished turns by kind.", ["kind"], registry=registry)
        self._misses = Counter("antiphon_misses", "Finished turns by miss reason.", ["reason"], registry=registry)
        self._changes = Counter("antiphon_hygiene_changes", "What hygiene did, by rule.", ["rule"], registry=registry)
        self._dropped = Counter("antiphon_dropped_messages", "Messages that windows left out.", registry=registry)
        self._ttft = Histogram(
            "antiphon_ttft_seconds", "From the request to its first token.", buckets=_FIRST_TOKEN_S, registry=registry
        )
        self._tpot = Histogram(
            "antiphon_tpot_seconds", "Per token after the first.", buckets=_NEXT_TOKEN_S, registry=registry
        )
        ahead = Gauge("antiphon_anticipated_tokens", "Tokens prefilled ahead, by fate.", ["fate"], registry=registry)
        ahead.labels("spent").set_function(lambda: anticipated.spent)
        ahead.labels("used").set_function(lambda: anticipated.used)
        ahead.labels("wasted").set_function(lambda: anticipated.wasted)
        busy = Gauge("antiphon_requests_in_flight", "Requests that engines are working on.", registry=registry)
        busy.set_function(router.in_flight)

    async def watched(self, events: AsyncGenerator[TurnEvent]) -> AsyncGenerator[TurnEvent]:
        """The same events, counted."""
        began = started = time.perf_counter()
        outcome = "left"
        try:
            async with aclosing(events):
                async for event in events:
                    match event:
                        case StartedTurn():
                            started = time.perf_counter()
                            self._ttft.observe(started - began)
                        case FinishedTurn():
                            outcome = event.finish
                            self._count(event)
                            if len(event.output_ids) > 1:
                                self._tpot.observe((time.perf_counter() - started) / (len(event.output_ids) - 1))
                    yield event
        except Exception as error:
            outcome = error_body(error).code or "error"
            raise
        finally:
            self._turns.labels(outcome).inc()

    def _count(self, turn: FinishedTurn) -> None:
        kinds = {
            "prompt": len(turn.prompt_ids),
            "output": len(turn.output_ids),
            "cached": turn.cached_tokens,
            "reusable": turn.reusable_tokens,
        }
        for kind, tokens in kinds.items():
            self._tokens.labels(kind).inc(tokens)
        self._misses.labels(turn.miss_reason or "none").inc()
        for change in turn.changes:
            self._changes.labels(change.rule).inc()
        self._dropped.inc(len(turn.dropped))

    async def exposition(self) -> bytes:
        """Prometheus' text format."""
        await self._jobs.refresh()
        return generate_latest(self._registry)
