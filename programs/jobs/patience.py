"""Waiting for a store that is away for a moment."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from programs.errors import StoreUnavailableError

_log = logging.getLogger("antiphon.jobs")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0

Result = TypeVar("Result")


async def patiently(call: Callable[[], Awaitable[Result]]) -> Result:
    """The result of `call`, repeated for as long as it raises StoreUnavailableError."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except StoreUnavailableError as error:
            if pause_s == _FIRST_PAUSE_S:
                _log.warning("%s; trying again", error)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1))
        pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
