"""Which version a session gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import RegistryError
from router.registry.rollout import Rollout

SESSIONS = [f"session-{number}" for number in range(20_000)]
CANARY = Rollout().changed({"stable": 95, "canary": 5})


def share(rollout: Rollout, version: str) -> float:
    return sum(rollout.choice(one)[0] == version for one in SESSIONS) / len(SESSIONS)


def moved(one: Rollout, other: Rollout) -> float:
    return sum(one.choice(name)[0] != other.choice(name)[0] for name in SESSIONS) / len(SESSIONS)


def test_without_a_rollout_there_is_one_version() -> None:
    assert Rollout().choice("a") == ("stable",)


def test_new_sessions_are_split_as_the_weights_say() -> None:
    assert abs(share(CANARY, "canary") - 0.05) < 0.006
    three = Rollout({"a": 1, "b": 2, "c": 1})
    assert abs(share(three, "b") - 0.5) < 0.012
    assert abs(share(three, "c") - 0.25) < 0.012


def test_a_small_change_of_weights_moves_few() -> None:
    more = CANARY.changed({"stable": 90, "canary": 10})
    assert abs(moved(CANARY, more) - 0.05) < 0.006
    assert all(more.choice(one)[0] == "canary" for one in SESSIONS if CANARY.choice(one)[0] == "canary")
    assert moved(CANARY, CANARY.changed({"stable": 950, "canary": 50})) < 0.001


weights = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 1000), min_size=1).filter(
    lambda one: any(one.values())
)


@given(weights, st.text(max_size=20), st.randoms())
def test_two_fronts_choose_alike_whatever_order_they_learned_the_weights_in(
    given_weights: dict[str, int], session: str, dice: object
) -> None:
    items = list(given_weights.items())
    choice = Rollout(dict(items)).choice(session)
    assert Rollout(dict(reversed(items))).choice(session) == choice
    assert set(choice) == {version for version, weight in items if weight}


@given(weights, st.text(max_size=20), st.sampled_from("abcde"))
def test_raising_one_weight_moves_sessions_to_that_version_alone(
    given_weights: dict[str, int], session: str, raised: str
) -> None:
    before = Rollout(given_weights).choice(session)[0]
    after = Rollout({**given_weights, raised: given_weights.get(raised, 0) + 500}).choice(session)[0]
    assert after in (before, raised)


def test_a_pinned_session_stays_whatever_the_weights() -> None:
    stopped = CANARY.changed({"stable": 100, "canary": 0})
    assert stopped.choice("x", pinned="canary") == ("canary", "stable")
    assert share(stopped, "canary") == 0


def test_a_rollback_returns_to_before_the_rollout_and_withdraws_what_lost() -> None:
    further = CANARY.changed({"stable": 90, "canary": 10}).changed({"stable": 0, "canary": 100})
    back = further.rolled_back()
    assert back.weights == {"stable": 1}
    assert back.withdrawn == {"canary"}
    assert back.choice("x", pinned="canary") == ("stable",)
    assert back.choice("x", pinned="stable") == ("stable",)


def test_there_is_one_rollback_to_a_rollout() -> None:
    for rollout in (Rollout(), CANARY.rolled_back()):
        with pytest.raises(RegistryError, match="nothing to roll back to"):
            rollout.rolled_back()


def test_the_next_rollout_returns_to_the_one_that_was_finished() -> None:
    finished = CANARY.changed({"canary": 1})
    back = finished.changed({"canary": 9, "v3": 1}).rolled_back()
    assert (dict(back.weights), back.withdrawn) == ({"canary": 1}, frozenset({"v3"}))


def test_a_version_that_was_withdrawn_may_come_back() -> None:
    again = CANARY.rolled_back().changed({"stable": 1, "canary": 1})
    assert again.withdrawn == frozenset()
    assert again.choice("x", pinned="canary")[0] == "canary"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({}, "no version has a weight"),
        ({"stable": 0}, "no version has a weight"),
        ({"stable": -1, "canary": 2}, "the weight -1 of stable"),
        ({"a b": 1}, "cannot name a version"),
        ({f"v{number}": 1 for number in range(17)}, "17 versions are too many"),
    ],
)
def test_weights_that_cannot_be_are_refused(bad: dict[str, int], said: str) -> None:
    with pytest.raises(RegistryError, match=said):
        Rollout().changed(bad)
