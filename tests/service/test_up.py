"""`antiphon up` over a fake engine: what it refuses, what it says, what it survives, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from service.cli import app
from tests.model_files import tiny_model_dir
from tests.programs.jobs.programs import serving_profile
from tests.up_process import ROOT, Dialogue, UpProcess, all_ids, cached_tokens, is_guard

MODEL = "tiny"
PAGE = 4
LONG = 400
"""Tokens of an answer that no limit cuts short; they take two seconds."""
KEY = "a-secret"

Start = Callable[..., UpProcess]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def engine_url(model_dir: Path) -> Iterator[str]:
    """A fake engine as a process of its own: `up` must not find it among its own."""
    options = {"tokenizer": str(model_dir), "eos_token_id": 0, "page_size": PAGE, "context_length": 4096}
    options |= {"decode_tokens_per_s": 200.0, "output_tokens": LONG}
    argv = [sys.executable, "-m", "tests.fake_engine", "--port", "0", "--options", json.dumps(options)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def start(engine_url: str, model_dir: Path, tmp_path: Path) -> Iterator[Start]:
    """Start `up` on the test's data directory and port; what a test leaves running is ended."""
    port = free_port()
    runs: list[UpProcess] = []

    def start(*arguments: str, data_dir: Path = tmp_path / "data", **environment: str) -> UpProcess:
        given = ["--engine", engine_url, "--model", str(model_dir), *arguments]
        runs.append(UpProcess(data_dir, port, given, environment))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


def refused(*arguments: str | Path, **environment: str | None) -> str:
    """The one line that `up` refuses to start with, from within this process."""
    result = run(*arguments, **environment)
    assert result.exit_code == 1, result.output
    line, end = result.stderr.split("\n")
    assert line.startswith("antiphon: ")
    assert end == ""
    assert result.stdout == ""
    return line


def run(*arguments: str | Path, **environment: str | None) -> Result:
    clean = {"ANTIPHON_API_KEY": None, "ANTIPHON_ENGINE_PYTHON": None, **environment}
    return CliRunner(env=clean).invoke(app, ["up", *map(str, arguments)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def engine_python(tmp_path: Path) -> str:
    """An interpreter that looks as if it had SGLang; what is refused is refused before it is run."""
    (tmp_path / "venv/lib/python3.11/site-packages/sglang").mkdir(parents=True)
    (tmp_path / "venv/bin").mkdir()
    shutil.copy(shutil.which("false") or "", tmp_path / "venv/bin/python")
    return str(tmp_path / "venv/bin/python")


def a_small_profile(path: Path, **changes: object) -> Path:
    profile = {"name": "small", "version": 1, "description": "d", "served_name": "m", "device": "cpu"}
    path.write_text(json.dumps(profile | {"max_total_tokens": 64} | changes))
    return path


def test_a_port_in_use_is_refused(data: Path, model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused("--port", str(port), "--data-dir", data, "--engine", "http://127.0.0.1:1", "--model", model_dir)
    assert f"port {port} on 127.0.0.1 cannot be used: Address already in use" in said


def test_another_address_is_refused_without_a_key_before_anything_is_made(data: Path) -> None:
    said = refused("--host", "0.0.0.0", "--data-dir", data)
    assert said == "antiphon: listening on 0.0.0.0 needs an API key: set ANTIPHON_API_KEY, or listen on 127.0.0.1"
    assert not data.exists()


def test_an_empty_key_is_no_key(data: Path) -> None:
    assert "api_key" in refused("--host", "0.0.0.0", "--data-dir", data, ANTIPHON_API_KEY="")


@pytest.mark.parametrize("inside", ["", "/deeper"])
def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").touch()
    said = refused("--data-dir", f"{tmp_path}/file{inside}", "--port", str(free_port()))
    assert said.endswith(f"data directory {tmp_path}/file{inside} cannot be used: it is not a directory")


def test_without_an_engine_environment_it_says_how_to_make_one(tmp_path: Path, data: Path) -> None:
    python = str(tmp_path / "none/bin/python")
    said = refused("--data-dir", data, "--port", str(free_port()), ANTIPHON_ENGINE_PYTHON=python)
    assert said == f"antiphon: no engine environment: {python} does not exist; run `make engine`"


def test_a_missing_shard_is_named(tmp_path: Path, data: Path, engine_python: str) -> None:
    model = tiny_model_dir(tmp_path / "m")
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    header = b"{}"
    (model / weights["a"]).write_bytes(len(header).to_bytes(8, "little") + header)
    profile = a_small_profile(tmp_path / "p.yaml")
    port = str(free_port())
    environment = {"ANTIPHON_ENGINE_PYTHON": engine_python}
    said = refused("--data-dir", data, "--port", port, "--profile", profile, "--model", model, **environment)
    assert said == f"antiphon: model {model}: weights 2 of 2 are missing: model-00002-of-00002.safetensors"


@pytest.mark.parametrize("what", ["memory", "disk"])
def test_too_small_a_machine_is_refused(tmp_path: Path, data: Path, engine_python: str, what: str) -> None:
    profile = a_small_profile(tmp_path / "p.yaml", **{f"min_{what}_gib": 1_000_000})
    environment = {"ANTIPHON_ENGINE_PYTHON": engine_python}
    said = refused("--data-dir", data, "--port", str(free_port()), "--profile", profile, **environment)
    assert f"profile small.v1 needs 1e+06 GiB of free {what}, there are" in said


def test_more_gpus_than_there_are_are_refused(tmp_path: Path, data: Path, engine_python: str) -> None:
    profile = a_small_profile(tmp_path / "p.yaml", device="cuda", tp=1024)
    environment = {"ANTIPHON_ENGINE_PYTHON": engine_python}
    said = refused("--data-dir", data, "--port", str(free_port()), "--profile", profile, **environment)
    assert said.startswith("antiphon: profile small.v1 needs 1024 NVIDIA GPU(s), this machine has ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--engine", "localhost:3000"], "'localhost:3000' is not the URL of an SGLang server"),
        (["--store", "localhost:6379"], "'localhost:6379' is not the URL of a store"),
        (["--engine", "http://127.0.0.1:1"], "--model must name the directory"),
        (["--engine", "http://127.0.0.1:1", "--model", "/no/such"], "no model directory at /no/such"),
        (["--store", "redis://127.0.0.1:1"], "the session store cannot be reached"),
        (["--store", "redis://127.0.0.1:1?no=1"], "--store cannot be used"),
        (["--profile", "unheard-of"], "unknown engine profile 'unheard-of'"),
        (["--port", "0"], "port: "),
    ],
)
def test_what_makes_no_sense_is_refused(data: Path, arguments: list[str], complaint: str) -> None:
    port = [] if "--port" in arguments else ["--port", str(free_port())]
    assert complaint in refused("--data-dir", data, *port, *arguments)


