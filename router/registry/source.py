"""Where replicas come from: something that can be watched for them."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Protocol

from router.registry.spec import ReplicaSpec

_log = logging.getLogger("antiphon.registry")


class ReplicaSource(Protocol):
    """A source never fails for a while: it keeps the last list it knew, and `trouble` says what is wrong."""

    @property
    def name(self) -> str:
        """What it is, for people: "file /etc/antiphon/replicas.yaml"."""
        ...

    @property
    def trouble(self) -> str:
        """What keeps it from knowing the present list; "" while nothing does."""
        ...

    def watch(self) -> AsyncGenerator[tuple[ReplicaSpec, ...]]:
        """The list as soon as it is known, and again with every change. Ends if it can never change."""
        ...


class Health:
    """What troubles a source, said in the log once when it begins and once when it is over."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.trouble = ""

    def bad(self, trouble: str) -> None:
        if trouble != self.trouble:
            _log.warning("%s: %s; what it said last stays", self._source, trouble)
        self.trouble = trouble

    def good(self) -> None:
        if self.trouble:
            _log.info("%s: well again", self._source)
        self.trouble = ""
