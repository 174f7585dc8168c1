"""`antiphon model probe`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from service.cli import app
from tests.model_files import CHATML, tiny_model_dir

DATED = "{{ strftime_now('%Y') }}" + CHATML


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "model"


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["model", "probe", *map(str, arguments)])


def test_a_table_with_a_line_a_case(model: Path) -> None:
    result = run(tiny_model_dir(model, DATED))
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert lines[:3] == ["case verdict why", "plain turns preserving", "system prompt preserving"]
    assert "the date is in the prompt; a session keeps the date it started with" in result.stdout
    assert "was 6<|im_start|>user\\nQuestion one?" in result.stdout
    assert lines[-1] == "chat template: preserving"


def test_json(model: Path) -> None:
    result = run(tiny_model_dir(model, DATED), "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 0
    assert told["verdict"] == "preserving"
    assert {case["case"]: case["verdict"] for case in told["cases"]}["date"] == "rewriting"


def test_rewriting_is_no_failure(model: Path) -> None:
    source = CHATML.replace("assistant\n'", "assistant\n<think>\n'")
    result = run(tiny_model_dir(model, source), "--json")
    assert (result.exit_code, json.loads(result.stdout)["verdict"]) == (0, "rewriting")


def test_a_template_that_refuses_every_chat_fails_but_is_explained(model: Path) -> None:
    result = run(tiny_model_dir(model, "{{ raise_exception('Not today.') }}"))
    assert result.exit_code == 1
    assert "refuses: Not today." in result.stdout


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if %}", "antiphon: chat template, line 2: Expected an expression, got 'end of statement block'\n"),
        ("\n\n{{ shout() }}", "antiphon: chat template, line 3: unknown function 'shout'\n"),
    ],
)
def test_a_broken_template_names_the_line(model: Path, source: str, message: str) -> None:
    result = run(tiny_model_dir(model, source))
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", message)


def test_what_is_no_model_directory_is_told_in_one_line(model: Path) -> None:
    missing = run(model)
    assert (missing.exit_code, missing.stdout, missing.stderr.count("\n")) == (1, "", 1)
    tiny_model_dir(model).joinpath("config.json").write_text("{}")
    assert run(model).stderr == (
        f"antiphon: model {model}: config.json does not say how long a context may be (max_position_embeddings)\n"
    )
