from __future__ import annotations

import pytest

from router.engine.device import MIB
from router.engine.local import parse_query
from router.errors import PreflightError


def test_nvidia_smis_answer() -> None:
    found = parse_query("NVIDIA H200, 143771\nNVIDIA H200, 143770\n")
    assert (found.count, found.device.name, found.device.memory) == (2, "H200", 143770 * MIB)


@pytest.mark.parametrize("answer", ["", "no devices were found\n", "NVIDIA H200, [N/A]\n"])
def test_an_answer_that_says_nothing(answer: str) -> None:
    with pytest.raises(PreflightError, match="name them with --gpus"):
        parse_query(answer)
