from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router import guard
from router.child import Child, Log
from tests.memory_limit import group_with_memory

PYTHON = sys.executable

FAMILY = """
import os, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
plain = "import time; time.sleep(600)"
away = f"[sys.executable, '-c', {plain!r}, sys.argv[1]], start_new_session=True"
orphan = f"import subprocess, sys; subprocess.Popen({away})"
if "deaf" in sys.argv[2:]:
    subprocess.Popen([sys.executable, "-c", deaf, sys.argv[1]])
subprocess.Popen([sys.executable, "-c", plain, sys.argv[1]])
subprocess.run([sys.executable, "-c", orphan, sys.argv[1]], check=True)
print("family is up", flush=True)
if "leave" not in sys.argv[2:]:
    time.sleep(600)
"""
"""A command with a child, one deaf to SIGTERM if asked for, and an orphaned grandchild in its own session."""


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """A word that every process of one test carries in its command line."""
    return f"mark-{tmp_path.name}-{os.getpid()}"


def marked(mark: str) -> list[int]:
    found = []
    for pid in guard.parents():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        # A guard's command line holds its command's too.
        if mark.encode() in words and b"--parent" not in words:
            found.append(pid)
    return found


def exists(path: Path) -> bool:
    return path.exists()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def zombies() -> dict[int, int]:
    """pid -> parent's pid of the dead that nobody waited for."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state == "Z":
            found[int(stat.parent.name)] = int(parent)
    return found


async def eventually(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def child_of(tmp_path: Path, *argv: str, orphan_grace_s: float = 10.0) -> AsyncIterator[Child]:
    child = await Child.start(
        argv, env=dict(os.environ), log_path=tmp_path / "child.log", orphan_grace_s=orphan_grace_s
    )
    try:
        yield child
    finally:
        await child.stop(0.1)


def family(mark: str, *words: str) -> Sequence[str]:
    return (PYTHON, "-c", FAMILY, mark, *words)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "exited with code 3"),
        ("pass", "exited with code 0"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("import os; os.abort()", "killed by SIGABRT"),
    ],
)
async def test_its_end_is_explained(tmp_path: Path, code: str, reason: str) -> None:
    async with child_of(tmp_path, PYTHON, "-c", code) as child:
        assert await child.wait() == reason
        assert child.exit_reason == reason
        assert not child.running


async def test_stdout_and_stderr_are_kept_in_order_and_written_to_the_log(tmp_path: Path) -> None:
    code = "import os; os.write(1, b'one\\n'); os.write(2, b'two\\rthree\\n'); os.write(1, b'four')"
    async with child_of(tmp_path, PYTHON, "-c", code) as child:
        await child.wait()
        assert child.last_lines == ("one", "two", "three", "four")
        assert child.last_line == "four"
    assert (tmp_path / "child.log").read_bytes() == b"one\ntwo\rthree\nfour"


async def test_gets_exactly_the_environment_and_directory_given(tmp_path: Path) -> None:
    child = await Child.start(
        [PYTHON, "-c", "import os; print(os.environ.get('HOME'), os.environ['ONLY'], os.getcwd())"],
        env={"ONLY": "this"},
        log_path=tmp_path / "log" / "child.log",
        cwd=tmp_path,
    )
    await child.wait()
    assert child.last_lines == (f"None this {tmp_path}",)


async def test_a_command_that_does_not_exist_says_so(tmp_path: Path) -> None:
    async with child_of(tmp_path, "/nowhere/at-all") as child:
        assert await child.wait() == "exited with code 127"
        assert child.last_line == "cannot run /nowhere/at-all: No such file or directory"


async def test_stop_asks_first(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('bye', flush=True)))\n"
        "print('up', flush=True); time.sleep(60)"
    )
    async with child_of(tmp_path, PYTHON, "-c", code) as child:
        await eventually(lambda: child.last_line == "up")
        await child.stop()
        assert child.last_line == "bye"
        assert child.exit_reason == "stopped"


async def test_stop_leaves_no_descendant_even_a_deaf_one_or_one_in_its_own_session(tmp_path: Path, mark: str) -> None:
    async with child_of(tmp_path, *family(mark, "deaf")) as child:
        await eventually(lambda: {"family is up", "deaf"} <= set(child.last_lines))
        assert len(marked(mark)) == 4
        started = time.monotonic()
        await child.stop(grace_s=0.3)
        assert time.monotonic() - started < 3
        assert marked(mark) == []


async def test_stop_twice_and_after_the_end_is_harmless(tmp_path: Path) -> None:
    async with child_of(tmp_path, PYTHON, "-c", "raise SystemExit(4)") as child:
        await child.wait()
        await child.stop()
        await child.stop()
        assert child.exit_reason == "exited with code 4"


async def test_what_a_command_leaves_behind_is_ended_with_it(tmp_path: Path, mark: str) -> None:
    async with child_of(tmp_path, *family(mark, "deaf", "leave")) as child:
        assert await child.wait() == "exited with code 0"
        assert marked(mark) == []


async def test_kill_9_of_the_guard_leaves_nothing_of_its_session(tmp_path: Path, mark: str) -> None:
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]])\n"
        "print('up', flush=True); time.sleep(600)"
    )
    async with child_of(tmp_path, PYTHON, "-c", code, mark) as child:
        await eventually(lambda: child.last_line == "up")
        assert len(marked(mark)) == 2
        os.kill(child.pid, signal.SIGKILL)
        assert await child.wait() == "killed by SIGKILL"
        assert marked(mark) == []


async def test_kill_9_of_the_command_itself_ends_its_children(tmp_path: Path, mark: str) -> None:
    async with child_of(tmp_path, *family(mark)) as child:
        await eventually(lambda: child.last_line == "family is up")
        (command,) = [pid for pid, parent in guard.parents().items() if parent == child.pid and pid in marked(mark)][:1]
        os.kill(command, signal.SIGKILL)
        await child.wait()
        assert marked(mark) == []


async def test_shared_memory_of_what_is_killed_is_removed(tmp_path: Path) -> None:
    code = (
        "import signal, time; from multiprocessing.shared_memory import SharedMemory\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(SharedMemory(create=True, size=16).name, flush=True)\n"
        "time.sleep(600)"
    )
    async with child_of(tmp_path, PYTHON, "-c", code) as child:
        await eventually(lambda: child.last_line)
        segment = Path("/dev/shm") / child.last_line
        assert exists(segment)
        await child.stop(grace_s=0.1)
        assert not exists(segment)


PARENT = """
import asyncio, os, sys
from pathlib import Path
from router.child import Child

