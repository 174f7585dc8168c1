"""Plans against what is known and what was measured. How SGLang itself counts is checked in tests/real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.engine.advice import recommend, remedies
from router.engine.architecture import Architecture
from router.engine.device import GIB, Devices, cpu, gpu_names, parse_devices
from router.engine.plan import Plan
from router.engine.plan_request import PlanRequest
from router.engine.profile import load_profile
from router.engine.speculation import Speculation
from router.errors import ModelError, PreflightError
from tests.router.engine.test_architecture import PUBLISHED, config_of, read

MEASURED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "measured_kv.json").read_text())


def plan(name: str, gpus: str, **changes: Any) -> Plan:
    devices = parse_devices(gpus)
    return Plan(read(name), PlanRequest(**{"devices": devices, "tp": devices.count, **changes}))


def measured_devices(entry: dict[str, Any]) -> Devices:
    """`free_gib`, where it was seen, stands for what we would assume to be free of that device."""
    if entry["device"] == "cpu":
        return Devices(1, cpu(int(entry["free_gib"] * GIB)))
    devices = parse_devices(entry["device"])
    if "free_gib" not in entry:
        return devices
    return Devices(devices.count, replace(devices.device, free=int(entry["free_gib"] * GIB)))


@pytest.mark.parametrize("entry", MEASURED, ids=lambda entry: f"{entry['architecture']}-{entry['device']}")
def test_a_plan_is_within_5_percent_of_what_an_engine_reported(entry: dict[str, Any]) -> None:
    """An entry is one engine. `architecture` names a file of ours, or is a config.json itself; `device` is as --gpus
    takes it; `request` holds the fields of PlanRequest that its flags set."""
    architecture = entry["architecture"]
    found = read(architecture) if isinstance(architecture, str) else Architecture.of(architecture)
    answer = Plan(found, PlanRequest(devices=measured_devices(entry), **entry["request"]))
    assert answer.pool.tokens == pytest.approx(entry["max_total_num_tokens"], rel=0.05)


def test_the_sum_is_sglangs() -> None:
    """Free × fraction = weights + KV cache, in whole pages."""
    found = plan("llama-3.1-8b", "H100-80G", mem_fraction=0.8)
    left = found.free * 0.8 - found.weights - found.pool.tokens * 131072
    assert 0 <= left < 16 * 131072
    assert found.weights == 2 * found.architecture.parameters.total
    assert found.pool.tokens % 16 == 0


def test_tensor_parallelism_divides_kv_heads_but_not_below_one_and_latent_kv_not_at_all() -> None:
    assert plan("llama-3.1-8b", "4xH100-80G").cell.full == 131072 // 4
    assert plan("qwen3-30b-a3b", "8xH100-80G").cell.full == 98304 // 4
    assert plan("deepseek-v3", "8xH200").cell.full == 70272


def test_attention_replicas_each_have_whole_attention() -> None:
    spread = plan("glm-4.5-air", "8xH200", dp=8, dp_attention=True)
    assert spread.cell.full == 188416
    assert spread.request.world == 8
    assert spread.weights > plan("glm-4.5-air", "8xH200").weights


def test_8_bit_kv_holds_twice_the_tokens() -> None:
    both = [plan("llama-3.1-8b", "H100-80G", kv_dtype=dtype).pool.tokens for dtype in ("bf16", "fp8_e4m3")]
    assert both[1] == pytest.approx(2 * both[0], abs=32)


def test_sliding_layers_have_four_fifths_of_the_tokens() -> None:
    found = plan("gpt-oss-20b", "H100-80G")
    assert found.pool.sliding_tokens == pytest.approx(0.8 * found.pool.tokens, abs=16)
    assert found.cell.token == 12 * 2048 + 0.8 * 12 * 2048
    assert plan("gemma-3-12b", "H100-80G").pool.sliding_tokens is None


def test_linear_attention_keeps_states_beside_the_kv_and_sessions_are_bounded_by_both() -> None:
    found = plan("qwen3-next-80b-a3b", "4xH100-80G", context=1024)
    states = found.pool.states
    assert states is not None
    assert states * found.cell.state == pytest.approx(0.9 / 1.9 * found.budget, rel=0.01)
    assert found.sessions == states // 5


def test_checkpoints_say_how_they_are_stored() -> None:
    assert plan("gpt-oss-20b", "H100").storage == "mxfp4"
    assert plan("deepseek-v3", "8xH200").storage == "fp8"
    compressed = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
    for quantization, storage in (
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        (compressed, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "fp8"}, "fp8"),
    ):
        found = Architecture.of(config_of("llama-3.1-8b", quantization_config=quantization))
        assert Plan(found, PlanRequest(parse_devices("H100"), tp=1)).storage == storage


def test_published_sizes_of_quantised_weights() -> None:
    """Of what is published: Llama-3.1-70B 141 GB, as FP8 72.7 GB, as AWQ 39.8 GB; gpt-oss-20b 13.8 GB."""
    sizes = {name: size / 1e9 for name, size in plan("llama-3.1-70b", "8xH100").weights_compared.items()}
    assert sizes["16 bits"] == pytest.approx(141.1, rel=0.01)
    assert sizes["FP8 or W8A8"] == pytest.approx(72.7, rel=0.01)
    assert sizes["AWQ or GPTQ, 4 bits"] == pytest.approx(39.8, rel=0.01)
    assert plan("gpt-oss-20b", "H100").all_weights / 1e9 == pytest.approx(13.8, rel=0.01)


def test_a_model_that_cannot_fit_says_why_and_what_would_help() -> None:
    found = plan("llama-3.1-70b", "H100-80G")
    assert not found.fits
    assert found.problems == ("weights take 131.4 GiB of each GPU, and no more than 65.2 GiB may be used",)
    assert remedies(found) == [
        "a checkpoint quantised to 4 bits (--quantization awq)",
        "--gpus 4xH100-80G",
        "--gpus 8xH100-80G",
        "--gpus 16xH100-80G",
    ]


def test_every_remedy_does_help() -> None:
    helped = replace(plan("llama-3.1-70b", "H100-80G").request, quantization="awq")
    assert Plan(read("llama-3.1-70b"), helped).fits
    assert plan("llama-3.1-70b", "4xH100-80G").fits


def test_heads_that_do_not_divide() -> None:
    found = plan("qwen2.5-7b", "8xH100-80G")
    assert found.problems == ("28 attention heads do not divide over 8 GPUs",)
    assert remedies(found)[0] == "--tp 4"


def test_quantised_experts_divide_in_whole_blocks() -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    found = Architecture.of(config_of("qwen3-30b-a3b", quantization_config=quantization))
    eight = Plan(found, PlanRequest(parse_devices("8xH100"), tp=8))
    assert eight.problems == (
        "experts of 768 do not divide over 8 GPUs in blocks of 128; spread whole experts with ep 8",
    )
    assert remedies(eight)[0] == "--ep 8"
    assert Plan(found, replace(eight.request, ep=8)).fits


def test_a_session_that_is_asked_for_must_fit() -> None:
    asked = plan("llama-3.1-8b", "RTX5090", context=131072)
    assert asked.problems == (f"the KV cache holds {asked.pool.tokens:,} tokens, a session of 131,072 does not fit",)
    beyond = plan("qwen3-8b", "H200", context=100_000)
    assert beyond.problems == ("a context of 100,000 tokens is more than the model's own 40,960",)
    assert remedies(beyond) == ["--context 40960"]


def test_two_changes_together_where_none_alone_helps() -> None:
    found = plan("deepseek-v3", "8xB200", context=163840, max_total_tokens=None, mem_fraction=0.3)
    assert remedies(found)[0] == "the memory fraction that SGLang would choose"
    both = plan("llama-3.1-8b", "H100", context=200_000, mem_fraction=0.1)
    assert len(remedies(both)) == 1
    assert " and " in remedies(both)[0]


def test_where_more_of_the_same_will_not_do_larger_ones_are_offered() -> None:
    assert remedies(plan("deepseek-v3", "4xL4")) == ["--gpus 8xH200-141G", "--gpus 8xB200-180G"]


def test_more_gpus_than_there_are() -> None:
    assert plan("llama-3.1-8b", "H100", tp=2).problems == ("it needs 2 GPUs, there is 1",)
    assert plan("llama-3.1-8b", "2xH100", tp=8, nodes=2).problems == ("it needs 4 GPUs on each node, there are 2",)


def test_on_the_cpu_more_memory_is_what_helps() -> None:
    found = plan("llama-3.1-8b", "cpu-8G")
    assert not found.fits
    assert remedies(found)[0] == "32 GiB of free memory"


def test_speculation_takes_room() -> None:
    plain = plan("llama-3.1-8b", "H100-80G", mem_fraction=0.8)
    eagle = Speculation(algorithm="EAGLE3", draft_model="draft", steps=3, top_k=1, draft_tokens=4)
    drafting = Plan(plain.architecture, replace(plain.request, speculation=eagle))
    assert drafting.cell.full == 131072 * 33 // 32
    assert drafting.pool.tokens < plain.pool.tokens
    ngram = Speculation(algorithm="NGRAM", draft_tokens=8)
    assert Plan(plain.architecture, replace(plain.request, speculation=ngram)).pool == plain.pool


def test_host_memory_has_room_for_a_hierarchical_cache() -> None:
    without = plan("llama-3.1-8b", "2xH100-80G")
    sized = Plan(without.architecture, replace(without.request, host_cache_bytes=10 * 10**9))
    assert sized.host_memory - without.host_memory == 2 * 10 * 10**9


def test_a_cold_start_takes_longer_with_more_to_read() -> None:
    assert plan("llama-3.1-70b", "4xH100-80G").cold_start_s > plan("llama-3.1-8b", "H100-80G").cold_start_s + 60


@pytest.mark.parametrize(
    ("name", "gpus", "changes", "profile"),
    [
        ("llama-3.1-8b", "H100-80G", {}, "gpu-8b"),
        ("llama-3.1-8b", "H100-80G", {"context": 131072}, "gpu-long-context"),
        ("llama-3.1-70b", "4xH100-80G", {}, "gpu-70b-tp4"),
        ("llama-3.1-70b", "2xH200", {"quantization": "fp8"}, "gpu-70b-tp4 with tp: 2, quantization: fp8"),
        ("llama-3.1-70b", "8xH100-80G", {}, "gpu-70b-tp8"),
        ("deepseek-v3", "8xH200", {}, "gpu-moe-tp8-dp8"),
        ("deepseek-v3", "16xH100-80G", {}, "gpu-multinode-tp16"),
        ("gpt-oss-20b", "H100-80G", {}, "gpu-8b with attention_backend: fa3"),
        ("smollm2-135m", "cpu-16G", {}, "cpu-smollm2"),
    ],
)
def test_the_profile_to_start_from(name: str, gpus: str, changes: dict[str, Any], profile: str) -> None:
    found = plan(name, gpus, **changes)
    assert found.fits
    assert str(recommend(found)) == profile


@pytest.mark.parametrize(
    ("profile", "model", "gpus"),
    [
        ("gpu-8b", "llama-3.1-8b", "H100-80G"),
        ("gpu-8b", "qwen3-8b", "A100-40G"),
        ("gpu-70b-tp4", "llama-3.1-70b", "4xH100-80G"),
        ("gpu-70b-tp8", "llama-3.1-70b", "8xA100-80G"),
        ("gpu-moe-tp8-dp8", "deepseek-v3", "8xH200"),
        ("gpu-long-context", "llama-3.1-8b", "L40S"),
        ("gpu-speculative-ngram", "qwen3-8b", "H100-80G"),
        ("gpu-speculative-eagle3", "llama-3.1-8b", "H100-80G"),
        ("gpu-multinode-tp16", "deepseek-v3", "8xH100-80G"),
        ("cpu-smollm2", "smollm2-135m", "cpu-8G"),
    ],
)
def test_ready_profiles_fit_what_they_are_for(profile: str, model: str, gpus: str) -> None:
    answer = Plan(read(model), PlanRequest.of_profile(load_profile(profile), parse_devices(gpus)))
    assert answer.problems == ()


def test_two_replicas_share_a_gpu() -> None:
    """The second finds free what the first has left, activations and graphs included, and holds as many tokens."""
    request = PlanRequest.of_profile(load_profile("gpu-shared-two"), parse_devices("H100-80G"))
    first = Plan(read("llama-3.1-8b"), request)
    used = first.weights + first.pool.tokens * first.cell.full + 4 * GIB
    device = replace(request.devices.device, free=first.free - used)
    second = Plan(first.architecture, replace(request, devices=Devices(1, device)))
    assert first.pool.tokens == second.pool.tokens == 114688


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("H200", 1, "H200-141G"),
        ("4xH100-80G", 4, "H100-80G"),
        ("2 x h100", 2, "H100-80G"),
        ("8×A100-80GB", 8, "A100-80G"),
        ("H20", 1, "H20-96G"),
        ("2x48G", 2, "GPU-48G"),
        ("48G", 1, "GPU-48G"),
        ("cpu-16G", 1, "CPU with 16.0 GiB"),
    ],
)
def test_gpus_by_name(text: str, count: int, name: str) -> None:
    found = parse_devices(text)
    assert (found.count, found.device.name) == (count, name)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("A100", "could be A100-40G or A100-80G"),
        ("4xH900", "unknown GPU; known are T4-16G, "),
        ("0xH100", "not like 4xH100-80G"),
        ("", "not like 4xH100-80G"),
        ("cpu", "unknown GPU"),
    ],
)
def test_gpus_that_cannot_be_told(text: str, complaint: str) -> None:
    with pytest.raises(PreflightError, match=complaint):
        parse_devices(text)


def test_an_unknown_quantization_is_named() -> None:
    with pytest.raises(ModelError, match=r"quantization 'q5' is not one we can count; there are awq, "):
        _ = plan("llama-3.1-8b", "H100", quantization="q5").storage


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("gpus", ["T4", "8xB200", "cpu-4G"])
def test_every_plan_has_an_answer(name: str, gpus: str) -> None:
    found = plan(name, gpus)
    assert found.fits == (not found.problems)
    assert found.pool.tokens >= 0
    assert found.host_memory > 0
    if not found.fits:
        assert len(remedies(found)) <= 4


def test_every_gpu_of_the_table_can_be_named() -> None:
    for name in gpu_names():
        assert parse_devices(name).device.name == name
