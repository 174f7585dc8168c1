"""Which replica takes a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pace import Pace
from router.placement import Wanted, choose
from router.standing import Standing

NAMES = st.sampled_from("abcdef")
STANDINGS = st.lists(
    st.builds(
        Standing,
        NAMES,
        in_flight=st.integers(0, 40),
        chat_tokens=st.integers(0, 50_000),
        document_tokens=st.integers(0, 50_000),
        reported_tokens=st.integers(0, 50_000),
    ),
    max_size=6,
    unique_by=lambda one: one.name,
)
HELD = st.dictionaries(NAMES, st.integers(1, 8000))


def paced(tokens_per_s: int) -> Pace:
    pace = Pace()
    pace.prefilled(tokens_per_s, 1.0)
    return pace


def standing(name: str, queued: int = 0, decoding: int = 0) -> Standing:
    return Standing(name, in_flight=decoding, chat_tokens=queued, pace=paced(1000))


@pytest.mark.parametrize(
    ("standings", "wanted", "expected"),
    [
        # all alike: the home; nothing known: the idlest
        ([standing("a"), standing("b")], Wanted(100, home="b"), ("b", "home")),
        ([standing("a", decoding=3), standing("b", decoding=2)], Wanted(100), ("b", "balance")),
        # a cached prefix is worth the tokens that need not be computed …
        ([standing("a"), standing("b")], Wanted(3000, {"b": 2900}), ("b", "prefix")),
        ([standing("a"), standing("b", queued=2500)], Wanted(3000, {"b": 2900}), ("b", "prefix")),
        # … and no more: a shared system prompt does not drag all requests to one replica
        ([standing("a"), standing("b", queued=3000)], Wanted(3000, {"b": 2900}), ("a", "balance")),
        ([standing("a"), standing("b", decoding=200)], Wanted(3000, {"b": 2900}), ("a", "balance")),
        # what costs nearly the same is decided by what is cached, then by what is in flight
        ([standing("a"), standing("b")], Wanted(64, {"b": 60}), ("b", "prefix")),
        ([standing("a", queued=3), standing("b", queued=4)], Wanted(64, {"b": 1}), ("b", "prefix")),
        # a home keeps its sessions until it is much dearer
        ([standing("a"), standing("b", queued=4000)], Wanted(3000, {"b": 2900}, home="b"), ("b", "home")),
        ([standing("a"), standing("b", queued=9000)], Wanted(3000, {"b": 2900}, home="b"), ("a", "moved")),
        # … and until much dearer still where what it would push out elsewhere will be asked for again
        ([standing("a"), standing("b", queued=5900)], Wanted(4000, {"b": 3900}, "b"), ("b", "home")),
        ([standing("a"), standing("b", queued=7000)], Wanted(4000, {"b": 3900}, "b"), ("a", "moved")),
        ([standing("a"), standing("b", queued=7000)], Wanted(4000, {"b": 3900}, "b", returning=0.5), ("b", "home")),
        (
            [standing("a"), standing("b", queued=7000)],
            Wanted(4000, {"b": 3900}, "b", room=lambda name: 4000, returning=0.5),
            ("a", "moved"),
        ),
        ([standing("a")], Wanted(100, home="gone"), ("a", "homeless")),
        ([standing("a"), standing("b")], Wanted(100, home="b", tried="b"), ("a", "retry")),
    ],
)
def test_the_cheapest_is_chosen_and_a_home_has_an_advantage(
    standings: list[Standing], wanted: Wanted, expected: tuple[str, str]
) -> None:
    chosen = choose(standings, wanted)
    assert chosen is not None
    assert (chosen.name, chosen.reason) == expected


def test_a_placement_says_what_is_cached_and_what_it_would_have_cost_elsewhere() -> None:
    chosen = choose([standing("a"), standing("b", queued=500)], Wanted(3000, {"b": 2900}))
    assert chosen is not None
    assert (chosen.cached, chosen.uncached, chosen.document) == (2900, 100, False)
    assert dict(chosen.costs) == pytest.approx({"b": 0.6, "a": 3.0})
    assert [name for name, _ in chosen.costs] == ["b", "a"]


def test_all_but_the_last_token_of_a_prompt_can_be_cached() -> None:
    chosen = choose([standing("a")], Wanted(64, {"a": 64}))
    assert chosen is not None
    assert (chosen.cached, chosen.uncached) == (63, 1)


@pytest.mark.parametrize(
    ("standings", "held", "expected"),
    [
        # equal but for what was measured of their pace: to where nothing need be dropped for it …
        ([standing("a"), standing("b")], {}, "b"),
        ([standing("a"), Standing("b", pace=paced(950))], {}, "b"),
        # … never for a dearer one, nor a busier one, nor one that holds less
        ([standing("a"), Standing("b", pace=paced(800))], {}, "a"),
        ([standing("a"), standing("b", decoding=1)], {}, "a"),
        ([standing("a"), standing("b")], {"a": 16}, "a"),
    ],
)
def test_of_equal_replicas_the_one_with_the_most_room_in_its_cache_is_chosen(
    standings: list[Standing], held: dict[str, int], expected: str
) -> None:
    room = {"a": 100, "b": 200}
    chosen = choose(standings, Wanted(3000, held, room=room.__getitem__))
    assert chosen is not None
    assert chosen.name == expected


@given(standings=STANDINGS, held=HELD, home=NAMES, tried=st.sets(NAMES))
def test_untried_replicas_are_chosen_first_and_tried_ones_rather_than_none(
    standings: list[Standing], held: dict[str, int], home: str, tried: set[str]
) -> None:
    names = {one.name for one in standings}
    chosen = choose(standings, Wanted(8000, held, home, tried))
    assert (chosen is None) == (not names)
    assert chosen is None or chosen.name in (names - tried or names)


@given(standings=STANDINGS, held=HELD)
def test_without_a_home_nothing_is_noticeably_cheaper_than_what_is_chosen(
    standings: list[Standing], held: dict[str, int]
) -> None:
    chosen = choose(standings, Wanted(8000, held))
    costs = {one.name: one.cost_s(max(1, 8000 - held.get(one.name, 0))) for one in standings}
    assert chosen is None or costs[chosen.name] <= (min(costs.values()) + 0.005) * 1.1 + 0.005


def test_what_is_long_to_compute_is_a_document_and_a_long_prompt_that_is_cached_is_none() -> None:
    for held, document in (({}, True), ({"a": 39_000}, False)):
        chosen = choose([standing("a")], Wanted(40_000, held))
        assert chosen is not None
        assert chosen.document == document
