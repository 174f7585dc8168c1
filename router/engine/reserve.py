"""What SGLang keeps free of weights and KV cache, for activations and CUDA graphs, unless a profile says.

The source is SGLang 0.5.23, srt/arg_groups/memory_hook.py (`handle_gpu_memory_settings`, `reserve_for_graph_mb`,
`adjust_mem_fraction_for_vlm`) and srt/arg_groups/cuda_graph_hook.py; 0.5.17 has the same in srt/server_args.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.engine.device import MIB, Device
from router.engine.shape import Shape, Vision

_SMALL = ((20, 2048, 8, 8), (35, 4096, 48, 160), (60, 4096, 32, 160), (160, 8192, 256, 512))
"""Up to so many GiB: the prefill chunk, and the largest decode graph below and from `tp` 4 on."""
_LARGE = (16384, 512, 512)
_FLOOR_FROM_MIB = 60 * 1024
_FLOOR_MIB = 10 * 1024
_SPECULATIVE_REQUESTS = 48
"""SGLang's own `--max-running-requests` with speculation."""


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine is asked to carry, as far as it decides the reserve. None: SGLang chooses."""

    tp: int
    dp_attention: int = 1
    """Replicas of attention in the `tp` GPUs."""
    chunk: int | None = None
    max_running_requests: int | None = None
    speculative: bool = False
    decode_graphs: bool = True
    prefill_graphs: bool = True
    graph_batch: int | None = None
    """The largest batch of a decode graph."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Bytes of one GPU."""

    activations: int
    graphs: int

    @property
    def total(self) -> int:
        return self.activations + self.graphs


def defaults_for(device: Device, tp: int) -> tuple[int, int]:
    """The prefill chunk in tokens, and the largest batch of a decode graph."""
    for gib, chunk, few, many in _SMALL:
        if device.memory < gib * 1024 * MIB:
            return chunk, few if tp < 4 else many
    return _LARGE[0], _LARGE[1]


def reserve(device: Device, shape: Shape, load: Load) -> Reserve:
    """What is taken from the device's whole memory."""
    chunk, largest = defaults_for(device, load.tp)
    chunk = chunk if load.chunk is None else load.chunk
    running = load.max_running_requests or (_SPECULATIVE_REQUESTS if load.speculative else None)
    batch = load.graph_batch or (min(largest, running) if running else largest)
    tokens = max(chunk, 2048) if chunk > 0 else 16384
    activations = 512 + tokens * 1.5 + load.tp / 8 * 1024
    graphs = _graphs(shape, load, chunk if chunk > 0 else 16384, batch) if device.kind == "cuda" else 0.0
    if device.kind == "cuda" and device.memory > _FLOOR_FROM_MIB * MIB:
        activations = max(activations, _FLOOR_MIB - graphs)
    return Reserve(int(activations * MIB), int(graphs * MIB))


def _graphs(shape: Shape, load: Load, chunk: int, batch: int) -> float:
    """MiB of decode and prefill graphs."""
    graphs = batch * 2.0 if load.decode_graphs else 0.0
    if load.dp_attention > 1:
        graphs += batch * load.dp_attention * (4.5 if batch > 300 else 3)
    if not load.prefill_graphs or shape.multimodal:
        return graphs
    if shape.latent is not None:
        return graphs + 1.5 * 1024
    return graphs + 8 * _prefill_graphs(chunk)


def _prefill_graphs(chunk: int) -> int:
    """How many sizes are captured (`generate_prefill_cuda_graph_batch_sizes`)."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, chunk + 1, 512))
    return sum(1 for first, end, step in steps for size in range(first, end, step) if size <= chunk)


def static_fraction(device: Device, shape: Shape, load: Load) -> float:
    """SGLang's `--mem-fraction-static`: the share of what is free at start that weights and KV cache may take."""
    kept = reserve(device, shape, load).total
    fraction = round((device.memory - kept) / device.memory, 3)
    return fraction * _vision_factor(shape.vision) if shape.vision and shape.multimodal else fraction


def _vision_factor(vision: Vision) -> float:
    complexity = vision.layers * vision.hidden**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (complexity - 1.0)))


def multimodal_bytes(shape: Shape) -> int:
    """Taken from the KV cache for embeddings of images (`mm_runtime_reservation_gb`, 0.5.23)."""
    return 100 * MIB if shape.multimodal else 0
