"""Programs that come along: what a document is asked most often."""

from __future__ import annotations

LIBRARY = (
    "programs.library.qa:qa",
    "programs.library.compare:compare",
    "programs.library.summarize:summarize",
    "programs.library.extract:EXTRACT",
)
"""Each `module:program`, as in a serving profile."""
