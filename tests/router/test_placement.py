"""Which replica takes a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.placement import Candidate, choose

CANDIDATES = st.lists(
    st.builds(Candidate, st.sampled_from("abcdef"), st.booleans(), st.integers(0, 12)),
    max_size=6,
    unique_by=lambda one: one.name,
)


@pytest.mark.parametrize(
    ("loads", "home", "expected"),
    [
        ({"a": 0, "b": 0}, "b", "b"),
        ({"a": 0, "b": 4}, "b", "b"),
        ({"a": 0, "b": 5}, "b", "a"),
        ({"a": 3, "b": 2, "c": 9}, None, "b"),
        ({"a": 3, "b": 2}, "gone", "b"),
        ({"a": 7}, None, "a"),
        ({}, "a", None),
    ],
)
def test_a_home_keeps_its_sessions_until_it_is_much_busier(
    loads: dict[str, int], home: str | None, expected: str | None
) -> None:
    candidates = [Candidate(name, True, in_flight) for name, in_flight in loads.items()]
    assert choose(candidates, home, ()) == expected


@given(candidates=CANDIDATES, home=st.sampled_from("abcdef"), tried=st.sets(st.sampled_from("abcdef")))
def test_only_available_replicas_are_chosen_and_untried_ones_first(
    candidates: list[Candidate], home: str, tried: set[str]
) -> None:
    available = {one.name for one in candidates if one.available}
    chosen = choose(candidates, home, tried)
    assert (chosen is None) == (not available)
    assert chosen is None or chosen in (available - tried or available)


@given(candidates=CANDIDATES)
def test_without_a_home_the_idlest_is_chosen(candidates: list[Candidate]) -> None:
    chosen = choose(candidates, None, ())
    loads = {one.name: one.in_flight for one in candidates if one.available}
    assert chosen is None or loads[chosen] == min(loads.values())
