"""What could be reused, and why something was not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from programs.explain import MissReason, Reuse

FULL = Reuse(held=100, common=100, foreseen=100, prompt=150, page=16, previous_replica="a", changed=None)


@pytest.mark.parametrize(
    ("reuse", "expected"),
    [
        (FULL, 96),
        (replace(FULL, held=95), 80),
        (replace(FULL, held=96), 96),
        (replace(FULL, foreseen=50), 48),
        (replace(FULL, page=1), 100),
        (replace(FULL, prompt=96), 80),  # SGLang never matches the last token
        (replace(FULL, prompt=97), 96),
        (replace(FULL, held=0, common=0, foreseen=0), 0),
        (replace(FULL, prompt=1), 0),
    ],
)
def test_whole_pages_before_the_last_token_can_be_reused(reuse: Reuse, expected: int) -> None:
    assert reuse.reusable_tokens == expected


@pytest.mark.parametrize(
    ("reuse", "cached", "replica", "expected"),
    [
        (replace(FULL, previous_replica=None), 0, "a", "cold"),
        (FULL, 96, "a", None),
        (FULL, 112, "b", None),
        (FULL, 80, "a", "evicted"),
        (FULL, 0, "b", "moved"),
        (replace(FULL, common=40, changed="client_edit"), 32, "a", "client_edit"),
        (replace(FULL, common=40, changed="tools_changed"), 16, "a", "evicted"),
        (replace(FULL, common=40, changed="template_rewrite"), 0, "b", "moved"),
        (replace(FULL, common=40, foreseen=70, changed="template_rewrite"), 32, "a", "template_rewrite"),
        (replace(FULL, common=40, foreseen=70, changed="template_rewrite"), 64, "a", None),
    ],
)
def test_a_miss_has_one_reason(reuse: Reuse, cached: int, replica: str, expected: MissReason | None) -> None:
    assert reuse.miss_reason(cached, replica) == expected
