"""Profiles of any kind: versioned YAML that comes with us (`configs/<kind>/<name>.v<version>.yaml`), or a file."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.errors import ProfileError

_FILE_NAME = re.compile(r"(?P<name>.+)\.v(?P<version>\d+)\.yaml")


class Profile(BaseModel):
    """What all profiles have. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    version: int = Field(ge=1)
    description: str

    @property
    def id(self) -> str:
        return f"{self.name}.v{self.version}"

    @property
    def content_hash(self) -> str:
        """Changes whenever what the profile says changes, comments and order aside; not when a new field comes up."""
        said = self.model_dump(mode="json", exclude_defaults=True)
        canonical = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


P = TypeVar("P", bound=Profile)


class ProfileFiles(Generic[P]):
    """Profiles of one kind, which is the name of their directory."""

    def __init__(self, kind: str, model: type[P]) -> None:
        self._kind = kind
        self._model = model

    def load(self, name_or_path: str) -> P:
        """By path, by id (`cpu-smollm2.v1`) or by name, which means its newest version. Raises ProfileError."""
        path = path_of(name_or_path)
        if path is not None:
            if not path.is_file():
                raise ProfileError(f"no profile at {name_or_path}")
            return self._parse(path)
        file = self._find(name_or_path)
        if file is None:
            there = ", ".join(self.available())
            raise ProfileError(f"unknown {self._kind} profile {name_or_path!r}; there are {there}")
        profile = self._parse(file)
        if file.name != f"{profile.id}.yaml":
            raise ProfileError(f"{file.name}: calls itself {profile.id}")
        return profile

    def available(self) -> list[str]:
        """Ids of the profiles that come with us, oldest version first."""
        return [file.name.removesuffix(".yaml") for _, _, file in sorted(self._shipped(), key=lambda found: found[:2])]

    def _shipped(self) -> list[tuple[str, int, Traversable]]:
        directory = importlib.resources.files("router") / "configs" / self._kind
        matches = [(_FILE_NAME.fullmatch(file.name), file) for file in directory.iterdir()]
        return [(match["name"], int(match["version"]), file) for match, file in matches if match]

    def _find(self, name: str) -> Traversable | None:
        shipped = self._shipped()
        versions = {version: file for other, version, file in shipped if name in (other, f"{other}.v{version}")}
        return versions[max(versions)] if versions else None

    def _parse(self, file: Traversable) -> P:
        try:
            content: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ProfileError(f"{file.name}: not YAML: {_one_line(error)}") from error
        if not isinstance(content, dict):
            raise ProfileError(f"{file.name}: must be a mapping of settings")
        try:
            return self._model.model_validate(content)
        except ValidationError as error:
            raise ProfileError(f"{file.name}: {_complaints(error)}") from error


def path_of(name_or_path: str) -> Path | None:
    """The path that it is, if it is no name."""
    return Path(name_or_path) if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path else None


def _complaints(error: ValidationError) -> str:
    parts = []
    for complaint in error.errors(include_url=False):
        key = ".".join(str(part) for part in complaint["loc"])
        said = complaint["msg"].removeprefix("Value error, ")
        parts.append(f"{key}: {said}" if key else said)
    return "; ".join(parts)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
