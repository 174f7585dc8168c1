"""Engine profiles: how one SGLang server is launched, as versioned YAML (`configs/engine/<name>.v<version>.yaml`)."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from router.engine.conflicts import conflicts
from router.engine.hierarchical_cache import HierarchicalCache
from router.engine.lora import Lora
from router.engine.speculation import Speculation
from router.errors import ProfileError

DEFAULT_MODEL = "default"
GIVEN_MODEL = "given"
_FILE_NAME = re.compile(r"(?P<name>.+)\.v(?P<version>\d+)\.yaml")

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


class EngineProfile(BaseModel):
    """One profile. A field left out is left to SGLang's own default, unless a default is shown here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    version: int = Field(ge=1)
    description: str

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
    def id(self) -> str:
        return f"{self.name}.v{self.version}"

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

    @property
    def content_hash(self) -> str:
        """Changes whenever what the profile says changes, comments and order aside; not when a new field comes up."""
        said = self.model_dump(mode="json", exclude_defaults=True)
        canonical = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def with_model(self, directory: Path, served_name: str | None = None) -> EngineProfile:
        """The same profile for another model, served under its directory's name unless told otherwise."""
        return self.model_copy(update={"model": str(directory), "served_name": served_name or directory.name})


def load_profile(name_or_path: str) -> EngineProfile:
    """By path, by id (`cpu-smollm2.v1`) or by name, which means its newest version. Raises ProfileError."""
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        path = Path(name_or_path)
        if not path.is_file():
            raise ProfileError(f"no profile at {name_or_path}")
        return _parse(path)
    file = _find(name_or_path)
    if file is None:
        raise ProfileError(f"unknown engine profile {name_or_path!r}; there are {', '.join(available_profiles())}")
    profile = _parse(file)
    if file.name != f"{profile.id}.yaml":
        raise ProfileError(f"{file.name}: calls itself {profile.id}")
    return profile


def available_profiles() -> list[str]:
    """Ids of the profiles that come with us, oldest version first."""
    return [file.name.removesuffix(".yaml") for _, _, file in sorted(_shipped(), key=lambda found: found[:2])]


def _shipped() -> list[tuple[str, int, Traversable]]:
    directory = importlib.resources.files("router") / "configs" / "engine"
    matches = [(_FILE_NAME.fullmatch(file.name), file) for file in directory.iterdir()]
    return [(match["name"], int(match["version"]), file) for match, file in matches if match]


def _find(name: str) -> Traversable | None:
    versions = {version: file for other, version, file in _shipped() if name in (other, f"{other}.v{version}")}
    return versions[max(versions)] if versions else None


def _parse(file: Traversable) -> EngineProfile:
    try:
        content: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProfileError(f"{file.name}: not YAML: {_one_line(error)}") from error
    if not isinstance(content, dict):
        raise ProfileError(f"{file.name}: must be a mapping of settings")
    try:
        return EngineProfile.model_validate(content)
    except ValidationError as error:
        raise ProfileError(f"{file.name}: {_complaints(error)}") from error


def _complaints(error: ValidationError) -> str:
    parts = []
    for complaint in error.errors(include_url=False):
        key = ".".join(str(part) for part in complaint["loc"])
        said = complaint["msg"].removeprefix("Value error, ")
        parts.append(f"{key}: {said}" if key else said)
    return "; ".join(parts)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
