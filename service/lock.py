"""A data directory belongs to one `antiphon up` at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from router.errors import PreflightError
from service.site import unusable

_NAME = "lock"


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Hold a data directory for ourselves. Raises PreflightError when that cannot be."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = (data_dir / _NAME).open("a")
    except OSError as error:
        raise unusable(data_dir, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PreflightError(f"another antiphon uses {data_dir}: stop it, or choose another --data-dir") from None
        yield


def is_held(data_dir: Path) -> bool:
    """Whether an `antiphon up` uses it now. Makes nothing."""
    try:
        with (data_dir / _NAME).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
