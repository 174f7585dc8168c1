"""`antiphon engine swap`: other weights for engines that run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import aiohttp
import typer

from service.commands.fail import fail
from service.front_client import FrontClient, FrontError

Url = Annotated[str, typer.Option(help="The front.")]
Key = Annotated[str | None, typer.Option(envvar="ANTIPHON_API_KEY", help="The front's key.")]


def swap(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="The same model with other weights.")],
    url: Url = "http://127.0.0.1:8080",
    replica: Annotated[list[str] | None, typer.Option(help="Only this replica; repeat it for several.")] = None,
    version: Annotated[str | None, typer.Option(help="What to call these weights; by default DIR's name.")] = None,
    api_key: Key = None,
) -> None:
    """Change the weights of running engines, one after another, without a restart.

    Turns that run end with the old weights, those that come wait. Sessions go on; what an engine had cached is
    computed again. Weights of another model, shape or tokenizer are refused before anything is touched.
    """
    try:
        asyncio.run(_swap(url, api_key, model.absolute(), replica, version))
    except FrontError as error:
        fail(error)


async def _swap(url: str, key: str | None, model: Path, replicas: list[str] | None, version: str | None) -> None:
    async with aiohttp.ClientSession() as http:
        front = FrontClient(http, url, key)
        names = replicas or [str(one["replica"]) for one in (await front.get("/admin/weights"))["data"]]
        body = {"model": str(model), "version": version}
        for name in names:
            done = await front.post(f"/admin/replicas/{quote(name)}/weights", body)
            typer.echo(f"{name}: serves {done['model']} as {done['version']} after {done['seconds']} s")
