from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.gpu.report import markdown
from scripts.gpu.results import Record, Results, merged, read

OK = Record("a", "ok", "now", 1.5, {"server": {"argv": []}}, {"figure": 1})


def test_every_record_is_on_disk_at_once(tmp_path: Path) -> None:
    results = Results(tmp_path / "out" / "results.json", {"python": "3.12"})
    results.add(OK)
    results.add(Record("b", "failed", "now", failure="it died"))
    content = read(tmp_path / "out" / "results.json")
    assert content["host"] == {"python": "3.12"}
    assert content["experiments"]["a"] == {
        "status": "ok",
        "at": "now",
        "seconds": 1.5,
        "servers": {"server": {"argv": []}},
        "results": {"figure": 1},
        "failure": None,
    }
    assert content["experiments"]["b"]["failure"] == "it died"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.json"]


def test_a_later_run_goes_on_with_the_file(tmp_path: Path) -> None:
    Results(tmp_path / "results.json", {}).add(OK)
    again = Results(tmp_path / "results.json", {})
    again.add(Record("b", "ok", "later", results={}))
    assert list(read(tmp_path / "results.json")["experiments"]) == ["a", "b"]


def test_what_there_was_no_time_for_replaces_nothing(tmp_path: Path) -> None:
    Results(tmp_path / "results.json", {}).add(OK)
    Results(tmp_path / "results.json", {}).add(Record("a", "skipped", "later"))
    assert read(tmp_path / "results.json")["experiments"]["a"]["status"] == "ok"


def test_files_are_merged_and_a_success_stays() -> None:
    ok, failed = {"status": "ok", "results": {}}, {"status": "failed", "failure": "no"}
    one = {"host": {"n": 1}, "experiments": {"a": ok, "b": failed}}
    two = {"host": {"n": 2}, "experiments": {"a": failed, "b": ok, "c": failed}}
    together = merged([one, two])
    assert together["experiments"] == {"a": ok, "b": ok, "c": failed}
    assert together["host"] == {"n": 2}


def test_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"schema": 0}))
    with pytest.raises(ValueError, match="schema 0, expected 1"):
        read(tmp_path / "results.json")


def test_a_report_shows_loads_in_one_table_and_names_what_failed() -> None:
    load = {"clients": 8, "output_tokens_per_s": 1295.4, "first_token_p50_ms": 118.6}
    first = {"prompt_tokens": 4096, "cold_ms": 104.2, "cached_ms": 27.9}
    experiments = {
        "fa3-page-64": {"status": "ok", "results": {"throughput": [load], "first_token": [first]}},
        "tp-2": {"status": "failed", "failure": "tp-2 died\nits last words"},
    }
    text = markdown({"experiments": experiments})
    assert "| fa3-page-64 | 1,295 (119 ms) | 104 → 28 ms |" in text
    assert "- tp-2: tp-2 died\n" in text + "\n"
    assert "last words" not in text
