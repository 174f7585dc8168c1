"""`antiphon engine replace`: another engine for a running `antiphon up`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from router.errors import RouterError
from service.commands.fail import fail
from service.commands.given import given
from service.control_socket import ReplaceRequest, ask
from service.settings import UpSettings


def replace(
    profile: Annotated[str, typer.Option(help="Engine profile, by name or file.")],
    model: Annotated[Path | None, typer.Option(help="Model directory; by default the one that serves.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data directory of the running antiphon.")] = None,
) -> None:
    """Replace the engine of a running `antiphon up` by one from another profile, without a pause.

    The new engine is started beside the old one, if memory allows; when it generates, new turns go to it, those that
    run in the old one may end, and the old one is stopped. When anything fails before that, the old one goes on.
    """
    file = profile.endswith((".yaml", ".yml")) or "/" in profile
    request = ReplaceRequest(
        profile=str(Path(profile).absolute()) if file else profile, model=model and model.absolute()
    )
    try:
        asyncio.run(ask(UpSettings(**given(data_dir=data_dir)).data_dir, request, typer.echo))
    except (RouterError, ValidationError) as error:
        fail(error)
