"""What the engine tells about itself."""

from __future__ import annotations

import time
from collections.abc import Set
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.fake_engine.kv_events import PublisherConfig
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.fake_engine.engine import Engine


def model_info(engine: Engine) -> dict[str, Any]:
    options = engine.options
    return {
        "model_path": engine.weights.path,
        "served_model_name": options.model_path,
        "tokenizer_path": str(options.tokenizer or options.model_path),
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": engine.weights.version,
        "load_format": "auto",
        "reasoning_parser": options.reasoning_parser,
        "tool_call_parser": options.tool_call_parser,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    }


def server_info(engine: Engine) -> dict[str, Any]:
    options = engine.options
    state = {
        "effective_max_running_requests_per_dp": options.max_running_requests,
        "last_gen_throughput": 0.0,
        "memory_usage": {"token_capacity": options.max_total_tokens},
    }
    return {
        "model_path": options.model_path,
        "served_model_name": options.model_path,
        "tokenizer_path": str(options.tokenizer or options.model_path),
        "skip_tokenizer_init": options.tokenizer is None,
        "context_length": None,  # the flag, which was not given
        "page_size": options.page_size,
        "chunked_prefill_size": options.chunked_prefill_size,
        "max_running_requests": options.max_running_requests,
        "max_total_tokens": options.max_total_tokens,
        "schedule_policy": "fcfs",
        "dp_size": options.dp_size,
        "tp_size": 1,
        "stream_interval": options.stream_interval,
        "incremental_streaming_output": options.incremental_streaming,
        "enable_metrics": options.enable_metrics,
        "weight_version": "default",  # what it was started with, whatever it serves now
        "enable_memory_saver": options.memory_saver,
        "enable_weights_cpu_backup": options.memory_saver,
        "random_seed": engine.random_seed,
        "max_total_num_tokens": options.max_total_tokens,
        "max_req_input_len": options.max_input_tokens,
        "kv_events": _publisher(options),
        "kv_events_config": options.kv_events_config,
        "reasoning_parser": options.reasoning_parser,
        "tool_call_parser": options.tool_call_parser,
        "status": "ready",
        "startup_time": options.startup_s,
        "internal_states": [state],
        "version": options.version,
        "frontend": "python",
    }


def _publisher(options: FakeEngineOptions) -> dict[str, Any] | None:
    if options.kv_events_config is None:
        return None
    config = PublisherConfig.read(options.kv_events_config)
    host, _, port = config.endpoint.removeprefix("tcp://").rpartition(":")
    told: dict[str, Any] = {"publisher": "zmq", "endpoint_host": host, "endpoint_port_base": int(port)}
    told |= {"topic": config.topic, "block_size": options.page_size, "dp_size": options.dp_size}
    if config.replay_endpoint is not None:
        told["replay_endpoint_port_base"] = int(config.replay_endpoint.rpartition(":")[2])
    return told


def models(engine: Engine) -> dict[str, Any]:
    name = engine.options.model_path
    card = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": engine.options.context_length,
    }
    return {"object": "list", "data": [card]}


def loads(engine: Engine, include: Set[str]) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    entries = [_load(engine.options, scheduler, rank, include) for rank, scheduler in enumerate(engine.ranks)]
    versions = {"version": engine.options.version, "accelerator": None, "num_accelerators": 1}
    return {"timestamp": now, **versions, "loads": entries}


def _load(options: FakeEngineOptions, scheduler: Scheduler, rank: int, include: Set[str]) -> dict[str, Any]:
    state, pool, waiting = scheduler.state, scheduler.pool, list(scheduler.waiting)
    seen = state.cached_tokens + state.prefilled_tokens
    hit_rate = state.cached_tokens / seen if seen else 0.0
    queued = sum(request.total_tokens for request in waiting)
    load: dict[str, Any] = {
        "timestamp": time.time(),
        "dp_rank": rank,
        "num_running_reqs": state.running,
        "num_waiting_reqs": state.waiting,
        "num_waiting_uncached_tokens": int(queued * (1 - hit_rate)),
        "num_used_tokens": pool.used_tokens,
        "num_total_tokens": pool.used_tokens + queued,
        "num_active_tokens": pool.used_tokens + queued,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": options.max_total_tokens,
        "max_running_requests": options.max_running_requests,
        "token_usage": round(pool.used_tokens / options.max_total_tokens, 4),
        "gen_throughput": 0.0,
        "cache_hit_rate": round(hit_rate, 4),
        "utilization": 0.0,
        "total_prefill_uncached_tokens": state.prefilled_tokens,
        "total_prefill_busy_us": state.prefill_busy_us,
        "decode_moments": None,
    }
    if include & {"all", "memory"}:
        load["memory"] = {
            "weight_gb": 0.0,
            "kv_cache_gb": 0.0,
            "graph_gb": 0.0,
            "token_capacity": options.max_total_tokens,
        }
    if include & {"all", "disagg"}:
        load["disaggregation"] = {
            "mode": "null",
            "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": 0,
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        }
    if include & {"all", "queues"}:
        load["queues"] = {"waiting": state.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}
    return load


def get_load(engine: Engine) -> list[dict[str, Any]]:
    """0.5.17 only."""
    loads = []
    for rank, scheduler in enumerate(engine.ranks):
        state = scheduler.state
        queued = sum(request.total_tokens for request in scheduler.waiting)
        loads.append(
            {
                "dp_rank": rank,
                "num_reqs": state.running + state.waiting,
                "num_waiting_reqs": state.waiting,
                "num_tokens": scheduler.pool.used_tokens + queued,
                "num_pending_tokens": queued,
                "ts_tic": time.perf_counter(),
            }
        )
    return loads


def metrics(engine: Engine) -> str:
    options, state = engine.options, engine.state
    pools = [scheduler.pool for scheduler in engine.ranks]
    used, evicted = sum(pool.used_tokens for pool in pools), sum(pool.tree.evicted_pages for pool in pools)
    labels = f'{{engine_type="unified",model_name="{options.model_path}",pp_rank="0",tp_rank="0"}}'
    rows = (
        ("num_running_reqs", "gauge", state.running),
        ("num_queue_reqs", "gauge", state.waiting),
        ("num_used_tokens", "gauge", used),
        ("token_usage", "gauge", used / options.max_total_tokens / options.dp_size),
        ("max_total_num_tokens", "gauge", options.max_total_tokens),
        ("prompt_tokens_total", "counter", state.prompt_tokens),
        ("generation_tokens_total", "counter", state.generated_tokens),
        ("cached_tokens_total", "counter", state.cached_tokens),
        ("num_requests_total", "counter", state.received),
        ("num_aborted_requests_total", "counter", state.aborted),
        ("evicted_tokens_total", "counter", evicted * options.page_size),
    )
    lines: list[str] = []
    for name, kind, value in rows:
        lines += [f"# TYPE sglang:{name} {kind}", f"sglang:{name}{labels} {float(value)}"]
    return "\n".join(lines) + "\n"
