"""NCCL's settings, which it reads from the environment and does not complain of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router.checks.finding import Finding, error, ok, warning
from router.engine.profile import EngineProfile
from router.facts.gpus import Gpus
from router.facts.host import Host

_SOCKETS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_TRUE = ("1", "true", "yes")


def check_nccl(host: Host, gpus: Gpus, profile: EngineProfile, env: Mapping[str, str]) -> list[Finding]:
    """`env` is what the engine is started with, without what its profile adds."""
    if profile.gpus < 2:
        return []
    settings = {**env, **profile.environment}
    troubles = [*_interfaces(settings, host), *_crippled(settings, gpus), *_verbose(settings)]
    shown = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()) if name.startswith("NCCL_"))
    return troubles or [ok("nccl", shown or "its own defaults")]


def _interfaces(settings: Mapping[str, str], host: Host) -> Iterator[Finding]:
    for name in _SOCKETS:
        asked = settings.get(name, "")
        if asked and not asked.startswith("^") and not _any_matches(asked, host.interfaces):
            why = "ranks find each other over this interface; without it the engine's start hangs or fails"
            fix = f"unset {name}  # there are {', '.join(sorted(host.interfaces))}"
            yield error("nccl", f"{name}={asked} names no interface of this machine", why, fix)


def _any_matches(asked: str, interfaces: frozenset[str]) -> bool:
    """Prefixes, or whole names after `=`, separated by commas."""
    names = asked.removeprefix("=").split(",")
    if asked.startswith("="):
        return any(name in interfaces for name in names)
    return any(interface.startswith(name) for name in names for interface in interfaces)


def _crippled(settings: Mapping[str, str], gpus: Gpus) -> Iterator[Finding]:
    peers_work = bool(gpus.peers) and all(state == "OK" for state in (gpus.peers or {}).values())
    if _is_on(settings, "NCCL_P2P_DISABLE") and peers_work:
        why = "the GPUs can read each other's memory, but every all-reduce goes through the host's"
        yield warning("nccl", "NCCL_P2P_DISABLE=1", why, "unset NCCL_P2P_DISABLE")
    if _is_on(settings, "NCCL_SHM_DISABLE"):
        why = "where GPUs have no peer access, all-reduce goes through the network stack"
        yield warning("nccl", "NCCL_SHM_DISABLE=1", why, "unset NCCL_SHM_DISABLE")
    if _is_on(settings, "CUDA_LAUNCH_BLOCKING"):
        why = "every kernel is waited for, which is for debugging and slow"
        yield warning("nccl", "CUDA_LAUNCH_BLOCKING=1", why, "unset CUDA_LAUNCH_BLOCKING")


def _verbose(settings: Mapping[str, str]) -> Iterator[Finding]:
    level = settings.get("NCCL_DEBUG", "")
    if level.upper() in ("INFO", "TRACE"):
        why = "it writes lines for every communicator, TRACE for every call, into the engine's log"
        yield warning("nccl", f"NCCL_DEBUG={level}", why, "export NCCL_DEBUG=WARN")


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "").lower() in _TRUE
