"""Threads and NUMA nodes."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from router.checks.finding import Finding, ok, warning
from router.engine.profile import EngineProfile
from router.facts.gpus import Gpu
from router.facts.host import Host

_PASSIVE = {"OMP_WAIT_POLICY": ("PASSIVE",), "KMP_BLOCKTIME": ("0",)}


def check_processors(host: Host, profile: EngineProfile, gpus: tuple[Gpu, ...] = ()) -> list[Finding]:
    """`gpus` are those that the engine will use."""
    return [*_threads(host, profile), *_waiting(profile), *_numa(host, profile, gpus)]


def _threads(host: Host, profile: EngineProfile) -> Iterator[Finding]:
    cpus = len(host.cpus)
    ours = min(cpus, ceil(host.cpu_quota)) if host.cpu_quota else cpus
    wanted = cpus if profile.threads == "auto" else profile.threads
    if wanted is not None and wanted > ours:
        why = "threads that wait for each other while some are not run make a token take ten times as long"
        fix = f"in the profile: threads: {ours}"
        yield warning("threads", f"{wanted} threads on {ours} CPU(s) that are ours", why, fix)
    elif profile.device == "cuda" and ours < 2 * profile.gpus:
        why = "a GPU waits for the CPU that feeds it: scheduler, tokenizer and front each need one"
        yield warning(
            "threads", f"{ours} CPU(s) for {profile.gpus} GPU(s)", why, f"docker run --cpus={4 * profile.gpus} …"
        )
    else:
        yield ok("threads", f"{wanted or 'any number of'} threads, {ours} CPU(s)")


def _waiting(profile: EngineProfile) -> Iterator[Finding]:
    if profile.device != "cpu":
        return
    spinning = [name for name, wanted in _PASSIVE.items() if profile.environment.get(name, "").upper() not in wanted]
    if not spinning:
        return
    settings = ", ".join(f'{name}: "{_PASSIVE[name][0]}"' for name in spinning)
    why = "OpenMP threads spin while they wait; beside any other busy process the engine gets a tenth as fast"
    yield warning(
        "threads",
        f"{profile.id} does not set {', '.join(spinning)}",
        why,
        f"in the profile: environment: {{{settings}}}",
    )


def _numa(host: Host, profile: EngineProfile, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    if len(host.numa_nodes) < 2:
        yield ok("numa", "one node")
        return
    troubles = [*_cpu_engine_across_nodes(host, profile), *_far_gpus(host, gpus), *_balancing(host, gpus)]
    yield from troubles
    if not troubles:
        yield ok("numa", f"{len(host.numa_nodes)} nodes, we run on {', '.join(map(str, host.our_nodes))}")


def _cpu_engine_across_nodes(host: Host, profile: EngineProfile) -> Iterator[Finding]:
    if profile.device == "cpu" and len(host.our_nodes) > 1:
        node = host.our_nodes[0]
        why = "what a thread reads may lie on another node, which is further away"
        fix = f"numactl --cpunodebind={node} --membind={node} antiphon up"
        yield warning("numa", f"the engine's threads spread over {len(host.our_nodes)} nodes", why, fix)


def _far_gpus(host: Host, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    for gpu in gpus:
        if gpu.numa_node is not None and gpu.numa_node not in host.our_nodes:
            why = "every copy to and from the GPU crosses the link between processors"
            fix = f"numactl --cpunodebind={gpu.numa_node} --membind={gpu.numa_node} antiphon up"
            what = (
                f"GPU {gpu.index} is on node {gpu.numa_node}, we may run on {', '.join(map(str, host.our_nodes))} alone"
            )
            yield warning("numa", what, why, fix)


def _balancing(host: Host, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    if host.numa_balancing and gpus:
        why = "the kernel moves pages about, and what uses them stalls meanwhile"
        yield warning("numa", "automatic balancing is on", why, "sudo sysctl -w kernel.numa_balancing=0")
