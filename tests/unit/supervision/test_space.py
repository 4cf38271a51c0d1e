"""What a run needs on the disk, and what is said where there is less."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmb import workloads
from llmb.config import BF16, FP16, AuditMode, Mode, Precision
from llmb.errors import NotEnoughSpaceError
from llmb.supervision import space
from llmb.workloads.arithmetic import weight_bytes
from tests.unit.builders_runtime import run_config

LLAMA = workloads.WORKLOADS["llama-1.4b"]
WEIGHTS = weight_bytes(LLAMA.shape, BF16)


@pytest.mark.parametrize(
    ("device", "precision", "copies"),
    [("cpu", BF16, 4), ("cuda:0", BF16, 6), ("cpu", FP16, 6), ("cuda:0", FP16, 8)],
)
def test_a_training_has_several_copies_of_its_weights_on_the_disk_while_it_is_audited(
    device: str, precision: Precision, copies: int
) -> None:
    config = run_config(timed_steps=50, precision=precision, device=device)
    assert copies * WEIGHTS < space.needed_bytes(config, LLAMA) < (copies + 0.1) * WEIGHTS


def test_without_an_audit_or_a_training_there_is_less() -> None:
    assert space.needed_bytes(run_config(audit=AuditMode.OFF), LLAMA) == 0
    forward = run_config(workload="litgpt-forward", mode=Mode.FORWARD)
    shape = workloads.WORKLOADS["litgpt-forward"].shape
    weights = weight_bytes(shape, forward.precision)
    needed = space.needed_bytes(forward, workloads.WORKLOADS["litgpt-forward"])
    assert weights < needed < 1.5 * weights


@pytest.mark.parametrize("free", [8 * 10**9, 21 * 10**9])
def test_too_little_room_is_said_in_one_line_with_both_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    config = run_config(timed_steps=50)
    if free > space.needed_bytes(config, LLAMA):
        space.check_space(tmp_path, config, LLAMA)
        return
    with pytest.raises(NotEnoughSpaceError, match=r"8\.000 GB are free, and the run needs 11"):
        space.check_space(tmp_path, config, LLAMA)
