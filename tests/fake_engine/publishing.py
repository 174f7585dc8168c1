"""Fake engines that publish KV events, as the default profile has real ones do."""

from __future__ import annotations

import json
import random
import socket
from dataclasses import replace

from tests.fake_engine.options import FakeEngineOptions

_HOST = "127.0.0.1"
_PORTS = (10_000, 32_000)
_BUFFER = 10_000
"""SGLang's default."""


def with_events(options: FakeEngineOptions, buffer: int = _BUFFER) -> FakeEngineOptions:
    """The same, publishing KV events at ports of its own; so many batches of them can be sent again."""
    first = _ports(2 * options.dp_size)
    config = {"publisher": "zmq", "topic": "kv", "endpoint": f"tcp://*:{first}", "buffer_steps": buffer}
    replay = {"replay_endpoint": f"tcp://*:{first + options.dp_size}"}
    return replace(options, kv_events_config=json.dumps(config | replay))


def _ports(count: int) -> int:
    """The first of so many free ports in a row, where no outgoing connection takes them."""
    while True:
        first = random.randrange(*_PORTS)
        if all(_is_free(first + more) for more in range(count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True
