"""The routers' workloads: the same sessions from the same seed, within what was asked for."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs.workloads.mixes import CHARS_PER_TOKEN, MIXES, Size, Texts, chats_alone, chats_and_document
from programs.workloads.traffic import Talk, arrivals

TEXTS = Texts(
    policies=tuple(f"Policy {number}: {'be kind to whoever asks. ' * 900}" for number in range(4)),
    lines=tuple(f"line {number}: would you tell me more about that, please?" for number in range(200)),
    prose="Now is the winter of our discontent made glorious summer by this sun of York. " * 4_000,
)
SIZE = Size(replicas=8, seconds=60, context=40_960, kv_tokens=65_536)


@pytest.mark.parametrize("name", MIXES)
def test_a_seed_is_a_schedule(name: str) -> None:
    assert MIXES[name](TEXTS, SIZE, 1) == MIXES[name](TEXTS, SIZE, 1)
    assert MIXES[name](TEXTS, SIZE, 1) != MIXES[name](TEXTS, SIZE, 2)


@pytest.mark.parametrize("name", MIXES)
@settings(max_examples=10)
@given(seed=st.integers(0, 1_000), context=st.sampled_from((4_096, 8_192, 32_768)))
def test_no_session_outgrows_the_context(name: str, seed: int, context: int) -> None:
    for talk in MIXES[name](TEXTS, replace(SIZE, replicas=2, context=context), seed):
        assert tokens(talk) <= context


@pytest.mark.parametrize("name", MIXES)
def test_sessions_begin_within_the_run_one_after_the_other(name: str) -> None:
    talks = MIXES[name](TEXTS, SIZE, 3)
    starts = [talk.start_s for talk in talks]
    assert starts == sorted(starts)
    assert starts[0] >= 0
    assert starts[-1] <= SIZE.seconds or name == "beyond-capacity"
    assert len({talk.key for talk in talks}) == len(talks)


def test_most_chats_share_the_longest_policy() -> None:
    systems = [talk.system for talk in MIXES["shared-prompt"](TEXTS, SIZE, 1)]
    counts = sorted((systems.count(system) for system in set(systems)), reverse=True)
    assert len(counts) == 4
    assert counts[0] > len(systems) * 0.4


def test_long_lived_sessions_are_together_more_than_the_replicas_hold() -> None:
    talks = MIXES["beyond-capacity"](TEXTS, SIZE, 1)
    together = sum(tokens(talk) for talk in talks)
    assert 1.2 < together / (SIZE.replicas * SIZE.kv_tokens) < 2
    assert len({talk.system for talk in talks}) == len(talks)


def test_some_sessions_bring_a_document() -> None:
    talks = MIXES["documents"](TEXTS, SIZE, 1)
    documents = [talk for talk in talks if talk.kind == "document"]
    assert 0.05 < len(documents) / len(talks) < 0.3
    assert all(len(talk.asks[0].text) > 7_900 * CHARS_PER_TOKEN for talk in documents)


def test_the_document_comes_in_the_midst_of_the_same_fifty_chats() -> None:
    alone, beside = chats_alone(TEXTS, SIZE, 1), chats_and_document(TEXTS, SIZE, 1)
    (document,) = set(beside) - set(alone)
    assert (len(alone), document.kind, document.start_s) == (50, "document", 30)
    assert len(document.asks[0].text) > 29_900 * CHARS_PER_TOKEN


def test_arrivals_come_at_their_rate() -> None:
    times = arrivals(5.0, 1_000, random.Random(1))
    assert times == sorted(times)
    assert abs(len(times) - 5_000) < 300


def test_load_multiplies_arrivals() -> None:
    once, twice = (len(MIXES["thinking"](TEXTS, replace(SIZE, seconds=600, load=load), 1)) for load in (1.0, 2.0))
    assert 1.7 < twice / once < 2.3


def tokens(talk: Talk) -> float:
    """At most, as far as the generator can know."""
    answers = sum(ask.max_tokens for ask in talk.asks) * (talk.loop + 1)
    return talk.characters / CHARS_PER_TOKEN + answers
