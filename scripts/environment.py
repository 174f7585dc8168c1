"""Makes a virtual environment hold exactly what a lock names: `environment.py VENV LOCK [--project DIR] [--heavy]`.

Standard library only: it runs before anything is installed. An environment that is up to date costs one file read. One
that is unfinished, or was made from another lock or Python, is made anew; the stamp that says "finished" is written
last, so an interrupted run is repaired by the next. A directory that this program did not make is never touched.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

OLDEST_PYTHON = (3, 11)
MARKER = ".antiphon"
LOCK_STAMP = ".antiphon-lock"
PROJECT_STAMP = ".antiphon-project"
HEAVY_FREE_BYTES = 20 * 10**9
"""An engine's wheels (5 GB) lie beside what is unpacked from them (11 GB) until the end of the installation."""


def say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)


def digest(path: Path) -> str:
    """What is built from a file depends on the file and on the Python that builds."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return hashlib.sha256(version.encode() + b"\0" + path.read_bytes()).hexdigest()


def is_current(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text() == wanted


def claim(venv: Path) -> Path:
    """Marks a directory as ours and returns the marker, which is also the file to lock."""
    marker = venv / MARKER
    if venv.exists() and any(venv.iterdir()) and not marker.exists():
        raise SystemExit(f"{venv} exists and was not made by this project's make: remove it or name another directory")
    venv.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return marker


def clear(venv: Path) -> None:
    leftovers = [entry for entry in venv.iterdir() if entry.name != MARKER]
    if leftovers:
        say(f"{venv} is unfinished or out of date: making it anew")
    # The stamp goes first: from here on the environment is unfinished.
    for entry in sorted(leftovers, key=lambda entry: entry.name != LOCK_STAMP):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def run(command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    """Runs a command and, told to end, ends all its processes: none may write into the next run's environment."""
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=0) as process:
        try:
            status = process.wait()
        except BaseException:  # above all KeyboardInterrupt
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if status:
        raise subprocess.CalledProcessError(status, [str(part) for part in command])


def pip(venv: Path, *arguments: str | Path) -> None:
    # The wheels are unpacked next to where they go: /tmp may be a small disk in memory.
    temporary = venv / ".tmp"
    temporary.mkdir(exist_ok=True)
    run(
        [venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments],
        {**os.environ, "TMPDIR": str(temporary)},
    )
    shutil.rmtree(temporary)


def install_lock(venv: Path, lock: Path, *, heavy: bool) -> None:
    clear(venv)
    if heavy and (free := shutil.disk_usage(venv).free) < HEAVY_FREE_BYTES:
        raise SystemExit(f"{venv} needs {HEAVY_FREE_BYTES / 1e9:.0f} GB of free disk, there are {free / 1e9:.1f} GB")
    run([sys.executable, "-m", "venv", venv])
    # Heavy wheels are not kept in pip's cache: they would double the room they take.
    pip(venv, "install", "--require-hashes", "--no-deps", *(["--no-cache-dir"] if heavy else []), "-r", lock)


def ensure(venv: Path, lock: Path, project: Path | None, *, heavy: bool) -> None:
    lock_stamp, project_stamp = venv / LOCK_STAMP, venv / PROJECT_STAMP
    if not (is_current(lock_stamp, digest(lock)) and (venv / "bin/python").exists()):
        say(f"installing {lock.name} into {venv}" + (" (11 GB, a few minutes)" if heavy else ""))
        install_lock(venv, lock, heavy=heavy)
        lock_stamp.write_text(digest(lock))
        say(f"{venv} holds {lock.name}")
    if project and not is_current(project_stamp, digest(project / "pyproject.toml")):
        say(f"installing this checkout into {venv}")
        pip(venv, "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", project)
        project_stamp.write_text(digest(project / "pyproject.toml"))


def main() -> int:
    if sys.version_info < OLDEST_PYTHON:
        raise SystemExit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make PYTHON=python3.11 …")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("venv", type=Path)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--project", type=Path, help="also install this checkout, editable")
    parser.add_argument("--heavy", action="store_true", help="many GB: check the disk, keep nothing in pip's cache")
    arguments = parser.parse_args()
    for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(ending, signal.default_int_handler)
    venv = arguments.venv.absolute()
    with claim(venv).open() as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        try:
            ensure(venv, arguments.lock, arguments.project, heavy=arguments.heavy)
        except subprocess.CalledProcessError as error:
            print(f"failed: {' '.join(error.cmd)}; {venv} is unfinished", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"interrupted, {venv} is unfinished: the next make repairs it", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
