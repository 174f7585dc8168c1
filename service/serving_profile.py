"""Serving profiles: which programs can be run, as versioned YAML (`configs/serving/<name>.v<version>.yaml`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from programs.library import LIBRARY
from programs.runtime.program import Program
from programs.runtime.registry import load_program
from programs.runtime.run import Prices
from router.profile_files import Profile, ProfileFiles, path_of


class Limits(BaseModel):
    """What a job may take of a worker's patience."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    retry_s: float = Field(default=300, ge=0)
    """Seconds that a step is tried again while engines are gone, full or break off."""


class TokenPrices(BaseModel):
    """Of a million tokens each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: float = Field(ge=0)
    cached: float = Field(ge=0)
    output: float = Field(ge=0)


class ServingProfile(Profile):
    """One profile. The programs of the library are always there; these are beside them."""

    programs: tuple[str, ...] = ()
    """Async functions, each `module:function`; modules are found on PYTHONPATH and beside the profile's own file."""
    sgl_programs: tuple[str, ...] = ()
    """The same for functions under `@sgl.function`."""
    limits: Limits = Limits()
    prices: TokenPrices | None = None
    """With them, a result says what it cost."""

    _directory: Path | None = PrivateAttr(default=None)

    @property
    def directory(self) -> Path | None:
        """Where modules are looked for beside PYTHONPATH; None for a profile that comes with us."""
        return self._directory

    @property
    def token_prices(self) -> Prices | None:
        return Prices(self.prices.prompt, self.prices.cached, self.prices.output) if self.prices else None

    def load_programs(self) -> tuple[Program, ...]:
        """The library's programs, and those of `programs`. Raises ProgramLoadError, naming the path that is bad."""
        return tuple(load_program(path, self.directory) for path in (*LIBRARY, *self.programs))

    def within(self, directory: Path) -> ServingProfile:
        """The same with modules found in `directory` too."""
        copied = self.model_copy()
        copied._directory = directory
        return copied


_FILES = ProfileFiles("serving", ServingProfile)


def load_serving_profile(name_or_path: str) -> ServingProfile:
    """By path, by id (`default.v1`) or by name, which means its newest version. Raises ProfileError."""
    profile, path = _FILES.load(name_or_path), path_of(name_or_path)
    return profile if path is None else profile.within(path.resolve().parent)
