from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from router.engine.profile import EngineProfile, available_profiles, load_profile
from router.errors import ProfileError

CPU: dict[str, Any] = {
    "name": "mine",
    "version": 1,
    "description": "a test's",
    "served_name": "some-model",
    "device": "cpu",
    "max_total_tokens": 4096,
}


def written(tmp_path: Path, **changes: Any) -> str:
    content = {key: value for key, value in {**CPU, **changes}.items() if value is not ...}
    path = tmp_path / "mine.v1.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.mark.parametrize("name", available_profiles())
def test_every_profile_that_ships_loads_by_its_id(name: str) -> None:
    assert load_profile(name).id == name


def test_a_name_without_a_version_means_the_newest() -> None:
    assert load_profile("cpu-smollm2") == load_profile("cpu-smollm2.v2")


def test_released_profiles_are_never_edited() -> None:
    """Whoever sees this fail makes a new version of the profile instead."""
    released = {
        "cpu-smollm2.v1": "36071d4bb5655b3f",
        "cpu-smollm2.v2": "395f379b2faeceb8",
        "gpu-70b-tp4.v1": "405de379ee43ed83",
        "gpu-70b-tp8.v1": "2386d9ec2aaa3898",
        "gpu-8b.v1": "f4eef4097f426473",
        "gpu-default.v1": "9a4c73802f3f0181",
        "gpu-long-context.v1": "9a0a0420d04b3747",
        "gpu-moe-tp8-dp8.v1": "e354c8a0e7d37fea",
        "gpu-multinode-tp16.v1": "5b6713003e188d49",
        "gpu-shared-two.v1": "bdb40228f6ff7908",
        "gpu-speculative-eagle3.v1": "5d948f455cbe1dc6",
        "gpu-speculative-ngram.v1": "a160462d319ee3d3",
    }
    assert {name: load_profile(name).content_hash for name in available_profiles()} == released


def test_unknown_profile_lists_those_there_are() -> None:
    with pytest.raises(
        ProfileError, match=r"unknown engine profile 'cpu-smolm'; there are cpu-smollm2\.v1, .*gpu-default\.v1"
    ):
        load_profile("cpu-smolm")


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no profile at .*none\.yaml"):
        load_profile(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"pagesize": 16}, "pagesize: Extra inputs are not permitted"),
        ({"device": "tpu"}, "device: Input should be 'cpu' or 'cuda'"),
        ({"tp": 0}, "tp: Input should be greater than or equal to 1"),
        ({"served_name": ...}, "served_name: Field required"),
        ({"environment": {"OMP_NUM_THREADS": 2}}, "environment.OMP_NUM_THREADS: Input should be a valid string"),
        ({"max_total_tokens": ...}, "max_total_tokens: needed on the cpu"),
        ({"page_size": 8192}, "max_total_tokens: 4096 is less than page_size 8192"),
        ({"threads": 0}, "threads: at least 1, or auto"),
        ({"page_size": -1, "dp": "x"}, "page_size: .*; dp: "),
        ({"context_length": 8192}, "context_length: 8192 tokens cannot be held in max_total_tokens 4096"),
        ({"chunked_prefill_size": 100}, "chunked_prefill_size: 100 is no multiple of page_size 16"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size: 0 tokens would never get through"),
        ({"attention_backend": "flashinfer"}, "attention_backend: flashinfer needs a GPU"),
        ({"attention_backend": "flashinfr"}, "attention_backend: Input should be 'auto', 'flashinfer', "),
        ({"quantization": "awq"}, "quantization: awq needs a GPU"),
        ({"quantization": "q4"}, "quantization: Input should be 'awq', "),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype: Input should be 'auto', "),
        ({"schedule_policy": "best"}, "schedule_policy: Input should be 'fcfs', "),
        ({"nodes": 2}, "nodes: several only with GPUs; nodes: 1 GPUs do not spread over 2 nodes"),
        ({"hierarchical_cache": {}}, "hierarchical_cache: on the cpu the cache is in host memory already"),
        ({"threads": 2, "environment": {"OMP_NUM_THREADS": "2"}}, "threads: environment says OMP_NUM_THREADS too"),
        ({"extra_args": ["--page-size", "1"]}, "extra_args: --page-size is for the field page_size"),
        ({"extra_args": ["--tp=4"]}, "extra_args: --tp is for the field tp"),
        ({"extra_args": ["--model", "/m"]}, "extra_args: --model is for the field model"),
        ({"extra_args": ["--port", "1"]}, "extra_args: --port is given by the launcher"),
        ({"speculation": {"algorithm": "EAGLE"}}, "speculation: draft_model: EAGLE needs one"),
        ({"speculation": {"algorithm": "MEDUSA"}}, "speculation.algorithm: Input should be 'NGRAM', "),
        ({"speculation": {"algorithm": "NGRAM", "steps": 2}}, "speculation: steps: NGRAM drafts from what was said"),
        ({"sleep_after_s": 600}, "sleep_after_s: needs a GPU"),
        ({"sleep_after_s": 1}, "sleep_after_s: Input should be greater than or equal to 10"),
        ({"lora": {}}, "lora: max_rank and target_modules: both needed while no adapter is named"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ProfileError, match=f"^mine.v1.yaml: {complaint}"):
        load_profile(written(tmp_path, **changes))


GPU = {**CPU, "device": "cuda", "max_total_tokens": ...}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"attention_backend": "intel_amx"}, "attention_backend: intel_amx is for the cpu"),
        (
            {"sleep_after_s": 600, "extra_args": ["--enable-memory-saver"]},
            "extra_args: --enable-memory-saver is for the field sleep_after_s",
        ),
        ({"dp_attention": True}, "dp_attention: there is nothing to spread with dp 1"),
        ({"dp_attention": True, "dp": 3, "tp": 8}, "dp_attention: tp 8 is no multiple of dp 3"),
        ({"ep": 3, "tp": 8}, "ep: tp 8 is no multiple of ep 3"),
        ({"nodes": 2, "tp": 8, "dp": 2}, "nodes: replicas cannot span nodes"),
        ({"nodes": 3, "tp": 8}, "nodes: 8 GPUs do not spread over 3 nodes"),
        ({"kv_events_port": 65535, "dp": 2}, "kv_events_port: 65535 leaves no two ports for each of 2 ranks"),
        ({"kv_events_port": 5557, "kv_events": True}, "kv_events: kv_events_port tells everyone already"),
        (
            {"extra_args": ["--kv-events-config={}"], "kv_events": True},
            "extra_args: --kv-events-config is for the field kv_events",
        ),
        ({"hierarchical_cache": {"ratio": 2, "size_gb": 4}}, "hierarchical_cache: ratio and size_gb both say"),
        ({"hierarchical_cache": {"prefetch_policy": "timeout"}}, "hierarchical_cache: prefetch_policy: there is no"),
        (
            {"speculation": {"algorithm": "NGRAM"}, "dp_attention": True, "dp": 2, "tp": 2},
            "speculation: NGRAM does not work with dp_attention",
        ),
        (
            {"speculation": {"algorithm": "NEXTN", "steps": 3}},
            "speculation: steps, top_k and draft_tokens: give all three",
        ),
        (
            {"speculation": {"algorithm": "NEXTN", "steps": 3, "top_k": 1, "draft_tokens": 8}},
            r"speculation: draft_tokens: with top_k 1 it must be steps \+ 1, 4",
        ),
        (
            {
                "speculation": {"algorithm": "NEXTN", "steps": 3, "top_k": 4, "draft_tokens": 8},
                "attention_backend": "trtllm_mha",
            },
            "speculation: top_k above 1 needs page_size 1, or one of flashinfer, fa3, triton",
        ),
        ({"lora": {"adapters": {"a": "/a"}, "max_loaded": 4}}, "lora: max_loaded: less than max_per_batch"),
        ({"lora": {"max_rank": 8, "target_modules": ["all", "q_proj"]}}, "lora: target_modules: all stands alone"),
    ],
)
def test_what_cannot_go_together_on_gpus(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ProfileError, match=f"^mine.v1.yaml: {complaint}"):
        load_profile(written(tmp_path, **{**GPU, **changes}))


