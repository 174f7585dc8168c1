import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parents[2] / "scripts/environment.py"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "empty.lock"
    path.write_text("# nothing\n")
    return path


def ensure(venv: Path, lock: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ENVIRONMENT, venv, lock], check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_a_failed_environment_is_made_anew_and_a_finished_one_left_as_it_is(tmp_path: Path, lock: Path) -> None:
    venv, stamp = tmp_path / "deep" / "venv", tmp_path / "deep" / "venv" / ".antiphon-lock"
    nothing = lock.read_text()

    lock.write_text("no-hash==1.0\n")
    failed = ensure(venv, lock)
    assert failed.returncode == 1
    assert "is unfinished" in failed.stderr
    assert not stamp.exists()

    left_behind = venv / "left-behind"
    left_behind.touch()
    lock.write_text(nothing)
    repaired = ensure(venv, lock)
    assert repaired.returncode == 0, repaired.stderr
    assert "making it anew" in repaired.stderr
    assert not left_behind.exists()
    assert stamp.exists()
    subprocess.run([venv / "bin/python", "-c", ""], check=True)

    left_behind.touch()
    again = ensure(venv, lock)
    assert (again.returncode, again.stderr) == (0, "")
    assert left_behind.exists()


def test_a_directory_made_by_others_is_left_alone(tmp_path: Path, lock: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("ten years")
    refused = ensure(precious, lock)
    assert refused.returncode == 1
    assert "not made by this project's make" in refused.stderr
    assert [path.name for path in precious.iterdir()] == ["thesis.txt"]
