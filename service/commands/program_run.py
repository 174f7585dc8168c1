"""A program run at a front for a command: documents uploaded, progress shown, the job cancelled on Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import mimetypes
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from service.commands.fail import EXPECTED, fail
from service.front_client import FrontAwayError, FrontClient, FrontError

Url = Annotated[str | None, typer.Option("--url", help="The front (http://127.0.0.1:8080).")]
Key = Annotated[str | None, typer.Option("--api-key", help="The front's key (ANTIPHON_API_KEY).")]
Json = Annotated[bool, typer.Option("--json", help="Print the finished job as JSON.")]

STDIN = Path("-")
_FINAL = frozenset({"succeeded", "failed", "cancelled"})
_AWAY_S = 60.0
"""How long a front may be away while a job is followed: the job goes on without it."""
_AGAIN_S = 0.5
_CANCEL_S = 5.0
_INTERRUPTED = 130


@dataclass(frozen=True)
class FinishedRun:
    """A job that succeeded, as the front gives it. `names` are those of the files, by document id."""

    job: dict[str, Any]
    names: dict[str, str]

    @property
    def output(self) -> Any:
        return self.job["output"]


def run_on_files(
    program: str,
    files: Sequence[Path],
    parameters: Callable[[list[str]], Mapping[str, Any]],
    *,
    url: str | None,
    api_key: str | None,
    as_json: bool,
    show: Callable[[FinishedRun], None],
) -> None:
    """Upload `files`, run `program` with what `parameters` makes of their document ids, and `show` how it ended.

    With `as_json` the job is printed instead. A failure is told in one line, and the process exits with 1.
    """
    try:
        finished = asyncio.run(_run(program, files, parameters, url, api_key))
    except KeyboardInterrupt:
        typer.echo("antiphon: interrupted", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    except EXPECTED as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(finished.job, indent=2, ensure_ascii=False))
    else:
        show(finished)


async def _run(
    program: str,
    files: Sequence[Path],
    parameters: Callable[[list[str]], Mapping[str, Any]],
    url: str | None,
    api_key: str | None,
) -> FinishedRun:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    async with aiohttp.ClientSession() as http:
        runs = ProgramRuns(FrontClient.of(http, url, api_key))
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("reading", total=len(files))
            names: dict[str, str] = {}
            ids: list[str] = []
            for file in files:
                document = await runs.upload(file)
                names[document] = "standard input" if file == STDIN else file.name
                ids.append(document)
                bar.advance(task)
            job = await runs.run(program, parameters(ids), lambda progress: _show(bar, task, progress))
    return FinishedRun(job, names)


def _show(bar: Progress, task: TaskID, progress: Mapping[str, Any]) -> None:
    description = str(progress.get("message") or "working")
    bar.update(task, completed=progress["done"], total=progress["total"] or None, description=description)


class ProgramRuns:
    """Runs programs at one front. All raise FrontError."""

    def __init__(self, front: FrontClient) -> None:
        self._front = front

    async def upload(self, path: Path) -> str:
        """The id of the document that a file is; `-` is standard input. Raises OSError as well."""
        if path == STDIN:
            content, name, kind = BytesIO(sys.stdin.buffer.read()), "stdin.txt", "text/plain"
            answer = await self._front.upload("/v1/documents", content, name, kind)
        else:
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            with path.open("rb") as file:
                answer = await self._front.upload("/v1/documents", file, path.name, kind)
        return str(answer["id"])

    async def run(
        self, program: str, parameters: Mapping[str, Any], on_progress: Callable[[Mapping[str, Any]], None]
    ) -> dict[str, Any]:
        """The job of one run, once it has succeeded. Cancelled, it cancels the job at the front.

        Raises FrontError for a job that failed or was cancelled, too.
        """
        job = await self._front.post(f"/v1/programs/{program}/runs", {"parameters": dict(parameters)})
        try:
            job = await self._followed(job["id"], on_progress)
        except asyncio.CancelledError:
            await self._cancel(job["id"])
            raise
        if job["status"] != "succeeded":
            message = (job.get("error") or {}).get("message") or "no reason is given"
            raise FrontError(f"{job['id']} {job['status']}: {message}")
        return job

    async def _followed(self, job_id: str, on_progress: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """The job at its end. A front that goes away is waited for: the job does not need it."""
        clock = asyncio.get_running_loop().time
        away_since: float | None = None
        while True:
            try:
                async with aclosing(self._front.events(f"/v1/jobs/{job_id}/events")) as events:
                    async for event in events:
                        away_since = None
                        if event.name == "progress":
                            on_progress(event.data)
                job = await self._front.get(f"/v1/jobs/{job_id}")
                if job["status"] in _FINAL:
                    return job
            except FrontAwayError:
                away_since = away_since or clock()
                if clock() - away_since > _AWAY_S:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def _cancel(self, job_id: str) -> None:
        try:
            async with asyncio.timeout(_CANCEL_S):
                await self._front.post(f"/v1/jobs/{job_id}/cancel")
        except (FrontError, TimeoutError):
            return  # the job goes on, and whoever looks for it finds it
