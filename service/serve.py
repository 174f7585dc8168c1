"""`antiphon serve`: one front process."""

from __future__ import annotations

import logging
import socket

import uvicorn

from router.engine.preflight import check_ports
from service.app import create_app
from service.settings import Settings

_BACKLOG = 2048

_KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep a connection for themselves: else one is closed just when it is used again."""


def serve(settings: Settings) -> None:
    """Serve until a signal; then turns in flight may end. Raises PreflightError when the port cannot be had."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    check_ports(settings.host, [settings.port])
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.drain_s,
    )
    with _listen(settings.host, settings.port) as listener:
        uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.listen(_BACKLOG)
    return listener
