from __future__ import annotations

from pathlib import Path

from router.kernel_kills import kernel_kills


def test_the_kernels_own_counter_is_read(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("pgfault 12\noom_kill_x 9\noom_kill 3\n")
    assert kernel_kills(tmp_path / "vmstat") == 3


def test_a_kernel_that_does_not_say_is_not_taken_for_zero(tmp_path: Path) -> None:
    assert kernel_kills(tmp_path / "none") is None
    (tmp_path / "vmstat").write_text("pgfault 12\n")
    assert kernel_kills(tmp_path / "vmstat") is None
