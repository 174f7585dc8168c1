"""Serving profiles: what they may say, and the programs they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs.errors import ProgramLoadError
from programs.library import LIBRARY
from programs.runtime.run import Prices
from router.errors import ProfileError
from service.serving_profile import load_serving_profile

HEAD = "name: own\nversion: 1\ndescription: Of our own.\n"


def written(directory: Path, text: str) -> str:
    path = directory / "own.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return str(path)


def test_the_default_profile_has_the_library() -> None:
    profile = load_serving_profile("default")
    programs = profile.load_programs()
    assert profile.id == "default.v1"
    assert [program.name for program in programs] == [path.partition(":")[2].lower() for path in LIBRARY]
    assert all(program.description for program in programs)
    assert profile.token_prices is None


def test_a_profile_names_programs_beside_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "own_programs_of_a_profile.py").write_text(
        "async def shout(context, text: str) -> str:\n    '''Say it louder.'''\n    return text.upper()\n"
    )
    path = written(tmp_path, "programs: [own_programs_of_a_profile:shout]\nprices: {prompt: 1, cached: 0.5, output: 2}")
    profile = load_serving_profile(path)
    program = profile.load_programs()[-1]
    assert (program.name, program.description) == ("shout", "Say it louder.")
    assert profile.token_prices == Prices(1, 0.5, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("program: [a:b]", r"own\.yaml: program: Extra inputs are not permitted"),
        ("limits: {retries: 3}", r"limits\.retries: Extra inputs"),
        ("prices: {prompt: 1, cached: -1, output: 2}", r"prices\.cached: .*greater than or equal to 0"),
        ("prices: {prompt: 1}", r"prices\.cached: Field required"),
    ],
)
def test_what_a_profile_cannot_say_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        load_serving_profile(written(tmp_path, text))


def test_a_profile_that_is_not_there_is_named() -> None:
    with pytest.raises(ProfileError, match=r"unknown serving profile 'none'; there are default\.v1"):
        load_serving_profile("none")


def test_a_program_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    profile = load_serving_profile(written(tmp_path, "programs: [no_such_module:program]"))
    with pytest.raises(ProgramLoadError, match="program 'no_such_module:program': cannot import no_such_module"):
        profile.load_programs()
