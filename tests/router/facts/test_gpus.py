"""What `nvidia-smi` of driver 580 says on a machine with two H200, and a program that says it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.facts.ask import CannotAskError
from router.facts.gpus import MIB, parse_cuda, parse_gpus, parse_matrix, read_gpus

TABLE = """\
0, GPU-a62af0e7-5cb4-4843-7d5d-74f1caa64ad4, NVIDIA H200, 580.159.04, 143771, 12, 9.0, 00000000:00:06.0
1, GPU-580066ca-24d6-0a00-cfa3-bf966d3945ed, NVIDIA H200, 580.159.04, 143771, 0, 9.0, 00000000:00:07.0
"""
HEADER = "| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |\n"
LINKS = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tSYS\t0-31\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t0-31\t0\t\tN/A\n"
    "NIC0\tSYS\tSYS\t X \t\t\t\t\n\n"
    "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n"
)
PEERS = " \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\tOK\t\n GPU1\tCNS\tX\t\n\nLegend:\n\n  X    = Self\n"

SMI = f"""#!/bin/sh
case "$*" in
  --query-gpu*) cat <<'END'
{TABLE}END
  ;;
  "topo -m") cat <<'END'
{LINKS}END
  ;;
  "topo -p2p r") echo "this one fails" >&2; exit 3 ;;
  *) echo '{HEADER.strip()}' ;;
esac
"""


def program(directory: Path, text: str) -> dict[str, str]:
    """An environment in which `nvidia-smi` is this script."""
    path = directory / "bin" / "nvidia-smi"
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:{os.environ['PATH']}"}


def test_the_table(tmp_path: Path) -> None:
    node = tmp_path / "bus/pci/devices/0000:00:06.0/numa_node"
    node.parent.mkdir(parents=True)
    node.write_text("1\n")
    driver, gpus = parse_gpus(TABLE, tmp_path)
    assert driver == "580.159.04"
    assert [(gpu.index, gpu.name, gpu.capability, gpu.numa_node) for gpu in gpus] == [
        (0, "NVIDIA H200", (9, 0), 1),
        (1, "NVIDIA H200", (9, 0), None),
    ]
    assert (gpus[0].memory, gpus[0].used) == (143771 * MIB, 12 * MIB)
    node.write_text("-1\n")
    assert parse_gpus(TABLE, tmp_path)[1][0].numa_node is None


def test_a_table_that_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(CannotAskError, match="No devices were found"):
        parse_gpus("No devices were found\n", tmp_path)


def test_cuda() -> None:
    assert parse_cuda(HEADER) == (13, 0)
    assert parse_cuda("| CUDA UMD Version: 12.9 |") == (12, 9)
    assert parse_cuda("nothing") is None


def test_matrices() -> None:
    assert parse_matrix(LINKS) == {(0, 1): "NV18", (1, 0): "NV18"}
    assert parse_matrix(PEERS) == {(0, 1): "OK", (1, 0): "CNS"}
    assert parse_matrix("") is None


async def test_a_program_is_asked(tmp_path: Path) -> None:
    gpus = await read_gpus(program(tmp_path, SMI), sys=tmp_path, dev=tmp_path)
    assert (gpus.trouble, gpus.driver, gpus.cuda, len(gpus.gpus)) == ("", "580.159.04", (13, 0), 2)
    assert gpus.links == {(0, 1): "NV18", (1, 0): "NV18"}
    assert gpus.peers is None
    assert [gpu.index for gpu in gpus.visible({"CUDA_VISIBLE_DEVICES": "1, GPU-a62a"})] == [1, 0]


async def test_of_which_gpu_a_slice_is_cannot_be_told(tmp_path: Path) -> None:
    gpus = await read_gpus(program(tmp_path, SMI), sys=tmp_path, dev=tmp_path)
    assert len(gpus.visible({"CUDA_VISIBLE_DEVICES": "MIG-c6d4f1ef"})) == 2


async def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    gpus = await read_gpus(program(tmp_path, f"#!/bin/sh\necho '{said}'\nexit 18\n"), dev=tmp_path)
    assert gpus.trouble == f"nvidia-smi fails: {said}"


async def test_no_program(tmp_path: Path) -> None:
    gpus = await read_gpus({"PATH": str(tmp_path)}, dev=tmp_path)
    assert (gpus.device_files, gpus.trouble) == (0, "nvidia-smi: No such file or directory")
