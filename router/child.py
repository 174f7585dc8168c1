"""A child process under a guard: nothing of it outlives us, its log is kept, its end is explained."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from router import guard
from router.kernel_kills import kernel_kills

LINES_KEPT = 200
LINE_BYTES = 4096
"""A longer line is broken here: a log without line ends must not fill memory."""
LOG_BYTES = 16 * 1024 * 1024
"""A log file that has grown past this becomes `<name>.1`, replacing the one before."""
_KILL_WAIT_S = 5.0


class Log:
    """The last lines of an output stream in memory, all of it in a file of bounded size (two generations)."""

    def __init__(self, path: Path, max_bytes: int = LOG_BYTES) -> None:
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._path = path
        self._max_bytes = max_bytes
        self._partial = b""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def feed(self, data: bytes) -> None:
        if self._file.tell() > self._max_bytes:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(data)
        # A progress bar ends its lines with \r.
        *whole, self._partial = (self._partial + data).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            self._keep(line)
        while len(self._partial) > LINE_BYTES:
            self._keep(self._partial[:LINE_BYTES])
            self._partial = self._partial[LINE_BYTES:]

    def close(self) -> None:
        self._keep(self._partial)
        self._partial = b""
        self._file.close()

    def _keep(self, line: bytes) -> None:
        text = line[:LINE_BYTES].decode("utf-8", "replace").rstrip()
        if text:
            self.lines.append(text)


class Child:
    """Make one with `start`. Whoever starts it awaits `stop` (or `wait`) before the event loop ends."""

    def __init__(self, process: asyncio.subprocess.Process, output: int, log: Log) -> None:
        self._process = process
        self._log = log
        self._asked_to_stop = False
        self._kernel_kills_before = kernel_kills()
        self._kernel_kills: int | None = None
        self._ended = asyncio.create_task(self._follow(output), name=f"child-{process.pid}")

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log_path: Path,
        cwd: Path | None = None,
        orphan_grace_s: float = 10.0,
    ) -> Child:
        """Start `argv` with exactly the environment `env`; stdout and stderr go to the log together.

        `orphan_grace_s` is what it gets between SIGTERM and SIGKILL when we die without stopping it. Raises OSError
        when no process can be started; a command that does not exist shows as exit code 127 with a line in the log.
        """
        log = Log(log_path)
        # Our own pipe, not asyncio's: its `Process.wait` also waits until every holder of the pipe is gone.
        output, its_output = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", guard.__file__),
                *("--parent", str(os.getpid()), "--grace", str(orphan_grace_s), "--"),
                *argv,
                env=dict(env),
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=its_output,
                stderr=its_output,
                start_new_session=True,
            )
        except BaseException:
            os.close(output)
            log.close()
            raise
        finally:
            os.close(its_output)
        return cls(process, output, log)

    @property
    def pid(self) -> int:
        """The guard's: the session of everything under it."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return not self._ended.done()

    @property
    def last_lines(self) -> tuple[str, ...]:
        return tuple(self._log.lines)

    @property
    def last_line(self) -> str:
        return self._log.lines[-1] if self._log.lines else ""

    @property
    def exit_reason(self) -> str | None:
        """None while it runs; then "stopped", "exited with code 3" or "killed by SIGSEGV"."""
        if self.running:
            return None
        code = self._process.returncode
        if self._asked_to_stop:
            return "stopped"
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    @property
    def kernel_kills(self) -> int | None:
        """How many processes of this machine the kernel killed for want of memory while it ran; None where the kernel
        does not say, and while it runs.
        """
        return self._kernel_kills

    async def wait(self) -> str:
        """Until nothing of it is left; the exit reason."""
        await asyncio.shield(self._ended)
        return self.exit_reason or ""

    async def stop(self, grace_s: float = 10.0) -> None:
        """Ask it to end and kill all of it after `grace_s`: nothing is left. Harmless when it has ended."""
        if self.running:
            self._asked_to_stop = True
        try:
            # The second time the guard is asked, it kills.
            for wait_s in (grace_s, _KILL_WAIT_S):
                if not self.running:
                    return
                self._signal(signal.SIGTERM)
                await asyncio.wait([self._ended], timeout=wait_s)
        finally:
            if self.running:
                self._signal(signal.SIGKILL)
                await asyncio.wait([self._ended], timeout=_KILL_WAIT_S)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _follow(self, output: int) -> None:
        reading = asyncio.create_task(self._read(output))
        try:
            await self._process.wait()
            self._kernel_kills = _since(self._kernel_kills_before)
            # After a kill of the guard itself its descendants are still there and hold the pipe open.
            await _kill_session(self.pid)
            await asyncio.wait([reading], timeout=_KILL_WAIT_S)
        finally:
            reading.cancel()
            self._log.close()

    async def _read(self, output: int) -> None:
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(output, "rb", buffering=0)
        )
        try:
            while data := await stream.read(65536):
                self._log.feed(data)
        finally:
            transport.close()


def _since(before: int | None) -> int | None:
    now = kernel_kills()
    return None if before is None or now is None else now - before


async def _kill_session(session: int) -> None:
    deadline = time.monotonic() + _KILL_WAIT_S
    while (pids := _session_members(session)) and time.monotonic() < deadline:
        guard.signal_all(pids, signal.SIGKILL)
        await asyncio.sleep(0.01)


def _session_members(session: int) -> list[int]:
    return [pid for pid in guard.parents() if _session_of(pid) == session]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
