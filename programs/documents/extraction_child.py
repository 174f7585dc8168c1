"""The process in which files are parsed: `python -m programs.documents.extraction_child REQUEST <file >outcome`.

Whatever a file makes a parser do, it can do no more here: memory and processor time have limits that the kernel
enforces, no file can be written, and nothing of ours is in the environment.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import warnings

import msgspec

from programs.documents.extraction import ExtractionLimits, ExtractionRequest, extracted

_NICENESS = 5
_NESTING = 10_000


def main() -> None:
    request = msgspec.json.decode(sys.argv[1], type=ExtractionRequest)
    _limit(request.limits)
    logging.disable()
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(_NESTING)
    with open(0, "rb", closefd=False) as file:
        outcome = extracted(file, request)
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcome))
    sys.stdout.buffer.flush()


def _limit(limits: ExtractionLimits) -> None:
    os.nice(_NICENESS)
    for kind, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main()
