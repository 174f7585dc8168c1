"""What a model's config.json says of its shape: everything that memory is counted from. No weights are needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.engine.parameters import Parameters, count_parameters
from router.engine.shape import Shape
from router.errors import ModelError


@dataclass(frozen=True)
class Architecture:
    """A model by its config.json."""

    name: str
    """SGLang's name for the code that runs it (`LlamaForCausalLM`)."""
    shape: Shape
    parameters: Parameters
    quantization: Mapping[str, Any] | None
    """Of the checkpoint itself, as config.json has it."""
    known: bool
    """Whether its family is one we count exactly; others are counted as Llama is."""

    @classmethod
    def read(cls, path: Path) -> Architecture:
        """From a model directory or a config.json. Raises ModelError naming what is missing or makes no sense."""
        file = path / "config.json" if path.is_dir() else path
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelError(f"no model configuration at {file}") from None
        except (ValueError, OSError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise ModelError(f"{file} is not a JSON object")
        try:
            return cls.of(config)
        except ModelError as error:
            raise ModelError(f"{file}: {error}") from error

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Architecture:
        """Raises ModelError naming the key that is missing or makes no sense."""
        shape = Shape.of(config)
        names = config.get("architectures") or ["unknown"]
        quantization = config.get("quantization_config") or config.get("compression_config")
        return cls(
            name=str(names[0]),
            shape=shape,
            parameters=count_parameters(shape),
            quantization=quantization if isinstance(quantization, dict) else None,
            known=shape.known,
        )
