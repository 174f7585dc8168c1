from __future__ import annotations

import pytest

from router.engine.profile import load_profile
from scripts.engine_flags import Figures, Variant, table, variants


def test_every_variant_is_the_default_profile_with_one_thing_changed() -> None:
    profile = load_profile("cpu-smollm2")
    chosen = list(variants(cpus=2))
    assert len({one.name for one in chosen}) == len(chosen)
    assert [len(one.changes) for one in chosen] == [0] + [1] * (len(chosen) - 1)
    for one in chosen:
        type(profile).model_validate(one.of(profile).model_dump())


def test_a_variant_keeps_what_else_the_profile_says_of_the_environment() -> None:
    changed = Variant("x", {"environment": {"KMP_BLOCKTIME": "1"}}).of(load_profile("cpu-smollm2"))
    assert changed.environment == {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "1"}


@pytest.mark.parametrize("value", [None, 5.0])
def test_the_best_of_each_column_is_bold_and_what_failed_says_why(value: float | None) -> None:
    figures = [
        Figures("a", {}, sglang_ready_s=30.0, ready_s=31.5, prefill=900.0, decode_1=16.0, decode_4=value),
        Figures("b", {}, sglang_ready_s=29.0, ready_s=31.0, prefill=800.0, decode_1=17.0, decode_4=4.0),
        Figures("c", {}, failed="the engine died: no; log: /x"),
    ]
    _, _, first, second, third = table(figures).splitlines()
    assert first == f"| a | 30 | 31.5 | **900** | 16 | {'–' if value is None else '**5**'} |"
    assert second == f"| b | **29** | **31** | 800 | **17** | {'**4**' if value is None else '4'} |"
    assert third == "| c | the engine died: no | | | | |"
