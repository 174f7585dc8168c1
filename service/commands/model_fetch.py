"""`antiphon model fetch` and `convert`: model directories made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from router.checks.model import check_weights
from router.engine.preflight import check_interpreter
from router.errors import ModelError
from router.model.conversion import convert_gguf
from router.model.directory import ModelDirectory
from router.model.fetch import DEFAULT, default_model
from router.model.hub_fetch import HubAccess, fetch_from_hub
from router.model.local_fetch import fetch_local
from router.model.origin import read_origin
from router.model.source import HubSource, LocalSource, parse_source
from service.commands.fail import EXPECTED, fail
from service.commands.given import given
from service.progress import Detail, PatientConsole, Steps
from service.settings import HubSettings, UpSettings

DataDir = Annotated[Path | None, typer.Option(help="Whose models; by default those of `antiphon up`.")]
EnginePython = Annotated[Path | None, typer.Option(help="The Python interpreter that has SGLang.")]


def fetch(
    source: Annotated[
        str | None, typer.Argument(metavar="[NAME_OR_URL]", help="ORG/NAME, hf:ORG/NAME@REVISION, a page or a path.")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="By default, among the models of --data-dir.")] = None,
    data_dir: DataDir = None,
    engine_python: EnginePython = None,
) -> None:
    """Fetch a model, whole and verified, and print its directory; without a name, the small default model.

    What an interrupted call leaves is continued by the next. From a hub (HF_ENDPOINT, HF_TOKEN) come config, tokenizer
    and weights, as safetensors where there are any; no code. A local directory is linked, or copied where that cannot
    be.
    """
    _make(lambda detail: _fetch(source, to, model_settings(data_dir, engine_python), detail), "fetching the model")


def _fetch(source: str | None, to: Path | None, settings: UpSettings, detail: Detail) -> ModelDirectory:
    if source in (None, DEFAULT.name):
        return _fetch_default(to, settings, detail)
    found = parse_source(source or "")
    directory = absolute(to) if to else models_dir(settings) / found.name
    if isinstance(found, LocalSource):
        return fetch_local(found.path, directory, detail)
    if to is None:
        _check_unknown(found, directory)
    hub = HubSettings()
    access = HubAccess(hub.endpoint, hub.token.get_secret_value() if hub.token else None)
    return asyncio.run(fetch_from_hub(found, directory, access, detail))


def _fetch_default(to: Path | None, settings: UpSettings, detail: Detail) -> ModelDirectory:
    check_interpreter(settings.engine_python)
    fetching = default_model(
        models_dir(settings),
        engine_python=settings.engine_python,
        env=settings.foreign_environment,
        on_progress=detail,
    )
    model = asyncio.run(fetching)
    return fetch_local(model.path, absolute(to), detail) if to else model


def _check_unknown(source: HubSource, directory: Path) -> None:
    """Two organisations may give a model the same name. Raises ModelError."""
    if directory.exists() and read_origin(directory) is None:
        raise ModelError(f"{directory} is there and does not come from {source}: choose another directory with --to")


def convert(
    gguf: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="Llama-architecture GGUF file.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The model directory to make.")],
    engine_python: EnginePython = None,
) -> None:
    """Turn a GGUF file into a model directory of bfloat16 safetensors, and print its path."""

    def work(detail: Detail) -> ModelDirectory:
        settings = model_settings(None, engine_python)
        check_interpreter(settings.engine_python)
        converting = convert_gguf(
            absolute(gguf),
            absolute(directory),
            engine_python=settings.engine_python,
            env=settings.foreign_environment,
            on_progress=detail,
        )
        return asyncio.run(converting)

    _make(work, "converting the model")


def _make(work: Callable[[Detail], ModelDirectory], title: str) -> None:
    """Progress goes to stderr, the directory to stdout, so that scripts can use it."""
    try:
        with Steps(PatientConsole(stderr=True)) as steps, steps.step(title) as detail:
            model = work(detail)
    except EXPECTED as error:
        fail(error)
    for finding in check_weights(model):
        if finding.status != "ok":
            typer.echo(f"antiphon: {finding.what}: {finding.why}", err=True)
    typer.echo(str(model.path))


def model_settings(data_dir: Path | None, engine_python: Path | None = None) -> UpSettings:
    """Those of `antiphon up`, as far as models need them."""
    return UpSettings(**given(data_dir=data_dir, engine_python=engine_python))


def models_dir(settings: UpSettings) -> Path:
    return settings.data_dir / "models"


def absolute(path: Path) -> Path:
    return path.expanduser().absolute()
