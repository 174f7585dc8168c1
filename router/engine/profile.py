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

from router.errors import ProfileError

DEFAULT_MODEL = "default"
_FILE_NAME = re.compile(r"(?P<name>.+)\.v(?P<version>\d+)\.yaml")


class EngineProfile(BaseModel):
    """One profile. A field left out is left to SGLang's own default, unless a default is shown here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    version: int = Field(ge=1)
    description: str

    model: str = DEFAULT_MODEL
    """`default` (the model we fetch ourselves) or a model directory."""
    served_name: str
    device: Literal["cpu", "cuda"]
    attention_backend: str | None = None

    page_size: int = Field(default=16, ge=1)
    context_length: int | None = Field(default=None, ge=1)
    max_total_tokens: int | None = Field(default=None, ge=1)
    """Tokens of KV cache. On the CPU it must be given: SGLang would take nearly all memory."""
    mem_fraction_static: float | None = Field(default=None, gt=0, lt=1)
    max_running_requests: int | None = Field(default=None, ge=1)
    chunked_prefill_size: int | None = Field(default=None, ge=-1)
    schedule_policy: str | None = None
    tp: int = Field(default=1, ge=1)
    dp: int = Field(default=1, ge=1)

    metrics: bool = True
    incremental_streaming: bool = True
    """Streams carry only what is new, not everything so far."""

    threads: int | Literal["auto"] | None = None
    """OpenMP threads; `auto`: as many as there are CPUs for us."""
    environment: dict[str, str] = Field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    """Anything else SGLang's launcher accepts, as it is."""
    interpreter: Path | None = None
    """The Python that has SGLang, if not the usual one."""

    ready_timeout_s: float = Field(default=600, gt=0)
    min_memory_gib: float = Field(default=0, ge=0)
    min_disk_gib: float = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> EngineProfile:
        if self.device == "cpu" and self.max_total_tokens is None:
            raise ValueError("max_total_tokens: needed on the cpu, or SGLang takes nearly all memory for its KV cache")
        if self.max_total_tokens is not None and self.max_total_tokens < self.page_size:
            raise ValueError(f"max_total_tokens: {self.max_total_tokens} is less than page_size {self.page_size}")
        if isinstance(self.threads, int) and self.threads < 1:
            raise ValueError("threads: at least 1, or auto")
        return self

    @property
    def id(self) -> str:
        return f"{self.name}.v{self.version}"

    @property
    def gpus(self) -> int:
        return self.tp * self.dp if self.device == "cuda" else 0

    @property
    def content_hash(self) -> str:
        """Changes whenever what the profile says changes, comments and order aside."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
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
