"""The command as a whole: what it has, and what it does not wait for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from service.cli import COMMANDS, app


def test_every_command_is_told_of() -> None:
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert [line.split()[1] for line in told.splitlines() if line.startswith("│ ")][1:] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert (done.exit_code, f" {name} " in done.output.splitlines()[1]) == (0, True), done.output


def test_an_unknown_command_is_named() -> None:
    done = CliRunner().invoke(app, ["serv"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "No such command 'serv'" in done.output


def test_up_does_not_wait_for_what_other_commands_import() -> None:
    """It is the command that most people meet first, and its errors come as soon as it is there."""
    asked = "import sys, service.cli, service.commands.up; print({'fastapi', 'pypdf'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout == "set()\n"
