"""From a profile to the launcher's command line and environment: pure functions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from router.engine.hierarchical_cache import HierarchicalCache
from router.engine.lora import Lora
from router.engine.profile import EngineProfile
from router.engine.speculation import Speculation
from router.errors import ProfileError

STAND_IN = Path(__file__).parent / "cpu_kernels"
"""What goes on PYTHONPATH when the device is the CPU and no CPU build of sgl_kernel imports."""


@dataclass(frozen=True, slots=True)
class Node:
    """One of the hosts a server spans. `rendezvous` is HOST:PORT of the first, as all can reach it."""

    rank: int
    rendezvous: str


def engine_argv(
    profile: EngineProfile,
    *,
    interpreter: Path,
    model: Path,
    host: str,
    port: int,
    node: Node | None = None,
    events_port: int | None = None,
) -> list[str]:
    """`model` is the directory the profile's `model` stands for; `node` is needed where the profile has several.

    `events_port` is the first of 2·dp for the profile's `kv_events`; without it there are none.
    """
    return [
        *(str(interpreter), "-m", "sglang.launch_server"),
        *("--model-path", str(model)),
        *("--served-model-name", profile.served_name),
        *("--host", host),
        *("--port", str(port)),
        *("--device", profile.device),
        *_options(profile),
        *_given({"--kv-events-config": _kv_events(profile, events_port)}),
        *_place(profile, node),
        *_speculation(profile.speculation),
        *_hierarchical_cache(profile.hierarchical_cache),
        *_lora(profile.lora),
        *_switches(profile),
        *profile.extra_args,
    ]


def _options(profile: EngineProfile) -> list[str]:
    return _given(
        {
            "--attention-backend": profile.backend,
            "--dtype": profile.dtype,
            "--quantization": profile.quantization,
            "--page-size": profile.page_size,
            "--context-length": profile.context_length,
            "--max-total-tokens": profile.max_total_tokens,
            "--mem-fraction-static": profile.mem_fraction_static,
            "--kv-cache-dtype": profile.kv_cache_dtype,
            "--max-running-requests": profile.max_running_requests,
            "--max-prefill-tokens": profile.max_prefill_tokens,
            "--chunked-prefill-size": profile.chunked_prefill_size,
            "--schedule-policy": profile.schedule_policy,
            "--tp-size": profile.tp,
            "--dp-size": profile.dp,
            "--ep-size": profile.ep,
        }
    )


def _place(profile: EngineProfile, node: Node | None) -> list[str]:
    if profile.nodes == 1:
        return []
    if node is None or not 0 <= node.rank < profile.nodes:
        raise ProfileError(f"profile {profile.id} spans {profile.nodes} nodes: say which one, 0 to {profile.nodes - 1}")
    return _given({"--nnodes": profile.nodes, "--node-rank": node.rank, "--dist-init-addr": node.rendezvous})


def _speculation(speculation: Speculation | None) -> list[str]:
    if speculation is None:
        return []
    return _given(
        {
            "--speculative-algorithm": speculation.algorithm,
            "--speculative-draft-model-path": speculation.draft_model,
            "--speculative-num-steps": speculation.steps,
            "--speculative-eagle-topk": speculation.top_k,
            "--speculative-num-draft-tokens": speculation.draft_tokens,
        }
    )


def _hierarchical_cache(cache: HierarchicalCache | None) -> list[str]:
    if cache is None:
        return []
    options = {
        "--hicache-ratio": cache.ratio,
        "--hicache-size": cache.size_gb,
        "--hicache-write-policy": cache.write_policy,
        "--hicache-io-backend": cache.io_backend,
        "--hicache-mem-layout": cache.mem_layout,
        "--hicache-storage-backend": cache.storage,
        "--hicache-storage-prefetch-policy": cache.prefetch_policy,
    }
    return ["--enable-hierarchical-cache", *_given(options)]


def _lora(lora: Lora | None) -> list[str]:
    if lora is None:
        return []
    options = _given(
        {
            "--max-lora-rank": lora.max_rank,
            "--max-loras-per-batch": lora.max_per_batch,
            "--max-loaded-loras": lora.max_loaded,
        }
    )
    modules = ["--lora-target-modules", *lora.target_modules] if lora.target_modules else []
    paths = ["--lora-paths", *(f"{name}={path}" for name, path in lora.adapters.items())] if lora.adapters else []
    return ["--enable-lora", *options, *modules, *paths]


def _switches(profile: EngineProfile) -> list[str]:
    # --sleep-on-idle: without it an idle engine spins on a core.
    # --constrained-json-...: without it a model asked for JSON may write white space until its answer is cut.
    switches = {
        "--enable-cache-report": True,
        "--sleep-on-idle": True,
        "--constrained-json-disable-any-whitespace": True,
        "--enable-dp-attention": profile.dp_attention,
        "--enable-session-radix-cache": profile.session_radix_cache,
        # Without the copy the weights would be gone on waking.
        "--enable-memory-saver": profile.sleep_after_s is not None,
        "--enable-weights-cpu-backup": profile.sleep_after_s is not None,
        "--enable-metrics": profile.metrics,
        "--incremental-streaming-output": profile.incremental_streaming,
    }
    return [flag for flag, on in switches.items() if on]


def _kv_events(profile: EngineProfile, events_port: int | None) -> str | None:
    if profile.kv_events_port is not None:
        host, port, more = "*", profile.kv_events_port, {}
    elif profile.kv_events and events_port is not None:
        # SGLang would connect to an address that is not a wildcard; 0.5.17 knows no `bind` and does so still.
        host, port, more = "127.0.0.1", events_port, {"bind": True}
    else:
        return None
    ranks = {"endpoint": f"tcp://{host}:{port}", "replay_endpoint": f"tcp://{host}:{port + profile.dp}"}
    return json.dumps({"publisher": "zmq", "topic": "kv-events", **ranks, **more}, separators=(",", ":"))


def _given(options: Mapping[str, object | None]) -> list[str]:
    return [part for flag, value in options.items() if value is not None for part in (flag, str(value))]


def engine_env(profile: EngineProfile, *, base: Mapping[str, str], cpus: int, stand_in: bool) -> dict[str, str]:
    """`base` is the environment to start from, `cpus` how many CPUs we may use, `stand_in` whether sgl_kernel's
    stand-in is needed. What the profile names under `environment` wins over everything.
    """
    env = dict(base)
    env["PYTHONUNBUFFERED"] = "1"
    env["TOKENIZERS_PARALLELISM"] = "false"
    # A server that lost a process would look into the others for more than a minute before it ends and is replaced.
    env["SGLANG_PYSPY_DUMP_BEFORE_CRASH"] = env["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"] = "0"
    if profile.device == "cpu":
        env["SGLANG_USE_CPU_ENGINE"] = "1"
    if stand_in:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STAND_IN), base.get("PYTHONPATH")]))
    if profile.threads is not None:
        env["OMP_NUM_THREADS"] = str(cpus if profile.threads == "auto" else profile.threads)
    return env | profile.environment
