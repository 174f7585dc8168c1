"""Models from a hub that behaves as Hugging Face's does, and as networks do."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from router.errors import ModelError
from router.model.directory import ModelDirectory
from router.model.hub_fetch import HubAccess, fetch_from_hub
from router.model.manifest import check_manifest, read_manifest
from router.model.origin import Origin, read_origin, write_origin
from router.model.source import HubSource
from router.model.use import in_use
from tests.fake_hub import COMMIT, FakeHub, running_hub, sha256
from tests.model_files import tiny_model_dir

MODEL = HubSource("acme/tiny")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
SIZE = 3_000_000


def shard(tensor: str, size: int = SIZE) -> bytes:
    """Bytes that differ everywhere, so that a part put in the wrong place shows."""
    header = json.dumps({tensor: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"".join(struct.pack("<I", one) for one in range(size // 4))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tiny_model_dir(tmp_path_factory.mktemp("hub") / "tiny")
    index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
    return {
        **{path.name: path.read_bytes() for path in directory.iterdir()},
        ".gitattributes": b"*.safetensors filter=lfs",
        "modeling_tiny.py": b"raise SystemExit",
        "onnx/model.onnx": b"onnx",
        "pytorch_model.bin": b"pickle",
        "model.safetensors.index.json": json.dumps(index).encode(),
        SHARDS[0]: shard("a"),
        SHARDS[1]: shard("b"),
    }


@pytest.fixture
async def hub(files: dict[str, bytes]) -> AsyncIterator[FakeHub]:
    async with running_hub(FakeHub({"acme/tiny": dict(files)})) as hub:
        yield hub


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "models" / "tiny"


async def fetch(
    hub: FakeHub, directory: Path, source: HubSource = MODEL, token: str | None = None
) -> tuple[ModelDirectory, list[str]]:
    said: list[str] = []
    access = HubAccess(hub.url, token, proxies=False, pause_s=0.001)
    return await fetch_from_hub(source, directory, access, said.append), said


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def test_what_an_engine_needs_comes_and_nothing_else(
    hub: FakeHub, directory: Path, files: dict[str, bytes]
) -> None:
    model, said = await fetch(hub, directory)
    left_out = {".gitattributes", "modeling_tiny.py", "onnx/model.onnx", "pytorch_model.bin"}
    assert model.path == directory
    assert names(directory) == set(files) - left_out | {"SHA256SUMS", ".origin.json"}
    total = sum(len(content) for name, content in files.items() if name not in left_out)
    assert said[-1] == f"{total / 1e6:.0f} of {total / 1e6:.0f} MB"
    digests = read_manifest(directory)
    assert digests is not None
    assert digests[SHARDS[0]] == sha256(files[SHARDS[0]])
    assert check_manifest(directory, digests) == []
    assert read_origin(directory) == Origin("hf:acme/tiny", COMMIT)


async def test_a_second_time_nothing_is_transferred(hub: FakeHub, directory: Path) -> None:
    await fetch(hub, directory)
    hub.asked.clear()
    await fetch(hub, directory)
    assert [one.path for one in hub.asked] == ["/api/models/acme/tiny/revision/main"]


async def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: FakeHub, directory: Path) -> None:
    hub.breaks[SHARDS[0]] = [1_000_000, 500_000]
    await fetch(hub, directory)
    first, second, third = hub.transfers(SHARDS[0])
    assert first is None
    assert second is not None
    assert third is not None
    starts = [int(one.removeprefix("bytes=").removesuffix("-")) for one in (second, third)]
    assert 0 < starts[0] <= 1_000_000
    assert starts[0] < starts[1] <= starts[0] + 500_000


async def test_a_call_that_gave_up_is_continued_by_the_next(hub: FakeHub, directory: Path) -> None:
    hub.breaks[SHARDS[1]] = [700_000, 0, 0, 0, 0]
    with pytest.raises(ModelError, match=f"{SHARDS[1]} breaks off again and again"):
        await fetch(hub, directory)
    (part,) = directory.glob(f"{SHARDS[1]}.*.part")
    with pytest.raises(ModelError, match="weights 2 of 2 are missing"):
        ModelDirectory.read(directory).check()
    there = part.stat().st_size
    hub.asked.clear()
    await fetch(hub, directory)
    assert hub.transfers(SHARDS[1]) == [f"bytes={there}-"]
    assert hub.transfers(SHARDS[0]) == []
    assert list(directory.glob("*.part")) == []


async def test_a_server_without_ranges_begins_again(hub: FakeHub, directory: Path) -> None:
    hub.heeds_ranges = False
    hub.breaks[SHARDS[0]] = [1_000_000, 500_000]
    _, said = await fetch(hub, directory)
    assert len(hub.transfers(SHARDS[0])) == 3
    done, _, total, _ = said[-1].split()
    assert done == total


async def test_what_is_there_and_no_part_of_it_is_dropped(hub: FakeHub, directory: Path) -> None:
    directory.mkdir(parents=True)
    digest = sha256(hub.repositories["acme/tiny"][SHARDS[0]])
    (directory / f"{SHARDS[0]}.{digest[:12]}.part").write_bytes(b"something else")
    with pytest.raises(ModelError, match="came damaged"):
        await fetch(hub, directory)
    await fetch(hub, directory)


@pytest.mark.parametrize("status", [429, 500, 503, 416])
async def test_a_server_that_is_busy_for_a_moment(hub: FakeHub, directory: Path, status: int) -> None:
    hub.refuses[SHARDS[0]] = [status, status]
    hub.refuses["config.json"] = [status]
    await fetch(hub, directory)
    assert len(hub.transfers(SHARDS[0])) == 3


@pytest.mark.parametrize("name", [SHARDS[0], "config.json"])
async def test_what_came_damaged_is_not_kept(hub: FakeHub, directory: Path, name: str) -> None:
    hub.damaged.add(name)
    with pytest.raises(ModelError, match=f"{name} came damaged"):
        await fetch(hub, directory)
    assert not (directory / name).exists()
    assert not list(directory.glob(f"{name}.*.part"))
    hub.damaged.clear()
    await fetch(hub, directory)


async def test_a_damaged_file_of_a_model_is_fetched_again(hub: FakeHub, directory: Path) -> None:
    await fetch(hub, directory)
    (directory / SHARDS[0]).write_bytes(b"")
    hub.asked.clear()
    await fetch(hub, directory)
    assert hub.transfers(SHARDS[0]) == [None]
    assert hub.transfers(SHARDS[1]) == []


async def test_a_mirror_that_leaves_out_sizes_and_digests(hub: FakeHub, directory: Path) -> None:
    hub.tells_sizes = False
    hub.damaged.add(SHARDS[1])
    with pytest.raises(ModelError, match=f"{SHARDS[1]} came damaged"):
        await fetch(hub, directory)
    hub.damaged = {"config.json"}
    (directory / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json came damaged"):
        await fetch(hub, directory)
    hub.damaged = set()
    await fetch(hub, directory)


async def test_a_token_goes_to_the_hub_and_nowhere_else(hub: FakeHub, directory: Path) -> None:
    hub.token = "hf_secret"
    with pytest.raises(ModelError, match=r"hf:acme/tiny \(.*/acme/tiny\) does not exist, or may not be read.*HF_TOKEN"):
        await fetch(hub, directory)
    await fetch(hub, directory, token="hf_secret")
    assert {one.authorization for one in hub.asked if one.host == "hub"} == {None, "Bearer hf_secret"}
    assert {one.authorization for one in hub.asked if one.host == "storage"} == {None}


async def test_another_revision(hub: FakeHub, directory: Path) -> None:
    await fetch(hub, directory, HubSource("acme/tiny", "v1.0"))
    assert read_origin(directory) == Origin("hf:acme/tiny@v1.0", COMMIT)
    with pytest.raises(ModelError, match=r"hf:acme/tiny@v9 .* does not exist"):
        await fetch(hub, directory, HubSource("acme/tiny", "v9"))


async def test_pickles_where_there_is_nothing_else(hub: FakeHub, directory: Path, files: dict[str, bytes]) -> None:
    kept = {name: content for name, content in files.items() if "safetensors" not in name}
    hub.repositories = {"acme/tiny": kept}
    model, _ = await fetch(hub, directory)
    assert [path.name for path in model.shards] == ["pytorch_model.bin"]


async def test_no_weights_at_all(hub: FakeHub, directory: Path) -> None:
    hub.repositories = {"acme/tiny": {"config.json": b"{}", "tiny.gguf": b"GGUF"}}
    with pytest.raises(ModelError, match="has GGUF files alone"):
        await fetch(hub, directory)
    hub.repositories = {"acme/tiny": {"config.json": b"{}"}}
    with pytest.raises(ModelError, match="has no weights"):
        await fetch(hub, directory)
    assert not directory.exists()


async def test_a_directory_of_another_model_is_left_alone(hub: FakeHub, directory: Path) -> None:
    directory.mkdir(parents=True)
    write_origin(directory, Origin("hf:other/tiny", COMMIT))
    with pytest.raises(ModelError, match="holds hf:other/tiny"):
        await fetch(hub, directory)
    assert hub.asked == []


async def test_a_directory_in_use_is_left_alone(hub: FakeHub, directory: Path) -> None:
    await fetch(hub, directory)
    with in_use(directory), pytest.raises(ModelError, match="is in use by a running antiphon"):
        await fetch(hub, directory)


async def test_nobody_answers(directory: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot reach http://127\.0\.0\.1:1"):
        await fetch(FakeHub({}, url="http://127.0.0.1:1"), directory)


async def test_too_little_room_is_known_before_anything_comes(
    hub: FakeHub, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(ModelError, match=r"needs 6 MB more, there are 1 MB free"):
        await fetch(hub, directory)
    assert {one.path for one in hub.asked} == {"/api/models/acme/tiny/revision/main"}