async def main() -> None:
    child = await Child.start(sys.argv[2:], env=dict(os.environ), log_path=Path(sys.argv[1]), orphan_grace_s=0.3)
    while "family is up" not in child.last_lines or "deaf" not in child.last_lines:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_parent_that_dies(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    command = [PYTHON, "-c", PARENT, str(tmp_path / "child.log"), *family(mark, "deaf")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": "."}) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        assert len(marked(mark)) >= 4
        parent.send_signal(number)
    asyncio.run(eventually(lambda: not marked(mark), 5))


async def test_no_zombie_and_no_descriptor_is_left(tmp_path: Path) -> None:
    async def once() -> None:
        async with child_of(tmp_path, PYTHON, "-S", "-c", "print('hello')") as child:
            await child.wait()

    await once()
    before = descriptors()
    await asyncio.gather(*(once() for _ in range(5)))
    assert descriptors() <= before
    assert os.getpid() not in zombies().values()


def test_log_is_bounded_in_memory_and_on_disk(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", max_bytes=1000)
    for index in range(500):
        log.feed(f"line {index}\n".encode())
    log.feed(b"x" * 10_000)
    log.close()
    assert len(log.lines) == 200
    assert {len(line) for line in list(log.lines)[-3:]} == {4096, 10_000 - 2 * 4096}
    assert (tmp_path / "log.1").stat().st_size <= 1020
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 12_100


def test_log_survives_bytes_that_are_no_text_and_characters_cut_in_two(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.feed("é".encode()[:1])
    log.feed("é".encode()[1:] + b"\n\xff\n\n")
    log.close()
    assert list(log.lines) == ["é", "\ufffd"]


HUNGRY = "import time; held = bytearray(400 * 2**20); time.sleep(600)"


async def test_a_kill_of_the_kernels_for_want_of_memory_is_counted(tmp_path: Path) -> None:
    with group_with_memory(100 * 2**20) as group:
        join = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0'); {HUNGRY}"
        child = await Child.start([PYTHON, "-c", join], env=dict(os.environ), log_path=tmp_path / "log")
        assert await child.wait() == "killed by SIGKILL"
    assert child.kernel_kills is not None
    assert child.kernel_kills >= 1
