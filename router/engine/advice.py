"""What to change about a plan: the ready profile to start from, and what makes a model fit that does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from router.engine.device import GIB, Devices, cpu, parse_devices
from router.engine.plan import Plan
from router.engine.plan_request import PlanRequest
from router.engine.profile import load_profile

_LONG_CONTEXT = 65536
_LARGER = ("H100-80G", "H200-141G", "B200-180G", "8xH100-80G", "8xH200-141G", "8xB200-180G")
"""Offered where more of the same will not do."""
_MOE = "gpu-moe-tp8-dp8"
_BACKENDS = {"GptOssForCausalLM": "fa3"}
"""Where FlashInfer will not do: it knows no attention sinks as these models have them."""
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Advice:
    """A ready profile, and the fields to change in a copy of it."""

    profile: str
    changes: dict[str, object]

    def __str__(self) -> str:
        changes = ", ".join(f"{name}: {value}" for name, value in self.changes.items())
        return f"{self.profile} with {changes}" if changes else self.profile


def recommend(plan: Plan) -> Advice:
    """For a plan that fits: by the number of GPUs and the model's kind."""
    request, name = plan.request, _ready_profile(plan)
    own = load_profile(name)
    wanted: dict[str, object] = {
        "tp": request.tp,
        "dp": request.dp if request.dp > 1 else own.dp,
        "quantization": request.quantization,
        "kv_cache_dtype": request.kv_dtype,
        "attention_backend": _BACKENDS.get(plan.architecture.name) if own.device == "cuda" else None,
    }
    return Advice(name, {key: value for key, value in wanted.items() if value not in (None, getattr(own, key))})


def _ready_profile(plan: Plan) -> str:
    request = plan.request
    if request.devices.device.kind == "cpu":
        return "cpu-smollm2"
    if request.tp >= 16:
        return "gpu-multinode-tp16"
    if request.tp == 1:
        return "gpu-long-context" if (request.context or 0) >= _LONG_CONTEXT else "gpu-8b"
    if request.tp < 8:
        return "gpu-70b-tp4"
    return _MOE if plan.shape.latent is not None and _fits_with(plan, _MOE) else "gpu-70b-tp8"


def _fits_with(plan: Plan, profile: str) -> bool:
    return _would_fit(plan, PlanRequest.of_profile(load_profile(profile), plan.request.devices))


def remedies(plan: Plan) -> list[str]:
    """Changes each of which alone makes it fit, the gentlest first; at most four. Two at once only if no one does."""
    singles = [(said, changed) for said, changed in _changes(plan) if _would_fit(plan, changed)]
    if singles:
        return [said for said, _ in singles[:_SHOWN]]
    pairs = (
        (f"{first} and {second}", twice)
        for first, once in _changes(plan)
        for second, twice in _changes(replace(plan, request=once))
        if _would_fit(plan, twice)
    )
    found = next(pairs, None)
    return [found[0]] if found else []


def _would_fit(plan: Plan, request: PlanRequest) -> bool:
    return Plan(plan.architecture, request).fits


def _changes(plan: Plan) -> Iterator[tuple[str, PlanRequest]]:
    request = plan.request
    if request.context and request.context > (most := min(plan.pool.tokens, plan.shape.context_length)) >= 1024:
        yield f"--context {most}", replace(request, context=most)
    yield from _other_divisions(request)
    if request.kv_bytes > 1 and request.devices.device.kind == "cuda":
        yield "--kv-dtype fp8_e4m3", replace(request, kv_dtype="fp8_e4m3")
    if request.mem_fraction is not None:
        yield "the memory fraction that SGLang would choose", replace(request, mem_fraction=None)
    if request.devices.device.kind == "cuda":
        yield from _smaller_weights(plan)
        yield from _more_gpus(request)
    else:
        yield from _more_memory(request)


def _smaller_weights(plan: Plan) -> Iterator[tuple[str, PlanRequest]]:
    request = plan.request
    if plan.storage in ("16bit", "32bit"):
        yield "--quantization fp8", replace(request, quantization="fp8")
    if plan.storage in ("16bit", "32bit", "fp8", "int8"):
        yield "a checkpoint quantised to 4 bits (--quantization awq)", replace(request, quantization="awq")


def _other_divisions(request: PlanRequest) -> Iterator[tuple[str, PlanRequest]]:
    """The same GPUs, shared out differently."""
    if request.ep is None and request.tp > 1:
        yield f"--ep {request.tp}", replace(request, ep=request.tp)
    for tp in range(min(request.devices.count, request.tp) - 1, 0, -1):
        yield f"--tp {tp}", replace(request, tp=tp, dp=1, dp_attention=False, ep=None)


def _more_gpus(request: PlanRequest) -> Iterator[tuple[str, PlanRequest]]:
    own = request.devices
    more = [Devices(count, own.device) for count in (2, 4, 8, 16) if count > own.count]
    larger = [parse_devices(name) for name in _LARGER]
    for devices in (*more, *(one for one in larger if one.device.memory > own.device.memory)):
        tp = devices.count
        yield f"--gpus {devices}", replace(request, devices=devices, tp=tp, dp=1, dp_attention=False, ep=None)


def _more_memory(request: PlanRequest) -> Iterator[tuple[str, PlanRequest]]:
    for gib in (16, 32, 64, 128, 256, 512, 1024):
        if gib * GIB > request.devices.device.free:
            yield f"{gib} GiB of free memory", replace(request, devices=Devices(1, cpu(gib * GIB)))