def test_anything_else_sglang_accepts_may_be_given_as_it_is(tmp_path: Path) -> None:
    extra = ("--watchdog-timeout", "900", "--load-format", "dummy", "--kv-cache-dtype", "fp8_e5m2")
    assert load_profile(written(tmp_path, extra_args=list(extra))).extra_args == extra


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ("--kv-cache-dtype", "kv_cache_dtype"),
        ("--attention-backend", "attention_backend"),
        ("--enable-dp-attention", "dp_attention"),
        ("--nnodes", "nodes"),
    ],
)
def test_but_nothing_twice_and_not_what_counts_gpus(tmp_path: Path, extra: str, field: str) -> None:
    changes = {**GPU, "kv_cache_dtype": "fp8_e4m3", "extra_args": [extra, "2"]}
    with pytest.raises(ProfileError, match=f"extra_args: {extra} is for the field {field}"):
        load_profile(written(tmp_path, **changes))


@pytest.mark.parametrize("text", ["a: [", "- a\n- b\n", "\xff: {"])
def test_a_file_that_is_no_mapping_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ProfileError, match=r"^bad\.yaml: ") as caught:
        load_profile(str(path))
    assert "\n" not in str(caught.value)


def test_the_hash_ignores_comments_and_order_but_no_value(tmp_path: Path) -> None:
    first = load_profile(written(tmp_path))
    path = tmp_path / "again.yaml"
    path.write_text("# a comment\n" + yaml.safe_dump(dict(reversed(CPU.items())), sort_keys=False))
    assert load_profile(str(path)).content_hash == first.content_hash
    assert load_profile(written(tmp_path, metrics=False)).content_hash != first.content_hash
    assert load_profile(written(tmp_path, metrics=True)).content_hash == first.content_hash


def test_another_model_is_served_under_its_directorys_name() -> None:
    profile = load_profile("cpu-smollm2").with_model(Path("/models/Qwen3-8B"))
    assert (profile.model, profile.served_name) == ("/models/Qwen3-8B", "Qwen3-8B")
    assert profile.with_model(Path("/m"), "alias").served_name == "alias"


def test_gpus_needed() -> None:
    profile = EngineProfile.model_validate({**CPU, "device": "cuda", "tp": 2, "dp": 4})
    assert profile.gpus == 8
    assert EngineProfile.model_validate({**CPU, "dp": 2}).gpus == 0
    spread = EngineProfile.model_validate({**CPU, "device": "cuda", "tp": 8, "dp": 8, "dp_attention": True})
    assert (spread.gpus, spread.model_copy(update={"nodes": 2}).gpus) == (8, 4)


def test_flashinfer_is_the_default_on_gpus_and_auto_leaves_it_to_sglang() -> None:
    profile = EngineProfile.model_validate({**CPU, "device": "cuda"})
    assert profile.backend == "flashinfer"
    assert profile.model_copy(update={"attention_backend": "fa3"}).backend == "fa3"
    assert profile.model_copy(update={"attention_backend": "auto"}).backend is None
    assert EngineProfile.model_validate(CPU).backend is None