@pytest.mark.slow
def test_it_says_where_it_is_and_how_to_talk_to_it(start: Start) -> None:
    up = start().wait_serving()
    assert f"Antiphon serves {MODEL} at {up.url}/v1" in up.output
    assert pasted_into_a_shell(up)["choices"][0]["message"]["role"] == "assistant"
    ran = subprocess.run(
        [sys.executable, "-c", pasted(up.output, "from openai")], capture_output=True, text=True, check=True
    )
    assert "cached_tokens" in ran.stdout


@pytest.mark.slow
def test_beside_it_its_model_stays_and_a_diagnosis_finds_it_well(
    start: Start, model_dir: Path, engine_url: str, tmp_path: Path
) -> None:
    model = tmp_path / "data" / "models" / MODEL
    shutil.copytree(model_dir, model)
    up = start("--model", str(model)).wait_serving()

    def antiphon(*arguments: str) -> Result:
        clean = {"ANTIPHON_API_KEY": None, "ANTIPHON_ENGINE_PYTHON": None}
        return CliRunner(env=clean).invoke(app, [*arguments, "--data-dir", str(up.data_dir)])

    refused_removal = antiphon("model", "remove", MODEL, "--yes")
    assert refused_removal.stderr == f"antiphon: {model} is in use by a running antiphon: stop that first\n"
    same = ["--engine", engine_url, "--model", str(model), "--port", str(up.port)]
    diagnosis = antiphon("doctor", *same, "--json")
    assert diagnosis.exit_code == 0
    found = {one["check"]: one["what"] for one in json.loads(diagnosis.stdout)["findings"]}
    assert found["port"] == f"{up.port} is held by the antiphon that runs on {up.data_dir}"
    assert found["store eviction"] == "noeviction: nothing is dropped before it expires"
    assert up.stop() == 0
    assert antiphon("model", "remove", MODEL, "--yes").exit_code == 0
    assert not model.exists()


def pasted(output: str, begin: str) -> str:
    """The indented paragraph that begins so."""
    paragraph = next(part for part in output.split("\n\n") if part.strip().startswith(begin))
    return "\n".join(line.removeprefix("  ") for line in paragraph.splitlines())


def pasted_into_a_shell(up: UpProcess, **environment: str) -> Any:
    """What the printed `curl` answers."""
    command = pasted(up.output, "curl ").replace("curl ", "curl -s ", 1)
    env = {"PATH": os.environ["PATH"], **environment}
    return json.loads(subprocess.run(["sh", "-c", command], capture_output=True, check=True, env=env).stdout)


