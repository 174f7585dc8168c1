from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.engine.command import STAND_IN, Node, engine_argv, engine_env
from router.engine.profile import EngineProfile, load_profile
from router.errors import ProfileError

CPU = load_profile("cpu-smollm2.v1")
GPU = load_profile("gpu-default.v1")


def argv(profile: EngineProfile) -> list[str]:
    return engine_argv(profile, interpreter=Path("/py"), model=Path("/model"), host="127.0.0.1", port=30001)


def test_the_cpu_profiles_command() -> None:
    assert argv(CPU) == [
        *(
            "/py",
            "-m",
            "sglang.launch_server",
            "--model-path",
            "/model",
            "--served-model-name",
            "smollm2-135m-instruct",
        ),
        *("--host", "127.0.0.1", "--port", "30001", "--device", "cpu", "--attention-backend", "torch_native"),
        *("--page-size", "16", "--max-total-tokens", "65536", "--max-running-requests", "16"),
        *("--chunked-prefill-size", "2048", "--tp-size", "1", "--dp-size", "1"),
        *("--enable-cache-report", "--sleep-on-idle", "--constrained-json-disable-any-whitespace"),
        *("--enable-metrics", "--incremental-streaming-output"),
    ]


def test_every_setting_has_its_flag() -> None:
    profile = EngineProfile.model_validate(
        {
            **GPU.model_dump(exclude={"max_total_tokens"}),
            "tp": 8,
            "dp": 4,
            "dp_attention": True,
            "ep": 8,
            "dtype": "bfloat16",
            "quantization": "fp8",
            "kv_cache_dtype": "fp8_e5m2",
            "max_prefill_tokens": 32768,
            "schedule_policy": "lpm",
            "session_radix_cache": True,
            "kv_events_port": 5557,
            "speculation": {"algorithm": "EAGLE", "draft_model": "/d", "steps": 3, "top_k": 1, "draft_tokens": 4},
            "hierarchical_cache": {"size_gb": 64, "write_policy": "write_through", "storage": "file"},
            "lora": {"adapters": {"a": "/a", "b": "/b"}, "max_rank": 16, "target_modules": ["q_proj", "v_proj"]},
        }
    )
    said = " ".join(argv(profile))
    for part in (
        *("--tp-size 8 --dp-size 4 --ep-size 8", "--enable-dp-attention", "--dtype bfloat16 --quantization fp8"),
        *("--kv-cache-dtype fp8_e5m2", "--max-prefill-tokens 32768", "--schedule-policy lpm"),
        '--kv-events-config {"publisher":"zmq","topic":"kv-events",',
        '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5561"}',
        "--speculative-algorithm EAGLE --speculative-draft-model-path /d --speculative-num-steps 3",
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
        "--enable-hierarchical-cache --hicache-size 64 --hicache-write-policy write_through",
        "--enable-lora --max-lora-rank 16 --lora-target-modules q_proj v_proj --lora-paths a=/a b=/b",
        "--enable-session-radix-cache",
    ):
        assert part in said


def test_kv_events_for_this_host_are_bound_to_it() -> None:
    profile = load_profile("cpu-smollm2.v2")
    said = engine_argv(
        profile, interpreter=Path("/py"), model=Path("/model"), host="127.0.0.1", port=30001, events_port=30002
    )
    assert json.loads(said[said.index("--kv-events-config") + 1]) == {
        "publisher": "zmq",
        "topic": "kv-events",
        "endpoint": "tcp://127.0.0.1:30002",
        "replay_endpoint": "tcp://127.0.0.1:30003",
        "bind": True,
    }
    assert "--kv-events-config" not in argv(profile)
    assert argv(profile) == argv(CPU)


def test_an_engine_that_may_sleep_keeps_a_copy_of_its_weights() -> None:
    saving = {"--enable-memory-saver", "--enable-weights-cpu-backup"}
    assert saving <= set(argv(GPU.model_copy(update={"sleep_after_s": 600.0})))
    assert saving.isdisjoint(argv(GPU))


def test_each_node_of_several_is_told_its_place() -> None:
    profile = load_profile("gpu-multinode-tp16")
    command = engine_argv(
        profile, interpreter=Path("/py"), model=Path("/m"), host="::", port=1, node=Node(1, "10.0.0.1:20000")
    )
    assert "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:20000" in " ".join(command)
    with pytest.raises(ProfileError, match=r"gpu-multinode-tp16\.v1 spans 2 nodes: say which one, 0 to 1"):
        argv(profile)


def test_what_is_left_out_is_left_to_the_engine_and_extra_args_come_last() -> None:
    profile = GPU.model_copy(update={"metrics": False, "extra_args": ("--kv-cache-dtype", "fp8_e5m2")})
    command = argv(profile)
    assert command[-2:] == ["--kv-cache-dtype", "fp8_e5m2"]
    assert {"--max-total-tokens", "--enable-metrics", "--context-length"}.isdisjoint(command)
    assert command[command.index("--mem-fraction-static") + 1] == "0.85"


def test_environment_on_the_cpu() -> None:
    env = engine_env(CPU, base={"PATH": "/bin", "PYTHONPATH": "/mine"}, cpus=2, stand_in=True)
    assert env["PATH"] == "/bin"
    assert env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert env["OMP_NUM_THREADS"] == "2"
    assert env["PYTHONPATH"] == f"{STAND_IN}:/mine"


def test_the_stand_in_is_used_only_when_asked_for_and_a_gpu_gets_no_cpu_settings() -> None:
    assert "PYTHONPATH" not in engine_env(CPU, base={}, cpus=2, stand_in=False)
    env = engine_env(GPU, base={"PATH": "/bin"}, cpus=2, stand_in=False)
    assert env["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"] == "0"
    assert {"SGLANG_USE_CPU_ENGINE", "OMP_NUM_THREADS", "PYTHONPATH"}.isdisjoint(env)


def test_the_profile_has_the_last_word_on_the_environment() -> None:
    profile = CPU.model_copy(update={"threads": 1, "environment": {"PATH": "/theirs", "OMP_NUM_THREADS": "7"}})
    env = engine_env(profile, base={"PATH": "/bin"}, cpus=2, stand_in=False)
    assert (env["PATH"], env["OMP_NUM_THREADS"]) == ("/theirs", "7")


def test_the_stand_in_is_where_the_command_says() -> None:
    assert (STAND_IN / "sgl_kernel" / "__init__.py").is_file()
