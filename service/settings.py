"""What a front is started with. The only reader of the environment (variables `ANTIPHON_…`, and those of hubs)."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from programs.ledger import HistoryMode
from router.errors import RegistryError
from router.hedge import HedgeMode
from router.registry.sources import sources_of, written_out
from router.registry.spec import ReplicaSpec

_PREFIX = "ANTIPHON_"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_STORE_SCHEMES = ("redis", "rediss", "unix")


class ListenSettings(BaseSettings):
    """Where a front listens. Arguments win over the environment."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=1, le=65535)
    api_key: SecretStr | None = Field(default=None, min_length=1)
    drain_s: int = Field(default=30, ge=0)
    """How long turns in flight may take to end after a signal to stop."""
    engines: tuple[str, ...] = ()
    """SGLang servers, each `url` or `name=url`, and sources of them (docs/router.md). For `up`: instead of its own."""

    @model_validator(mode="after")
    def _needs_a_key_in_public(self) -> Self:
        if self.host not in _LOOPBACK and self.api_key is None:
            raise ValueError(f"listening on {self.host} needs an API key: set ANTIPHON_API_KEY, or listen on 127.0.0.1")
        return self

    @property
    def replicas(self) -> tuple[ReplicaSpec, ...]:
        """Those that are written out."""
        return written_out(self.engines)

    @field_validator("engines")
    @classmethod
    def _are_http(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        try:
            sources_of(urls)
        except RegistryError as error:
            raise ValueError(str(error)) from error
        return urls

    @field_validator("store_url", check_fields=False)
    @classmethod
    def _is_redis(cls, url: str | None) -> str | None:
        return url and _store_url(url)


class UpSettings(ListenSettings):
    """Settings of `antiphon up`. Paths are made absolute."""

    data_dir: Path = Field(default_factory=lambda: _data_home() / "antiphon")
    """Models, sessions and logs."""
    model: Path | None = None
    """A model directory; None: the profile's."""
    profile: str | None = None
    """An engine profile's name or file; None: by what the machine has."""
    engine_python: Path = Path(".venv-engine/bin/python")
    """The interpreter that has SGLang."""
    store_url: str | None = None
    """A Redis or Valkey to use instead of one of our own."""
    hang_s: float = Field(default=120, gt=0)
    """A process of ours that runs but has not answered for so long is killed and started again."""

    @field_validator("data_dir", "model")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return path and Path(os.path.normpath(path.expanduser().absolute()))

    @property
    def front_environment(self) -> dict[str, str]:
        """For a front: all of ours, and what is not given to it as an argument."""
        environment = {
            **os.environ,
            f"{_PREFIX}DRAIN_S": str(self.drain_s),
            f"{_PREFIX}ENGINE_PYTHON": str(self.engine_python.absolute()),
        }
        if self.api_key is not None:
            environment[f"{_PREFIX}API_KEY"] = self.api_key.get_secret_value()
        return environment

    @property
    def foreign_environment(self) -> dict[str, str]:
        """For programs that are not ours."""
        return _foreign_environment()


class Settings(ListenSettings):
    """Settings of one front."""

    model_dir: Path
    """Directory with the model's config, tokenizer and chat template; weights are not read."""
    model_name: str | None = None
    engine_profile: str | None = None
    engine_profile_hash: str | None = None
    """What the engines were started from, where that is known: `antiphon up` says it of its own."""
    engine_sleep_after_s: float | None = Field(default=None, gt=0)
    """Engines that were not used for so long are put to sleep. Only where no other front uses them."""
    store_url: str
    """`redis://`, `rediss://` or `unix://` URL of Redis or Valkey."""
    session_ttl_s: int = Field(default=30 * 24 * 3600, gt=0)
    """Sessions unused for so long are forgotten."""
    anticipated_tokens_per_minute: int = Field(default=120_000, ge=0)
    """How much may be prefilled ahead for templates that rewrite history; 0 turns it off."""
    history: HistoryMode = "template"
    """Of sessions that choose none: `template` drops what the chat template drops, `append` drops nothing."""
    hygiene: str = "default"
    """Rules for volatile lines in system prompts: `default`, `off`, or a YAML file."""
    engine_python: Path = Path(".venv-engine/bin/python")
    """The interpreter that has SGLang: for programs in its frontend language."""
    serving_profile: str = "default"
    """Which programs can be run beside the library's, by the name or the file of a profile (configs/README.md)."""
    max_body_bytes: int = Field(default=32 * 1024 * 1024, gt=0)
    max_file_bytes: int = Field(default=200 * 1024 * 1024, gt=0)
    """Of a batch's input."""
    file_ttl_s: int = Field(default=30 * 24 * 3600, gt=0)
    """Files, batches' inputs and outputs, are forgotten so long after they were made."""
    document_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    """Of a file that becomes a document."""
    document_characters: int = Field(default=10_000_000, gt=0)
    """Of its text."""
    document_ttl_s: int = Field(default=30 * 24 * 3600, gt=0)
    """Documents unused for so long are forgotten."""
    job_ttl_s: int = Field(default=7 * 24 * 3600, gt=0)
    """Jobs, with their results, are forgotten so long after they ended."""
    job_deadline_s: float = Field(default=24 * 3600, gt=0)
    """How long a job may take from its submission, unless it asks for less or more."""
    queue_requests: int = Field(default=1024, ge=1)
    """Requests that may wait for room in each lane."""
    queue_tokens: int = Field(default=4_000_000, ge=1)
    """Uncached tokens of them."""
    tenant_share: float = Field(default=0.5, gt=0, le=1)
    """Of both, for one tenant."""
    hedge: HedgeMode = "hedge"
    """What is done about a slow first token: another replica is asked too, or instead (`move`), or nothing (`off`)."""
    hedge_after_s: float = Field(default=120, gt=0)

    @property
    def foreign_environment(self) -> dict[str, str]:
        """For programs that are not ours."""
        return _foreign_environment()


class WorkerSettings(BaseSettings):
    """Settings of one worker. Arguments win over the environment."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore")

    front: str = "http://127.0.0.1:8080"
    """URL of the front through which it generates."""
    api_key: SecretStr | None = Field(default=None, min_length=1)
    """The front's."""
    store_url: str
    """The front's."""
    model_dir: Path
    """Directory of the model that the front serves; weights are not read."""
    engine_python: Path = Path(".venv-engine/bin/python")
    """The interpreter that has SGLang: for programs in its frontend language."""
    serving_profile: str = "default"
    """The front's: programs that it does not have are none of the worker's either."""
    worker_name: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}")
    """Tells it from all other workers."""
    jobs: int = Field(default=4, ge=1)
    """Run at once."""
    batches: int = Field(default=2, ge=1)
    """Run at once, beside them."""
    job_ttl_s: int = Field(default=7 * 24 * 3600, gt=0)
    """Jobs, with their results, are forgotten so long after they ended."""
    document_ttl_s: int = Field(default=30 * 24 * 3600, gt=0)
    """The front's."""
    file_ttl_s: int = Field(default=30 * 24 * 3600, gt=0)
    """The front's."""
    batch_requests: int = Field(default=32, ge=1)
    """Of one batch, at the front at once."""
    lease_s: float = Field(default=10, gt=0)
    """A worker that is not heard of for so long has lost its jobs to others. The same for all workers."""
    job_deliveries: int = Field(default=5, ge=1)
    """A job that so many workers died of, without getting on, is given up."""
    job_attempts: int = Field(default=8, ge=1)
    """A job that so often met what may pass, without getting on, is given up."""

    @property
    def foreign_environment(self) -> dict[str, str]:
        """For programs that are not ours."""
        return _foreign_environment()

    @field_validator("front")
    @classmethod
    def _front_is_http(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"{url!r} is not the URL of a front, such as http://127.0.0.1:8080")
        return url

    @field_validator("store_url")
    @classmethod
    def _store_is_redis(cls, url: str) -> str:
        return _store_url(url)


class HubSettings(BaseSettings):
    """Where models are fetched from, by the variables that all clients of a Hugging Face hub heed."""

    model_config = SettingsConfigDict(extra="ignore", env_ignore_empty=True)

    endpoint: str = Field(default="https://huggingface.co", validation_alias="HF_ENDPOINT")
    token: SecretStr | None = Field(default=None, validation_alias="HF_TOKEN")

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"HF_ENDPOINT is {url!r}, not an address such as https://huggingface.co")
        return url


def _store_url(url: str) -> str:
    if urlsplit(url).scheme not in _STORE_SCHEMES:
        raise ValueError(f"{url!r} is not the URL of a store: redis://…, rediss://… or unix://…")
    return url


def _foreign_environment() -> dict[str, str]:
    """What we were started with, less our settings: a key is one of them."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}


def _data_home() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