@pytest.mark.slow
def test_with_a_key_every_call_needs_it_and_what_is_pasted_takes_it_from_the_environment(start: Start) -> None:
    up = start("--host", "0.0.0.0", ANTIPHON_API_KEY=KEY).wait_serving()
    assert httpx.get(f"{up.url}/v1/models").status_code == 401
    assert KEY not in up.output
    assert pasted_into_a_shell(up, ANTIPHON_API_KEY=KEY)["model"] == MODEL
    assert 'api_key=os.environ["ANTIPHON_API_KEY"]' in up.output
    assert all(KEY not in " ".join(process.cmdline()) for process in up.look_around())
    bearing = [one for one in up.look_around() if is_guard(one) and "ANTIPHON_API_KEY" in one.environ()]
    assert sorted(word for one in bearing for word in one.cmdline() if word in ("serve", "worker")) == [
        "serve",
        "worker",
    ]
    assert len(bearing) == 2


@pytest.mark.slow
def test_a_second_run_finds_the_sessions_of_the_first(start: Start) -> None:
    up = start().wait_serving()
    dialogue = Dialogue(up.url, MODEL)
    dialogue.say("hello")
    assert up.stop() == 0
    assert up.left() == []
    assert up.output.endswith("stopped\n")
    start().wait_serving()
    turn = dialogue.say("and on")
    assert turn["antiphon"]["miss_reason"] is None
    assert cached_tokens(turn) >= (len(all_ids(dialogue.turns[0])) - 1) // PAGE * PAGE


@pytest.mark.slow
def test_front_and_store_killed_in_any_order_are_started_again(start: Start) -> None:
    up = start().wait_serving()
    dialogue = Dialogue(up.url, MODEL)
    dialogue.say("hello")
    for word in ("serve", "valkey-server", "valkey-server", "serve"):
        up.find(word).kill()
        turn = dialogue.say_when_served("and on")
        assert turn["antiphon"]["miss_reason"] is None
    assert up.output.count("front: killed by SIGKILL") == 2
    assert up.output.count("session store: killed by SIGKILL") == 2
    assert f"(log: {up.data_dir}/logs/store.log); starting it again" in up.output
    assert up.stop() == 0
    assert up.left() == []


@pytest.mark.slow
def test_a_killed_worker_is_started_again_and_its_job_goes_on(start: Start, tmp_path: Path) -> None:
    up = start(ANTIPHON_SERVING_PROFILE=serving_profile(tmp_path), ANTIPHON_LEASE_S="1").wait_serving()
    asked = httpx.post(f"{up.url}/v1/programs/relay/runs", json={"parameters": {"steps": 3, "max_tokens": 200}})
    assert asked.status_code == 202, asked.text
    url = f"{up.url}/v1/jobs/{asked.json()['id']}"
    while httpx.get(url).json()["progress"]["done"] == 0:
        time.sleep(0.05)
    up.find("worker").kill()
    up.wait_saying("worker: serves again")
    while (job := httpx.get(url).json())["status"] in ("queued", "running"):
        time.sleep(0.05)
    assert (job["status"], len(job["output"]["said"])) == ("succeeded", 3)
    assert up.stop() == 0
    assert up.left() == []


@pytest.mark.slow
def test_a_killed_guard_takes_its_child_along_and_is_replaced(start: Start) -> None:
    up = start().wait_serving()
    dialogue = Dialogue(up.url, MODEL)
    dialogue.say("hello")
    for process in up.look_around():
        if is_guard(process):
            process.kill()
    dialogue.say_when_served("and on")
    up.wait_saying("session store: serves again")
    up.wait_saying("front: serves again")
    assert up.stop() == 0
    assert up.left() == []


@pytest.mark.slow
def test_a_front_that_dies_again_and_again_ends_everything(start: Start) -> None:
    up = start().wait_serving()
    for times in range(1, 6):
        up.find("serve").kill()
        if times < 5:
            up.wait_saying("front: serves again", times)
    assert up.process.wait(30) == 1
    assert "antiphon: the front died 5 times in a row: killed by SIGKILL" in up.output
    assert "Traceback" not in up.output
    assert up.left() == []


@pytest.mark.slow
@pytest.mark.parametrize(("word", "name"), [("serve", "front"), ("valkey-server", "session store")])
def test_what_hangs_is_killed_and_replaced(start: Start, word: str, name: str) -> None:
    up = start(ANTIPHON_HANG_S="3").wait_serving()
    dialogue = Dialogue(up.url, MODEL)
    dialogue.say("hello")
    up.find(word).send_signal(signal.SIGSTOP)
    up.wait_saying(f"{name}: has not answered for 3 s and was killed; starting it again")
    up.wait_saying(f"{name}: serves again")
    dialogue.say_when_served("and on")
    assert up.stop() == 0
    assert up.left() == []


