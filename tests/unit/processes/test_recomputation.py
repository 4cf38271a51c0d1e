"""Replayed steps computed by a process without a plugin: the honest run's, to rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmb.config import BF16, FP32
from llmb.errors import RunFailedError
from llmb.processes import reference_run
from llmb.processes.recomputation import recomputed
from llmb.records import audited
from llmb.wire.messages import Done, EvidenceFile, KeptStep, RecomputeOrder
from tests.unit.builders_audit import (
    DRAWN,
    JUDGED,
    Audited,
    Line,
    Replayed,
    recompute_order,
    replay,
    small_vocabulary,
    worked,
)

__all__ = ["small_vocabulary", "worked"]  # fixtures
pytestmark = pytest.mark.usefixtures("small_vocabulary")
STEPS = DRAWN.recomputed(13)


@pytest.fixture
def replayed(worked: Callable[..., Audited], tmp_path: Path) -> Callable[..., RecomputeOrder]:
    """Return what is ordered of the steps that an honest run has replayed."""

    def of(**changes: object) -> RecomputeOrder:
        run = worked(**changes).copied(tmp_path)
        return recompute_order(run, replay(run, Replayed(STEPS)))

    return of


def shown(order: RecomputeOrder) -> torch.Tensor:
    """Return the gradients that the honest run shows of the steps of ``order``."""
    folder = Path(order.evidence_folder)
    rows = load_file(folder / audited.REPLAYED)[audited.ROWS]
    gradients = load_file(folder / audited.LEDGER_VALUES)[audited.WHERE].shape[1]
    return rows[list(STEPS), :gradients]


@pytest.mark.parametrize(("precision", "most"), [(FP32, 2e-6), (BF16, 2e-2)], ids=["FP32", "BF16"])
def test_they_are_the_honest_runs_to_its_rounding(
    replayed: Callable[..., RecomputeOrder], precision: object, most: float
) -> None:
    order = replayed(precision=precision)
    right = recomputed(order)[audited.ROWS]
    assert right.shape == shown(order).shape
    assert 0 < float((shown(order) - right).norm() / right.norm()) < most


def test_with_accumulation_and_weights_in_float32_too(
    replayed: Callable[..., RecomputeOrder],
) -> None:
    mixed = BF16.model_copy(update={"master_weights": True})
    order = replayed(precision=mixed, mixed_precision=True, batch_size=2, accumulate=2)
    right = recomputed(order)[audited.ROWS]
    assert 0 < float((shown(order) - right).norm() / right.norm()) < 2e-2


def test_judged_steps_are_computed_from_the_weights_that_the_worker_handed_over(
    worked: Callable[..., Audited], tmp_path: Path
) -> None:
    run = worked(precision=FP32).copied(tmp_path)
    order = recompute_order(run, replay(run, Replayed(STEPS)))
    judged = tuple(
        KeptStep(
            index=step,
            token_seed=1000 + step,
            commitment="",
            weights=audited.judged_weights(step),
            sha256=run.honest.digests[audited.judged_weights(step)],
        )
        for step in JUDGED
    )
    found = recomputed(order.model_copy(update={"judged": judged}))
    rows = load_file(run.folder / audited.LEDGER_VALUES)[audited.ROWS]
    for step in JUDGED:
        right = found[audited.judged_pass(step)]
        error = (rows[step, : len(right)] - right).norm() / right.norm()
        assert 0 < float(error) < 2e-6


@pytest.mark.parametrize("device", ["warp:0", "xla", "hpu"])
def test_of_a_device_that_needs_its_plugin_there_are_no_rows(
    replayed: Callable[..., RecomputeOrder], device: str
) -> None:
    order = replayed(precision=FP32)
    rows = recomputed(order.model_copy(update={"device": device}))[audited.ROWS]
    assert rows.shape == (0, shown(order).shape[1])


def test_a_device_that_torch_knows_and_that_fails_ends_in_an_error(
    replayed: Callable[..., RecomputeOrder],
) -> None:
    order = replayed(precision=FP32)
    with pytest.raises(RuntimeError):
        recomputed(order.model_copy(update={"device": "cpu:99x"}))


def test_gradients_that_were_put_right_after_the_answer_end_in_a_failed_run(
    replayed: Callable[..., RecomputeOrder],
) -> None:
    order = replayed(precision=FP32)
    told = order.steps[0].model_copy(update={"commitment": "0" * 64})
    with pytest.raises(RunFailedError, match=f"other gradients of step {STEPS[0]} than it had"):
        recomputed(order.model_copy(update={"steps": (told, *order.steps[1:])}))


@pytest.mark.parametrize("name", [audited.REPLAYED, audited.LEDGER_VALUES])
def test_evidence_that_was_altered_ends_in_a_failed_run(
    replayed: Callable[..., RecomputeOrder], name: str
) -> None:
    order = replayed(precision=FP32)
    path = Path(order.evidence_folder) / name
    save_file({key: value + 1 for key, value in load_file(path).items()}, path)
    with pytest.raises(RunFailedError, match=f"{name} is not what the worker wrote"):
        recomputed(order)


def test_weights_that_were_altered_end_in_a_failed_run(
    replayed: Callable[..., RecomputeOrder],
) -> None:
    order = replayed(precision=FP32)
    path = Path(order.scratch_folder) / order.steps[0].weights
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunFailedError, match=f"{path.name} is not what the worker wrote"):
        recomputed(order)


def test_the_reference_run_answers_and_announces_the_file(
    replayed: Callable[..., RecomputeOrder],
) -> None:
    order = replayed(precision=FP32)
    line = Line(order)
    reference_run.answer(line)
    files = [message.name for message in line.sent if isinstance(message, EvidenceFile)]
    assert files == [audited.RECOMPUTED]
    assert isinstance(line.sent[-1], Done)
