"""Who uses a model directory: shared by those that serve it, ours alone while it is changed or removed.

The lock is on the directory itself, so that nothing has to be written into it, and ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from router.errors import ModelError


@contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """Keep others from changing or removing it meanwhile, where the file system knows locks."""
    with _opened(directory) as handle:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield


@contextmanager
def ours_alone(directory: Path) -> Iterator[None]:
    """Raises ModelError when somebody uses it."""
    with _opened(directory) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelError(f"{directory} is in use by a running antiphon: stop that first") from None
        except OSError:
            pass  # a file system without locks
        yield


def is_used(directory: Path) -> bool:
    try:
        with ours_alone(directory):
            return False
    except (ModelError, OSError):
        return True


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    handle = os.open(directory, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
