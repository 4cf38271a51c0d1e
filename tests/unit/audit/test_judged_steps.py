"""Rule G1 on judged steps: the error of drawn steps beside an honest run from the same weights."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from llmb.audit import bench
from llmb.audit.bench import Bench
from llmb.audit.compared_rows import ComparedRows, Rows
from llmb.audit.honest_error import HonestError
from llmb.audit.judged_steps import ALL, JudgedSteps
from llmb.audit.rule import Evidence
from llmb.audit.sums import RoundedSums
from llmb.config import BF16, FP32, Precision
from llmb.records import audited, evidence
from llmb.records.audited import LedgerEvidence, LedgerSegment
from llmb.records.finding import Status
from tests.unit.builders_audit import JUDGED, Audited, audit, make_small, small_vocabulary

__all__ = ["small_vocabulary"]  # a fixture

NAMES = [f"layers.{layer}.{kind}.weight" for layer in range(4) for kind in ("up", "down")]
STEPS = (12, 40)
ELEMENTS = 64
HONEST = 0.006
LAST = HonestError(of_all=HONEST, of_parts=dict.fromkeys(NAMES, HONEST), times=3.0)
#: Relative error of a parameter in a step.
Errors = Callable[[str, int], float]


def rows(errors: Errors, seed: int, names: Sequence[str] = NAMES, elements: int = ELEMENTS) -> Rows:
    """Return rows of the judged steps that are as far off as ``errors`` says."""
    right, noise = random.Random(1), random.Random(seed)
    values = []
    for step in STEPS:
        for name in NAMES:
            off = errors(name, step)
            values += [right.gauss(0, 1) + off * noise.gauss(0, 1) for _ in range(elements)]
    segments = tuple(LedgerSegment(name=name, elements=elements) for name in names)
    return Rows(LedgerEvidence(segments=segments), values, STEPS)


def judged(
    errors: Errors,
    honest: Errors = lambda name, step: HONEST,
    last: HonestError | None = LAST,
    precision: Precision = BF16,
    names: Sequence[str] = NAMES,
    elements: int = ELEMENTS,
) -> JudgedSteps:
    exact = rows(lambda name, step: 0.0, 0, names, elements)
    runs = (rows(e, n, names, elements) for n, e in ((2, errors), (3, honest)))
    shown, theirs = (ComparedRows.of(run, exact) for run in runs)
    return JudgedSteps(STEPS, shown, [theirs], last, precision, NAMES, RoundedSums(1, precision))


def test_errors_of_the_size_of_an_honest_runs_are_within_the_limits() -> None:
    assert judged(lambda name, step: HONEST).worst().ratio < 0.9


@pytest.mark.parametrize("step", STEPS)
def test_one_step_in_which_everything_is_twice_as_far_off_is_beyond(step: int) -> None:
    found = judged(lambda name, at: 2 * HONEST if at == step else HONEST)
    assert found.worst().ratio > 1
    assert found.worst().step == step
    assert found.furthest().ratio > 1


def test_one_kind_of_parameter_in_all_layers_is_beyond_and_named() -> None:
    worst = judged(lambda name, step: HONEST * (1.9 if ".up." in name else 1.0)).worst()
    assert worst.ratio > 1
    assert worst.of == "layers.*.up.weight"


def test_a_kind_is_judged_by_few_elements_of_each_layer_joined() -> None:
    """Of queries stored with keys and values a step may show 20 elements: 7 of them count."""

    def off(name: str, step: int) -> float:
        return HONEST * (2.5 if ".up." in name else 1.0)

    assert judged(off, elements=30).worst().of == "layers.*.up.weight"
    assert {one.of for one in judged(off, elements=8).distances()} == {ALL}


def test_a_single_parameter_is_beyond_and_named() -> None:
    worst = judged(lambda name, step: HONEST * (4.0 if name == NAMES[3] else 1.0)).worst()
    assert worst.ratio > 1
    assert worst.of == NAMES[3]


def test_a_parameter_of_several_has_the_limit_of_a_kind() -> None:
    def off(name: str, step: int) -> float:
        return HONEST * (1.88 if name == NAMES[3] else 1.0)

    assert judged(off).worst().ratio < 1
    stack = "stack.down"
    renamed = [stack if name == NAMES[3] else name for name in NAMES]
    worst = judged(off, names=renamed).worst()
    assert worst.ratio > 1
    assert worst.of == stack


def test_a_parameter_that_is_rough_in_an_honest_run_too_is_not_accused() -> None:
    def rough(name: str, step: int) -> float:
        return HONEST * (3.0 if name == NAMES[3] else 1.0)

    assert judged(rough, rough).worst().ratio < 1


def test_an_honest_run_that_is_rough_in_judged_steps_alone_is_not_believed() -> None:
    found = judged(lambda name, step: 10 * HONEST, lambda name, step: 10 * HONEST)
    assert found.worst().ratio > 1, "the last step, which the host checks, sets a ceiling"


def test_where_no_plugin_made_the_honest_run_no_other_step_sets_a_ceiling() -> None:
    rough = judged(lambda name, step: 10 * HONEST, lambda name, step: 10 * HONEST, None)
    assert rough.worst().ratio < 1
    assert (
        judged(lambda name, step: 25 * HONEST, lambda name, step: 10 * HONEST, None).worst().ratio
        > 1
    )


@pytest.mark.parametrize("last", [LAST, None])
def test_an_honest_run_that_is_no_number_allows_nothing_more(last: HonestError | None) -> None:
    def broken(name: str, step: int) -> float:
        return math.nan

    assert not judged(lambda name, step: 10 * HONEST, broken, last).worst().ratio <= 1


def test_no_number_does_not_pass() -> None:
    found = judged(lambda name, step: math.nan if name == NAMES[0] else HONEST)
    assert not found.worst().ratio <= 1
    assert not found.furthest().ratio <= 1


def test_a_run_in_32_bits_is_held_to_the_limits_of_32_bits() -> None:
    small = replace(LAST, of_all=3e-7, of_parts=dict.fromkeys(NAMES, 3e-7))
    found = judged(lambda name, step: 1.5e-6, lambda name, step: 3e-7, small, FP32)
    assert found.worst().ratio < 1


# -- whole runs ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return audit(tmp_path_factory.mktemp("judged"))


@pytest.fixture
def run(honest: Audited) -> Audited:
    return replace(honest, files=dict(honest.files))


VALUES = evidence.path(0, audited.LEDGER_VALUES)


def changed(run: Audited, steps: Mapping[int, float]) -> Audited:
    """Return ``run`` with gradients that are so far off in ``steps``, and no limit of L1's."""
    arrays = load(run.files[VALUES])
    noise = torch.Generator().manual_seed(5)
    own = arrays[audited.ROWS]
    for step, off in steps.items():
        own[step] *= 1 + off * torch.randn(own.shape[1], generator=noise)
    run.files[VALUES] = save(arrays)
    return run


