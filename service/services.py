"""Everything an endpoint needs, built once and typed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.requests import Request

from programs.batches import Cancellations
from programs.documents.extractor import Extractor
from programs.documents.store import DocumentStore
from programs.files import FileStore
from programs.jobs.store import JobStore
from programs.runtime.registry import ProgramRegistry
from programs.session import Sessions
from programs.store import SessionStore
from programs.turn import TurnEvent, TurnRequest
from programs.verdict import TemplateProbe
from router.registry.control import RegistryControl
from router.router import Router
from service.metrics import Metrics
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    store: SessionStore
    router: Router
    sessions: Sessions
    metrics: Metrics
    control: RegistryControl
    """What operators may do to the fleet."""
    probed: TemplateProbe
    """What the model's chat template does to prefixes, tried at start."""
    files: FileStore
    documents: DocumentStore
    extractor: Extractor
    """Reads files into documents."""
    programs: ProgramRegistry
    jobs: JobStore
    batches: JobStore
    """The same jobs; those that are submitted here wait in a queue of their own."""
    cancellations: Cancellations
    """Of batches."""

    def run(self, request: TurnRequest) -> AsyncGenerator[TurnEvent]:
        """A turn's events (`Sessions.run`), counted."""
        return self.metrics.watched(self.sessions.run(request))


def services_of(request: Request) -> Services:
    services = request.app.state.services
    if not isinstance(services, Services):
        raise TypeError("the app has not started")
    return services
