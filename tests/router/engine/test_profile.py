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
    assert load_profile("cpu-smollm2") == load_profile("cpu-smollm2.v1")


def test_released_profiles_are_never_edited() -> None:
    """Whoever sees this fail makes a new version of the profile instead."""
    released = {"cpu-smollm2.v1": "bb96561330b21487", "gpu-default.v1": "e7f66f1c6dfbce71"}
    assert {name: load_profile(name).content_hash for name in released} == released


def test_unknown_profile_lists_those_there_are() -> None:
    with pytest.raises(
        ProfileError, match=r"unknown engine profile 'cpu-smolm'; there are cpu-smollm2\.v1, gpu-default\.v1"
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
    ],
)
def test_what_is_wrong_is_named_by_its_key(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ProfileError, match=f"^mine.v1.yaml: {complaint}"):
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


def test_another_model_is_served_under_its_directorys_name() -> None:
    profile = load_profile("cpu-smollm2").with_model(Path("/models/Qwen3-8B"))
    assert (profile.model, profile.served_name) == ("/models/Qwen3-8B", "Qwen3-8B")
    assert profile.with_model(Path("/m"), "alias").served_name == "alias"


def test_gpus_needed() -> None:
    profile = EngineProfile.model_validate({**CPU, "device": "cuda", "tp": 2, "dp": 4})
    assert profile.gpus == 8
    assert EngineProfile.model_validate({**CPU, "dp": 2}).gpus == 0
