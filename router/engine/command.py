"""From a profile to the launcher's command line and environment: pure functions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from router.engine.profile import EngineProfile

STAND_IN = Path(__file__).parent / "cpu_kernels"
"""What goes on PYTHONPATH when the device is the CPU and no CPU build of sgl_kernel imports."""


def engine_argv(profile: EngineProfile, *, interpreter: Path, model: Path, host: str, port: int) -> list[str]:
    """`model` is the directory the profile's `model` stands for."""
    return [
        *(str(interpreter), "-m", "sglang.launch_server"),
        *("--model-path", str(model)),
        *("--served-model-name", profile.served_name),
        *("--host", host),
        *("--port", str(port)),
        *("--device", profile.device),
        *_options(profile),
        *_switches(profile),
        *profile.extra_args,
    ]


def _options(profile: EngineProfile) -> list[str]:
    values: dict[str, object | None] = {
        "--attention-backend": profile.attention_backend,
        "--page-size": profile.page_size,
        "--context-length": profile.context_length,
        "--max-total-tokens": profile.max_total_tokens,
        "--mem-fraction-static": profile.mem_fraction_static,
        "--max-running-requests": profile.max_running_requests,
        "--chunked-prefill-size": profile.chunked_prefill_size,
        "--schedule-policy": profile.schedule_policy,
        "--tp-size": profile.tp,
        "--dp-size": profile.dp,
    }
    return [part for flag, value in values.items() if value is not None for part in (flag, str(value))]


def _switches(profile: EngineProfile) -> list[str]:
    # --sleep-on-idle: without it an idle engine spins on a core.
    switches = {
        "--enable-cache-report": True,
        "--sleep-on-idle": True,
        "--enable-metrics": profile.metrics,
        "--incremental-streaming-output": profile.incremental_streaming,
    }
    return [flag for flag, on in switches.items() if on]


def engine_env(profile: EngineProfile, *, base: Mapping[str, str], cpus: int, stand_in: bool) -> dict[str, str]:
    """`base` is the environment to start from, `cpus` how many CPUs we may use, `stand_in` whether sgl_kernel's
    stand-in is needed. What the profile names under `environment` wins over everything.
    """
    env = dict(base)
    env["PYTHONUNBUFFERED"] = "1"
    env["TOKENIZERS_PARALLELISM"] = "false"
    if profile.device == "cpu":
        env["SGLANG_USE_CPU_ENGINE"] = "1"
    if stand_in:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STAND_IN), base.get("PYTHONPATH")]))
    if profile.threads is not None:
        env["OMP_NUM_THREADS"] = str(cpus if profile.threads == "auto" else profile.threads)
    return env | profile.environment