@pytest.mark.usefixtures("small_vocabulary")
def test_a_judged_step_that_is_far_off_fails_and_names_the_step(run: Audited) -> None:
    found = changed(run, {JUDGED[1]: 0.02}).finding("G1")
    assert found.status is Status.FAIL
    assert f"in step {JUDGED[1]} " in found.message
    assert "times honest" in (found.limit or "")


@pytest.mark.usefixtures("small_vocabulary")
def test_matrices_of_two_kinds_in_one_stored_parameter_are_not_observed(run: Audited) -> None:
    segments = json.loads(run.files[evidence.path(0, audited.LEDGER)])["segments"]
    first, begin = dict[str, int](), 0
    for one in segments:
        first[one["name"].partition(".mlp.")[2]], begin = begin, begin + one["elements"]
    up, down = first["up_proj.weight"], first["down_proj.weight"]
    arrays = load(run.files[VALUES])
    arrays[audited.WHERE][3, up] = arrays[audited.WHERE][3, down]
    run.files[VALUES] = save(arrays)
    found = run.finding("G1")
    assert found.status is Status.NOT_OBSERVED
    assert "up_proj.weight holds model.layers." in found.message


@pytest.mark.usefixtures("small_vocabulary")
def test_a_step_that_was_not_judged_is_none_of_this_rules(run: Audited) -> None:
    other = next(step for step in range(1, 11) if step not in JUDGED)
    assert changed(run, {other: 0.02}).finding("G1").status is Status.PASS


@pytest.mark.usefixtures("small_vocabulary")
def test_without_the_weights_of_one_judged_step_the_rule_is_not_observed(run: Audited) -> None:
    (timing,) = run.facts.repeats
    fewer = timing.model_copy(update={"stops": timing.stops[1:]})
    found = replace(run, facts=replace(run.facts, repeats=[fewer])).finding("G1")
    assert found.status is Status.NOT_OBSERVED
    assert "did not hand over the weights" in found.message


@pytest.mark.usefixtures("small_vocabulary")
@pytest.mark.parametrize("prefix", ["", "host/"])
def test_without_the_other_processes_the_rule_is_not_observed(run: Audited, prefix: str) -> None:
    wanted = f"{prefix}{audited.judged_pass(JUDGED[0])}"
    for file in (audited.REFERENCE, audited.HONEST):
        path = evidence.path(0, file)
        arrays = load(run.files[path])
        kept = {n: v for n, v in arrays.items() if n != wanted and not n.startswith("BF16/step")}
        run.files[path] = save(kept)
    assert run.finding("G1").status is Status.NOT_OBSERVED


@pytest.mark.usefixtures("small_vocabulary")
def test_noise_of_a_plugin_in_the_honest_runs_process_allows_nothing_more_on_a_host(
    run: Audited,
) -> None:
    path = evidence.path(0, audited.HONEST)
    arrays = load(run.files[path])
    for name in [n for n in arrays if "/step-" in n]:
        noise = torch.Generator().manual_seed(7)
        arrays[name] *= 1 + torch.randn(arrays[name].shape, generator=noise)
    run.files[path] = save(arrays)
    assert run.finding("G1").status is Status.PASS
    assert changed(run, {JUDGED[1]: 0.02}).finding("G1").status is Status.FAIL


@pytest.mark.usefixtures("small_vocabulary")
@pytest.mark.parametrize("kind", [audited.MEASURED, audited.IS_HONEST])
def test_without_the_distances_of_a_process_the_rule_is_not_observed(
    run: Audited, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Bench.read

    def read(own: Bench, file: Evidence[Any]) -> Any:
        found = whole(own, file)
        return {n: v for n, v in found.items() if n != kind} if file is bench.JUDGED else found

    monkeypatch.setattr(Bench, "read", read)
    assert run.finding("G1").status is Status.NOT_OBSERVED
