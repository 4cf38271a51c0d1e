"""What a worker leaves once its stream has ended, for calibrator, verifier and judges."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from llmb.config import FP32, AuditMode
from llmb.errors import UnavailableError
from llmb.observe.passes import Numerics, Samples, Sketches, plain_pass
from llmb.processes import worker
from llmb.processes.modes import training
from llmb.records import audited, evidence
from llmb.records.audited import LIVE_WEIGHTS, ProbedEvidence, StepsEvidence
from llmb.reference.data import Batch, random_tokens
from llmb.wire.messages import WorkOrder
from tests.unit import builders_audit
from tests.unit.builders_audit import END, rate_of, shape_of, small_vocabulary
from tests.unit.builders_runtime import run_config

__all__ = ["small_vocabulary"]  # a fixture


@pytest.fixture
def run(tmp_path: Path, small_vocabulary: None) -> builders_audit.Audited:
    """A run none of whose steps can be replayed."""
    return builders_audit.work(tmp_path, precision=FP32, replayable=False)


@pytest.fixture
def replayable(tmp_path: Path, small_vocabulary: None) -> builders_audit.Audited:
    return builders_audit.work(tmp_path, precision=FP32)


def read(run: builders_audit.Audited, name: str) -> dict[str, torch.Tensor]:
    return load_file(run.folder / name)


JUDGED = {audited.judged_weights(step) for step in builders_audit.JUDGED}
LEFT = {
    "model.json",
    "weights.json",
    "optimizer.json",
    audited.STEPS,
    audited.STEP_VALUES,
    audited.GRADIENTS,
    audited.PROBED,
    evidence.PAIRS,
}


def test_every_file_of_the_audit_is_left_and_announced_and_weights_only_lent(
    run: builders_audit.Audited,
) -> None:
    assert {file.name for file in run.folder.iterdir()} == LEFT
    assert {file.name for file in run.scratch.iterdir()} == {LIVE_WEIGHTS, *JUDGED}
    assert set(run.honest.digests) == LEFT | {LIVE_WEIGHTS, *JUDGED}


def test_a_run_whose_steps_are_all_compared_keeps_judged_weights_and_glances_at_nothing(
    replayable: builders_audit.Audited,
) -> None:
    run, left = replayable, LEFT | {audited.LEDGER, audited.LEDGER_VALUES}
    assert {file.name for file in run.folder.iterdir()} == left
    assert {file.name for file in run.scratch.iterdir()} == {LIVE_WEIGHTS, *JUDGED}
    steps = StepsEvidence.model_validate_json((run.folder / audited.STEPS).read_bytes())
    assert [step.weights_kept for step in steps.steps] == [False, False, False]
    assert not [name for name in read(run, audited.STEP_VALUES) if "asked" in name]


def test_the_last_step_is_committed_to_as_well(replayable: builders_audit.Audited) -> None:
    rows = read(replayable, audited.LEDGER_VALUES)[audited.ROWS]
    assert len(rows) == END + 1
    assert len(replayable.facts.repeats[0].commitments) == END + 1
    last = hashlib.sha256(rows[END].numpy().tobytes()).hexdigest()
    assert replayable.facts.repeats[0].commitments[END] == last


def test_the_weights_left_are_those_the_last_gradients_were_computed_with(
    run: builders_audit.Audited,
) -> None:
    weights, shape = read_weights(run, LIVE_WEIGHTS), shape_of(run.config)
    probed = ProbedEvidence.model_validate_json((run.folder / audited.PROBED).read_bytes())
    assert (probed.last_step, probed.token_seed, probed.seed) == (END, 1000 + END, 99)
    ids = random_tokens(probed.token_seed, 2, shape.sequence_length, shape.vocab_size)
    collect = Sketches("live", probed.seed, shape)
    loss = plain_pass(
        weights.__getitem__, shape, Batch(ids, ids), Numerics(torch.float32, "cpu"), collect
    )
    shown = read(run, audited.GRADIENTS)
    assert shown["live/loss"].tolist() == [torch.tensor(loss).item()]
    for name, value in collect.tensors.items():
        assert torch.equal(shown[name], value), name


def read_weights(run: builders_audit.Audited, name: str) -> dict[str, torch.Tensor]:
    return load_file(run.scratch / name)


def test_the_weights_of_a_judged_step_give_the_gradients_that_were_sampled_in_it(
    run: builders_audit.Audited,
) -> None:
    shape, seen = shape_of(run.config), read(run, audited.STEP_VALUES)
    steps = StepsEvidence.model_validate_json((run.folder / audited.STEPS).read_bytes())
    assert [step.index for step in steps.steps] == [0, 3, 4, 6, 7, 9]
    kept = [step for step in steps.steps if step.weights_kept]
    assert tuple(step.index for step in kept) == builders_audit.JUDGED
    for step in kept:
        weights = read_weights(run, audited.judged_weights(step.index))
        sizes = {name: weights[name].numel() for name in names(run)}
        samples = Samples(seen[f"{step.index}/where"].long(), sizes)
        ids = random_tokens(step.token_seed, 2, shape.sequence_length, shape.vocab_size)
        numerics = Numerics(torch.float32, "cpu")
        plain_pass(weights.__getitem__, shape, Batch(ids, ids), numerics, samples)
        assert torch.equal(samples.values, seen[f"{step.index}/gradient"])


def names(run: builders_audit.Audited) -> list[str]:
    weights = json.loads((run.folder / "weights.json").read_bytes())
    return [parameter["name"] for parameter in weights["pristine"]]


def test_what_was_glanced_at_before_the_answer_is_the_same_when_everything_is_read(
    run: builders_audit.Audited,
) -> None:
    seen = read(run, audited.STEP_VALUES)
    for index in (0, 4, 7, END, *builders_audit.JUDGED):
        asked = seen[f"{index}/asked"]
        assert len(asked) > 500
        for when in ("before", "after"):
            assert torch.equal(seen[f"{index}/asked {when}"], asked)
    assert "1/asked" not in seen


def test_numbers_of_elements_take_four_bytes_where_they_fit(run: builders_audit.Audited) -> None:
    assert read(run, audited.STEP_VALUES)["9/where"].dtype is torch.int32


def test_both_weights_differ_by_the_steps_in_between(run: builders_audit.Audited) -> None:
    names = (LIVE_WEIGHTS, audited.judged_weights(9))
    live, step = (read_weights(run, name) for name in names)
    assert set(live) == set(step)
    moved = {name: float((live[name] - step[name]).abs().max()) for name in live}
    most = 4 * sum(rate_of(index) for index in range(9, END))
    assert all(0 < move <= most for move in moved.values()), moved


def test_a_run_in_which_nothing_was_looked_at_leaves_no_weights_of_a_step(
    tmp_path: Path, small_vocabulary: None
) -> None:
    found = builders_audit.work(tmp_path, audits=())
    assert {file.name for file in found.scratch.iterdir()} == {LIVE_WEIGHTS, *JUDGED}
    steps = StepsEvidence.model_validate_json((found.folder / audited.STEPS).read_bytes())
    assert steps.steps == ()


def test_a_model_whose_parameters_were_not_all_found_is_not_probed_and_the_reason_told(
    tmp_path: Path, small_vocabulary: None
) -> None:
    class Renamed(nn.Module):
        """The final norm, its gain under another name and in another object."""

        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.gain, self.eps = nn.Parameter(norm.weight.detach().clone()), norm.eps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.rms_norm(x, x.shape[-1:], self.gain, self.eps)

    def post_process(model: nn.Module) -> nn.Module:
        model.model.norm = Renamed(model.model.norm)
        return model

    found = builders_audit.work(tmp_path, post_process=post_process)
    probed = ProbedEvidence.model_validate_json((found.folder / audited.PROBED).read_bytes())
    assert probed.passes == ("live",)
    assert probed.failure == "1 parameters were not found: model.norm.weight, ..."


def test_settings_are_read_before_the_plugin_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def load(name: str) -> None:
        calls.append("plugin")
        raise UnavailableError("this far")

    monkeypatch.setattr(worker.settings, "snapshot", lambda: calls.append("settings"))
    monkeypatch.setattr(worker, "Plugin", load)
    order = WorkOrder(
        config=run_config(audit=AuditMode.OFF),
        evidence_folder="",
        collect_evidence=False,
        scratch_folder="",
    )
    with ExitStack() as company, pytest.raises(UnavailableError, match="this far"):
        worker.carry_out(builders_audit.Line(order), company)  # type: ignore[arg-type]
    assert calls == ["settings", "plugin"], "what its import changes is seen as changed"


@pytest.mark.parametrize("there", [True, False])
def test_a_device_that_has_gone_since_it_was_offered_is_named(there: bool) -> None:
    backend = SimpleNamespace(is_available=lambda: there)
    plugin: Any = SimpleNamespace(backend=lambda config: backend)
    if there:
        assert worker.backend_of(plugin, run_config()) is backend
    else:
        with pytest.raises(UnavailableError, match="device 'cpu' has gone"):
            worker.backend_of(plugin, run_config())


def test_of_a_model_with_dropout_the_last_pass_is_one_that_anybody_can_repeat() -> None:
    model, seen = nn.Dropout(0.5), []
    stage = SimpleNamespace(shape=SimpleNamespace(dropout=0.5), model=model, mean=lambda loss: loss)
    task: Any = SimpleNamespace(
        _stage=stage,
        sampler=SimpleNamespace(glance_again=lambda step, when: {}),
        _batches=SimpleNamespace(latest=()),
        _untimed_pass=lambda batches: seen.append(model.training),
    )
    examination: Any = SimpleNamespace(live=lambda loss: None)
    last: Any = SimpleNamespace(step=3, loss=None)
    training.Training._last_step(task, last, examination)
    assert seen == [False], "its masks are off"
