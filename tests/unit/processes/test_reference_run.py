"""The process without a plugin: what is right, made from the seed and the worker's own weights."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save
from torch import nn

from llmb import workloads
from llmb.config import BF16, FP16, FP32, Mode, Precision, RunConfig
from llmb.errors import RunFailedError
from llmb.inputs.start import values_of
from llmb.observe import weights_file
from llmb.observe.passes import Numerics, Sketches, plain_pass
from llmb.observe.rerun import Rerun, inputs_for
from llmb.observe.weights import digests
from llmb.processes import reference_run, repetition
from llmb.records import audited
from llmb.records.audited import LIVE_WEIGHTS, PristineEvidence, judged_pass, judged_weights
from llmb.reference.data import Batch, random_tokens
from llmb.reference.models import build
from llmb.wire.messages import Done, ReferenceOrder, Tick, Unmade
from tests.unit.builders_audit import (
    END,
    Audited,
    Line,
    rate_of,
    shape_of,
    small_vocabulary,
    worked,
)

__all__ = ["small_vocabulary", "worked"]  # fixtures
pytestmark = pytest.mark.usefixtures("small_vocabulary")


def verify(order: ReferenceOrder) -> Line:
    line = Line(order)
    reference_run.answer(line)
    return line


STEP, STEP_WEIGHTS = judged_pass(9), judged_weights(9)
Verified = Callable[[Precision], Audited]


@pytest.fixture
def run(worked: Callable[..., Audited], tmp_path: Path) -> Audited:
    """A run of its own: to be altered, or verified by another order."""
    return worked(precision=BF16, replayable=False).copied(tmp_path)


@pytest.fixture(scope="module")
def verified(worked: Callable[..., Audited], tmp_path_factory: pytest.TempPathFactory) -> Verified:
    """Return a run that was verified, made once: to be looked at."""

    @cache
    def once(precision: Precision) -> Audited:
        made = worked(precision=precision, replayable=False)
        run = made.copied(tmp_path_factory.mktemp("verified"))
        verify(run.reference)
        return run

    return once


def read(run: Audited, name: str) -> dict[str, torch.Tensor]:
    return load_file(run.folder / name)


def pristine_of(run: Audited) -> PristineEvidence:
    return PristineEvidence.model_validate_json((run.folder / audited.PRISTINE).read_bytes())


def test_two_files_are_left_and_announced_with_their_digests_and_then_it_is_done(
    run: Audited,
) -> None:
    line = verify(run.reference)
    announced = line.announced()
    assert set(announced) == {audited.PRISTINE, audited.REFERENCE}
    for name, digest in announced.items():
        assert hashlib.sha256((run.folder / name).read_bytes()).hexdigest() == digest
    assert isinstance(line.sent[-1], Done)


# -- pristine weights -----------------------------------------------------------------------


def started(config: RunConfig, dtype: torch.dtype) -> nn.Module:
    """Return the model of a worker before its first step."""
    workload = workloads.of(config)
    return build(workload.shape, config.seed, dtype, values=values_of(config, workload))


@pytest.mark.parametrize("precision", [BF16, FP16, FP32], ids=lambda p: p.name)
def test_the_pristine_parameters_are_those_the_worker_began_with(
    verified: Verified, precision: Any
) -> None:
    run = verified(precision)
    dtype = getattr(torch, precision.dtype)
    expected = digests(started(run.config, dtype))
    found = pristine_of(run).parameters
    assert [(p.name, p.shape, p.dtype, p.sha256) for p in found] == [
        (p.name, p.shape, p.dtype, p.sha256) for p in expected
    ]


def test_of_judged_steps_that_a_device_recomputes_one_sequence_is_looked_at(
    run: Audited, verified: Verified
) -> None:
    judged = {*map(judged_pass, run.reference.judged)}
    left = tuple(name for name in run.reference.passes if name not in judged)
    verify(run.reference.model_copy(update={"passes": left}))
    whole = {p.name: p.asleep for p in pristine_of(verified(BF16)).parameters}
    one = {p.name: p.asleep for p in pristine_of(run).parameters}
    assert {n: len(shares) for n, shares in one.items()} == {n: len(s) for n, s in whole.items()}
    assert any(one.values())
    assert not judged & {*read(run, audited.REFERENCE)}, "the gradients are the device's"


def test_weights_stored_wider_than_declared_are_the_declared_ones_cast_up(run: Audited) -> None:
    stored = {**run.reference.stored_dtypes, "lm_head.weight": "float32"}
    verify(run.reference.model_copy(update={"stored_dtypes": stored, "passes": ()}))
    found = {p.name: p for p in pristine_of(run).parameters}
    model = started(run.config, torch.bfloat16)
    wide = {p.name: p.sha256 for p in digests(model.float())}
    narrow = {p.name: p.sha256 for p in digests(model.bfloat16())}
    assert found["lm_head.weight"].dtype == "float32"
    assert found["lm_head.weight"].sha256 == wide["lm_head.weight"]
    assert found["model.norm.weight"].sha256 == narrow["model.norm.weight"]


def test_with_master_weights_the_pristine_ones_are_float32(verified: Verified) -> None:
    mixed = BF16.model_copy(update={"master_weights": True})
    run = verified(mixed)
    assert {p.dtype for p in pristine_of(run).parameters} == {"float32"}


def test_another_seed_gives_other_weights(run: Audited, verified: Verified) -> None:
    first = {p.name: p.sha256 for p in pristine_of(verified(BF16)).parameters}
    config = run.config.model_copy(update={"seed": 12345})
    verify(run.reference.model_copy(update={"config": config, "passes": ()}))
    second = {p.name: p.sha256 for p in pristine_of(run).parameters}
    same = {name for name in first if first[name] == second[name]}
    plain = {name for name in first if name.endswith("norm.weight")}
    assert same == plain - {"model.norm.weight"}  # of random signs


def rewritten(run: Audited, edit: Any) -> ReferenceOrder:
    """Return the order of a run whose live weights were others."""
    live = load((run.scratch / LIVE_WEIGHTS).read_bytes())  # not mapped: it is written again
    edit(live)
    digest = weights_file.write(run.scratch / LIVE_WEIGHTS, live.items())
    known = {**run.reference.digests, LIVE_WEIGHTS: digest}
    return run.reference.model_copy(update={"digests": known})


def test_how_far_a_weight_has_moved_is_its_largest_element_to_the_end_of_the_stream(
    worked: Callable[..., Audited], tmp_path: Path
) -> None:
    run = worked(precision=FP32).copied(tmp_path)
    verify(run.reference.model_copy(update={"passes": ()}))
    moved = {p.name: p.largest_move for p in pristine_of(run).parameters}
    most = 3.2 * sum(rate_of(step) for step in range(END))
    assert all(move is not None and 1e-5 < move < most for move in moved.values()), moved

    def edit(live: dict[str, torch.Tensor]) -> None:
        gains = live["model.norm.weight"]
        gains[3] = gains[3].round() + 0.5  # they start at whole numbers

    verify(rewritten(run, edit).model_copy(update={"passes": ()}))
    after = {p.name: p.largest_move for p in pristine_of(run).parameters}
    assert after.pop("model.norm.weight") == pytest.approx(0.5)
    assert all(after[name] == moved[name] for name in after)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_weight_that_is_no_number_any_more_has_moved_as_far_as_can_be_said(
    run: Audited, bad: float
) -> None:
    def edit(live: dict[str, torch.Tensor]) -> None:
        live["model.norm.weight"][3] = bad

    order = rewritten(run, edit).model_copy(update={"passes": ()})
    verify(order)
    moved = {p.name: p.largest_move for p in pristine_of(run).parameters}
    assert moved["model.norm.weight"] == sys.float_info.max


def test_a_weight_that_the_worker_left_none_of_was_not_measured(run: Audited) -> None:
    order = rewritten(run, lambda live: live.pop("model.norm.weight"))
    verify(order.model_copy(update={"passes": ()}))
    moved = {p.name: p.largest_move for p in pristine_of(run).parameters}
    assert moved["model.norm.weight"] is None


# -- passes ---------------------------------------------------------------------------------


def test_passes_are_made_again_in_float32_on_the_workers_weights_and_the_streams_tokens(
    verified: Verified,
) -> None:
    run = verified(BF16)
    found, shape = read(run, audited.REFERENCE), shape_of(run.config)
    weights = load_file(run.scratch / LIVE_WEIGHTS)
    ids = random_tokens(1000 + END, 2, shape.sequence_length, shape.vocab_size)
    collect = Sketches("live", run.reference.seed, shape)
    plain_pass(weights.__getitem__, shape, Batch(ids, ids), Numerics(torch.float32, "cpu"), collect)
    assert collect.tensors
    assert all(torch.equal(found[name], value) for name, value in collect.tensors.items())


def test_a_judged_step_has_its_own_weights_tokens_and_elements(verified: Verified) -> None:
    run = verified(BF16)
    found = read(run, audited.REFERENCE)[STEP]
    where = read(run, audited.STEP_VALUES)["9/where"].long()
    digests = {STEP_WEIGHTS: run.reference.digests[STEP_WEIGHTS]}
    inputs = replace(inputs_for(run.reference), digests=digests)
    with Rerun(inputs) as again:
        assert torch.equal(found, again.samples(where, Numerics(torch.float32, "cpu"), STEP))
    shown = read(run, audited.STEP_VALUES)["9/gradient"]
    assert float((found - shown).norm() / found.norm()) < 0.02


def test_a_16_bit_run_is_made_on_the_host_with_either_loss_and_a_float32_one_with_its_own(
    verified: Verified,
) -> None:
    def made(run: Audited) -> set[str]:
        names = {name.split("/")[0] for name in read(run, audited.REFERENCE) if "host" in name}
        return {name.removeprefix("host") for name in names}

    narrow = verified(BF16)
    assert made(narrow) == {"", audited.WIDE_LOSS}
    found, other = read(narrow, audited.REFERENCE), f"host{audited.WIDE_LOSS}"
    assert not torch.equal(found[f"host/{STEP}"], found[f"{other}/{STEP}"])
    assert not torch.equal(found["host/live/loss"], found[f"{other}/live/loss"])
    assert made(verified(FP32)) == {""}


def test_a_float32_run_has_a_reference_in_float64(verified: Verified) -> None:
    run = verified(FP32)
    shown, right = read(run, audited.GRADIENTS), read(run, audited.REFERENCE)
    name = "live/lm_head.weight"
    error = float((shown[name] - right[name]).norm() / right[name].norm())
    assert 0 < error < 1e-5


def test_the_order_says_which_passes_are_made(run: Audited) -> None:
    verify(run.reference.model_copy(update={"passes": ("head",)}))
    # The host's probes are made for batches of more than one sequence.
    names = [
        name.removeprefix("host with its loss in float32/") for name in read(run, audited.REFERENCE)
    ]
    made = {name.removeprefix("host/").partition("/")[0] for name in names}
    assert made == {"head"}


@pytest.mark.parametrize("name", [LIVE_WEIGHTS, STEP_WEIGHTS])
def test_weights_that_were_altered_end_in_a_failed_run_and_no_reference(
    run: Audited, name: str
) -> None:
    data = bytearray((run.scratch / name).read_bytes())
    data[-1] ^= 1
    (run.scratch / name).write_bytes(data)
    with pytest.raises(
        RunFailedError, match=f"{name} is not what the worker wrote: it was altered"
    ):
        verify(run.reference)
    assert not (run.folder / audited.REFERENCE).exists()


def test_a_second_order_is_answered_too_and_its_reference_takes_the_place_of_the_first(
    run: Audited,
) -> None:
    first = run.reference.model_copy(update={"passes": ("head",)})
    second = first.model_copy(update={"passes": ("branches",)})
    line = Line(first, second)
    reference_run.answer(line)
    assert [m for m in line.sent if isinstance(m, Done)] == [Done(), Done()]
    passes = {name.partition("/")[0] for name in read(run, audited.REFERENCE)}
    assert {name for name in passes if not name.startswith("host")} == {"branches"}


def test_another_order_than_one_for_a_reference_is_a_failure_that_names_it() -> None:
    with pytest.raises(RunFailedError, match="'done' came where a ReferenceOrder was due"):
        reference_run.answer(Line(Done()))


@pytest.mark.parametrize("shared", [False, True])
def test_the_order_says_whether_a_vendors_code_runs_beside(
    run: Audited, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    opened: list[bool] = []
    real = weights_file.WeightsFile.__init__

    def note(self: Any, *arguments: Any, shared: bool = False) -> None:
        opened.append(shared)
        real(self, *arguments, shared=shared)

    monkeypatch.setattr(weights_file.WeightsFile, "__init__", note)
    verify(run.reference.model_copy(update={"passes": (), "shared": shared}))
    assert opened == [shared] * 4, "the weights of the end, and of three judged steps"


def test_elements_that_were_altered_end_in_a_failed_run(run: Audited) -> None:
    path = run.folder / audited.STEP_VALUES
    tensors = load(path.read_bytes())
    tensors["9/where"] += 1
    path.write_bytes(save(tensors))
    with pytest.raises(RunFailedError, match=r"steps\.safetensors is not what the worker wrote"):
        verify(run.reference)


# -- steps and calls of a CPU ---------------------------------------------------------------------


def repeating(run: Audited) -> ReferenceOrder:
    again = {"stream": run.honest.stream, "calls": run.honest.calls}
    return run.reference.model_copy(update=again)


@pytest.mark.parametrize("precision", [BF16, FP32], ids=lambda p: p.name)
def test_repeated_steps_have_the_bits_that_the_worker_read(
    worked: Callable[..., Audited], tmp_path: Path, precision: Precision
) -> None:
    run = worked(precision=precision).copied(tmp_path)
    line = verify(repeating(run))
    rows = read(run, audited.LEDGER_VALUES)[audited.ROWS]
    assert torch.equal(read(run, audited.REPLAYED)[audited.ROWS], rows.float())
    ticks = [message.index for message in line.sent if isinstance(message, Tick)]
    assert ticks == list(range(len(rows)))


def test_repeated_calls_have_the_bits_that_the_worker_read(
    worked: Callable[..., Audited], tmp_path: Path
) -> None:
    run = worked(precision=BF16, mode=Mode.FORWARD).copied(tmp_path)
    verify(repeating(run))
    rows = read(run, audited.LEDGER_VALUES)[audited.ROWS]
    assert torch.equal(read(run, audited.REPLAYED)[audited.ROWS], rows.float())


def test_a_repetition_that_fails_leaves_the_reference(
    worked: Callable[..., Audited], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(repetition, "StreamReplay", broken)
    run = worked(precision=BF16).copied(tmp_path)
    line = verify(repeating(run))
    assert audited.REFERENCE in line.announced()
    assert audited.REPLAYED not in line.announced()
    (unmade,) = (message for message in line.sent if isinstance(message, Unmade))
    assert unmade.reason == "RuntimeError: no memory"
