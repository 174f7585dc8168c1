"""What is asked of the replica that goes on."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.request import Delta, Finish, GenerateRequest, Sampling, Urgency
from router.resume import Progress, completed, continued, obstacle

RID, OTHER = "a" * 32, "b" * 32
URGENCY = Urgency("someone", "batch", 3.0)
IDS = st.lists(st.integers(0, 50), max_size=40)


def request(prompt: list[int], **sampling: Any) -> GenerateRequest:
    chosen = Sampling(**({"max_new_tokens": 50} | sampling))
    return GenerateRequest(RID, array("I", prompt), chosen, home="a", session="s", cache_salt="salt", urgency=URGENCY)


@given(prompt=IDS, emitted=IDS.filter(bool))
def test_what_came_before_is_prompt_and_the_rest_is_still_to_come(prompt: list[int], emitted: list[int]) -> None:
    whole = request(prompt, seed=7, stop=("x",), stop_token_ids=(3,), temperature=0.5)
    rest = continued(whole, emitted, OTHER)
    assert rest.prompt_ids.tolist() == prompt + emitted
    assert rest.sampling.max_new_tokens + len(emitted) == 50
    assert (rest.rid, rest.home, rest.urgency) == (OTHER, None, replace(URGENCY, deadline_s=None))
    assert (rest.session, rest.cache_salt) == ("s", "salt")
    assert (rest.sampling.seed, rest.sampling.stop, rest.sampling.stop_token_ids) == (7, ("x",), (3,))
    assert whole.prompt_ids.tolist() == prompt


def test_with_nothing_before_it_is_the_same_request_again() -> None:
    again = continued(request([1, 2]), [], OTHER)
    assert (again.rid, again.home, again.urgency, again.prompt_ids.tolist()) == (OTHER, "a", URGENCY, [1, 2])


@given(one=IDS.filter(bool), other=IDS.filter(bool), penalty=st.floats(-2, 2))
def test_going_on_twice_asks_for_the_same_as_going_on_once(one: list[int], other: list[int], penalty: float) -> None:
    whole = request([1], max_new_tokens=100, frequency_penalty=penalty, logit_bias=((2, 0.5),))
    once = continued(whole, one + other, OTHER)
    twice = continued(continued(whole, one, OTHER), other, OTHER)
    assert once.prompt_ids == twice.prompt_ids
    assert once.sampling.max_new_tokens == twice.sampling.max_new_tokens
    assert dict(once.sampling.logit_bias) == pytest.approx(dict(twice.sampling.logit_bias))


def test_a_frequency_penalty_has_counted_what_came_before() -> None:
    whole = request([1], frequency_penalty=0.25, logit_bias=((7, -1.0), (9, 2.0)))
    rest = continued(whole, [7, 8, 8, 7, 8], OTHER)
    assert dict(rest.sampling.logit_bias) == {7: -1.5, 8: -0.75, 9: 2.0}
    assert rest.sampling.frequency_penalty == 0.25


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({}, None),
        ({"temperature": 0.9, "seed": 1, "frequency_penalty": 1.0, "stop": ("x",)}, None),
        ({"presence_penalty": 0.0, "repetition_penalty": 1.0}, None),
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"json_schema": "{}"}, "grammar"),
    ],
)
def test_what_could_not_go_on_exactly_is_named(sampling: dict[str, Any], said: str | None) -> None:
    found = obstacle(Sampling(max_new_tokens=5, **sampling))
    assert found is None if said is None else found is not None and said in found


@pytest.mark.parametrize(
    ("emitted", "finish"),
    [
        ([], None),
        ([5, 6], None),
        ([5, 3], Finish("stop", 3)),
        ([5, 6, 7], Finish("length")),
        ([5, 6, 3], Finish("stop", 3)),
    ],
)
def test_a_stream_that_had_all_its_tokens_has_ended(emitted: list[int], finish: Finish | None) -> None:
    assert completed(request([1], max_new_tokens=3, stop_token_ids=(3,)), emitted) == finish


def test_a_client_is_told_what_the_first_replica_had_cached() -> None:
    progress = Progress(request([1, 2, 3]))
    first = progress.add(Delta((4,), "a", cached_tokens=2))
    progress.resumes += 1
    last = progress.add(Delta((5, 6), "b", Finish("length"), cached_tokens=0))
    assert (first.cached_tokens, first.resumes) == (2, 0)
    assert (last.cached_tokens, last.resumes, last.replica) == (2, 1, "b")
    assert progress.ids.tolist() == [4, 5, 6]
