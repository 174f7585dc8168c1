"""Replicas in a watched file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from router.errors import RegistryError
from router.registry.file import FileSource, replicas_of
from router.registry.spec import ReplicaSpec
from tests.router.registry.watching import until, watching

ONE = ReplicaSpec("a", "http://a:1")
TWO = ReplicaSpec("b", "http://b:1", "canary", draining=True)
TEXT_ONE = "replicas: [a=http://a:1]"
TEXT_BOTH = """
replicas:
  - a=http://a:1
  - {name: b, url: "http://b:1/", version: canary, draining: true}
"""


def source(path: Path) -> FileSource:
    return FileSource(path, every_s=0.01)


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("replicas: []", ()),
        (TEXT_ONE, (ONE,)),
        (TEXT_BOTH, (ONE, TWO)),
        ('{"replicas": ["http://10.0.0.7:30000"]}', (ReplicaSpec("10.0.0.7:30000", "http://10.0.0.7:30000"),)),
        ('{"replicas": [{"url": "http://c:1"}]}', (ReplicaSpec("c:1", "http://c:1"),)),
    ],
)
def test_a_file_is_yaml_or_json(text: str, specs: tuple[ReplicaSpec, ...]) -> None:
    assert replicas_of(text) == specs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a list of replicas"),
        ("- http://a:1", "is not a list of replicas"),
        ("replicas: http://a:1", "replicas"),
        ("replicas: [{url: 1}]", r"\$.replicas\[0\].url"),
        ("replicas: [{url: 'http://a:1', weight: 3}]", "unknown field `weight`"),
        ("servers: []", "unknown field `servers`"),
        ("replicas: [a=http://a:1, a=http://b:1]", "two replicas have the name a"),
        ("replicas: [nonsense]", "is not the URL of an SGLang server"),
        ("replicas: [", "neither YAML nor JSON"),
        ("a: b: c", "neither YAML nor JSON"),
    ],
)
def test_a_file_that_is_wrong_is_told_so(text: str, said: str) -> None:
    with pytest.raises(RegistryError, match=said):
        replicas_of(text)


async def test_a_change_by_rename_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    path.write_text(TEXT_ONE)
    async with watching(source(path)) as watched:
        assert await watched.named("a") == (ONE,)
        new = tmp_path / "new"
        new.write_text(TEXT_BOTH)
        new.replace(path)
        assert await watched.named("a", "b") == (ONE, TWO)
        path.write_text("replicas: []")
        assert await watched.named() == ()


async def test_a_config_map_is_a_link_that_is_swapped(tmp_path: Path) -> None:
    for name, text in (("v1", TEXT_ONE), ("v2", TEXT_BOTH)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "replicas.yaml").write_text(text)
    data = tmp_path / "..data"
    data.symlink_to("v1")
    path = tmp_path / "replicas.yaml"
    path.symlink_to("..data/replicas.yaml")
    async with watching(source(path)) as watched:
        await watched.named("a")
        (tmp_path / "..new").symlink_to("v2")
        (tmp_path / "..new").replace(data)
        await watched.named("a", "b")


async def test_a_wrong_or_missing_file_keeps_the_last_good_list_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "replicas.yaml"
    path.write_text(TEXT_ONE)
    watched_file = source(path)
    with caplog.at_level(logging.INFO, "antiphon.registry"):
        async with watching(watched_file) as watched:
            await watched.named("a")
            path.write_text("replicas: [a=http://a:1, b=")
            await until(lambda: "neither YAML nor JSON" in watched_file.trouble)
            path.unlink()
            await until(lambda: watched_file.trouble == "cannot be read: No such file or directory")
            path.write_text(TEXT_BOTH)
            await watched.named("a", "b")
            assert watched_file.trouble == ""
            assert watched.lists == [(ONE,), (ONE, TWO)]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]


async def test_a_file_that_comes_later_is_read_then(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    late = source(path)
    async with watching(late) as watched:
        await until(lambda: late.trouble)
        assert watched.lists == []
        path.write_text(TEXT_ONE)
        await watched.named("a")


async def test_a_file_that_is_written_bit_by_bit_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    path.write_text(TEXT_ONE)
    growing = FileSource(path, every_s=0.05)
    async with watching(growing) as watched:
        await watched.named("a")
        with path.open("w") as file:
            file.write("replicas:\n")
            for number in range(40):
                file.write(f"  - http://10.0.0.{number}:1\n")
                file.flush()
                await until(lambda: True)
        await watched.until(lambda specs: len(specs) == 40)
        assert [len(specs) for specs in watched.lists] == [1, 40]
