"""The NVIDIA driver and its GPUs, as `nvidia-smi` tells of them: no driver library is loaded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.engine.preflight import count_gpus
from router.facts.ask import CannotAskError, ask

MIB = 2**20
_FIELDS = "index,uuid,name,driver_version,memory.total,memory.used,compute_cap,pci.bus_id"
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """Sizes are bytes; `numa_node` is None when the machine does not say or has only one."""

    index: int
    uuid: str
    name: str
    memory: int
    used: int
    capability: tuple[int, int]
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class Gpus:
    """All GPUs of the machine. `links` and `peers` hold, for two indices, what `nvidia-smi topo` says of the pair."""

    device_files: int
    driver: str = ""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver can run."""
    gpus: tuple[Gpu, ...] = ()
    links: Mapping[tuple[int, int], str] | None = None
    """`NV18`, `PIX`, `PXB`, `PHB`, `NODE` or `SYS`; None when it cannot be told."""
    peers: Mapping[tuple[int, int], str] | None = None
    """`OK`, or why one cannot read the other's memory."""
    trouble: str = ""
    """Why `nvidia-smi` does not tell, in its own words."""

    def visible(self, env: Mapping[str, str]) -> tuple[Gpu, ...]:
        """The ones that CUDA shows to a process with this environment, in the order it would number them."""
        chosen = env.get("CUDA_VISIBLE_DEVICES")
        if chosen is None or "MIG-" in chosen:
            return self.gpus  # of which GPU a MIG device is a slice is not asked for
        shown: list[Gpu] = []
        for name in (part.strip() for part in chosen.split(",")):
            gpu = next((gpu for gpu in self.gpus if _is_called(gpu, name)), None)
            if gpu is None:
                break  # as CUDA does: what follows an unknown one is not seen either
            shown.append(gpu)
        return tuple(shown)


def _is_called(gpu: Gpu, name: str) -> bool:
    return name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))


async def read_gpus(env: Mapping[str, str], sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> Gpus:
    """Never raises: what cannot be told is `trouble`."""
    files = count_gpus(dev)
    try:
        table, header, links, peers = await asyncio.gather(
            _smi(env, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"),
            _smi(env),
            _smi(env, "topo", "-m"),
            _smi(env, "topo", "-p2p", "r"),
            return_exceptions=True,
        )
        driver, gpus = parse_gpus(_said(table), sys)
    except CannotAskError as error:
        return Gpus(files, trouble=str(error))
    return Gpus(
        files,
        driver=driver,
        cuda=parse_cuda(_said_or_nothing(header)),
        gpus=gpus,
        links=parse_matrix(_said_or_nothing(links)),
        peers=parse_matrix(_said_or_nothing(peers)),
    )


async def _smi(env: Mapping[str, str], *arguments: str) -> str:
    return await ask(["nvidia-smi", *arguments], env, _TIMEOUT_S)


def _said(answer: str | BaseException) -> str:
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _said_or_nothing(answer: str | BaseException) -> str:
    return answer if isinstance(answer, str) else ""


def parse_gpus(table: str, sys: Path) -> tuple[str, tuple[Gpu, ...]]:
    """The driver's version and the GPUs of `--query-gpu` with our fields. Raises CannotAskError."""
    driver, gpus = "", []
    for line in table.strip().splitlines():
        parts = [part.strip() for part in line.split(",")]
        try:
            index, uuid, name, driver, memory, used, capability, bus = parts
            gpus.append(
                Gpu(
                    index=int(index),
                    uuid=uuid,
                    name=name,
                    memory=int(memory) * MIB,
                    used=int(used) * MIB,
                    capability=version_pair(capability),
                    numa_node=_numa_node(sys, bus),
                )
            )
        except ValueError as error:
            raise CannotAskError(f"nvidia-smi says {line!r}") from error
    return driver, tuple(gpus)


def parse_cuda(header: str) -> tuple[int, int] | None:
    match = _CUDA.search(header)
    return version_pair(match[1]) if match else None


def parse_matrix(text: str) -> dict[tuple[int, int], str] | None:
    """The cells between different GPUs of a `nvidia-smi topo` matrix; None when there is no matrix."""
    lines = [line.split() for line in _ESCAPES.sub("", text).splitlines()]
    columns = _gpu_columns(lines)
    if not columns:
        return None
    cells: dict[tuple[int, int], str] = {}
    for name, *row in (line for line in lines if len(line) > len(columns) and line[0] in columns):
        row_index = _index(name)
        cells |= {
            (row_index, _index(column)): cell for column, cell in zip(columns, row, strict=False) if column != name
        }
    return cells


def _gpu_columns(lines: Sequence[Sequence[str]]) -> list[str]:
    header = next((line for line in lines if line and line[0] == "GPU0"), [])
    return [name for name in header if re.fullmatch(r"GPU\d+", name)]


def _index(name: str) -> int:
    return int(name.removeprefix("GPU"))


def version_pair(text: str) -> tuple[int, int]:
    """`13.0` as (13, 0). Raises ValueError."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _numa_node(sys: Path, bus: str) -> int | None:
    """`nvidia-smi` writes a PCI domain in eight digits, the kernel in four and in small letters."""
    domain, _, rest = bus.lower().partition(":")
    try:
        node = int((sys / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
