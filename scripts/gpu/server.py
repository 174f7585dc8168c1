"""One SGLang server of a proof: what it is started with, and the process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from router.engine.command import engine_argv, engine_env
from router.engine.preflight import pick_port
from router.engine.profile import AttentionBackend, EngineProfile
from scripts.gpu.host import Host
from scripts.gpu.wire import Wire, WireError

HOST = "127.0.0.1"
_FOR_DUMMIES = ("--load-format", "dummy")
_FOR_GPUS = ("--mm-feature-transport", "cpu", "--disable-prefill-cuda-graph")
_GRAPHS = ("--cuda-graph-max-bs-decode", "64")
_FACTS = re.compile(r"avail mem|mem usage|KV Cache|KV cache alloc|max_total_num_tokens=|CUDA graph end|cuda graph end")
_TAIL = 40
_POLL_S = 0.25
_END_S = 20.0


class ServerError(Exception):
    """A server did not come up; the message ends with its log's last lines."""


@dataclass(frozen=True)
class ServerSpec:
    """One server by what matters about it. Equal specs within a wave are one process."""

    name: str
    model: str
    """`real`, or a directory under the host's `models` whose weights are made up."""
    backend: AttentionBackend = "triton"
    page: int = 1
    tokens: int | None = None
    """Tokens of KV cache; None: as many as `fraction` has room for."""
    context: int | None = None
    fraction: float | None = 0.9
    tp: int = 1
    dp: int = 1
    extra: tuple[str, ...] = ()
    gib: float = 8.0
    """GPU memory it takes, roughly: how many servers share a GPU depends on it."""
    slow: bool = False
    """Others are measured without waiting for it, since it may compile for minutes."""
    alone: bool = False
    """Its GPU must be empty when it starts: what it makes of free memory is what is measured."""

    def profile(self, host: Host) -> EngineProfile:
        gpu = host.device == "cuda"
        dummy = _FOR_DUMMIES if gpu and self.model != "real" else ()
        extra = (*dummy, *_FOR_GPUS, *(() if self.alone else _GRAPHS), *self.extra) if gpu else self.extra
        return EngineProfile(
            name=self.name,
            version=1,
            description="one server of a proof",
            model=str(host.model(self.model)),
            served_name="proof",
            device=host.device,
            attention_backend=self.backend if gpu else "torch_native",
            page_size=self.page,
            max_total_tokens=self.tokens if gpu else min(self.tokens or 16384, 16384),
            context_length=self.context if gpu else None,
            mem_fraction_static=self.fraction if gpu else None,
            tp=self.tp if gpu else 1,
            dp=self.dp if gpu else 1,
            threads=None if gpu else "auto",
            extra_args=extra,
        )

    def argv(self, host: Host, port: int) -> list[str]:
        model = host.model(self.model)
        return engine_argv(self.profile(host), interpreter=host.interpreter, model=model, host=HOST, port=port)


@dataclass
class Server:
    """Start it, wait until it is ready, stop it. Its process group is killed: nothing in it is worth saving."""

    spec: ServerSpec
    host: Host
    port: int = 0
    ready_s: float | None = None
    info: dict[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _started: float = 0.0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.host.work / f"{self.spec.name}.log"

    @property
    def argv(self) -> list[str]:
        return self.spec.argv(self.host, self.port)

    def start(self) -> None:
        """Again after `kill`: on the same port, with the same flags."""
        self.port = self.port or pick_port(HOST)
        profile = self.spec.profile(self.host)
        cpus = len(os.sched_getaffinity(0))
        environment = engine_env(profile, base=self.host.environment, cpus=cpus, stand_in=False)
        self.ready_s, self._started = None, time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    async def wait_ready(self, limit_s: float) -> None:
        """Until it has generated a token. Raises ServerError."""
        if self.ready_s is not None:
            return
        deadline = time.monotonic() + limit_s
        async with Wire(self.url) as wire:
            while not await _generates(wire):
                if self._process is None or self._process.poll() is not None:
                    raise ServerError(f"{self.spec.name} died{self._last_lines()}")
                if time.monotonic() > deadline:
                    raise ServerError(f"{self.spec.name} was not ready within {limit_s:.0f} s{self._last_lines()}")
                await asyncio.sleep(_POLL_S)
            self.ready_s = round(time.monotonic() - self._started, 1)
            self.info = await wire.get("/server_info") or {}

    def kill(self) -> None:
        """kill -9 of the launcher and everything it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_END_S)
            self._process = None

    def facts(self) -> dict[str, Any]:
        """What a result says of its server."""
        asked = (
            "version",
            "max_total_num_tokens",
            "page_size",
            "attention_backend",
            "kv_cache_dtype",
            "chunked_prefill_size",
        )
        more = ("mem_fraction_static", "max_running_requests", "max_req_input_len", "tp_size", "dp_size")
        return {
            "argv": self.argv[1:],
            "ready_s": self.ready_s,
            **{key: self.info.get(key) for key in (*asked, *more)},
            "said": self._facts_in_log(),
        }

    def _facts_in_log(self) -> list[str]:
        if not self.log.exists():
            return []
        lines = self.log.read_text(errors="replace").splitlines()
        return [line.strip()[:400] for line in lines if _FACTS.search(line)][-30:]

    def _last_lines(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n" + "\n".join(line[:300] for line in lines[-_TAIL:])


async def _generates(wire: Wire) -> bool:
    try:
        return bool((await wire.generate([1], 1)).meta)
    except (WireError, aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError):
        return False
