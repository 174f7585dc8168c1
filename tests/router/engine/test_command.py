from __future__ import annotations

from pathlib import Path

from router.engine.command import STAND_IN, engine_argv, engine_env
from router.engine.profile import EngineProfile, load_profile

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
        *("--enable-cache-report", "--sleep-on-idle", "--enable-metrics", "--incremental-streaming-output"),
    ]


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
    assert {"SGLANG_USE_CPU_ENGINE", "OMP_NUM_THREADS", "PYTHONPATH"}.isdisjoint(env)


def test_the_profile_has_the_last_word_on_the_environment() -> None:
    profile = CPU.model_copy(update={"threads": 1, "environment": {"PATH": "/theirs", "OMP_NUM_THREADS": "7"}})
    env = engine_env(profile, base={"PATH": "/bin"}, cpus=2, stand_in=False)
    assert (env["PATH"], env["OMP_NUM_THREADS"]) == ("/theirs", "7")


def test_the_stand_in_is_where_the_command_says() -> None:
    assert (STAND_IN / "sgl_kernel" / "__init__.py").is_file()
