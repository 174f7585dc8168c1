"""What of a batch is done, told as its job's progress and read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.runtime.context import Progress
from service.batch.counts import BatchCounts, BatchUsage, counts_in, progress_of

COUNT = st.integers(0, 50_000)


@given(COUNT, COUNT, COUNT)
def test_counts_are_read_back_from_the_progress_they_were_told_as(completed: int, failed: int, more: int) -> None:
    counts = BatchCounts(completed, failed, completed + failed + more)
    assert counts_in(progress_of(counts)) == counts


def test_a_job_that_has_said_nothing_has_counted_nothing() -> None:
    assert counts_in(Progress(0, 0)) == BatchCounts()


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 3}, BatchUsage(5, 0, 3, 0)),
        (
            {
                "input_tokens": 5,
                "input_tokens_details": {"cached_tokens": 4},
                "output_tokens": 3,
                "output_tokens_details": {"reasoning_tokens": 1},
            },
            BatchUsage(5, 4, 3, 1),
        ),
        (None, BatchUsage()),
        ([], BatchUsage()),
    ],
)
def test_usage_is_that_of_either_api(usage: Any, expected: BatchUsage) -> None:
    assert BatchUsage.read(usage) == expected


def test_usage_adds_up() -> None:
    total = BatchUsage()
    for _ in range(3):
        total.add(BatchUsage(5, 4, 3, 1))
    assert total == BatchUsage(15, 12, 9, 3)
