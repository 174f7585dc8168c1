"""`antiphon worker`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

from programs.errors import ProgramsError
from service.commands.fail import EXPECTED, fail
from service.commands.given import given
from service.settings import WorkerSettings
from service.worker import work


def worker(
    model: Annotated[Path, typer.Option(help="Directory of the model that the front serves.")],
    store: Annotated[str, typer.Option(help="The front's store: redis://…, rediss://… or unix://….")],
    front: Annotated[str | None, typer.Option(help="URL of the front (http://127.0.0.1:8080).")] = None,
    jobs: Annotated[int | None, typer.Option(help="Jobs that it runs at once (4).")] = None,
    profile: Annotated[str | None, typer.Option(help="The front's serving profile, by name or file.")] = None,
    name: Annotated[str | None, typer.Option(help="Tells it from other workers; without one, it makes one up.")] = None,
) -> None:
    """Run jobs that were submitted to a front: as many workers as you like, on any host. Ctrl-C hands back its jobs."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    chosen = given(front=front, jobs=jobs, serving_profile=profile, worker_name=name)
    try:
        asyncio.run(work(WorkerSettings(model_dir=model, store_url=store, **chosen)))
    except (*EXPECTED, ProgramsError) as error:
        fail(error)