@pytest.mark.slow
def test_a_turn_in_flight_ends_before_the_front_does(start: Start) -> None:
    up = start().wait_serving()
    answers: list[httpx.Response] = []
    body = {"model": MODEL, "input": "a long one"}
    asking = Thread(target=lambda: answers.append(httpx.post(f"{up.url}/v1/responses", json=body, timeout=60)))
    asking.start()
    time.sleep(0.5)
    assert up.stop() == 0
    asking.join()
    assert answers[0].json()["usage"]["output_tokens"] == LONG
    start().wait_serving()
    assert httpx.get(f"{up.url}/v1/responses/{answers[0].json()['id']}").status_code == 200


@pytest.mark.slow
def test_asked_twice_it_hurries(start: Start) -> None:
    up = start(ANTIPHON_DRAIN_S="50").wait_serving()
    body = {"model": MODEL, "input": "a long one"}

    def ask() -> None:
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{up.url}/v1/responses", json=body, timeout=60)

    asking = Thread(target=ask)
    asking.start()
    time.sleep(0.5)
    up.look_around()
    up.process.send_signal(signal.SIGINT)
    up.wait_saying("stopping")
    time.sleep(0.5)
    assert up.process.poll() is None
    assert up.stop(signal.SIGINT, limit_s=5) == 0
    asking.join()
    assert up.left() == []


@pytest.mark.slow
def test_killed_itself_it_leaves_nothing_and_the_next_one_finds_everything(start: Start) -> None:
    up = start().wait_serving()
    dialogue = Dialogue(up.url, MODEL)
    dialogue.say("hello")
    up.kill()
    assert up.left(limit_s=10) == []
    start().wait_serving()
    dialogue.say("and on")


@pytest.mark.slow
def test_a_store_that_a_killed_run_left_is_waited_for(start: Start) -> None:
    """Two servers on one directory would spoil it: the second run starts only when the first's store has ended."""
    up = start().wait_serving()
    dialogue = Dialogue(up.url, MODEL)
    dialogue.say("hello")
    store = up.find("valkey-server")
    store.suspend()
    up.kill()
    time.sleep(1)
    second = start()
    second.wait_saying("starting the session store")
    time.sleep(1)
    assert [one for one in second.look_around() if "valkey-server" in " ".join(one.cmdline())] == []
    store.resume()
    second.wait_serving()
    assert not store.is_running()
    dialogue.say("and on")


@pytest.mark.slow
def test_two_on_one_data_directory_the_second_is_refused(start: Start) -> None:
    up = start().wait_serving()
    second = refused("--data-dir", up.data_dir, "--port", str(free_port()))
    assert second == f"antiphon: another antiphon uses {up.data_dir}: stop it, or choose another --data-dir"
    assert httpx.get(f"{up.url}/ready").status_code == 200


@pytest.mark.slow
def test_a_running_one_can_be_asked_for_another_engine_unless_it_was_given_its_own(start: Start) -> None:
    def replace(data_dir: Path) -> str:
        clean = {"ANTIPHON_API_KEY": None, "ANTIPHON_ENGINE_PYTHON": None}
        given = ["engine", "replace", "--profile", "cpu-smollm2", "--data-dir", str(data_dir)]
        result = CliRunner(env=clean).invoke(app, given)
        assert result.exit_code == 1
        return result.stderr

    up = start()
    assert replace(up.data_dir) == f"antiphon: no antiphon serves from {up.data_dir}\n"
    up.wait_serving()
    assert replace(up.data_dir) == (
        "antiphon: this antiphon was given its engines by their URLs: replace them where they run\n"
    )
    assert up.stop() == 0
    assert up.left() == []


@pytest.mark.slow
def test_a_deep_data_directory_works_and_so_does_a_model_with_an_odd_name(start: Start, tmp_path: Path) -> None:
    model = tiny_model_dir(tmp_path / "it's a model")
    up = start("--model", str(model), data_dir=tmp_path / ("deep " * 24) / "data").wait_serving()
    assert pasted_into_a_shell(up)["model"] == "it's a model"
    assert up.stop() == 0
    assert up.left() == []


@pytest.mark.slow
def test_stopped_on_its_way_up_it_leaves_nothing(start: Start) -> None:
    up = start("--engine", "http://127.0.0.1:1")
    up.wait_saying("starting the front")
    time.sleep(0.2)
    assert up.stop() == 0
    assert up.left() == []


@pytest.mark.slow
def test_a_given_store_is_used_instead_of_our_own(start: Start, store: str) -> None:
    up = start("--store", store).wait_serving()
    Dialogue(up.url, MODEL).say("hello")
    assert "session store" not in up.output
    assert not (up.data_dir / "store").exists()
