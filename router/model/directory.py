"""A Hugging Face model directory: what the front needs to know of it, and whether an engine could load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.errors import ModelError
from router.model.weights import read_header

_CONTEXT_KEYS = ("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions", "model_max_length")


@dataclass(frozen=True)
class ModelDirectory:
    """Everything but the weights, read once. Lengths are tokens."""

    path: Path
    config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    chat_template: str | None
    context_length: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    """Tokens that end a generation by the model's own account."""

    @classmethod
    def read(cls, path: Path) -> ModelDirectory:
        """Raises ModelError naming the file that is missing or does not make sense. Weights are not looked at."""
        if not path.is_dir():
            raise ModelError(f"no model directory at {path}")
        config = _read_json(path / "config.json")
        if not (path / "tokenizer.json").is_file():
            raise ModelError(f"model {path}: tokenizer.json is missing")
        tokenizer_config = _read_json(path / "tokenizer_config.json", optional=True)
        generation = _read_json(path / "generation_config.json", optional=True)
        text_config = config.get("text_config", config)
        return cls(
            path=path,
            config=config,
            tokenizer_config=tokenizer_config,
            generation_config=generation,
            chat_template=_chat_template(path, tokenizer_config),
            context_length=_context_length(path, text_config),
            vocab_size=_integer(path, text_config, "vocab_size"),
            eos_ids=_ids(generation.get("eos_token_id", text_config.get("eos_token_id"))),
        )

    @property
    def tokenizer_path(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def architecture(self) -> str:
        """What kind of model it is, by its own account."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else str(self.config.get("model_type", "unknown"))

    @property
    def weight_map(self) -> Mapping[str, str] | None:
        """Which file holds which tensor, by the index; None without one. Raises ModelError when it makes no sense."""
        index = self.path / "model.safetensors.index.json"
        if not index.is_file():
            return None
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"model {self.path}: {index.name} names no weights")
        if not all(isinstance(name, str) and Path(name).name == name for name in weight_map.values()):
            raise ModelError(f"model {self.path}: {index.name} names what is no file of the directory")
        return weight_map

    @property
    def shards(self) -> tuple[Path, ...]:
        """The weight files that should be there: by the index if there is one, else those that are."""
        weight_map = self.weight_map
        if weight_map is not None:
            return tuple(self.path / name for name in sorted(set(weight_map.values())))
        return tuple(sorted(self.path.glob("*.safetensors")) or sorted(self.path.glob("*.bin")))

    def check(self) -> None:
        """Raises ModelError naming the first weight file that is missing or cut short. Reads headers only."""
        if not self.shards:
            raise ModelError(f"model {self.path}: no weights (*.safetensors)")
        for number, shard in enumerate(self.shards, 1):
            if not shard.is_file():
                raise ModelError(f"model {self.path}: weights {number} of {len(self.shards)} are missing: {shard.name}")
            if shard.suffix == ".safetensors":
                read_header(shard).check_size()


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelError(f"model {path.parent}: {path.name} is missing") from None
    except (ValueError, OSError) as error:
        raise ModelError(f"model {path.parent}: {path.name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"model {path.parent}: {path.name} is not a JSON object")
    return content


def _chat_template(path: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _context_length(path: Path, config: Mapping[str, Any]) -> int:
    for key in _CONTEXT_KEYS:
        if key in config:
            return _integer(path, config, key)
    raise ModelError(f"model {path}: config.json does not say how long a context may be ({_CONTEXT_KEYS[0]})")


def _integer(path: Path, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"model {path}: config.json: {key} is {value!r}, not a positive number")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(entry for entry in values if isinstance(entry, int))
