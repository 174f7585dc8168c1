from __future__ import annotations

import pytest

from router.engine.diagnosis import diagnose, hopeless

EXIT = "exited with code 1"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "sglang serve: error: unrecognized arguments: --page-sise 16",
            "SGLang refuses a flag: unrecognized arguments: --page-sise 16: mend it in the profile",
        ),
        (
            "[Errno 98] error while attempting to bind on address ('127.0.0.1', 30001): address already in use",
            "its port is in use: another program took it while the engine loaded; start again",
        ),
        ("ModuleNotFoundError: No module named 'sglang'", "its environment lacks sglang: run `make engine`"),
        ("RuntimeError: No CUDA GPUs are available", "no usable GPU: `antiphon doctor` checks the driver"),
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: header too large",
            "the model's weights cannot be read: `antiphon model verify` names the file",
        ),
        (
            (
                "ValueError: Model architectures ['FrobnicatorForCausalLM'] are not supported for now. Supported "
                "architectures: dict_keys(['LlamaForCausalLM'])"
            ),
            (
                "SGLang does not know the model's architecture ['FrobnicatorForCausalLM']: "
                "take another model, or a newer SGLang"
            ),
        ),
        (
            (
                "ValueError: Cannot find model module. 'FrobnicatorForCausalLM' is not a registered model in the "
                "Transformers library (only relevant if the model is meant to be in Transformers)"
            ),
            (
                "SGLang does not know the model's architecture 'FrobnicatorForCausalLM': "
                "take another model, or a newer SGLang"
            ),
        ),
        (
            (
                "ValueError: The checkpoint you are trying to load has model type `frobnicator` but Transformers does "
                "not recognize this architecture. This could be because of an issue with the checkpoint, or because "
                "your version of Transformers is out of date."
            ),
            "SGLang does not know the model's architecture frobnicator: take another model, or a newer SGLang",
        ),
    ],
)
def test_signs_are_recognised_and_say_what_to_change(line: str, reason: str) -> None:
    assert diagnose(EXIT, ["[10:00] loading", line, "[10:01] SIGQUIT received."]) == f"{reason} ({EXIT})"


@pytest.mark.parametrize(
    "line",
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "139.80 GiB of which 1.21 GiB is free. Process 77 has 138.58 GiB memory in use."
        ),
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: CUDA error: out of memory",
    ],
)
def test_a_gpu_without_memory_left_is_told_from_a_machine_without(line: str) -> None:
    assert diagnose(EXIT, [line]) == (
        "out of GPU memory: lower mem_fraction_static in the profile, end what else uses the GPU, "
        f"or see with `antiphon engine plan` what fits ({EXIT})"
    )


def test_a_fraction_that_leaves_nothing_for_the_cache_is_to_be_raised() -> None:
    line = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.2"
    assert diagnose(EXIT, [line]).startswith("the weights leave no memory for the KV cache: raise mem_fraction_static")


NCCL_TIMEOUT = """\
[rank1]:[E1130 09:00:00.426415540 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600004 milliseconds \
before timing out.
[rank1]:[E1130 09:00:00.500000000 ProcessGroupNCCL.cpp:744] [Rank 1] Some NCCL operations have failed or timed out. \
Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.
[rank1]:[E1130 09:00:00.500000001 ProcessGroupNCCL.cpp:758] [Rank 1] To avoid data inconsistency, we are taking the \
entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with exception: [Rank 1] Watchdog \
caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, \
Timeout(ms)=600000) ran for 600004 milliseconds before timing out.
frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long> >) + 0x1d2
[2026-11-30 09:00:01] Subprocess scheduler_1 (pid=31083) crashed with exit code -6. Triggering SIGQUIT for cleanup...
[2026-11-30 09:00:01] SIGQUIT received. signum=None, frame=None. It usually means one child failed.
[2026-11-30 09:00:01] kill_process_tree called: parent_pid=30737, include_parent=True, pid=30737
"""
"""As torch 2.11 and SGLang 0.5.23 word it (`libtorch_cuda.so`, `srt/utils/watchdog.py`): without GPUs it can only be
replayed."""


