"""One engine in the place of another: the order, what a failure leaves, and the same with real processes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from rich.console import Console

from router.child import Child
from router.engine.client import EngineClient
from router.engine.preflight import pick_port
from router.engine.profile import EngineProfile
from router.engine.server import EngineLaunch
from router.errors import ModelError, PreflightError, RouterError
from service.control_socket import ReplaceRequest
from service.engine_switch import EngineSwitch, Patience, name_of
from service.front_client import FrontClient
from service.parts import NotServingError
from service.progress import Detail, Steps
from service.replacement import replace
from service.replacer import successor
from service.supervisor import Supervisor
from tests.model_files import tiny_model_dir, with_weights
from tests.up_process import ROOT

SHAPE: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
STEPS = ["check", "start", "switch", "drain", "retire"]


@dataclass
class Written:
    """A replacement that writes down what is asked of it, and fails at one step."""

    fails_at: str | None = None
    done: list[str] = field(default_factory=list)

    async def _do(self, step: str) -> None:
        self.done.append(step)
        if step == self.fails_at:
            raise RouterError(step)

    async def check(self) -> str:
        await self._do("check")
        return "there is room"

    async def start(self) -> None:
        await self._do("start")

    async def switch(self) -> None:
        await self._do("switch")

    async def drain(self) -> None:
        await self._do("drain")

    async def retire(self) -> None:
        await self._do("retire")

    async def abandon(self) -> None:
        await self._do("abandon")


async def test_the_old_engine_is_stopped_only_after_the_new_one_has_taken_over() -> None:
    engines, said = Written(), list[str]()
    await replace(engines, said.append)
    assert engines.done == STEPS
    assert said[0] == "there is room"
    assert said[-1] == "the old engine is stopped"


@pytest.mark.parametrize(
    ("step", "done"),
    [
        ("check", ["check"]),
        ("start", ["check", "start", "abandon"]),
        ("switch", ["check", "start", "switch", "abandon"]),
    ],
)
async def test_a_failure_before_the_switch_leaves_the_old_engine_alone(step: str, done: list[str]) -> None:
    engines = Written(fails_at=step)
    with pytest.raises(RouterError, match=step):
        await replace(engines, lambda line: None)
    assert engines.done == done


@dataclass(frozen=True, slots=True)
class FakePart:
    """As EnginePart, over a fake engine that is a process of its own."""

    launch: EngineLaunch
    options: dict[str, Any]
    stop_grace_s: float = 5.0

    @property
    def name(self) -> str:
        return f"engine on {self.launch.port}"

    async def start(self) -> Child:
        argv = [sys.executable, "-m", "tests.fake_engine", "--port", str(self.launch.port)]
        argv += ["--options", json.dumps(self.options)]
        return await Child.start(argv, env=dict(os.environ), log_path=self.launch.log_path, cwd=ROOT)

    async def ready(self, child: Child, on_progress: Detail) -> None:
        while not await self.serves():
            if not child.running:
                raise NotServingError(f"{self.name} died: {child.last_line}")
            on_progress(child.last_line)
            await asyncio.sleep(0.05)

    async def serves(self) -> bool:
        async with aiohttp.ClientSession() as session:
            return await EngineClient("engine", self.launch.url, session).generates()

    def explain(self, child: Child) -> str:
        return child.exit_reason or ""


@dataclass
class FakeFront:
    """The calls of /admin/replicas that a replacement makes; `finds` is what it makes of the new engine."""

    states: dict[str, str]
    finds: str = "ready"
    in_flight: int = 0
    calls: list[str] = field(default_factory=list)
    replaced: str | None = None

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/admin/replicas", self.listed)
        app.router.add_post("/admin/replicas", self.add)
        app.router.add_post("/admin/replicas/{name}/drain", self.drain)
        app.router.add_delete("/admin/replicas/{name}", self.remove)
        return app

    async def listed(self, _: web.Request) -> web.Response:
        data = [
            {"server": name, "state": state, "in_flight": self.in_flight if state == "draining" else 0}
            for name, state in self.states.items()
        ]
        self.in_flight = max(0, self.in_flight - ("draining" in self.states.values()))
        return web.json_response({"data": data})

    async def add(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, self.replaced = name_of(body["url"]), body["replaces"]
        self.states[name] = self.finds
        self.calls.append("add")
        return web.json_response({"name": name, "server": name}, status=201)

    async def drain(self, request: web.Request) -> web.Response:
        self.states[request.match_info["name"]] = "draining"
        self.calls.append("drain")
        return web.json_response({})

    async def remove(self, request: web.Request) -> web.Response:
        del self.states[request.match_info["name"]]
        self.calls.append("remove")
        return web.json_response({}, status=202)


@dataclass
class Bench:
    supervisor: Supervisor
    blue: FakePart
    green: FakePart
    front: FakeFront
    switch: EngineSwitch
    switched: list[str]

    def serving(self) -> list[int]:
        """Ports of the engines that are there."""
        return sorted(self.pids())

    def pids(self) -> dict[int, int]:
        """By port."""
        ports = {self.blue.launch.port, self.green.launch.port}
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_text().split("\0") if entry.name.isdigit() else []
            except OSError:
                continue
            if "tests.fake_engine" in words and "--parent" not in words:
                found[int(words[words.index("--port") + 1])] = int(entry.name)
        return {port: pid for port, pid in found.items() if port in ports}


def part(tmp_path: Path, name: str, **changes: Any) -> FakePart:
    profile = EngineProfile(
        name=name, version=1, description="d", served_name="tiny", device="cpu", max_total_tokens=8192, **changes
    )
    model = tiny_model_dir(tmp_path / name)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | SHAPE))
    launch = EngineLaunch(profile, model, Path("/py"), pick_port("127.0.0.1"), tmp_path / f"{name}.log", {})
    return FakePart(launch, {"tokenizer": str(model), "eos_token_id": 0})


@asynccontextmanager
async def bench(tmp_path: Path, *, finds: str = "ready", **green: Any) -> AsyncIterator[Bench]:
    one, other = part(tmp_path, "blue"), part(tmp_path, "green", **green)
    front = FakeFront({name_of(one.launch.url): "ready"}, finds)
    runner = web.AppRunner(front.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    supervisor, switched = Supervisor([one], lambda line: None, hang_s=60), list[str]()
    async with aiohttp.ClientSession() as http:
        switch = EngineSwitch(
            supervisor,
            FrontClient(http, url),
            one,
            other,
            patience=Patience(ready_s=0.5, drain_s=5),
            on_progress=lambda line: None,
            on_switched=lambda: switched.append("green"),
        )
        try:
            with Steps(Console(quiet=True)) as steps:
                await supervisor.start(steps)
            yield Bench(supervisor, one, other, front, switch, switched)
        finally:
            await supervisor.stop(asyncio.Event())
            await runner.cleanup()


def test_the_new_engine_shares_no_port_with_the_old_one(tmp_path: Path) -> None:
    old = part(tmp_path, "blue").launch
    with_weights(old.model)
    taken = {old.port + offset for offset in range(3)}
    asked = ReplaceRequest(profile="cpu-smollm2", model=None)
    for _ in range(20):
        new, profile = successor(dataclasses.replace(old, events_port=old.port + 1), asked, "tiny", tmp_path / "2.log")
        assert profile.kv_events
        assert new.events_port is not None
        assert taken.isdisjoint({new.port, new.events_port, new.events_port + 1})
        assert (new.model, new.profile.served_name, new.log_path.name) == (old.model, "tiny", "2.log")


@pytest.mark.slow
async def test_the_new_engine_takes_over_and_the_old_one_is_gone_when_its_turns_have_ended(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        one.front.in_flight = 3
        await replace(one.switch, lambda line: None)
        assert one.front.calls == ["add", "drain"]
        assert one.front.replaced == name_of(one.blue.launch.url)
        assert one.front.in_flight == 0
        assert one.switched == ["green"]
        assert one.serving() == [one.green.launch.port]
        assert await one.green.serves()
    assert one.serving() == []


@pytest.mark.slow
async def test_the_new_engine_is_kept_alive_as_the_old_one_was(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        await replace(one.switch, lambda line: None)
        killed = one.pids()[one.green.launch.port]
        os.kill(killed, signal.SIGKILL)
        async with asyncio.timeout(20):
            while one.pids().get(one.green.launch.port, killed) == killed or not await one.green.serves():
                await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_new_engine_that_does_not_start_leaves_the_old_one_serving(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        one.green.options["page_size"] = 0
        with pytest.raises(NotServingError, match=r"died: .*invalid read_options value"):
            await replace(one.switch, lambda line: None)
        assert one.front.calls == []
        assert one.serving() == [one.blue.launch.port]
        assert await one.blue.serves()


@pytest.mark.slow
async def test_a_new_engine_that_the_front_does_not_find_ready_leaves_the_old_one_serving(tmp_path: Path) -> None:
    async with bench(tmp_path, finds="down") as one:
        with pytest.raises(RouterError, match=r"the front did not find 127\.0\.0\.1:\d+ ready in 0\.5 s"):
            await replace(one.switch, lambda line: None)
        assert one.front.calls == ["add", "remove"]
        assert one.front.states == {name_of(one.blue.launch.url): "ready"}
        assert one.serving() == [one.blue.launch.port]


@pytest.mark.slow
async def test_without_room_for_two_nothing_is_started(tmp_path: Path) -> None:
    async with bench(tmp_path, min_memory_gib=1_000_000) as one:
        with pytest.raises(PreflightError, match="needs 1e\\+06 GiB of free memory"):
            await replace(one.switch, lambda line: None)
        assert one.serving() == [one.blue.launch.port]


@pytest.mark.slow
async def test_a_model_that_the_front_does_not_speak_is_refused(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        (one.green.launch.model / "chat_template.jinja").write_text("{{ messages }}")
        with pytest.raises(ModelError, match=r"cannot serve .*: the chat template is another one"):
            await replace(one.switch, lambda line: None)
        assert one.serving() == [one.blue.launch.port]
