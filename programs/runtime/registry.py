"""The programs that can be run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from programs.errors import ProgramLoadError, UnknownProgramError
from programs.runtime.program import Program


class ProgramRegistry:
    """Programs by name. Raises ProgramLoadError when two have the same."""

    def __init__(self, programs: Iterable[Program] = ()) -> None:
        self._programs: dict[str, Program] = {}
        for program in programs:
            if program.name in self._programs:
                raise ProgramLoadError(f"there are two programs called {program.name}")
            self._programs[program.name] = program

    def get(self, name: str) -> Program:
        """Raises UnknownProgramError."""
        if name not in self._programs:
            raise UnknownProgramError(f"there is no program {name!r}; there are {', '.join(self._programs) or 'none'}")
        return self._programs[name]

    def all(self) -> tuple[Program, ...]:
        return tuple(self._programs.values())


def load_program(path: str, directory: Path | None = None) -> Program:
    """The program at `module:function`; the module is looked for in `directory` too, if it is not found elsewhere.

    What is there may be an async function or a Program. Raises ProgramLoadError, naming the path.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name.isidentifier():
        raise ProgramLoadError(f"program {path!r} is not written module:function")
    if directory is not None and str(directory) not in sys.path:
        sys.path.append(str(directory))
    try:
        found = getattr(importlib.import_module(module_name), name)
    except AttributeError as error:
        raise ProgramLoadError(f"program {path!r}: {error}") from error
    except Exception as error:  # whatever the module's own code raises
        raise ProgramLoadError(f"program {path!r}: cannot import {module_name}: {_said(error)}") from error
    if isinstance(found, Program):
        return found
    try:
        return Program.of(found)
    except ProgramLoadError as error:
        raise ProgramLoadError(f"program {path!r}: {error}") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
