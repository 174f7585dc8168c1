"""Lets an engine's process find a machine with as much free memory as ALONE_FREE_BYTES says and no neighbours.

On a shared machine SGLang counts what others take while it loads as its own, and the size of its KV cache is chance.
First on PYTHONPATH, this leaves everything as it is but the one figure SGLang asks the machine for.
"""

import os
from typing import Any

import psutil

_FREE = int(os.environ["ALONE_FREE_BYTES"])
_machine = psutil.virtual_memory


def _own() -> int:
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


def _virtual_memory() -> Any:
    return _machine()._replace(available=_FREE - _own())


psutil.virtual_memory = _virtual_memory
