"""A group of commands that are imported one by one, as Click's manual has it ("Lazily Loading Subcommands")."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

_Context = Any
"""Click's, which Typer carries under a private name."""


def lazy_group(places: Mapping[str, str]) -> type[TyperGroup]:
    """For `Typer(cls=…)`: its commands by name, each as MODULE:ATTRIBUTE, a function or a Typer of its own."""

    class LazyGroup(TyperGroup):
        def list_commands(self, ctx: _Context) -> list[str]:
            return [*places, *(name for name in super().list_commands(ctx) if name not in places)]

        def get_command(self, ctx: _Context, cmd_name: str) -> Any:
            if cmd_name in places and cmd_name not in self.commands:
                command = get_command(_typer(places[cmd_name]))
                command.name = cmd_name
                self.add_command(command, cmd_name)
            return super().get_command(ctx, cmd_name)

    return LazyGroup


def _typer(place: str) -> typer.Typer:
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return found
    alone = typer.Typer(add_completion=False)
    alone.command()(found)
    return alone
