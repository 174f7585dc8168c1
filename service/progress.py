"""Progress of steps that take long: live lines on a terminal, plain ones elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

_PLAIN_EVERY_S = 10.0
_DETAIL_CHARS = 100

Detail = Callable[[str], None]


class PatientConsole(Console):
    """Whoever reads may go away, as in `| head`: that ends the talking, not what is talked about."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


class Steps:
    """Shows steps, several of them at once if need be. Use as a context manager, on a running program's way up."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Progress | None = None

    def __enter__(self) -> Steps:
        if self._console.is_terminal:
            self._live = Progress(
                SpinnerColumn(finished_text="✓"),
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                TimeElapsedColumn(),
                TextColumn("[dim]{task.fields[detail]}", table_column=Column(ratio=1, no_wrap=True)),
                console=self._console,
                expand=True,
            )
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.settle()

    def settle(self) -> None:
        """No more live lines: what was shown stays, what is said from now on comes below it."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str) -> Iterator[Detail]:
        """One step, from here to the end of the block. What is yielded takes its newest line of detail."""
        if self._live is None:
            yield from self._plain_step(title)
            return
        live = self._live
        task = live.add_task(escape(title), total=1, detail="")
        yield lambda line: live.update(task, detail=escape(line[:_DETAIL_CHARS]))
        live.update(task, completed=1, detail="")

    def _plain_step(self, title: str) -> Iterator[Detail]:
        started = said = time.monotonic()

        def detail(line: str) -> None:
            nonlocal said
            if time.monotonic() - said >= _PLAIN_EVERY_S:
                said = time.monotonic()
                self.say(f"  {title}: {said - started:.0f} s: {line[:_DETAIL_CHARS]}")

        self.say(f"{title} …")
        yield detail
        self.say(f"{title}: done in {time.monotonic() - started:.0f} s")