def test_an_nccl_timeout_names_the_operation_and_where_to_look() -> None:
    assert diagnose("killed by SIGKILL", NCCL_TIMEOUT.splitlines()) == (
        "NCCL timeout (ALLREDUCE): a GPU's process is stuck or gone, and the others waited for it; its own error, if "
        "there is one, is further up in the log; `antiphon doctor` checks the GPUs' links (killed by SIGKILL)"
    )


def test_other_trouble_with_nccl_is_no_timeout() -> None:
    line = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error"
    assert diagnose(EXIT, [line, "ncclSystemError: System call (e.g. socket, malloc) failed."]).startswith(
        "its GPUs cannot talk (NCCL): `antiphon doctor` checks"
    )


@pytest.mark.parametrize("name", ["Watchdog", "Scheduler watchdog"])
def test_a_step_that_never_ends_is_told_by_sglangs_own_watchdog(name: str) -> None:
    line = f"[10:00] {name} timeout (self.watchdog_timeout=300, self.soft=False)"
    assert diagnose("killed by SIGKILL", [line, "SIGQUIT received."]).startswith("it computed at one step for 300 s")


def test_the_latest_sign_wins() -> None:
    lines = ["ModuleNotFoundError: No module named 'amx'", "torch.OutOfMemoryError: CUDA out of memory."]
    assert diagnose("killed by SIGQUIT", lines).startswith("out of GPU memory")


def test_what_no_sign_fits_is_told_by_its_last_error() -> None:
    assert diagnose(EXIT, ["ValueError: rope_scaling is odd"]) == f"{EXIT}: ValueError: rope_scaling is odd"
    assert diagnose(EXIT, ["something else"]) == EXIT


def test_an_engine_that_cannot_bind_is_hopeless_though_it_runs() -> None:
    bind = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use"
    said = hopeless(["loading", bind, "INFO:     Waiting for application shutdown."])
    assert said == "its port is in use: another program took it while the engine loaded; start again"
    assert hopeless(["loading", "Uvicorn running"]) is None


KILLED_PART = (
    "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common "
    "cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
)


@pytest.mark.parametrize(
    ("exit_reason", "lines"),
    [
        ("killed by SIGKILL", ["all well"]),
        (EXIT, [KILLED_PART]),
        ("killed by SIGKILL", ["Subprocess scheduler_0 (pid=3) crashed with exit code -9. Triggering SIGQUIT"]),
    ],
)
def test_a_kill_of_the_kernels_is_told_from_anothers(exit_reason: str, lines: list[str]) -> None:
    change = "lower max_total_tokens in the profile, or give the machine more memory"
    assert diagnose(exit_reason, lines, 1) == f"out of memory, so the kernel killed it: {change} ({exit_reason})"
    assert diagnose(exit_reason, lines, 0) == "killed by SIGKILL by someone: memory had not run out"
    assert diagnose(exit_reason, lines) == f"killed by SIGKILL, most likely because memory ran out: {change}"


def test_what_sglang_does_without_is_not_what_it_died_of() -> None:
    lines = ["[2026-12-01 00:04:25] Ignore import error when loading sglang.srt.models.x: No module named 'helion'"]
    assert diagnose("killed by SIGKILL", lines, 0) == "killed by SIGKILL by someone: memory had not run out"


def test_when_sglang_ends_itself_nobody_killed_it() -> None:
    lines = ["ValueError: rope_scaling is odd", "[10:01] Received sigquit from a child process."]
    assert diagnose("killed by SIGKILL", lines, 0) == "killed by SIGKILL: ValueError: rope_scaling is odd"


def test_a_part_that_failed_otherwise_was_not_killed() -> None:
    assert "by someone" not in diagnose(EXIT, [KILLED_PART.replace("(exit code: -9)", "(exit code: 1)")], 0)
