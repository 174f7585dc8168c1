"""Where a server's rank publishes its KV events, as the server itself says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import urlsplit

_ANY_HOST = ("*", "0.0.0.0", "::", "[::]", "")  # noqa: S104 - read, not bound


@dataclass(frozen=True, slots=True)
class EventSource:
    """ZMQ addresses to connect to. `replay` is where missed events can be asked for, if anywhere."""

    endpoint: str
    topic: str = ""
    replay: str | None = None

    @classmethod
    def of(cls, kv_events_config: str | None, url: str, rank: int) -> EventSource | None:
        """From /server_info's `kv_events_config` (SGLang's flag, JSON) of the server at `url`.

        Each rank publishes at its own port, rank further than the first's. None: nothing is published that could be
        subscribed to.
        """
        try:
            config = json.loads(kv_events_config or "null")
            if not isinstance(config, dict) or config.get("publisher") != "zmq":
                return None
            host = urlsplit(url).hostname or ""
            endpoint = _reached(config.get("endpoint") or "tcp://*:5557", host, rank, config.get("bind"))
            replay = config.get("replay_endpoint")
            asked = _reached(replay, host, rank, bound=True) if replay else None
        except (ValueError, AttributeError):
            return None
        return cls(endpoint, str(config.get("topic") or ""), asked) if endpoint else None


def _reached(endpoint: str, host: str, rank: int, bound: bool | None) -> str | None:
    """The address as seen from here. SGLang binds addresses of any host, and others only if told to."""
    if not endpoint.startswith("tcp://"):
        return None
    named, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if named not in _ANY_HOST:
        if not bound:
            return None
        return f"tcp://{named}:{int(port) + rank}"
    return f"tcp://{f'[{host}]' if ':' in host else host}:{int(port) + rank}"
