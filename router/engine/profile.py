"""Engine profiles: how one SGLang server is launched, as versioned YAML (`configs/engine/<name>.v<version>.yaml`)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from router.engine.conflicts import conflicts
from router.engine.hierarchical_cache import HierarchicalCache
from router.engine.lora import Lora
from router.engine.speculation import Speculation
from router.profile_files import Profile, ProfileFiles

DEFAULT_MODEL = "default"
GIVEN_MODEL = "given"

AttentionBackend = Literal[
    "auto",
    "flashinfer",
    "fa3",
    "fa4",
    "triton",
    "flashmla",
    "trtllm_mha",
    "trtllm_mla",
    "cutedsl_mla",
    "flex_attention",
    "torch_native",
    "intel_amx",
    "dsa",
]
KvDtype = Literal["auto", "bf16", "fp8_e5m2", "fp8_e4m3"]
Quantization = Literal[
    "awq",
    "awq_marlin",
    "gptq",
    "gptq_marlin",
    "fp8",
    "w8a8_int8",
    "w8a8_fp8",
    "compressed-tensors",
    "mxfp4",
    "modelopt_fp8",
    "modelopt_fp4",
    "bitsandbytes",
    "gguf",
    "w4afp8",
    "moe_wna16",
]
SchedulePolicy = Literal["fcfs", "lpm", "dfs-weight", "lof", "random", "priority", "hrrn", "routing-key"]


class EngineProfile(Profile):
    """One profile. A field left out is left to SGLang's own default, unless a default is shown here."""

    model: str = DEFAULT_MODEL
    """`default` (the model we fetch ourselves), `given` (to be named at start) or a model directory."""
    served_name: str
    device: Literal["cpu", "cuda"]
    dtype: Literal["auto", "bfloat16", "float16", "float32"] | None = None
    quantization: Quantization | None = None
    """How weights are stored; SGLang reads it from a quantised model's own config.json."""
    attention_backend: AttentionBackend | None = None
    """On a GPU flashinfer unless said; `auto` leaves it to SGLang, which looks at model and GPU."""

    page_size: int = Field(default=16, ge=1)
    context_length: int | None = Field(default=None, ge=1)
    max_total_tokens: int | None = Field(default=None, ge=1)
    """Tokens of KV cache. On the CPU it must be given: SGLang would take nearly all memory."""
    mem_fraction_static: float | None = Field(default=None, gt=0, lt=1)
    """Of the memory that is free at start, the share for weights and KV cache together."""
    kv_cache_dtype: KvDtype | None = None
    max_running_requests: int | None = Field(default=None, ge=1)
    max_prefill_tokens: int | None = Field(default=None, ge=1)
    chunked_prefill_size: int | None = Field(default=None, ge=-1)
    """Tokens of one prefill step; -1 turns chunking off."""
    schedule_policy: SchedulePolicy | None = None

    tp: int = Field(default=1, ge=1)
    dp: int = Field(default=1, ge=1)
    """Replicas in one server, each on `tp` GPUs of its own; with `dp_attention` all on the same `tp` GPUs."""
    dp_attention: bool = False
    ep: int | None = Field(default=None, ge=1)
    nodes: int = Field(default=1, ge=1)
    """Hosts that one server spans, each with as many of its GPUs."""

    speculation: Speculation | None = None
    hierarchical_cache: HierarchicalCache | None = None
    session_radix_cache: bool = False
    """KV that a session refers to is evicted last."""
    kv_events_port: int | None = Field(default=None, ge=1, le=65535)
    """Rank n tells every host what its cache holds, over ZMQ, at this port + n, and again at this port + dp + n."""
    kv_events: bool = False
    """The same for fronts on this host alone, at ports picked when the server is started."""
    lora: Lora | None = None
    sleep_after_s: float | None = Field(default=None, ge=10)
    """An engine that nobody used for so long gives its GPU memory back until the next request; its weights wait in
    the host's memory. Only for one that no other front uses."""

    metrics: bool = True
    incremental_streaming: bool = True
    """Streams carry only what is new, not everything so far."""

    threads: int | Literal["auto"] | None = None
    """OpenMP threads; `auto`: as many as there are CPUs for us."""
    environment: dict[str, str] = Field(default_factory=dict)
    """For the engine's process: allocator, NCCL, threads. It wins over everything we would set."""
    extra_args: tuple[str, ...] = ()
    """Anything else SGLang's launcher accepts, as it is."""
    interpreter: Path | None = None
    """The Python that has SGLang, if not the usual one."""

    ready_timeout_s: float = Field(default=600, gt=0)
    min_memory_gib: float = Field(default=0, ge=0)
    min_disk_gib: float = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> EngineProfile:
        if found := list(conflicts(self)):
            raise ValueError("; ".join(found))
        return self

    @property
    def backend(self) -> str | None:
        """The attention backend to ask for; None: SGLang's choice."""
        chosen = self.attention_backend or ("flashinfer" if self.device == "cuda" else None)
        return None if chosen == "auto" else chosen

    @property
    def world(self) -> int:
        """Ranks of one server, over all its nodes."""
        return self.tp if self.dp_attention else self.tp * self.dp

    @property
    def gpus(self) -> int:
        """GPUs of each node."""
        return self.world // self.nodes if self.device == "cuda" else 0

    def with_model(self, directory: Path, served_name: str | None = None) -> EngineProfile:
        """The same profile for another model, served under its directory's name unless told otherwise."""
        return self.model_copy(update={"model": str(directory), "served_name": served_name or directory.name})


_FILES = ProfileFiles("engine", EngineProfile)


def load_profile(name_or_path: str) -> EngineProfile:
    """By path, by id (`cpu-smollm2.v1`) or by name, which means its newest version. Raises ProfileError."""
    return _FILES.load(name_or_path)


def available_profiles() -> list[str]:
    """Ids of the profiles that come with us, oldest version first."""
    return _FILES.available()
