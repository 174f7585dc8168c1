"""What is to be run, and on what: by hand or as a profile has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from router.engine.device import Devices
from router.engine.profile import EngineProfile
from router.engine.reserve import Load
from router.engine.speculation import Speculation


@dataclass(frozen=True)
class PlanRequest:
    """What is to be run, on what. None: as SGLang chooses, or as the checkpoint says. Lengths are tokens."""

    devices: Devices
    tp: int
    dp: int = 1
    dp_attention: bool = False
    ep: int | None = None
    nodes: int = 1
    quantization: str | None = None
    kv_dtype: str | None = None
    keep_float32: bool = False
    context: int | None = None
    page_size: int = 16
    mem_fraction: float | None = None
    max_total_tokens: int | None = None
    chunk: int | None = None
    max_running_requests: int | None = None
    speculation: Speculation | None = None
    host_cache_bytes: int = 0
    """A rank's hierarchical cache, where its size is given."""
    host_cache_ratio: float = 0.0
    """… or its size as a multiple of the KV cache."""
    decode_graphs: bool = True
    prefill_graphs: bool = True
    graph_batch: int | None = None

    @classmethod
    def of_profile(cls, profile: EngineProfile, devices: Devices) -> PlanRequest:
        cache = profile.hierarchical_cache
        return cls(
            devices=devices,
            tp=profile.tp,
            dp=profile.dp,
            dp_attention=profile.dp_attention,
            ep=profile.ep,
            nodes=profile.nodes,
            quantization=profile.quantization,
            kv_dtype=profile.kv_cache_dtype,
            keep_float32=profile.dtype == "float32",
            context=profile.context_length,
            page_size=profile.page_size,
            mem_fraction=profile.mem_fraction_static,
            max_total_tokens=profile.max_total_tokens,
            chunk=profile.chunked_prefill_size,
            max_running_requests=profile.max_running_requests,
            speculation=profile.speculation,
            host_cache_bytes=(cache.size_gb or 0) * 10**9 if cache else 0,
            host_cache_ratio=(cache.ratio or (0.0 if cache.size_gb else 2.0)) if cache else 0.0,
            decode_graphs="--disable-cuda-graph" not in profile.extra_args,
            prefill_graphs={"--disable-cuda-graph", "--disable-prefill-cuda-graph"}.isdisjoint(profile.extra_args),
            graph_batch=_following("--cuda-graph-max-bs-decode", profile.extra_args),
        )

    @property
    def world(self) -> int:
        """Ranks, one a GPU."""
        return self.tp if self.dp_attention else self.tp * self.dp

    @property
    def attention_tp(self) -> int:
        """GPUs that one request's attention is divided over."""
        return max(1, self.tp // self.dp) if self.dp_attention else self.tp

    @property
    def kv_bytes(self) -> int:
        """Of one number."""
        if (self.kv_dtype or "auto").startswith("fp8"):
            return 1
        return 4 if self.keep_float32 and self.kv_dtype in (None, "auto") else 2

    @property
    def load(self) -> Load:
        return Load(
            tp=self.tp,
            dp_attention=self.dp if self.dp_attention else 1,
            chunk=self.chunk,
            max_running_requests=self.max_running_requests,
            speculative=self.speculation is not None,
            decode_graphs=self.decode_graphs,
            prefill_graphs=self.prefill_graphs,
            graph_batch=self.graph_batch,
        )


def _following(flag: str, args: Sequence[str]) -> int | None:
    """The number that follows a flag."""
    for name, value in pairwise(args):
        if name == flag and value.isdigit():
            return int(value)
    return None
