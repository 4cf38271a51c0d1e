"""A whole run judged from its evidence: honest ones are never accused, the others by their rule."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor, nn

from llmb.audit import judgement, weights
from llmb.audit.bench import Bench, UnreadableError
from llmb.audit.judgement import Judgement
from llmb.audit.rules import RULES
from llmb.config import BF16, FP16, FP32, TF32, Precision
from llmb.formats import KNOWN, Element, Format
from llmb.plugin import ParameterView
from llmb.records import audited, evidence
from llmb.records.audited import PristineEvidence
from llmb.records.finding import Status
from llmb.records.run_record import PrecisionBits
from llmb.reference.formats import _Emulated, emulate
from tests.unit import builders_audit
from tests.unit.audit import test_outputs
from tests.unit.builders_audit import HONEST, TIMED, WARMUP, Audited, small_vocabulary
from tests.unit.builders_runtime import workload_facts

__all__ = ["small_vocabulary"]  # a fixture
pytestmark = pytest.mark.usefixtures("small_vocabulary")
FP8 = Precision(name="FP8", bits=8, dtype="bfloat16")
MXFP8 = Precision(name="MXFP8", bits=8, dtype="bfloat16")
MXFP4 = Precision(name="MXFP4", bits=4, dtype="bfloat16")
DATA = {known.name: known.format for known in KNOWN}
DATA["BF16"] = Format(Element(8, 7, (2 - 2.0**-7) * 2.0**127), head=True)
#: No step of a run in FP16 without a loss scale is replayed.
NOT_REPLAYED = {**HONEST, "L1": "not_applicable"}
MIXED = BF16.model_copy(update={"master_weights": True})


def statuses_of(judged: Judgement) -> dict[str, str]:
    """Return what ``Audited.statuses`` does, of what was judged already."""
    findings = reversed(judged.audit.findings)
    found = {f.id: f.status.value for f in findings}
    return {rule: found[rule] for rule in HONEST}


def broken(judged: Judgement) -> set[str]:
    """Return the rules that failed."""
    return {rule for rule, status in statuses_of(judged).items() if status == "fail"}


# -- honest runs ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2, 3))])
@pytest.mark.parametrize(
    "precision",
    [FP32, pytest.param(TF32, marks=pytest.mark.full), BF16, FP16],
    ids=lambda p: p.name,
)
def test_an_honest_run_is_never_accused(tmp_path: Path, precision: Precision, seed: int) -> None:
    judged = builders_audit.audit(tmp_path, precision=precision, seed=seed).judge()
    assert statuses_of(judged) == (NOT_REPLAYED if precision is FP16 else HONEST)
    assert judged.effective == precision.name
    assert judged.precision_observed
    assert judged.bits.forward_min is not None


@pytest.mark.parametrize(
    "kernel",
    [pytest.param({"foreach": True}, marks=pytest.mark.full), {"foreach": False}],
    ids=str,
)
def test_any_of_torchs_kernels_may_step(tmp_path: Path, kernel: Mapping[str, bool]) -> None:
    assert builders_audit.audit(tmp_path, optimizer_options=kernel).statuses() == HONEST


class Wrapped(nn.Module):
    """What a compiler or distributed training puts around a model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.module = inner

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.module(ids, labels=labels)


class Autocast(Wrapped):
    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(ids, labels=labels)


