"""Sources as they are written in settings."""

from __future__ import annotations

import pytest

from router.errors import RegistryError
from router.registry.sources import sources_of


def test_replicas_that_are_written_out_are_one_source_and_the_first() -> None:
    texts = ["dns://engines:30000", "http://a:1", "file:///etc/replicas.yaml", "gpu=http://b:1"]
    texts += ["kubernetes://ml/engines:http?version=canary", "dns://_sglang._tcp.test"]
    names = [source.name for source in sources_of(texts)]
    expected = ["settings", "dns engines:30000", "file /etc/replicas.yaml", "kubernetes ml/engines"]
    assert names == [*expected, "dns _sglang._tcp.test"]


async def test_what_is_written_out_is_what_is_watched() -> None:
    (source,) = sources_of(["http://a:1", "gpu=http://b:1"])
    assert [[one.name for one in specs] async for specs in source.watch()] == [["a:1", "gpu"]]
    assert sources_of([]) == []


@pytest.mark.parametrize(
    "text",
    [
        "dns://engines",
        "dns://engines:http",
        "dns://engines:30000/path",
        "dns://_sglang._tcp.test:30000",
        "dns://:30000",
        "file://host/replicas.yaml",
        "file:///replicas.yaml?version=x",
        "kubernetes://engines",
        "kubernetes:///engines",
        "kubernetes://ml/engines/more",
        "kubernetes://ml/engines?version=a b",
        "consul://engines",
        "a=b",
        "http://a:1 http://b:1",
    ],
)
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(RegistryError):
        sources_of([text])


def test_the_refusal_names_what_there_is() -> None:
    with pytest.raises(RegistryError, match=r"'dns://engines' is no source of replicas, such as file:///"):
        sources_of(["dns://engines"])
