"""What a replica has to do, and how fast it does it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pace import Pace
from router.standing import Berth, Standing


def measured(tokens: int, seconds: float) -> Pace:
    pace = Pace()
    pace.prefilled(tokens, seconds)
    return pace


def test_a_request_counts_from_its_placement_to_its_end() -> None:
    standing = Standing("a")
    berth = Berth(standing, 500, document=False)
    assert (standing.in_flight, standing.prefilling, standing.chat_tokens) == (1, 1, 500)
    berth.computed(200)
    assert standing.chat_tokens == 300
    berth.prefilled()
    assert (standing.in_flight, standing.decoding, standing.chat_tokens) == (1, 1, 0)
    berth.leave()
    assert (standing.in_flight, standing.decoding) == (0, 0)


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.booleans(), st.lists(st.integers(1, 3000), max_size=3), st.booleans()),
        max_size=8,
    )
)
def test_counts_return_to_zero_however_requests_end(ends: list[tuple[int, bool, list[int], bool]]) -> None:
    standing = Standing("a")
    berths = [(Berth(standing, tokens, document), done, first) for tokens, document, done, first in ends]
    for berth, done, first in berths:
        for tokens in done:
            berth.computed(tokens)
        if first:
            berth.prefilled()
            berth.prefilled()
    for berth, _, _ in berths:
        berth.leave()
    counts = (
        standing.in_flight,
        standing.prefilling,
        standing.documents,
        standing.chat_tokens,
        standing.document_tokens,
    )
    assert counts == (0, 0, 0, 0, 0)


def test_what_the_server_says_is_waiting_counts_when_it_is_more_than_we_know_of() -> None:
    standing = Standing("a", chat_tokens=100, pace=measured(1000, 1.0))
    assert standing.cost_s(400) == pytest.approx(0.5)
    standing.reported_tokens = 4000
    assert standing.cost_s(400) == pytest.approx(4.4)


def test_a_document_waits_for_the_documents_before_it_and_a_chat_only_for_a_few_slices() -> None:
    busy = Standing("a", document_tokens=50_000, documents=1, pace=measured(10_000, 1.0))
    assert busy.cost_s(20_000) == pytest.approx(7.0)
    for left, felt in [(500_000, 4 * 960), (50_000, 2_500), (5_000, 960), (500, 500)]:
        busy.document_tokens = left
        assert busy.cost_s(1000) == pytest.approx((felt + 1000) / 10_000)


def test_a_replica_has_room_until_it_runs_all_it_can_or_has_two_chunks_ahead() -> None:
    assert Standing("a", in_flight=7, most_running=8).has_room(document=False)
    assert not Standing("a", in_flight=8, most_running=8).has_room(document=False)
    assert Standing("a", chat_tokens=2000, chunk=1000).has_room(document=False)
    assert not Standing("a", chat_tokens=2001, chunk=1000).has_room(document=False)


def test_one_document_at_a_time_and_it_takes_no_room_from_chats() -> None:
    standing = Standing("a", document_tokens=90_000, documents=1)
    assert not standing.has_room(document=True)
    assert standing.has_room(document=False)


def test_the_first_measurement_replaces_the_guess_and_long_ones_weigh_more() -> None:
    pace = measured(1000, 0.5)
    assert 1 / pace.prefill_s == pytest.approx(2000)
    pace.prefilled(100, 0.2)
    assert 1800 < 1 / pace.prefill_s < 2000
    pace.prefilled(100_000, 100.0)
    assert 1 / pace.prefill_s == pytest.approx(1000, rel=0.1)


def test_what_has_not_been_measured_of_a_replica_is_as_in_its_fleet() -> None:
    fleet = measured(1000, 1.0)
    fleet.decoded(10, 1.0)
    one, other = Pace(), measured(1000, 4.0)
    for pace in (one, other):
        pace.assume(fleet)
    assert (one.prefill_s, one.token_s, one.slice_tokens) == (0.001, 0.1, 64)
    assert (other.prefill_s, other.token_s) == (0.004, 0.1)


def test_a_servers_totals_are_measured_between_two_looks_and_from_anew_after_its_restart() -> None:
    pace = Pace()
    assert pace.totals(10_000, 2.0) == (10_000, 2.0)
    assert pace.prefill_s == 1 / 5000
    assert pace.totals(12_000, 2.5) == (2000, 0.5)
    assert 4000 < 1 / pace.prefill_s < 5000
    assert pace.totals(500, 0.1) == (500, 0.1)
    assert pace.totals(8500, 2.1) == (8000, 2.0)


def test_a_slice_takes_a_tenth_of_a_second_and_is_worth_a_request() -> None:
    assert measured(50_000, 1.0).slice_tokens == 4992
    assert measured(500, 1.0).slice_tokens == 64


def test_a_slice_is_longer_where_each_one_pays_for_all_before_it() -> None:
    pace = measured(500, 1.0)
    pace.attends_by("torch_native")
    assert pace.slice_tokens == 1024
    pace.prefilled(4096, 8.0)
    assert pace.slice_tokens == 1024
    pace.attends_by("flashinfer")
    assert pace.slice_tokens == 64
