"""`antiphon engine`: what engines need and how they are started, and what can be changed while they run."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from router.engine.architecture import Architecture
from router.engine.command import Node, engine_argv
from router.engine.device import Devices, parse_devices
from router.engine.local import devices_here
from router.engine.plan import Plan
from router.engine.plan_request import PlanRequest
from router.engine.profile import EngineProfile, available_profiles, load_profile
from router.errors import ProfileError, RouterError
from service.commands.engine_replace import replace as replace_engine
from service.commands.engine_swap import swap
from service.commands.fail import fail
from service.commands.given import given
from service.commands.plan_report import as_json, show

app = typer.Typer(no_args_is_help=True, help="Plan engines, see how they are started, and change running ones.")
app.command()(swap)
app.command()(replace_engine)


@app.callback()
def _root() -> None:
    """Plan engines, see how they are started, and change running ones."""


@app.command()
def plan(
    model: Annotated[Path, typer.Argument(metavar="DIR_OR_CONFIG", help="A model directory, or its config.json.")],
    gpus: Annotated[
        str | None, typer.Option(help="Like 4xH100-80G, H200, 2x48G or cpu-16G; without it, what is here.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Start from an engine profile, by name or file.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens that a session must be able to have.")] = None,
    quantization: Annotated[str | None, typer.Option(help="Like fp8, awq, gptq, w8a8_int8; none.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Of the KV cache: auto, bf16, fp8_e4m3, fp8_e5m2.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor parallelism; by default all GPUs.")] = None,
    dp: Annotated[int | None, typer.Option(min=1, help="Replicas.")] = None,
    dp_attention: Annotated[bool, typer.Option(help="Spread the replicas' attention over the same GPUs.")] = False,
    ep: Annotated[int | None, typer.Option(min=1, help="Expert parallelism.")] = None,
    mem_fraction: Annotated[float | None, typer.Option(help="SGLang's --mem-fraction-static.")] = None,
    max_total_tokens: Annotated[int | None, typer.Option(min=1, help="At most so many tokens of KV cache.")] = None,
    page_size: Annotated[int | None, typer.Option(min=1, help="Tokens of a page.")] = None,
    print_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether a model fits, and how many tokens and sessions it would hold.

    Needs the model's config.json alone: no weights, no GPU, nothing is loaded. Exits with 1 when it does not fit, and
    says what would.
    """
    chosen = given(
        context=context,
        quantization=quantization,
        kv_dtype=kv_dtype,
        tp=tp,
        dp=dp,
        dp_attention=dp_attention or None,
        ep=ep,
        mem_fraction=mem_fraction,
        max_total_tokens=max_total_tokens,
        page_size=page_size,
    )
    try:
        _check(chosen)
        answer = Plan(Architecture.read(model), _request(gpus, profile, chosen))
        said = as_json(answer)
    except RouterError as error:
        fail(error)
    if print_json:
        typer.echo(json.dumps(said, indent=2))
    else:
        show(answer, Console())
    if not answer.fits:
        raise typer.Exit(1)


_KV_DTYPES = ("auto", "bf16", "fp8_e4m3", "fp8_e5m2")


def _check(chosen: dict[str, Any]) -> None:
    if chosen.get("kv_dtype", "auto") not in _KV_DTYPES:
        raise ProfileError(f"--kv-dtype {chosen['kv_dtype']!r}: there are {', '.join(_KV_DTYPES)}")
    if not 0 < chosen.get("mem_fraction", 0.5) < 1:
        raise ProfileError(f"--mem-fraction {chosen['mem_fraction']}: must be between 0 and 1")


def _request(gpus: str | None, profile_name: str | None, chosen: dict[str, Any]) -> PlanRequest:
    profile = load_profile(profile_name) if profile_name else None
    devices = parse_devices(gpus) if gpus else _devices(profile)
    if profile is None:
        tp = devices.count if chosen.get("dp_attention") else max(1, devices.count // chosen.get("dp", 1))
        base = PlanRequest(devices, tp=tp if devices.device.kind == "cuda" else 1)
    elif profile.device != devices.device.kind:
        raise ProfileError(f"profile {profile.id} is for device {profile.device}, not for {devices}")
    else:
        base = PlanRequest.of_profile(profile, devices)
    return replace(base, **chosen)


def _devices(profile: EngineProfile | None) -> Devices:
    devices = devices_here()
    if profile is not None and profile.device == "cuda" and devices.device.kind == "cpu":
        raise ProfileError(f"profile {profile.id} needs GPUs and there are none here: name some with --gpus")
    return devices


@app.command()
def profiles() -> None:
    """List the profiles that come with us: id, hash, and what each is for."""
    table = Table("profile", "hash", "for", box=None, pad_edge=False)
    for name in available_profiles():
        profile = load_profile(name)
        table.add_row(profile.id, profile.content_hash, Text(profile.description))
    Console().print(table)


@app.command()
def command(
    profile: Annotated[str, typer.Argument(help="An engine profile, by name or file.")],
    model: Annotated[Path, typer.Option(help="Model directory.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 30000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    node: Annotated[int, typer.Option(min=0, help="Which of the profile's nodes, from 0.")] = 0,
    rendezvous: Annotated[str | None, typer.Option(help="HOST:PORT of node 0, as all nodes reach it.")] = None,
) -> None:
    """Print the command that starts an engine from a profile, for a host where we do not run.

    A profile over several nodes is started so, once on each; give the front its first node's URL.
    """
    try:
        loaded = load_profile(profile).with_model(model)
        if loaded.nodes > 1 and rendezvous is None:
            raise ProfileError(f"profile {loaded.id} spans {loaded.nodes} nodes: --rendezvous must say where they meet")
        place = Node(node, rendezvous or "") if loaded.nodes > 1 else None
        interpreter = loaded.interpreter or Path("python3")
        argv = engine_argv(loaded, interpreter=interpreter, model=model, host=host, port=port, node=place)
    except RouterError as error:
        fail(error)
    environment = [f"{name}={value}" for name, value in loaded.environment.items()]
    typer.echo(shlex.join([*(["env", *environment] if environment else []), *argv]))
