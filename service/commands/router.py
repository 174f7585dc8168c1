"""`antiphon router`: the fleet of a running front."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import aiohttp
import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from router.errors import RegistryError, RouterError
from router.registry.spec import DEFAULT_VERSION, parse
from service.commands.explain import show_placements
from service.commands.fail import fail
from service.commands.given import given
from service.front_client import FrontClient

app = typer.Typer(no_args_is_help=True, help="Look at and change the fleet of a running front.")

Url = Annotated[str | None, typer.Option("--url", help="The front (http://127.0.0.1:8080).")]
Key = Annotated[str | None, typer.Option("--api-key", help="The front's key (ANTIPHON_API_KEY).")]
Json = Annotated[bool, typer.Option("--json", help="Print the front's answer as JSON.")]
Name = Annotated[str, typer.Argument(help="As `antiphon router replicas` names the server.")]

_PIPE_CHARS = 200
_STATES = {"ready": "green", "draining": "yellow", "warming": "cyan", "starting": "cyan"}


@app.callback()
def _root() -> None:
    """Look at and change the fleet of a running front."""


@app.command()
def replicas(url: Url = None, api_key: Key = None, as_json: Json = False) -> None:
    """List the replicas: where each comes from, how it is, and why it is not ready."""
    answer = _ask(url, api_key, "GET", "/admin/replicas")
    if as_json:
        _print_json(answer)
    else:
        _show_replicas(answer)


@app.command()
def add(
    replica: Annotated[str, typer.Argument(help="URL of an SGLang server, or NAME=URL.")],
    version: Annotated[str, typer.Option(help="The pool it joins.")] = DEFAULT_VERSION,
    replaces: Annotated[
        str | None, typer.Option(metavar="NAME", help="Prefill this server's newest sessions here: it is to go.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if it does not answer, or differs.")] = False,
    url: Url = None,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Add a server to the fleet of all fronts over the same store. It is checked first."""
    try:
        spec = parse(replica, version)
    except RegistryError as error:
        fail(error)
    body = {"url": spec.url, "name": spec.name, "version": version, "replaces": replaces, "force": force}
    answer = _ask(url, api_key, "POST", "/admin/replicas", body)
    _tell(answer, f"{answer['name']} is in the fleet: version {answer['version']}, {answer['state']}", as_json)


