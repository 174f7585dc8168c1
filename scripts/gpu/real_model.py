"""The default model on a host without network: `real_model CARRIED WORK` makes WORK/model once all parts have come.

The parts are those of the GGUF file that the model's package carries; it is converted as everywhere else, to bfloat16
from the file's 4 and 8 bits. Without all parts it does nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from router.model.conversion import CONVERTER
from router.model.fetch import DEFAULT
from scripts.gpu.parts import collect, joined


def make(carried: Path, work: Path) -> Path | None:
    model = work / "model"
    if model.exists():
        return model
    collect(carried, work / "parts")
    gguf = joined(work / "parts", Path(DEFAULT.file).name, DEFAULT.sha256)
    if gguf is None:
        return None
    subprocess.run([sys.executable, str(CONVERTER), str(gguf), str(model)], check=True)
    return model


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
