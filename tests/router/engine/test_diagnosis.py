from __future__ import annotations

import pytest

from router.engine.diagnosis import diagnose, hopeless

EXIT = "exited with code 1"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "sglang serve: error: unrecognized arguments: --page-sise 16",
            "SGLang refuses a flag: unrecognized arguments: --page-sise 16 (exited with code 1)",
        ),
        (
            "[Errno 98] error while attempting to bind on address ('127.0.0.1', 30001): address already in use",
            "its port is in use (exited with code 1)",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory (exited with code 1)"),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "out of memory (exited with code 1)",
        ),
        (
            "ModuleNotFoundError: No module named 'sglang'",
            "its environment lacks sglang: run `make engine` (exited with code 1)",
        ),
        ("RuntimeError: No CUDA GPUs are available", "no usable GPU (exited with code 1)"),
        ("ncclUnhandledCudaError: Call to CUDA function failed.", "its GPUs cannot talk (NCCL) (exited with code 1)"),
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: header too large",
            "the model's weights cannot be read (exited with code 1)",
        ),
        ("ValueError: rope_scaling is odd", "exited with code 1: ValueError: rope_scaling is odd"),
        ("something else", "exited with code 1"),
    ],
)
def test_signs_are_recognised(line: str, reason: str) -> None:
    assert diagnose(EXIT, ["[10:00] loading", line, "[10:01] SIGQUIT received."]) == reason


def test_the_latest_sign_wins() -> None:
    lines = ["No module named 'amx'", "torch.OutOfMemoryError: CUDA out of memory."]
    assert diagnose("killed by SIGQUIT", lines) == "out of memory (killed by SIGQUIT)"


def test_an_engine_that_cannot_bind_is_hopeless_though_it_runs() -> None:
    bind = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use"
    assert hopeless(["loading", bind, "INFO:     Waiting for application shutdown."]) == "its port is in use"
    assert hopeless(["loading", "Uvicorn running"]) is None


def test_a_kill_without_a_word_is_most_likely_the_kernels() -> None:
    assert diagnose("killed by SIGKILL", ["all well"]) == (
        "killed by SIGKILL, most likely because the machine ran out of memory"
    )