@app.command()
def remove(
    name: Name,
    drain: Annotated[float | None, typer.Option(min=0, help="Seconds for what it has in flight (30).")] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Drain a server that was added, then remove it."""
    query = {name: str(value) for name, value in given(drain_s=drain).items()}
    answer = _ask(url, api_key, "DELETE", _path(name), query=query)
    _tell(answer, f"{name} gets nothing new, and is gone in {answer['gone_in_s']:g} s", as_json)


@app.command()
def drain(name: Name, url: Url = None, api_key: Key = None, as_json: Json = False) -> None:
    """Send nothing new to a server, wherever it comes from; what it has in flight ends there."""
    answer = _ask(url, api_key, "POST", f"{_path(name)}/drain")
    _tell(answer, f"{name} drains: {_in_flight(answer, name)} in flight", as_json)


@app.command()
def undrain(name: Name, url: Url = None, api_key: Key = None, as_json: Json = False) -> None:
    """Let a server take load again; takes back a removal that has not ended."""
    answer = _ask(url, api_key, "POST", f"{_path(name)}/undrain")
    _tell(answer, f"{name} takes load again", as_json)


@app.command()
def rollout(
    weights: Annotated[
        list[str] | None, typer.Argument(metavar="[VERSION=WEIGHT]...", help="Like stable=95 canary=5.")
    ] = None,
    url: Url = None,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Show or set which versions new sessions get. Sessions stay with the version they have."""
    if weights:
        try:
            chosen = _weights(weights)
        except RegistryError as error:
            fail(error)
        answer = _ask(url, api_key, "PUT", "/admin/rollout", {"weights": chosen})
    else:
        answer = _ask(url, api_key, "GET", "/admin/rollout")
    _tell(answer, _told_rollout(answer), as_json)


@app.command()
def rollback(url: Url = None, api_key: Key = None, as_json: Json = False) -> None:
    """Return to the weights from before the newest version, and move the sessions that it has."""
    answer = _ask(url, api_key, "POST", "/admin/rollout/rollback")
    _tell(answer, _told_rollout(answer), as_json)


@app.command()
def explain(
    session: Annotated[str, typer.Argument(help="`antiphon.session_id` of an answer.")],
    last: Annotated[int, typer.Option(min=1, max=100, help="How many of its turns, newest first.")] = 5,
    url: Url = None,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Why a session's last turns went where they did. A front remembers its own last 4,096 placements."""
    answer = _ask(url, api_key, "GET", "/admin/placements", query={"session": session, "limit": str(last)})
    if as_json:
        _print_json(answer)
    else:
        show_placements(_console(), answer["data"])


def _ask(
    url: str | None,
    key: str | None,
    method: str,
    path: str,
    body: object = None,
    query: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    try:
        return asyncio.run(_asked(url, key, method, path, body, query))
    except (RouterError, ValidationError, SettingsError) as error:
        fail(error)


async def _asked(
    url: str | None, key: str | None, method: str, path: str, body: object, query: Mapping[str, str] | None
) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http:
        return await FrontClient.of(http, url, key).ask(method, path, body, query)


def _path(name: str) -> str:
    return f"/admin/replicas/{quote(name)}"


def _weights(texts: Sequence[str]) -> dict[str, int]:
    weights: dict[str, int] = {}
    for text in texts:
        version, separator, weight = text.partition("=")
        if not (version and separator and weight.isdecimal()) or version in weights:
            raise RegistryError(f"{text!r} is not VERSION=WEIGHT with a whole number, each version once")
        weights[version] = int(weight)
    return weights


def _in_flight(answer: Mapping[str, Any], name: str) -> int:
    return sum(one["in_flight"] for one in answer["data"] if one["server"] == name)


def _told_rollout(answer: Mapping[str, Any]) -> str:
    lines = [f"new sessions: {_shares(answer['weights'])}"]
    if answer["before"]:
        lines.append(f"a rollback returns to: {_shares(answer['before'])}")
    if answer["withdrawn"]:
        lines.append(f"withdrawn: {', '.join(answer['withdrawn'])}")
    return "\n".join(lines)


def _shares(weights: Mapping[str, int]) -> str:
    whole = sum(weights.values())
    return ", ".join(f"{version} {100 * weight / whole:.4g} %" for version, weight in weights.items())


def _tell(answer: Mapping[str, Any], told: str, as_json: bool) -> None:
    if as_json:
        _print_json(answer)
    else:
        typer.echo(told)


def _print_json(answer: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(answer, ensure_ascii=False, indent=2))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_CHARS)


def _show_replicas(answer: Mapping[str, Any]) -> None:
    console = _console()
    if answer["data"]:
        console.print(_table(answer["data"]))
    else:
        console.print("no replicas; add one with 'antiphon router add URL'")
    for source in answer["sources"]:
        if source["trouble"]:
            console.print(Text(f"{source['name']}: {source['trouble']}", "yellow"), soft_wrap=True)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", min_width=max(len(row["name"]) for row in rows))  # whole: `remove` takes it
    for title in ("version", "state"):
        table.add_column(title)
    for title in ("in flight", "cached tokens"):
        table.add_column(title, justify="right")
    for title in ("from", "url", "why"):
        table.add_column(title, overflow="fold")
    for row in rows:
        cached = "–" if row["cached_tokens"] is None else str(row["cached_tokens"])
        counts = (str(row["in_flight"]), cached)
        state = Text(row["state"].replace("_", " "), _STATES.get(row["state"], "red"))
        told = (row["source"] or "–", row["url"], _why(row))
        table.add_row(Text(row["name"]), Text(row["version"]), state, *map(Text, (*counts, *told)))
    return table


def _why(row: Mapping[str, Any]) -> str:
    gone = "" if row["gone_in_s"] is None else f"gone in {row['gone_in_s']:.0f} s"
    return "; ".join(filter(None, (gone, row["reason"])))
