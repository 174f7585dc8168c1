"""A model directory: its files, its weights against their index, its hashes, and whether an engine can split it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from router.checks.finding import Finding, error, ok, warning
from router.engine.profile import EngineProfile
from router.errors import ModelError
from router.model.directory import ModelDirectory
from router.model.manifest import MANIFEST, check_manifest, read_manifest
from router.model.origin import read_origin
from router.model.weights import read_header

Progress = Callable[[str], None]


def refetch(directory: Path) -> str:
    """The command that completes a directory."""
    origin = read_origin(directory)
    source = origin.source if origin else "hf:ORG/NAME"
    return f"antiphon model fetch {shlex.quote(source)} --to {shlex.quote(str(directory))}"


def check_config(directory: Path) -> tuple[Finding, ModelDirectory | None]:
    """Whether it is a model directory at all."""
    try:
        model = ModelDirectory.read(directory)
    except ModelError as trouble:
        why = "prompts cannot be built, nor the model loaded"
        return error("model", str(trouble), why, refetch(directory)), None
    return ok("model", f"{directory}: {model.architecture}, {model.context_length} tokens of context"), model


def check_weights(model: ModelDirectory) -> list[Finding]:
    """Every shard there and whole, and every tensor of the index where the index says it is."""
    troubles = [*_files(model), *_misplaced(model)]
    if troubles:
        why = "the engine reads for minutes before it finds out, or generates nonsense"
        return [error("weights", trouble, why, refetch(model.path)) for trouble in troubles]
    size = sum(shard.stat().st_size for shard in model.shards)
    what = f"{len(model.shards)} file(s), {size / 1e9:.2f} GB"
    if model.shards[0].suffix != ".safetensors":
        why = "they are pickles: loading them can run any code"
        return [warning("weights", f"{what}, but not safetensors", why, refetch(model.path))]
    return [ok("weights", what)]


def _files(model: ModelDirectory) -> Iterator[str]:
    try:
        model.check()
    except ModelError as trouble:
        yield str(trouble)


def _misplaced(model: ModelDirectory) -> Iterator[str]:
    """Names the first tensor of each shard that is not where the index has it."""
    try:
        weight_map = model.weight_map or {}
        held = {name: read_header(model.path / name).tensors for name in sorted(set(weight_map.values()))}
    except ModelError:
        return  # said already
    for shard, tensors in held.items():
        absent = sorted(tensor for tensor, at in weight_map.items() if at == shard and tensor not in tensors)
        if absent:
            more = f" and {len(absent) - 1} other(s)" if len(absent) > 1 else ""
            yield f"model {model.path}: {shard} does not hold {absent[0]}{more}, against the index"


def check_hashes(model: ModelDirectory, on_progress: Progress = lambda line: None) -> list[Finding]:
    """Every file against the manifest, if there is one. Reads every byte."""
    try:
        digests = read_manifest(model.path)
    except ModelError as trouble:
        return [_damaged(model, str(trouble))]
    if digests is None:
        return [ok("hashes", f"no {MANIFEST}; one is made by: {_rehash(model)}")]
    troubles = check_manifest(model.path, digests, on_progress)
    unknown = [shard.name for shard in model.shards if shard.name not in digests]
    return [
        *(_damaged(model, f"model {model.path}: {trouble}") for trouble in troubles),
        *(_unlisted(model, name) for name in unknown),
    ] or [ok("hashes", f"{len(digests)} files as {MANIFEST} says")]


def _damaged(model: ModelDirectory, what: str) -> Finding:
    return error("hashes", what, "damaged weights load and generate nonsense", refetch(model.path))


def _unlisted(model: ModelDirectory, name: str) -> Finding:
    return warning("hashes", f"{name} is not in {MANIFEST}", "nobody knows whether it is whole", _rehash(model))


def _rehash(model: ModelDirectory) -> str:
    return f"antiphon model verify {shlex.quote(str(model.path))} --write-manifest"


def check_fit(model: ModelDirectory, profile: EngineProfile) -> list[Finding]:
    """Whether the profile asks of the model what it can do."""
    return [*_split(model, profile), *_context(model, profile)] or [ok("profile", f"{profile.id} fits the model")]


def _split(model: ModelDirectory, profile: EngineProfile) -> Iterator[Finding]:
    heads = model.config.get("text_config", model.config).get("num_attention_heads")
    if isinstance(heads, int) and heads % profile.tp:
        what = f"{heads} attention heads do not divide by tp {profile.tp}"
        possible = [tp for tp in (2, 4, 8) if heads % tp == 0 and tp < profile.tp] or [1]
        yield error("profile", what, "SGLang refuses to start", f"in the profile: tp: {possible[-1]}")


def _context(model: ModelDirectory, profile: EngineProfile) -> Iterator[Finding]:
    asked = profile.context_length
    if asked is not None and asked > model.context_length:
        what = f"context_length {asked} is more than the model's {model.context_length}"
        why = "SGLang refuses, or the model babbles beyond what it was trained for"
        yield error("profile", what, why, f"in the profile: context_length: {model.context_length}")
