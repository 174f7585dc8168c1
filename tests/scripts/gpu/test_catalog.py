from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from scripts.gpu.catalog import UnknownExperimentError, catalog, chosen
from scripts.gpu.server import ServerSpec
from tests.scripts.gpu.hosts import gpu_host

MUST_BE_PROVED = {
    *("front-page-1", "front-page-64", "ngram", "kv-events", "hicache", "resume-after-kill", "sleep-and-wake"),
    *("flashinfer-page-1", "flashinfer-page-16", "flashinfer-page-64", "fa3-page-16", "fa3-page-64"),
    *("triton-page-1", "triton-page-16", "kv-bf16", "kv-fp8", "tp-2", "dp-2", "front-dp-2", "up"),
}


def specs() -> list[ServerSpec]:
    return list(dict.fromkeys(spec for experiment in catalog() for spec in experiment.servers))


def flags(spec: ServerSpec) -> list[str]:
    return spec.argv(gpu_host(), 30000)


def test_everything_that_must_be_proved_is_there_once() -> None:
    names = Counter(experiment.name for experiment in catalog())
    assert set(names) >= MUST_BE_PROVED
    assert set(names.values()) == {1}


def test_servers_with_one_name_are_one_server() -> None:
    """A server's name is that of its log and of its place in the results."""
    assert max(Counter(spec.name for spec in specs()).values()) == 1


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.name)
def test_a_server_can_be_started_on_a_gpu(spec: ServerSpec) -> None:
    argv = flags(spec)
    assert argv[:3] == ["python3", "-m", "sglang.launch_server"]
    assert argv[argv.index("--device") + 1] == "cuda"
    assert ("dummy" in argv) == (spec.model != "real")
    assert len([flag for flag in argv if flag.startswith("--")]) == len({f for f in argv if f.startswith("--")})


def test_a_spec_says_how_its_server_is_started() -> None:
    argv = flags(
        ServerSpec("one", "llama8b", "fa3", 64, tokens=4096, context=2048, tp=2, extra=("--hicache-size", "4"))
    )
    pairs = dict(itertools.pairwise(argv))
    assert pairs["--model-path"] == "/models/llama8b"
    assert pairs["--attention-backend"] == "fa3"
    assert pairs["--page-size"] == "64"
    assert pairs["--max-total-tokens"] == "4096"
    assert pairs["--context-length"] == "2048"
    assert pairs["--mem-fraction-static"] == "0.9"
    assert pairs["--tp-size"] == "2"
    assert pairs["--hicache-size"] == "4"


def test_on_a_cpu_it_is_the_real_model_and_a_small_cache() -> None:
    spec = ServerSpec("one", "llama8b", "fa3", 64, tokens=None, dp=2)
    argv = spec.argv(replace(gpu_host(), device="cpu"), 30000)
    pairs = dict(itertools.pairwise(argv))
    assert pairs["--model-path"] == "/models/real"
    assert pairs["--attention-backend"] == "torch_native"
    assert pairs["--max-total-tokens"] == "16384"
    assert pairs["--dp-size"] == "1"
    assert "--mem-fraction-static" not in argv
    assert "dummy" not in argv


def test_speculation_differs_by_its_flag_alone() -> None:
    plain, guessing = next(one.servers for one in catalog() if one.name == "ngram")
    more = ["--speculative-algorithm", "NGRAM"]
    assert flags(guessing) == [*flags(plain), *more]


def test_precisions_differ_by_their_flag_alone() -> None:
    by_name = {spec.name: flags(spec) for spec in specs()}
    assert by_name["kv-bf16"][:-1] == by_name["kv-fp8"][:-1]
    assert (by_name["kv-bf16"][-1], by_name["kv-fp8"][-1]) == ("bf16", "fp8_e5m2")


def test_names_choose_in_their_order() -> None:
    assert [one.name for one in chosen(["ngram", "front-page-1"], 1, "cuda")] == ["ngram", "front-page-1"]


def test_without_names_the_number_of_gpus_chooses() -> None:
    assert [one.name for one in chosen([], 2, "cuda")] == ["tp-2", "dp-2", "front-dp-2"]
    assert {one.name for one in chosen([], 1, "cuda")}.isdisjoint({"tp-2", "dp-2", "front-dp-2"})
    assert all(one.on_cpu for one in chosen([], 1, "cpu"))


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(UnknownExperimentError, match="no experiment tp-3; there are front-page-1"):
        chosen(["ngram", "tp-3"], 1, "cuda")
