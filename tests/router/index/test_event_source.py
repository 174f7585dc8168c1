import json
from typing import Any

import pytest

from router.index.event_source import EventSource

URL = "http://engine.example:30000"


def source(url: str = URL, rank: int = 0, **config: Any) -> EventSource | None:
    return EventSource.of(json.dumps({"publisher": "zmq", **config}), url, rank)


@pytest.mark.parametrize(
    ("endpoint", "url", "expected"),
    [
        ("tcp://*:5557", URL, "tcp://engine.example:5557"),
        ("tcp://0.0.0.0:5557", "http://10.0.0.7:30000/", "tcp://10.0.0.7:5557"),
        ("tcp://[::]:5557", "http://[fd00::1]:30000", "tcp://[fd00::1]:5557"),
    ],
)
def test_the_host_is_the_servers(endpoint: str, url: str, expected: str) -> None:
    assert source(url, endpoint=endpoint) == EventSource(expected)


def test_a_rank_is_at_a_port_of_its_own() -> None:
    found = source(rank=3, endpoint="tcp://*:5557", topic="kv", replay_endpoint="tcp://*:6557")
    assert found == EventSource("tcp://engine.example:5560", "kv", "tcp://engine.example:6560")


def test_an_address_that_is_bound_as_it_is_named_is_taken_as_it_is() -> None:
    found = source(endpoint="tcp://127.0.0.1:5557", bind=True, replay_endpoint="tcp://127.0.0.1:6557")
    assert found == EventSource("tcp://127.0.0.1:5557", "", "tcp://127.0.0.1:6557")


def test_the_default_endpoint_is_sglangs() -> None:
    assert source() == EventSource("tcp://engine.example:5557")


@pytest.mark.parametrize(
    "config",
    [
        None,
        "",
        "null",
        "not JSON",
        "[]",
        "{}",
        '{"publisher": "null"}',
        '{"publisher": "zmq", "endpoint": "tcp://collector:5557"}',
        '{"publisher": "zmq", "endpoint": "inproc://events"}',
        '{"publisher": "zmq", "endpoint": "tcp://*:port"}',
        '{"publisher": "zmq", "endpoint": 5557}',
    ],
)
def test_without_a_publisher_to_subscribe_to_there_is_no_source(config: str | None) -> None:
    assert EventSource.of(config, URL, 0) is None
