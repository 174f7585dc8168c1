"""The `antiphon` command."""

from __future__ import annotations

import typer

from service.lazy_group import lazy_group

COMMANDS = {
    "up": "service.commands.up:up",
    "serve": "service.commands.serve:serve",
    "worker": "service.commands.worker:worker",
    "doctor": "service.commands.doctor:doctor",
    "ask": "service.commands.ask:ask",
    "compare": "service.commands.compare:compare",
    "extract": "service.commands.extract:extract",
    "summarize": "service.commands.summarize:summarize",
    "bench": "service.commands.bench:app",
    "engine": "service.commands.engine:app",
    "model": "service.commands.model:app",
    "router": "service.commands.router:app",
}
"""Each by where it is. It is imported when it is asked for: none waits for what the others need."""

app = typer.Typer(
    cls=lazy_group(COMMANDS), no_args_is_help=True, add_completion=False, help="Token-exact sessions on SGLang."
)


@app.callback()
def _root() -> None:
    """Token-exact sessions on SGLang."""


def main() -> None:
    app()


if __name__ == "__main__":
    main()