class FusedMLP(nn.Module):
    """Gate and up in one matrix, stored transposed, with rows of padding."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        both = torch.cat((mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach())).t()
        self.fused = nn.Parameter(F.pad(both, (0, 0, 0, 16)).contiguous())
        self.down_proj = mlp.down_proj

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (F.pad(x, (0, 16)) @ self.fused).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Half:
    def __init__(self, fused: nn.Parameter, half: int, name: str) -> None:
        self.fused, self.half, self.padding = fused, half, (name,)

    def _part(self, tensor: Tensor) -> Tensor:
        return tensor[:-16].chunk(2, dim=1)[self.half].t()

    def read(self, kind: str) -> Tensor | None:
        tensor = {"value": self.fused.detach(), "grad": self.fused.grad}[kind]
        return None if tensor is None else self._part(tensor)

    def write(self, value: Tensor) -> None:
        with torch.no_grad():
            self._part(self.fused.detach()).copy_(value)


class Whole:
    padding = ()

    def __init__(self, stored: nn.Parameter) -> None:
        self.stored = stored

    def read(self, kind: str) -> Tensor | None:
        return {"value": self.stored.detach(), "grad": self.stored.grad}[kind]

    def write(self, value: Tensor) -> None:
        with torch.no_grad():
            self.stored.copy_(value)


def fuse(model: nn.Module) -> nn.Module:
    for layer in model.model.layers.values():
        layer.mlp = FusedMLP(layer.mlp)
    return model


def fused_views(model: nn.Module) -> Mapping[str, ParameterView]:
    views: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        path, _, last = name.rpartition(".")
        if last == "fused":
            views[f"{path}.gate_proj.weight"] = Half(parameter, 0, name)
            views[f"{path}.up_proj.weight"] = Half(parameter, 1, name)
        else:
            views[name] = Whole(parameter)
    return views


def chunked_loss(model: nn.Module) -> nn.Module:
    """Compute the loss of half the batch at a time, in float32."""

    def forward(ids: Tensor, labels: Tensor | None = None) -> Tensor:
        assert labels is not None
        parts = []
        for one, targets in zip(ids.chunk(2), labels.chunk(2), strict=True):
            logits = model.lm_head(model.model(one))[:, :-1].float()
            parts.append(F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten()))
        return sum(parts) / 2

    model.forward = forward
    return model


@pytest.mark.parametrize(
    ("how", "changes"),
    [
        ({"post_process": Wrapped}, {}),
        pytest.param(
            {"post_process": fuse, "parameter_map": fused_views}, {}, marks=pytest.mark.full
        ),
        ({"post_process": fuse, "parameter_map": fused_views}, {"precision": FP32}),
        pytest.param({"post_process": Autocast}, {"precision": MIXED}, marks=pytest.mark.full),
        ({"post_process": chunked_loss}, {}),
        *(
            pytest.param(
                {"post_process": lambda model, name=name: emulate(model, DATA[name])},
                {"precision": declared},
                marks=pytest.mark.full,
            )
            for name, declared in {"FP8": FP8, "MXFP8": MXFP8, "MXFP4": MXFP4}.items()
        ),
    ],
    ids=["wrapped", "fused", "fused FP32", "autocast", "chunked", "FP8", "MXFP8", "MXFP4"],
)
def test_an_honest_transform_is_never_accused(
    tmp_path: Path, how: dict[str, Any], changes: dict[str, Any]
) -> None:
    found = builders_audit.audit(tmp_path, **how, **changes)
    assert found.statuses() == HONEST, [f for f in found.judge().audit.findings if f.message]


# -- forbidden acts -------------------------------------------------------------------------


def skip_layer(model: nn.Module) -> nn.Module:
    model.model.layers["1"].forward = lambda x, cos, sin: (
        x + 0 * sum(p.sum() for p in model.model.layers["1"].parameters())
    )
    return model


def one_matrix_in_fp8(model: nn.Module) -> nn.Module:
    mlp = model.model.layers["0"].mlp
    mlp.up_proj = _Emulated(mlp.up_proj, DATA["FP8"])
    return model


def half_the_batch(model: nn.Module) -> nn.Module:
    forward = model.forward
    model.forward = lambda ids, labels=None: forward(ids[:1], labels=labels[:1])
    return model


def short_sequences(model: nn.Module) -> nn.Module:
    forward = model.forward
    model.forward = lambda ids, labels=None: forward(ids[:, :12], labels=labels[:, :12])
    return model


def shadowed(model: nn.Module) -> nn.Module:
    """Compute from a copy of a matrix; the optimizer moves the parameter."""
    mlp = model.model.layers["0"].mlp
    copy = mlp.gate_proj.weight.detach().clone()
    mlp.gate_proj.forward = lambda x: F.linear(x, copy + 0 * mlp.gate_proj.weight)
    return model


def cached_output(model: nn.Module) -> nn.Module:
    """Answer a tensor in the same memory as before with the loss from before."""
    forward, known = model.forward, {}

    def cached(ids: Tensor, labels: Tensor | None = None) -> Tensor:
        if "loss" not in known:
            known["loss"] = forward(ids, labels=labels)
        return known["loss"].detach() + 0 * forward(ids, labels=labels)

    model.forward = cached
    return model


def no_positions(model: nn.Module) -> nn.Module:
    for layer in model.model.layers.values():
        attend = layer.self_attn.forward
        layer.self_attn.forward = lambda x, cos, sin, attend=attend: attend(
            x, torch.ones_like(cos), torch.zeros_like(sin)
        )
    return model


def other_values(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model.lm_head.weight[3, 3] += 0.5
    return model


def sparse(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model.model.layers["0"].mlp.up_proj.weight[::2] = 0
    return model


def frozen(model: nn.Module) -> nn.Module:
    model.model.embed_tokens.weight.requires_grad_(False)
    return model


def narrow(model: nn.Module) -> nn.Module:
    return model.bfloat16()


def gradient_dropped(model: nn.Module) -> nn.Module:
    """Leave one branch out of the backward pass."""
    mlp = model.model.layers["1"].mlp
    forward = mlp.forward
    mlp.forward = lambda x: forward(x).detach() + 0 * forward(x)
    return model


def lost_norm(model: nn.Module) -> nn.Module:
    model.model.norm.weight = nn.Parameter(torch.full_like(model.model.norm.weight, 2.0))
    return model


@pytest.mark.parametrize(
    ("cheat", "rules", "changes"),
    [
        pytest.param(skip_layer, {"E1", "E2", "L1"}, {}, marks=pytest.mark.full),
        (one_matrix_in_fp8, {"E2", "P1"}, {}),
        pytest.param(
            *(one_matrix_in_fp8, {"E1", "E2", "L1", "P1"}, {"precision": FP32}),
            marks=pytest.mark.full,
        ),
        (half_the_batch, {"E1", "L1"}, {}),
        pytest.param(short_sequences, {"E1", "E2", "L1"}, {}, marks=pytest.mark.full),
        pytest.param(shadowed, {"E2"}, {"precision": FP32}, marks=pytest.mark.full),
        (cached_output, {"E1", "E3", "L1"}, {}),
        pytest.param(no_positions, {"E1", "E2", "L1"}, {}, marks=pytest.mark.full),
        (other_values, {"W1"}, {}),
        pytest.param(sparse, {"W1"}, {}, marks=pytest.mark.full),
        pytest.param(lost_norm, {"W1"}, {}, marks=pytest.mark.full),
        pytest.param(frozen, {"W1"}, {}, marks=pytest.mark.full),
        pytest.param(narrow, {"W1", "P1"}, {"precision": FP32}, marks=pytest.mark.full),
        (gradient_dropped, {"E1", "E2", "L1"}, {}),
    ],
)
def test_a_forbidden_act_ends_in_its_rule(
    tmp_path: Path,
    cheat: Callable[[nn.Module], nn.Module],
    rules: set[str],
    changes: dict[str, Any],
) -> None:
    judged = builders_audit.audit(tmp_path, post_process=cheat, **changes).judge()
    assert broken(judged) >= rules, statuses_of(judged)
    assert judged.audit.verdict.value == "INVALID"


@pytest.mark.parametrize(
    ("narrower", "declared", "rules"),
    [
        pytest.param("TF32", FP32, {"P1", "E1", "L1"}, marks=pytest.mark.full),
        pytest.param("BF16", FP32, {"P1", "E1", "L1"}, marks=pytest.mark.full),
        pytest.param("BF16", TF32, {"P1", "E2", "E1"}, marks=pytest.mark.full),
        ("FP8", BF16, {"P1", "E2", "E1"}),
        pytest.param("NVFP4", FP8, {"P1", "E2", "E1"}, marks=pytest.mark.full),
        pytest.param("MXFP4", MXFP8, {"P1", "E2", "E1"}, marks=pytest.mark.full),
    ],
    ids=lambda value: getattr(value, "name", value) if not isinstance(value, set) else "",
)
def test_a_narrower_format_than_declared_fails_and_the_record_gets_the_class_that_was_measured(
    tmp_path: Path, narrower: str, declared: Precision, rules: set[str]
) -> None:
    judged = builders_audit.audit(
        tmp_path, post_process=lambda model: emulate(model, DATA[narrower]), precision=declared
    ).judge()
    assert broken(judged) >= rules, statuses_of(judged)
    assert judged.audit.verdict.value == "INVALID"
    assert judged.effective == narrower


@pytest.mark.parametrize("computes", [pytest.param("BF16", marks=pytest.mark.full), "MXFP4"])
def test_a_format_that_nobody_knows_is_unverified_with_a_note_whatever_it_computes(
    tmp_path: Path, computes: str
) -> None:
    unknown = Precision(name="ACME5", bits=5, dtype="bfloat16")
    judged = builders_audit.audit(
        tmp_path, post_process=lambda model: emulate(model, DATA[computes]), precision=unknown
    ).judge()
    notes = {f.id: f.status for f in judged.audit.findings if "Precision(format=" in f.message}
    assert notes == dict.fromkeys(("E1", "E2", "G1", "P1"), Status.NOT_OBSERVED)
    assert not broken(judged)
    assert judged.audit.verdict.value == "UNVERIFIED"
    assert (judged.effective, judged.precision_observed) == (None, False)


@pytest.mark.full
def test_data_that_a_plugin_declares_are_the_measure_of_its_format(tmp_path: Path) -> None:
    data = Format(Element(2, 2, 7.0, scale="e8m0", block=32))
    declared = Precision(name="ACME5", bits=5, dtype="bfloat16", format=data)
    honest = builders_audit.audit(
        tmp_path / "honest", post_process=lambda model: emulate(model, data), precision=declared
    ).judge()
    assert not broken(honest)
    assert honest.effective == "ACME5"
    rough = Format(Element(2, 1, 6.0, scale="float32"))
    less = builders_audit.audit(
        tmp_path / "less", post_process=lambda model: emulate(model, rough), precision=declared
    ).judge()
    assert broken(less) >= {"E2", "P1"}


# -- evidence that is missing ---------------------------------------------------------------


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    with pytest.MonkeyPatch.context() as patch:
        builders_audit.make_small(patch)
        return builders_audit.audit(tmp_path_factory.mktemp("honest"))


@pytest.fixture
def run(honest: Audited) -> Audited:
    return Audited(**{**vars(honest), "files": dict(honest.files)})


def name_of(file: str) -> str:
    return evidence.path(0, file)


NOT_OBSERVED = {
    audited.PRISTINE: {"W1"},
    evidence.WEIGHTS: {"W1"},
    audited.GRADIENTS: {"E1", "E2", "E3", "P1", "G1", "L1"},
    audited.PROBED: {"E1", "E2", "E3", "P1", "G1", "L1"},
    audited.HONEST: {"E1", "E2", "E3", "P1", "G1", "L1"},
    audited.REFERENCE: {"E1", "E2", "E3", "P1", "G1", "L1"},
    audited.LEDGER: {"G1", "L1"},
    audited.LEDGER_VALUES: {"G1", "L1"},
    audited.REPLAYED: {"L1"},
    audited.RECOMPUTED: {"L1"},
    audited.STEPS: {"G1", "O2"},
    audited.STEP_VALUES: {"E1", "G1", "O2"},
    audited.REPLAY: {"G1", "O2"},
    evidence.OPTIMIZER: {"O1"},
}


@pytest.mark.parametrize("file", NOT_OBSERVED)
def test_what_has_no_evidence_is_not_observed_and_never_passed(run: Audited, file: str) -> None:
    del run.files[name_of(file)]
    # On a CPU the reference run itself repeats the steps: no step is recomputed.
    run.facts = replace(run.facts, on_host=file != audited.RECOMPUTED)
    judged = run.judge()
    statuses = statuses_of(judged)
    assert {rule for rule, status in statuses.items() if status == "not_observed"} == (
        NOT_OBSERVED[file]
    )
    assert judged.audit.verdict.value == "UNVERIFIED"
    if "P1" in NOT_OBSERVED[file]:
        assert (judged.effective, judged.precision_observed) == (None, False)
        assert judged.bits == PrecisionBits()


def test_a_run_without_any_evidence_is_unverified(run: Audited) -> None:
    run.files.clear()
    assert set(run.statuses().values()) == {"not_observed"}


def test_every_rule_there_is_has_a_finding(run: Audited) -> None:
    found = {finding.id for finding in run.judge().audit.findings}
    assert found == {rule.id for rule in RULES}


def test_findings_name_the_files_that_show_them(run: Audited) -> None:
    for finding in run.judge().audit.findings:
        assert set(finding.evidence) <= set(run.smaller()), finding
        if finding.id in HONEST:
            assert finding.evidence, finding


def test_judged_steps_are_judged_where_no_step_can_be_replayed(tmp_path: Path) -> None:
    found = builders_audit.audit(tmp_path, replayable=False)
    assert found.finding("G1").status is Status.PASS
    assert found.finding("G1").message.endswith("as honest; likewise steps 6 and 9")
    assert found.statuses() == NOT_REPLAYED
    (repeat,) = found.facts.repeats
    for stops, w1 in (((), "pass"), (repeat.stops[1:], "not_observed")):
        other = repeat.model_copy(update={"stops": stops})
        bare = replace(found, facts=replace(found.facts, repeats=[other]))
        assert bare.statuses() == {**NOT_REPLAYED, "G1": "not_observed", "W1": w1}


def test_weights_of_a_judged_step_that_make_the_model_cheap_fail(tmp_path: Path) -> None:
    found = builders_audit.audit(tmp_path, replayable=False)
    steps = [stop.step for stop in found.facts.repeats[0].stops]
    pristine = PristineEvidence.model_validate_json(found.files[evidence.path(0, audited.PRISTINE)])
    matrix = next(one for one in pristine.parameters if one.idle)
    assert all(share < 0.01 for one in pristine.parameters for share in one.idle)
    for idle, status in (((0.0, 0.3, 0.1), "fail"), ((0.3,), "not_observed")):
        cheap = matrix.model_copy(update={"idle": idle})
        others = [one for one in pristine.parameters if one is not matrix]
        changed = PristineEvidence(parameters=(cheap, *others)).model_dump_json().encode()
        w1 = replace(
            found, files={**found.files, evidence.path(0, audited.PRISTINE): changed}
        ).finding("W1")
        assert w1.status.value == status
        if status == "fail":
            assert f"in step {steps[1]} 0.30 of {matrix.name} is idle" in w1.message


def test_a_judged_step_in_which_most_features_sleep_fails(tmp_path: Path) -> None:
    found = builders_audit.audit(tmp_path, replayable=False)
    steps = [stop.step for stop in found.facts.repeats[0].stops]
    path = evidence.path(0, audited.PRISTINE)
    pristine = PristineEvidence.model_validate_json(found.files[path])
    looked_at = {one.name: one.asleep for one in pristine.parameters if one.asleep}
    assert looked_at
    assert all(len(shares) == len(steps) and max(shares) < 0.2 for shares in looked_at.values())
    name = next(iter(looked_at))
    changed = pristine.with_asleep({**looked_at, name: (*[0.0] * (len(steps) - 1), 0.94)})
    files = {**found.files, path: changed.model_dump_json().encode()}
    w1 = replace(found, files=files).finding("W1")
    assert w1.status is Status.FAIL
    assert f"in step {steps[-1]} 0.94 of the rows or columns of {name} have" in w1.message
    files[path] = pristine.with_asleep({}).model_dump_json().encode()
    assert replace(found, files=files).finding("W1").status is Status.NOT_OBSERVED


def test_weights_of_a_judged_step_that_adamw_cannot_reach_fail(tmp_path: Path) -> None:
    found = builders_audit.audit(tmp_path, replayable=False)
    steps = [stop.step for stop in found.facts.repeats[0].stops]
    path = evidence.path(0, audited.PRISTINE)
    pristine = PristineEvidence.model_validate_json(found.files[path])
    assert all(len(one.moves) == len(steps) for one in pristine.parameters)
    assert found.finding("W1").status is Status.PASS
    first, *others = pristine.parameters
    there_and_back = first.model_copy(update={"moves": (*first.moves[:-1], 0.5)})
    changed = PristineEvidence(parameters=(there_and_back, *others))
    files = {**found.files, path: changed.model_dump_json().encode()}
    w1 = replace(found, files=files).finding("W1")
    assert w1.status is Status.FAIL
    assert f"in step {steps[-1]} 1 parameters moved further than {steps[-1] + 1}" in w1.message


def test_a_model_without_large_matrices_has_none_to_be_looked_at(tmp_path: Path) -> None:
    found = builders_audit.audit(tmp_path, replayable=False)
    steps = [stop.step for stop in found.facts.repeats[0].stops]
    path = evidence.path(0, audited.PRISTINE)
    pristine = PristineEvidence.model_validate_json(found.files[path]).with_asleep({})
    vectors = tuple(one for one in pristine.parameters if len(one.shape) == 1)
    bench = Bench(found.files.get, found.facts, 0)
    finding = weights._asleep(bench, pristine, steps)
    assert finding is not None
    assert finding.status is Status.NOT_OBSERVED
    assert weights._asleep(bench, PristineEvidence(parameters=vectors), steps) is None


def test_where_every_step_is_compared_drawn_steps_are_judged(run: Audited) -> None:
    found = run.finding("G1")
    assert found.status is Status.PASS
    assert "drawn and unknown to the worker until read" in found.message


def test_by_rules_3_no_single_step_was_judged_where_every_one_was_compared(run: Audited) -> None:
    older = replace(run, facts=replace(run.facts, rules_version="3"))
    assert older.finding("G1").status is Status.NOT_APPLICABLE


# -- what trains nothing ----------------------------------------------------------------------


def status_of_g1(mode: str, index: int) -> str:
    """Return G1 of an honest run in ``mode`` whose audited step is the one with ``index``."""
    of = test_outputs.shown()
    kept = test_outputs.KEPT
    steps = {key.replace(f"{kept}/", f"{index}/", 1): values for key, values in of.steps.items()}
    looked = audited.StepsEvidence(
        steps=(test_outputs.step(index),), pause_ns=0, longest_pause_ns=0
    )
    shown = {
        audited.PROBED: of.probed.model_dump_json().encode(),
        audited.STEPS: looked.model_dump_json().encode(),
        audited.GRADIENTS: saved(of.seen),
        audited.STEP_VALUES: saved(steps),
        audited.HONEST: saved(of.honest),
        audited.REFERENCE: saved(of.reference),
    }
    files = {name_of(file): data for file, data in shown.items()}
    workload = workload_facts().model_copy(update={"mode": mode})
    facts = replace(builders_audit.facts(builders_audit.audit_config()), workload=workload)
    findings = judgement.judge(files.get, facts).audit.findings
    return next(finding.status.value for finding in findings if finding.id == "G1")


def saved(values: Mapping[str, list[float]]) -> bytes:
    return save({key: torch.tensor(numbers) for key, numbers in values.items()})


@pytest.mark.parametrize("mode", ["forward", "generate"])
@pytest.mark.parametrize(
    ("index", "status"),
    [
        (WARMUP - 1, "not_observed"),
        (WARMUP, "pass"),
        (WARMUP + TIMED - 1, "pass"),
        (WARMUP + TIMED, "not_observed"),
    ],
)
def test_where_nothing_is_trained_g1_wants_a_step_inside_the_window_too(
    mode: str, index: int, status: str
) -> None:
    assert status_of_g1(mode, index) == status


# -- evidence that was meddled with ---------------------------------------------------------


def edited(run: Audited, file: str, edit: Callable[[Any], object]) -> None:
    data = json.loads(run.files[name_of(file)])
    edit(data)
    run.files[name_of(file)] = json.dumps(data).encode()


def changed(run: Audited, file: str, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load(run.files[name_of(file)])
    change(tensors)
    run.files[name_of(file)] = save(tensors)


def arrays(run: Audited) -> list[tuple[str, str]]:
    return [
        (file, key)
        for file in (audited.GRADIENTS, audited.HONEST, audited.REFERENCE, audited.REPLAY)
        for key in load(run.files[name_of(file)])
    ]


#: Enough of a model to stand for the rest.
SOME = ("up_proj", "o_proj", "input_layernorm", "lm_head", "model.norm", "loss", "step")


def some(run: Audited, file: str) -> list[str]:
    """Return arrays from which something follows, not those that only repeat or label."""
    keys = load(run.files[name_of(file)])
    chosen = {
        k
        for k in keys
        if k[0].isdigit() or (k.endswith(SOME) or k.partition(".weight")[0].endswith(SOME))
    }
    return sorted(k for k in chosen if "layers.1" not in k and is_judged(file, k))


#: In a plain run every third one is tried, of NaNs and infinities other ones.
EVERY = pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.full)])


def is_judged(file: str, key: str) -> bool:
    wide = f"BF16{audited.WIDE_LOSS}"
    probes = [f"{whose}/{name}/loss" for whose in ("BF16", wide) for name in ("head", "branches")]
    free = {
        audited.GRADIENTS: ("head/model.layers", "head/loss", "branches/loss"),
        audited.HONEST: ("FP8/", *probes),
        audited.REFERENCE: ("host", "head/loss", "branches/loss"),
        audited.STEP_VALUES: ("0/", "4/gradient"),  # the first step, and gradients of another
        audited.REPLAY: (),
    }
    return not key.startswith(free[file]) and not key.endswith("/where")


@EVERY
@pytest.mark.parametrize(("bad", "first"), [(math.nan, 0), (math.inf, 1)])
@pytest.mark.parametrize(
    "file",
    [audited.GRADIENTS, audited.HONEST, audited.REFERENCE, audited.REPLAY, audited.STEP_VALUES],
)
def test_a_number_that_is_none_never_leaves_every_rule_passed(
    run: Audited, file: str, bad: float, first: int, every: int
) -> None:
    """The first number of each array in turn."""
    whole, keys, passed = run.files[name_of(file)], some(run, file), []
    assert len(keys) > 5
    for key in keys[first % every :: every]:
        changed(run, file, lambda tensors, key=key: tensors[key].view(-1)[:1].fill_(bad))
        if verdicts(run) == {"pass"}:
            passed.append(key)
        run.files[name_of(file)] = whole
    assert passed == []


@EVERY
@pytest.mark.parametrize("file", [audited.GRADIENTS, audited.HONEST, audited.STEP_VALUES])
def test_an_array_that_was_taken_away_never_leaves_every_rule_passed(
    run: Audited, file: str, every: int
) -> None:
    whole, passed = run.files[name_of(file)], []
    for key in [key for key in some(run, file) if "/next/" not in key][::every]:
        changed(run, file, lambda tensors, key=key: tensors.pop(key))
        if verdicts(run) == {"pass"}:
            passed.append(key)
        run.files[name_of(file)] = whole
    assert passed == []


@pytest.mark.parametrize("probe", [pytest.param("live", marks=pytest.mark.full), "branches"])
def test_a_reference_that_lacks_one_parameter_of_a_pass_is_unreadable_whichever_it_is(
    run: Audited, probe: str
) -> None:
    """Nothing would be compared with the gradient of that parameter."""
    pristine = json.loads(run.files[name_of(audited.PRISTINE)])
    names = [parameter["name"] for parameter in pristine["parameters"]]
    assert names == [name for name, _ in run.model.named_parameters()]
    whole = run.files[name_of(audited.REFERENCE)]
    for name in (f"{probe}/{parameter}" for parameter in names):
        changed(run, audited.REFERENCE, lambda tensors, name=name: tensors.pop(name))
        with pytest.raises(UnreadableError, match=rf"has no {re.escape(name)}\)"):
            run.judge()
        run.files[name_of(audited.REFERENCE)] = whole


def verdicts(run: Audited) -> set[str]:
    try:
        return set(run.statuses().values())
    except UnreadableError:
        return {"refused"}


@pytest.mark.parametrize("steps_before", [-1.0, -0.5, 1e308])
def test_a_step_counter_that_cannot_be_is_refused_or_fails_and_is_no_crash(
    run: Audited, steps_before: float
) -> None:
    edited(run, audited.STEPS, lambda d: d["steps"][-1].update(steps_before=steps_before))
    assert verdicts(run) != {"pass"}


@pytest.mark.parametrize("file", sorted(NOT_OBSERVED))
@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"garbage", b'{"steps": 1}'])
def test_a_file_that_is_not_what_llmb_writes_is_unreadable_by_name(
    run: Audited, file: str, data: bytes
) -> None:
    run.files[name_of(file)] = data
    with pytest.raises(UnreadableError, match=name_of(file)):
        run.judge()


def test_arrays_of_another_length_than_the_segments_say_are_refused_or_fail(run: Audited) -> None:
    edited(run, audited.STEPS, lambda data: data["steps"][-1]["segments"].pop())
    assert verdicts(run) != {"pass"}


@pytest.mark.parametrize("count", [-5, 10**6])
def test_a_segment_that_claims_an_impossible_number_of_elements_is_no_pass(
    run: Audited, count: int
) -> None:
    def edit(data: Any) -> None:
        data["steps"][-1]["segments"][0].update(states=count, gradients=count)

    edited(run, audited.STEPS, edit)
    assert verdicts(run) != {"pass"}


def test_a_worker_that_left_its_probes_out_is_not_observed(run: Audited) -> None:
    edited(run, audited.PROBED, lambda data: data.update(passes=["live"]))
    statuses = run.statuses()
    assert {statuses[rule] for rule in ("E1", "E2", "E3", "P1")} == {"not_observed"}


def test_judging_twice_gives_the_same(run: Audited) -> None:
    assert run.judge() == run.judge()


# -- several repeats ------------------------------------------------------------------------


def twice(run: Audited) -> Audited:
    second = {n.replace("repeat-0", "repeat-1"): data for n, data in run.files.items()}
    return Audited(
        **{
            **vars(run),
            "files": {**run.files, **second},
            "facts": replace(run.facts, repeats=[*run.facts.repeats] * 2),
        }
    )


def test_two_honest_repeats_pass(run: Audited) -> None:
    judged = twice(run).judge()
    assert statuses_of(judged) == HONEST
    assert judged.effective == "BF16"


@pytest.mark.parametrize("repeat", [0, 1])
def test_the_worst_of_all_repeats_is_the_finding(run: Audited, repeat: int) -> None:
    both = twice(run)
    name = evidence.path(repeat, audited.GRADIENTS)
    tensors = load(both.files[name])
    tensors["branches/model.layers.0.mlp.up_proj.weight"] *= 1.1
    both.files[name] = save(tensors)
    judged = both.judge()
    finding = next(f for f in judged.audit.findings if f.id == "E2")
    assert finding.status is Status.FAIL
    assert finding.evidence[0] == name
    assert judged.effective != "BF16"


@pytest.mark.parametrize("repeat", [0, 1])
def test_what_one_repeat_does_not_show_was_not_observed(run: Audited, repeat: int) -> None:
    both = twice(run)
    del both.files[evidence.path(repeat, audited.GRADIENTS)]
    judged = both.judge()
    statuses = statuses_of(judged)
    assert {statuses[rule] for rule in ("E1", "E2", "E3", "P1")} == {"not_observed"}
    assert (judged.effective, judged.precision_observed) == (None, False)


def test_a_fault_of_one_repeat_is_not_hidden_by_another_that_shows_nothing(run: Audited) -> None:
    both = twice(run)
    del both.files[evidence.path(1, audited.GRADIENTS)]
    name = evidence.path(0, audited.GRADIENTS)
    tensors = load(both.files[name])
    both.files[name] = save({key: -value for key, value in tensors.items()})
    assert "fail" in both.statuses().values()


def test_float32_is_how_numbers_travel(run: Audited) -> None:
    for file in (audited.GRADIENTS, audited.HONEST, audited.REFERENCE):
        head = struct.unpack("<Q", run.files[name_of(file)][:8])[0]
        header = json.loads(run.files[name_of(file)][8 : 8 + head])
        assert {e["dtype"] for key, e in header.items() if key != "__metadata__"} == {"F32"}


def test_a_step_that_was_audited_twice_is_no_evidence(tmp_path: Path) -> None:
    run = builders_audit.audit(tmp_path)
    path = evidence.path(0, audited.STEPS)
    data = json.loads(run.files[path])
    data["steps"].append(data["steps"][0])
    run.files[path] = json.dumps(data).encode()
    with pytest.raises(UnreadableError, match="a step was audited twice"):
        run.judge()
