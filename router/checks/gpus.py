"""GPUs: as many as the profile uses, seen, free, able and linked to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations

from router.checks.finding import Finding, error, ok, warning
from router.engine.preflight import GIB
from router.engine.profile import EngineProfile
from router.facts.gpus import Gpu, Gpus

_OLDEST = (7, 5)
_BFLOAT16 = (8, 0)
_BACKENDS = {"fa3": ((8, 0), (9, 9)), "flashinfer": ((7, 5), (99, 0))}
"""Compute capabilities that an attention backend is written for: from, to."""
_FRACTION = 0.85
"""Of a GPU's memory that SGLang takes, about, when a profile does not say."""


def check_gpus(gpus: Gpus, profile: EngineProfile, env: Mapping[str, str], *, running: bool = False) -> list[Finding]:
    """`env` is what the engine is started with; `running`: one of ours uses GPUs now, so that they are not free."""
    if profile.device == "cpu":
        return [_unused(gpus, profile)]
    if gpus.trouble:
        return [_unseen(gpus)]
    visible = gpus.visible(env)
    count = _enough(gpus, visible, profile)
    used = visible[: profile.gpus]
    if count.status == "error" or not used:
        return [count]
    return [
        count,
        *_able(used, profile),
        *([] if running else _free(used, profile)),
        *_alike(used),
        *(_linked(gpus, used) if len(used) > 1 else ()),
    ]


def _unused(gpus: Gpus, profile: EngineProfile) -> Finding:
    if not gpus.device_files:
        return ok("gpus", f"none, and {profile.id} needs none")
    return warning(
        "gpus",
        f"{gpus.device_files} here, but {profile.id} runs on the CPU",
        "the GPUs stay idle",
        "antiphon doctor --profile gpu-default",
    )


def _unseen(gpus: Gpus) -> Finding:
    what = f"{gpus.device_files or 'no'} NVIDIA device file(s) in /dev; {gpus.trouble}"
    if gpus.device_files:
        why = "the driver is loaded but cannot be spoken to, often because it was updated without a restart"
        return error("gpus", what, why, "sudo reboot  # or, in a container: docker run --gpus all …")
    why = "the profile needs a GPU, and CUDA finds one only through the driver"
    return error(
        "gpus", what, why, "docker run --gpus all …  # or install the NVIDIA driver; without: --profile cpu-smollm2"
    )


def _enough(gpus: Gpus, visible: tuple[Gpu, ...], profile: EngineProfile) -> Finding:
    names = ", ".join(sorted({gpu.name for gpu in visible}))
    if len(visible) >= profile.gpus:
        return ok("gpus", f"{len(visible)} visible ({names}), {profile.id} uses {profile.gpus}")
    what = f"{len(visible)} of {len(gpus.gpus)} visible to CUDA, {profile.id} needs {profile.gpus}"
    hidden = len(gpus.gpus) >= profile.gpus
    why = "CUDA_VISIBLE_DEVICES hides the others" if hidden else "tensor and data parallelism take one GPU a rank"
    fix = "unset CUDA_VISIBLE_DEVICES" if hidden else f"in the profile: tp × dp of at most {len(gpus.gpus)}"
    return error("gpus", what, why, fix)


def _able(used: tuple[Gpu, ...], profile: EngineProfile) -> Iterator[Finding]:
    least = min(gpu.capability for gpu in used)
    most = max(gpu.capability for gpu in used)
    shown = f"compute capability {_dotted(least)}"
    lowest, highest = _BACKENDS.get(profile.attention_backend or "", ((0, 0), (99, 0)))
    if least < _OLDEST:
        yield error(
            "gpu capability", f"{shown}, SGLang needs {_dotted(_OLDEST)}", "its kernels do not run", "use a newer GPU"
        )
    elif not (lowest <= least and most <= highest):
        what = f"{shown}, {profile.attention_backend} is for {_dotted(lowest)} to {_dotted(highest)}"
        yield error(
            "gpu capability", what, "the attention kernels do not run", "in the profile: attention_backend: triton"
        )
    elif least < _BFLOAT16:
        why = "most models are bfloat16, which these GPUs cannot compute"
        yield warning("gpu capability", shown, why, "in the profile: extra_args: [--dtype, float16]")
    else:
        yield ok("gpu capability", shown)


def _free(used: tuple[Gpu, ...], profile: EngineProfile) -> Iterator[Finding]:
    fraction = profile.mem_fraction_static or _FRACTION
    full = [gpu for gpu in used if gpu.memory - gpu.used < fraction * gpu.memory]
    for gpu in full:
        yield error(
            "gpu memory",
            f"GPU {gpu.index}: {gpu.used / GIB:.1f} of {gpu.memory / GIB:.1f} GiB are in use",
            f"the engine takes {fraction:.0%} for weights and KV cache, and does not start without",
            "nvidia-smi  # shows who uses it; end that, or lower mem_fraction_static in the profile",
        )
    if not full:
        least = min(gpu.memory - gpu.used for gpu in used)
        yield ok("gpu memory", f"{least / GIB:.1f} GiB free on each")


def _alike(used: tuple[Gpu, ...]) -> Iterator[Finding]:
    names = sorted({gpu.name for gpu in used})
    if len(names) > 1:
        why = "ranks wait for each other: all are as slow, and hold as little, as the smallest"
        yield warning("gpus", f"different ones: {', '.join(names)}", why, "export CUDA_VISIBLE_DEVICES=…  # equal ones")


def _linked(gpus: Gpus, used: tuple[Gpu, ...]) -> Iterator[Finding]:
    if gpus.peers is None or gpus.links is None:
        why = "without peer access every all-reduce goes through host memory"
        yield warning("gpu links", "the driver does not tell how the GPUs are linked", why, "nvidia-smi topo -m")
        return
    pairs = list(permutations(sorted(gpu.index for gpu in used), 2))
    blocked = {pair: gpus.peers.get(pair, "U") for pair in pairs if gpus.peers.get(pair) != "OK"}
    far = [pair for pair in pairs if gpus.links.get(pair) == "SYS"]
    if blocked:
        (one, other), reason = next(iter(blocked.items()))
        yield warning(
            "gpu links",
            f"GPU {one} cannot read GPU {other}'s memory ({reason})",
            "every all-reduce goes through host memory, and NCCL may hang where ACS or an IOMMU is on",
            "turn ACS and IOMMU off in the BIOS; if it hangs: export NCCL_P2P_DISABLE=1",
        )
    elif far:
        one, other = far[0]
        why = "their traffic crosses the link between processors, which all else shares"
        fix = "nvidia-smi topo -m  # then CUDA_VISIBLE_DEVICES of one side"
        yield warning("gpu links", f"GPU {one} and GPU {other} are on different NUMA nodes (SYS)", why, fix)
    else:
        yield ok(
            "gpu links", f"peer access between all; {', '.join(sorted({gpus.links.get(pair, '?') for pair in pairs}))}"
        )


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
