"""How long steps are shown, to people, to files and to nobody."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console

from service.progress import PatientConsole, Steps


def test_in_a_file_a_step_is_a_line_at_its_begin_and_one_at_its_end() -> None:
    file = io.StringIO()
    with Steps(Console(file=file)) as steps, steps.step("fetching [it]") as detail:
        detail("too soon to be worth a line")
    assert file.getvalue() == "fetching [it] …\nfetching [it]: done in 0 s\n"


def test_a_step_that_fails_is_not_said_to_be_done() -> None:
    file = io.StringIO()
    with Steps(Console(file=file)) as steps, pytest.raises(OSError, match="no"), steps.step("fetching"):
        raise OSError("no")
    assert file.getvalue() == "fetching …\n"


def test_on_a_terminal_title_and_time_stay_whole_beside_a_long_detail() -> None:
    file = io.StringIO()
    with Steps(Console(file=file, force_terminal=True, width=80, color_system=None)) as steps:
        with steps.step("starting the engine [v1]") as detail:
            detail("[x] " + "very long " * 20)
            steps.settle()
        steps.say("from now on below")
    shown = file.getvalue()
    assert "starting the engine [v1] 0:00:00 [x] very long" in shown
    assert all(len(line) < 200 for line in shown.splitlines())
    assert shown.endswith("from now on below\n")


def test_a_reader_that_goes_away_ends_the_talking_only() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as file, Steps(PatientConsole(file=file)) as steps:
        for _ in range(3):
            steps.say("anybody there?")
