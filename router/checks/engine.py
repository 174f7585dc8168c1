"""An engine that runs elsewhere: reachable, of a version that we know, serving the model that prompts are built for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

import aiohttp

from router.checks.finding import Finding, error, warning
from router.checks.versions import check_sglang
from router.engine.client import EngineClient, ServerInfo
from router.errors import EngineError
from router.model.directory import ModelDirectory


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """`info` is None when it does not answer as SGLang does; `trouble` says why."""

    url: str
    info: ServerInfo | None = None
    trouble: str = ""


async def read_engine(url: str) -> EngineFacts:
    """Never raises."""
    async with aiohttp.ClientSession() as session:
        try:
            return EngineFacts(url, await EngineClient("the engine", url, session).server_info())
        except EngineError as trouble:
            return EngineFacts(url, trouble=str(trouble))


def check_engine(engine: EngineFacts, model: ModelDirectory | None) -> list[Finding]:
    """`model` is what the front builds its prompts with."""
    if engine.info is None:
        why = "without an engine nothing is generated"
        return [error("engine", f"{engine.url}: {engine.trouble}", why, f"curl {shlex.quote(engine.url)}/server_info")]
    version = check_sglang(f"engine {engine.url}", engine.info.version)
    return [version, *(_model(engine.url, engine.info, model) if model else ())]


def _model(url: str, info: ServerInfo, model: ModelDirectory) -> Iterator[Finding]:
    check = f"engine {url}"
    if PurePath(info.model_path).name.lower() != model.path.name.lower():
        what = f"it serves {info.model_path}, prompts are built for {model.path}"
        why = "under another model's tokenizer the same ids are other words"
        yield warning(check, what, why, f"--model {shlex.quote(info.model_path)}  # or a directory with its tokenizer")
    if info.context_length > model.context_length:
        what = f"its context is {info.context_length} tokens, the model's {model.context_length}"
        why = "beyond what it was trained for a model babbles"
        yield warning(check, what, why, f"start it with --context-length {model.context_length}")
