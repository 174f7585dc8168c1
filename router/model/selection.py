"""Which files of a model's repository an engine and a front need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch

from router.errors import ModelError

_KEPT = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", "LICENSE*", "README.md")
_NOT_KEPT = ("*.index.json", "*.gguf", "training_args*", "requirements*.txt")
_WEIGHTS = (
    ("model*.safetensors", "model.safetensors.index.json"),
    ("*.safetensors", "*.safetensors.index.json"),
    ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
)
"""What is preferred comes first: some repositories hold the same weights in several forms."""


def select(names: Iterable[str], repository: str) -> tuple[str, ...]:
    """Without directories, without code, and the weights in one form: small files first, weights last.

    Raises ModelError when there are no weights that SGLang loads.
    """
    top = sorted(name for name in names if "/" not in name and not name.startswith("."))
    small = [name for name in top if _matches(name, _KEPT) and not _matches(name, _NOT_KEPT)]
    for weights, index in _WEIGHTS:
        if chosen := [name for name in top if fnmatch(name, weights)]:
            return (*small, *(name for name in top if fnmatch(name, index)), *chosen)
    if any(name.endswith(".gguf") for name in top):
        raise ModelError(f"{repository} has GGUF files alone: download one, then `antiphon model convert FILE DIR`")
    raise ModelError(f"{repository} has no weights (*.safetensors)")


def is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
