"""Whether a running engine can take another model's weights. SGLang does not look, and dies of what does not fit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from router.errors import ModelError
from router.model.directory import ModelDirectory
from router.model.weights import read_header

_OF_NO_MATTER = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype"})
_PLAIN = frozenset({"F32", "F16", "BF16"})
_NAMED = 3


def check_swap(serving: ModelDirectory, other: ModelDirectory) -> None:
    """Raises ModelError, with all that is in the way, unless `other` has weights that can take the place of
    `serving`'s in an engine, and a front's sessions can go on with it.

    The engine keeps the configuration it was started with, and a front its tokenizer and chat template: all of these
    must be the same. Reads headers of weights alone.
    """
    other.check()
    if found := list(_differences(serving, other)):
        raise ModelError(f"model {other.path} cannot take the place of {serving.path}: {'; '.join(found)}")


def check_front(serving: ModelDirectory, other: ModelDirectory) -> None:
    """Raises ModelError unless a front that runs with `serving` can go on with an engine of `other`: same tokenizer,
    chat template and end tokens, of which the front keeps its own.
    """
    if found := list(_front_differences(serving, other)):
        raise ModelError(f"a front of {serving.path} cannot serve {other.path}: {'; '.join(found)}")


def _differences(serving: ModelDirectory, other: ModelDirectory) -> Iterator[str]:
    if keys := _differing(_telling(serving.config), _telling(other.config)):
        yield f"config.json has another {_some(keys)}"
    yield from _front_differences(serving, other)
    ours, theirs = _shapes(serving), _shapes(other)
    if names := sorted(ours.keys() ^ theirs.keys()):
        yield f"other tensors: {_some(names)}"
    elif names := _differing(ours, theirs):
        yield f"tensors of another shape or type: {_some(names)}"


def _front_differences(serving: ModelDirectory, other: ModelDirectory) -> Iterator[str]:
    if serving.eos_ids != other.eos_ids:
        yield "generation_config.json has other end tokens"
    if _digest(serving) != _digest(other):
        yield "tokenizer.json is another one"
    if serving.chat_template != other.chat_template:
        yield "the chat template is another one"


def _telling(config: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in _OF_NO_MATTER}


def _shapes(model: ModelDirectory) -> dict[str, tuple[str, tuple[int, ...]]]:
    """16 and 32 bits are one: SGLang converts between them."""
    found = {}
    for shard in model.shards:
        if shard.suffix != ".safetensors":
            raise ModelError(
                f"model {model.path}: the shapes in {shard.name} cannot be read: only in safetensors files"
            )
        for name, (kind, shape) in read_header(shard).shapes.items():
            found[name] = ("plain" if kind in _PLAIN else kind, shape)
    return found


def _differing(ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    return sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))


def _digest(model: ModelDirectory) -> bytes:
    return hashlib.sha256(model.tokenizer_path.read_bytes()).digest()


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
