"""What a profile asks for that cannot go together: each as one line that begins with the setting to change.

The rules are SGLang 0.5.23's own (`srt/arg_groups/*_hook.py`), told before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from router.engine.flags import meant

if TYPE_CHECKING:
    from router.engine.profile import EngineProfile

_CPU_BACKENDS = ("auto", "torch_native", "intel_amx")
_CPU_ONLY_BACKENDS = ("intel_amx",)
_GPU_ONLY_QUANTIZATION = ("awq", "awq_marlin", "gptq", "gptq_marlin", "mxfp4")
_TREE_BACKENDS = ("flashinfer", "fa3", "triton")
_HIGHEST_PORT = 65535
_ALWAYS_BY_FIELD = ("dp_attention", "nodes", "metrics", "incremental_streaming")


def conflicts(profile: EngineProfile) -> Iterator[str]:
    """None when the profile agrees with itself."""
    for rule in _RULES:
        yield from rule(profile)


def _memory(profile: EngineProfile) -> Iterator[str]:
    tokens = profile.max_total_tokens
    if profile.device == "cpu" and tokens is None:
        yield "max_total_tokens: needed on the cpu, or SGLang takes nearly all memory for its KV cache"
    if tokens is not None and tokens < profile.page_size:
        yield f"max_total_tokens: {tokens} is less than page_size {profile.page_size}"
    if tokens is not None and (profile.context_length or 0) > tokens:
        yield f"context_length: {profile.context_length} tokens cannot be held in max_total_tokens {tokens}"


def _prefill(profile: EngineProfile) -> Iterator[str]:
    size = profile.chunked_prefill_size
    if size == 0:
        yield "chunked_prefill_size: 0 tokens would never get through; -1 turns chunking off"
    if size is not None and size > 0 and size % profile.page_size:
        yield f"chunked_prefill_size: {size} is no multiple of page_size {profile.page_size}"


def _device(profile: EngineProfile) -> Iterator[str]:
    backend = profile.attention_backend
    if profile.device == "cuda":
        if backend in _CPU_ONLY_BACKENDS:
            yield f"attention_backend: {backend} is for the cpu"
        return
    if backend is not None and backend not in _CPU_BACKENDS:
        yield f"attention_backend: {backend} needs a GPU; on the cpu there are torch_native and intel_amx"
    if profile.quantization in _GPU_ONLY_QUANTIZATION:
        yield f"quantization: {profile.quantization} needs a GPU"
    if profile.speculation is not None and profile.speculation.algorithm != "NGRAM":
        yield f"speculation: {profile.speculation.algorithm} needs a GPU"
    if profile.hierarchical_cache is not None:
        yield "hierarchical_cache: on the cpu the cache is in host memory already"
    if profile.nodes > 1:
        yield "nodes: several only with GPUs"
    if profile.sleep_after_s is not None:
        yield "sleep_after_s: needs a GPU; on the cpu SGLang dies of being put to sleep"


def _parallelism(profile: EngineProfile) -> Iterator[str]:
    if profile.dp_attention and profile.dp == 1:
        yield "dp_attention: there is nothing to spread with dp 1"
    if profile.dp_attention and profile.tp % profile.dp:
        yield f"dp_attention: tp {profile.tp} is no multiple of dp {profile.dp}"
    if profile.ep is not None and profile.tp % profile.ep:
        yield f"ep: tp {profile.tp} is no multiple of ep {profile.ep}"
    if profile.nodes > 1 and profile.dp > 1 and not profile.dp_attention:
        yield "nodes: replicas cannot span nodes; use dp_attention, or one server a node"
    if profile.world % profile.nodes:
        yield f"nodes: {profile.world} GPUs do not spread over {profile.nodes} nodes"


def _speculation(profile: EngineProfile) -> Iterator[str]:
    speculation = profile.speculation
    if speculation is None:
        return
    if profile.dp_attention and speculation.algorithm in ("NGRAM", "STANDALONE"):
        yield f"speculation: {speculation.algorithm} does not work with dp_attention"
    if (speculation.top_k or 1) > 1 and profile.page_size > 1 and profile.backend not in _TREE_BACKENDS:
        yield f"speculation: top_k above 1 needs page_size 1, or one of {', '.join(_TREE_BACKENDS)}"


def _ports(profile: EngineProfile) -> Iterator[str]:
    first = profile.kv_events_port
    if first is not None and first + 2 * profile.dp - 1 > _HIGHEST_PORT:
        yield f"kv_events_port: {first} leaves no two ports for each of {profile.dp} ranks"
    if profile.kv_events and first is not None:
        yield "kv_events: kv_events_port tells everyone already"
    for flag, field in meant(profile.extra_args):
        if profile.kv_events and field == "kv_events_port":
            yield f"extra_args: {flag} is for the field kv_events"


def _threads(profile: EngineProfile) -> Iterator[str]:
    if isinstance(profile.threads, int) and profile.threads < 1:
        yield "threads: at least 1, or auto"
    if profile.threads is not None and "OMP_NUM_THREADS" in profile.environment:
        yield "threads: environment says OMP_NUM_THREADS too"


def _extra_args(profile: EngineProfile) -> Iterator[str]:
    """A flag may be given as it is unless that would say something twice, or hide how many GPUs there must be."""
    for flag, field in meant(profile.extra_args):
        if field is None:
            yield f"extra_args: {flag} is given by the launcher"
        elif field in _ALWAYS_BY_FIELD or _is_said(profile, field):
            yield f"extra_args: {flag} is for the field {field}"


def _is_said(profile: EngineProfile, field: str) -> bool:
    value = profile.backend if field == "attention_backend" else getattr(profile, field)
    return value is not None and value is not False


_RULES: tuple[Callable[[EngineProfile], Iterator[str]], ...] = (
    _memory,
    _prefill,
    _device,
    _parallelism,
    _speculation,
    _ports,
    _threads,
    _extra_args,
)
