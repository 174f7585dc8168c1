"""Runs one command so that nothing of it outlives whoever started it: `python guard.py --parent PID -- COMMAND…`.

Standard library only, and run by file path, so that any interpreter will do. The guard becomes the reaper of all the
command's descendants. When the command ends, when the guard is told to end (SIGTERM, SIGINT, SIGHUP) or when PID dies
in any way, every descendant is told to end and, after the grace, killed. A second SIGTERM skips the grace. When the
guard itself is killed, the kernel kills the command, and who started it finds the rest by their shared session.

It exits as the command did: with its code, or by its signal.
"""

import argparse
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

PARENT_DIED = signal.SIGUSR1
ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WATCHED = (*ENDINGS, signal.SIGCHLD, PARENT_DIED)
TICK_S = 0.5
LEFTOVER_GRACE_S = 1.0
"""What the command left behind when it ended by itself gets this long."""
TRACKER_GRACE_S = 0.5


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def parents() -> dict[int, int]:
    """pid -> parent's pid of every process that can be seen, zombies excepted."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in parentheses may hold anything, spaces and parentheses included.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, UnicodeDecodeError):
            continue
        if state not in "ZX":
            found[int(entry.name)] = int(parent)
    return found


def descendants(ancestor: int) -> list[int]:
    of = parents()
    children: dict[int, list[int]] = {}
    for pid, parent in of.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def is_resource_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


class Guard:
    """One command and what came of it. `status` is its wait status once it has ended."""

    def __init__(self, parent: int, grace_s: float) -> None:
        self.parent = parent
        self.grace_s = grace_s
        self.command = 0
        self.status: int | None = None

    def run(self, argv: list[str]) -> int:
        """The command's wait status, once no descendant is left."""
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, PARENT_DIED)
        self.command = start(argv)
        deadline = self._watch()
        self._clear(deadline)
        assert self.status is not None
        return self.status

    def _watch(self) -> float:
        """Until the command has ended or must end; returns when the grace is over (monotonic)."""
        while self.status is None:
            number = self._next_signal(TICK_S)
            if os.getppid() != self.parent:
                number = signal.SIGTERM
            if number in ENDINGS:
                signal_all([self.command], number)
                return time.monotonic() + self.grace_s
        return time.monotonic() + LEFTOVER_GRACE_S

    def _clear(self, deadline: float) -> None:
        told: set[int] = set()
        while time.monotonic() < deadline:
            left = descendants(os.getpid())
            if not left:
                break
            if self.status is not None:
                # Only now: while the command lives, ending its children in order is its own affair.
                signal_all([pid for pid in left if pid not in told], signal.SIGTERM)
                told.update(left)
                deadline = min(deadline, time.monotonic() + LEFTOVER_GRACE_S)
            if self._next_signal(0.05) in (signal.SIGTERM, signal.SIGINT):
                break
        self._kill()

    def _kill(self) -> None:
        """Python's resource trackers go last: once their users are dead they remove those users' shared memory."""
        spared_until = time.monotonic() + TRACKER_GRACE_S
        while left := descendants(os.getpid()):
            if time.monotonic() < spared_until:
                left = [pid for pid in left if not is_resource_tracker(pid)]
            signal_all(left, signal.SIGKILL)
            self._next_signal(0.02)
        self._reap()

    def _next_signal(self, timeout_s: float) -> int | None:
        received = signal.sigtimedwait(WATCHED, timeout_s)
        self._reap()
        return received.si_signo if received else None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.command:
                self.status = status


def start(argv: list[str]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        become(argv, guard)
    return pid


def become(argv: list[str], guard: int) -> NoReturn:
    """In the fork: die with the guard, undo its signal mask, turn into the command."""
    try:
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    except OSError as error:
        os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def leave(status: int, die: Callable[[int, int], None] = os.kill) -> NoReturn:
    """End as the command did, without a second core dump."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        die(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="end when this is no longer our parent")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds between asking and killing")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    leave(Guard(arguments.parent, arguments.grace).run(arguments.command))


if __name__ == "__main__":
    sys.exit(main())
