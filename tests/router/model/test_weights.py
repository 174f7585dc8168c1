from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from router.errors import ModelError
from router.model.weights import read_header


def write(path: Path, spans: dict[str, list[int]], size: int) -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    header |= {name: {"dtype": "U8", "shape": [1], "data_offsets": span} for name, span in spans.items()}
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(size))
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "a", {"y": [4, 10], "x": [0, 4]}, 10))
    assert header.tensors == {"x", "y"}
    assert header.shapes["x"] == ("U8", (1,))
    header.check_size()
    read_header(write(tmp_path / "empty", {}, 0)).check_size()


@pytest.mark.parametrize(("size", "complaint"), [(9, "is cut short: "), (11, "is longer than its header says: ")])
def test_another_size_than_the_header_says(tmp_path: Path, size: int, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        read_header(write(tmp_path / "a", {"x": [0, 10]}, size)).check_size()


@pytest.mark.parametrize("spans", [{"x": [0, 4], "y": [3, 8]}, {"x": [0, 4], "y": [5, 8]}, {"x": [4, 0]}, {"x": [0]}])
def test_tensors_that_overlap_or_leave_gaps(tmp_path: Path, spans: dict[str, list[int]]) -> None:
    with pytest.raises(ModelError, match="is no safetensors file, or cut short"):
        read_header(write(tmp_path / "a", spans, 8))


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 20, struct.pack("<Q", 2) + b"[]", b"GGUF" * 9])
def test_what_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ModelError, match="a is no safetensors file, or cut short"):
        read_header(tmp_path / "a")


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a cannot be read: No such file"):
        read_header(tmp_path / "a")
