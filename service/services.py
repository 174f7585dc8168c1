"""Everything an endpoint needs, built once and typed."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from programs.session import Sessions
from programs.store import SessionStore
from programs.verdict import TemplateProbe
from router.router import Router
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    store: SessionStore
    router: Router
    sessions: Sessions
    probed: TemplateProbe
    """What the model's chat template does to prefixes, tried at start."""


def services_of(request: Request) -> Services:
    services = request.app.state.services
    if not isinstance(services, Services):
        raise TypeError("the app has not started")
    return services
