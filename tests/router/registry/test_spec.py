"""Replicas as they are written down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import RegistryError
from router.registry.spec import ReplicaSpec, check_distinct, parse


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("http://10.0.0.7:30000", "10.0.0.7:30000", "http://10.0.0.7:30000"),
        ("http://10.0.0.7:30000/", "10.0.0.7:30000", "http://10.0.0.7:30000"),
        ("https://engine.example", "engine.example:443", "https://engine.example"),
        ("http://[fd00::1]:30000", "[fd00::1]:30000", "http://[fd00::1]:30000"),
        ("gpu-2=http://10.0.0.7:30000", "gpu-2", "http://10.0.0.7:30000"),
        (" gpu-2 = http://10.0.0.7:30000/engine ", "gpu-2", "http://10.0.0.7:30000/engine"),
    ],
)
def test_a_replica_is_a_url_or_a_name_and_a_url(text: str, name: str, url: str) -> None:
    assert parse(text) == ReplicaSpec(name, url)


def test_a_version_goes_with_it() -> None:
    assert parse("http://a:1", "canary") == ReplicaSpec("a:1", "http://a:1", "canary", draining=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not the URL of an SGLang server"),
        ("10.0.0.7:30000", "is not the URL"),
        ("ftp://a:1", "is not the URL"),
        ("http://", "is not the URL"),
        ("http://a:99999", "is not the URL"),
        ("http://user:word@a:1", "is not the URL"),
        ("http://a:1?b=c", "is not the URL"),
        ("name=", "'' is not the URL"),
        ("a b=http://a:1", "'a b' cannot name a replica"),
        ('a"b=http://a:1', "cannot name a replica"),
        ("-a=http://a:1", "cannot name a replica"),
        (f"{'a' * 129}=http://a:1", "cannot name a replica"),
    ],
)
def test_what_is_no_replica_is_named(text: str, said: str) -> None:
    with pytest.raises(RegistryError, match=r"is not the URL|cannot name") as raised:
        parse(text)
    assert said in str(raised.value)


def test_a_version_is_a_label() -> None:
    with pytest.raises(RegistryError, match="cannot name a version"):
        parse("http://a:1", "v 1")


def test_two_of_a_name_or_a_url_are_refused() -> None:
    with pytest.raises(RegistryError, match="two replicas have the name a"):
        check_distinct([ReplicaSpec("a", "http://a:1"), ReplicaSpec("a", "http://b:1")])
    with pytest.raises(RegistryError, match="two replicas have the URL http://a:1"):
        check_distinct([ReplicaSpec("a", "http://a:1"), ReplicaSpec("b", "http://a:1")])
    check_distinct([ReplicaSpec("a", "http://a:1"), ReplicaSpec("b", "http://b:1")])


@given(st.text(max_size=40))
def test_any_text_is_a_replica_or_refused(text: str) -> None:
    try:
        spec = parse(text)
    except RegistryError:
        return
    assert not set(spec.name) & set('/"\\\n {}=,')
