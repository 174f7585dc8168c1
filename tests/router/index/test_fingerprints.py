from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.fingerprints import Fingerprints

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=200)


def keys(ids: list[int], salt: str | None = None, step: int = 4, stride: int | None = None) -> list[int]:
    return list(Fingerprints.of(array("I", ids), salt, step).keys(stride or step))


@given(IDS, IDS, IDS, st.sampled_from([None, "a"]))
def test_prompts_share_the_fingerprints_of_what_they_share(
    shared: list[int], one: list[int], other: list[int], salt: str | None
) -> None:
    same = 0
    first, second = shared + one, shared + other
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    left, right = keys(first, salt), keys(second, salt)
    assert left[: same // 4] == right[: same // 4]
    assert not set(left[same // 4 :]) & set(right[same // 4 :])


@given(IDS)
def test_there_is_one_every_step_and_no_two_are_alike(ids: list[int]) -> None:
    found = keys(ids)
    assert len(found) == len(ids) // 4
    assert len(set(found)) == len(found)


@given(IDS, st.sampled_from([1, 2, 3]))
def test_a_stride_takes_every_so_many(ids: list[int], times: int) -> None:
    assert keys(ids, stride=4 * times) == keys(ids)[times - 1 :: times]
    assert keys(ids, step=4 * times) == keys(ids)[times - 1 :: times]


def test_salts_and_adapters_share_nothing() -> None:
    ids = array("I", range(16))
    found = [
        list(Fingerprints.of(ids, salt, 4, lora).keys(4))
        for salt in (None, "", "a", "b")
        for lora in (None, "", "a", "b")
    ]
    assert len({key for one in found for key in one}) == 16 * 4


def test_without_salt_a_salted_prompt_is_like_one_that_has_none() -> None:
    assert list(Fingerprints.of(array("I", range(16)), "a", 4).keys(4, salted=False)) == keys(list(range(16)))


def test_zeros_count() -> None:
    assert len(set(keys([0] * 400))) == 100


def test_every_front_computes_the_same() -> None:
    assert keys([1, 2, 3, 4, 5, 6, 7, 8], "tenant") == [
        584843842033030679,
        889471567720481499,
    ]


def test_a_step_is_at_least_a_token() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Fingerprints.of(array("I", [1]), None, 0)
