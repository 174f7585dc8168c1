"""The document workload: the same for the same seed, of real lines."""

from __future__ import annotations

import pytest

from programs.workloads.documents import document_questions

PROSE = "\n".join(f"{number}: what is in this line is its number, which is {number}." for number in range(2_000))


def test_questions_are_about_different_lines_all_over_the_text() -> None:
    work = document_questions(PROSE, 20_000, 16, seed=1)

    quoted = [question.split('"')[1] for question in work.questions]
    assert len(work.text) == 20_000
    assert work.text in PROSE
    assert len(set(quoted)) == 16
    assert all(f"\n{line}\n" in work.text for line in quoted)
    assert work.text.index(quoted[0]) < 1_000
    assert work.text.index(quoted[-1]) > 15_000


def test_a_seed_says_what_is_asked_of_what() -> None:
    assert document_questions(PROSE, 9_000, 4, seed=1) == document_questions(PROSE, 9_000, 4, seed=1)
    assert document_questions(PROSE, 9_000, 4, seed=1) != document_questions(PROSE, 9_000, 4, seed=2)


def test_a_text_that_is_too_short_for_its_questions_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer than 16"):
        document_questions(PROSE, 300, 16, seed=1)
