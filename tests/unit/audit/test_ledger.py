"""L1: gradients of every step, held to those of an honest run that has made the same steps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from llmb.audit import one_part
from llmb.audit.bench import Bench, UnreadableError
from llmb.audit.compared_rows import ComparedRows, Rows
from llmb.audit.honest_error import HonestError
from llmb.audit.ledger import drift_of
from llmb.audit.step_by_step import StepByStep
from llmb.config import BF16, FP16, FP32, Parallelism, Precision
from llmb.records import audited, evidence
from llmb.records.audited import LedgerEvidence, LedgerSegment
from llmb.records.finding import Finding, Level, Status
from tests.unit import builders_audit
from tests.unit.builders_audit import Audited, examine, small_vocabulary, worked

__all__ = ["small_vocabulary", "worked"]  # fixtures
pytestmark = pytest.mark.usefixtures("small_vocabulary")
LEDGER = evidence.path(0, audited.LEDGER)
VALUES = evidence.path(0, audited.LEDGER_VALUES)
REPLAYED = evidence.path(0, audited.REPLAYED)
RECOMPUTED = evidence.path(0, audited.RECOMPUTED)
Change = Callable[[torch.Tensor], object]


@pytest.fixture(scope="module")
def judged_run(
    worked: Callable[..., Audited], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Audited]:
    known: dict[str, Audited] = {}

    def of(**changes: Any) -> Audited:
        key = repr(changes)
        if key not in known:
            with pytest.MonkeyPatch.context() as patch:
                builders_audit.make_small(patch)
                folder = tmp_path_factory.mktemp("judged")
                known[key] = examine(worked(**changes).copied(folder))
        found = known[key]
        return replace(found, files=dict(found.files))

    return of


@pytest.fixture
def run(judged_run: Callable[..., Audited]) -> Audited:
    return judged_run(precision=BF16)


def rewritten(run: Audited, change: Change) -> Finding:
    """Return L1 where the worker had read something else, and had committed to that."""
    arrays = load(run.files[VALUES])
    change(arrays[audited.ROWS])
    run.files[VALUES] = save(arrays)
    told = tuple(hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in arrays[audited.ROWS])
    timing = run.facts.repeats[0].model_copy(update={"commitments": told})
    return replace(run, facts=replace(run.facts, repeats=[timing])).finding("L1")


@pytest.mark.parametrize("precision", [BF16, FP32], ids=lambda p: p.name)
def test_an_honest_run_passes(judged_run: Callable[..., Audited], precision: Any) -> None:
    found = judged_run(precision=precision).finding("L1")
    assert (found.level, found.status) == (Level.BLOCK, Status.PASS)
    assert found.message.startswith("13 of 13 steps replayed")


def test_one_matrix_stale_in_one_step_fails_and_is_named(run: Audited) -> None:
    matrix = "model.layers.1.mlp.down_proj.weight"
    names = [s.name for s in LedgerEvidence.model_validate_json(run.files[LEDGER]).segments]
    own = slice(64 * names.index(matrix), 64 * names.index(matrix) + 64)

    def stale(rows: torch.Tensor) -> None:
        rows[7, own] = rows[6, own]

    found = rewritten(run, stale)
    assert found.status is Status.FAIL
    assert f"{matrix} is" in found.message
    assert "in step 7" in found.message


def moments_of(run: Audited, name: str) -> slice:
    """Return the columns of the moments of parameter ``name`` in a row of the ledger."""
    ledger = LedgerEvidence.model_validate_json(run.files[LEDGER])
    counts = [segment.elements for segment in ledger.segments]
    halves = [audited.half_of(count) for count in counts]
    number = [segment.name for segment in ledger.segments].index(name)
    first = sum(counts) + sum(halves[:number])
    return slice(first, first + halves[number])


@pytest.mark.parametrize("precision", [BF16, FP32], ids=lambda p: p.name)
def test_one_update_left_out_of_one_matrix_fails_and_is_named(
    judged_run: Callable[..., Audited], precision: Precision
) -> None:
    run, matrix = judged_run(precision=precision), "model.layers.1.mlp.down_proj.weight"
    ledger = LedgerEvidence.model_validate_json(run.files[LEDGER])
    number = [segment.name for segment in ledger.segments].index(matrix)
    gradient, mean = slice(64 * number, 64 * number + 64, 2), moments_of(run, matrix)

    def left_out(rows: torch.Tensor) -> None:
        # The update of the step before adds a tenth of a gradient of this size.
        rows[8, mean] -= 0.1 * rows[8, gradient]

    found = rewritten(run, left_out)
    assert found.status is Status.FAIL
    assert f"exp_avg of {matrix} is" in found.message


@pytest.mark.parametrize(
    ("clipped", "mesh", "off", "status"),
    [
        (None, Parallelism(dp_shard=2), 1e-2, Status.FAIL),
        (1.0, Parallelism(dp_replicate=2), 1e-2, Status.FAIL),
        (1.0, Parallelism(dp_shard=2), 1e-2, Status.PASS),
        (1.0, Parallelism(dp_shard=2), 3e-2, Status.FAIL),
    ],
    ids=["not clipped", "replicas", "shards", "too far"],
)
def test_the_norm_of_clipped_gradients_may_be_added_up_in_another_order(
    judged_run: Callable[..., Audited],
    clipped: float | None,
    mesh: Parallelism,
    off: float,
    status: Status,
) -> None:
    run = judged_run(precision=FP32)
    ledger = LedgerEvidence.model_validate_json(run.files[LEDGER])
    first = sum(segment.elements for segment in ledger.segments)
    workload = run.facts.workload.model_copy(update={"clip_grad_norm": clipped})
    run = replace(run, facts=replace(run.facts, workload=workload, parallelism=mesh))

    def otherwise(rows: torch.Tensor) -> None:
        rows[:, first:] *= 1 + off
        rows[:, :first] *= 1 + off / 4

    assert rewritten(run, otherwise).status is status


def test_squares_of_an_optimizer_that_ran_in_half_of_the_steps_fail(run: Audited) -> None:
    own = moments_of(run, "model.layers.0.self_attn.q_proj.weight")
    found = rewritten(run, lambda rows: rows[1::2, own].mul_(0.5))
    assert found.status is Status.FAIL
    assert "exp_avg_sq of model.layers.0.self_attn.q_proj.weight is 0.5 off" in found.message


@pytest.mark.parametrize(
    ("hide", "told"),
    [
        (lambda ledger: {"moments": ()}, "do not show the moments of the optimizer"),
        (
            lambda ledger: {"segments": ledger.segments[1:]},
            "show 0 elements of model.embed_tokens.weight, and step 0 had 64",
        ),
        (
            lambda ledger: {
                "segments": (
                    ledger.segments[0].model_copy(update={"elements": 3}),
                    *ledger.segments[1:],
                )
            },
            "show 3 elements of model.embed_tokens.weight, and step 0 had 64",
        ),
    ],
    ids=["moments", "a parameter", "elements"],
)
def test_rows_that_hide_something_fail(
    run: Audited, hide: Callable[[LedgerEvidence], dict[str, Any]], told: str
) -> None:
    ledger = LedgerEvidence.model_validate_json(run.files[LEDGER])
    hidden = ledger.model_copy(update=hide(ledger))
    run.files[LEDGER] = hidden.model_dump_json().encode()
    # The rows are as long as those that are told.
    short = sum(s.elements for s in hidden.segments)
    short += bool(hidden.moments) * sum(audited.half_of(s.elements) for s in hidden.segments)
    arrays = load(run.files[VALUES])
    arrays[audited.ROWS] = arrays[audited.ROWS][:, :short].contiguous()
    run.files[VALUES] = save(arrays)
    found = run.finding("L1")
    assert found.status is Status.FAIL
    assert told in found.message


def test_all_gradients_a_hundredth_too_large_pass_as_rounding_does(run: Audited) -> None:
    assert rewritten(run, lambda rows: rows.mul_(1.01)).status is Status.PASS


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_all_gradients_a_twentieth_off_fail(run: Audited, factor: float) -> None:
    found = rewritten(run, lambda rows: rows.mul_(factor))
    assert found.status is Status.FAIL
    assert "all gradients together are 0.05 off" in found.message


def test_in_float32_a_hundred_thousandth_fails(judged_run: Callable[..., Audited]) -> None:
    found = rewritten(judged_run(precision=FP32), lambda rows: rows.mul_(1 + 2e-5))
    assert found.status is Status.FAIL


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_what_is_no_number_never_passes(run: Audited, value: float) -> None:
    assert rewritten(run, lambda rows: rows[3, :64].fill_(value)).status is Status.FAIL


def test_gradients_of_zero_fail(run: Audited) -> None:
    assert rewritten(run, lambda rows: rows.zero_()).status is Status.FAIL


def test_gradients_that_were_not_committed_to_fail(run: Audited) -> None:
    arrays = load(run.files[VALUES])
    arrays[audited.ROWS][5, 0] += 1e-7
    run.files[VALUES] = save(arrays)
    found = run.finding("L1")
    assert found.status is Status.FAIL
    assert found.message == "what is shown of step 5 is not what was committed to"


def test_a_step_that_was_left_out_of_the_evidence_fails(run: Audited) -> None:
    arrays = load(run.files[VALUES])
    run.files[VALUES] = save({k: v[:-1].contiguous() for k, v in arrays.items()})
    found = run.finding("L1")
    assert found.message == "12 steps are shown, 13 were committed to"
    assert found.status is Status.FAIL


def shortened(run: Audited, steps: int) -> Finding:
    rows = load(run.files[REPLAYED])[audited.ROWS]
    run.files[REPLAYED] = save({audited.ROWS: rows[:steps].contiguous()})
    return run.finding("L1")


def test_fewer_replayed_steps_than_were_drawn_are_not_enough(run: Audited) -> None:
    found = shortened(run, 2)
    assert found.status is Status.NOT_OBSERVED
    assert found.message.startswith("2 steps were replayed, of ")


def test_the_finding_says_how_many_steps_were_replayed(
    run: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmb.records.draws.Draws.least_replayed", lambda drawn, steps: 3)
    monkeypatch.setattr("llmb.records.draws.Draws.recomputed", lambda drawn, steps: (4,))
    run.files[RECOMPUTED] = save({audited.ROWS: load(run.files[RECOMPUTED])[audited.ROWS][:0]})
    found = shortened(run, 4)
    assert found.status is Status.PASS
    assert found.message.startswith("4 of 13 steps replayed")


DRAWN = builders_audit.DRAWN.recomputed(13)


def recomputed(run: Audited, change: Callable[[torch.Tensor], torch.Tensor]) -> Finding:
    """Return L1 where a process without the plugin had computed something else."""
    rows = load(run.files[RECOMPUTED])[audited.ROWS]
    run.files[RECOMPUTED] = save({audited.ROWS: change(rows).contiguous()})
    return run.finding("L1")


def test_an_honest_run_that_is_itself_far_off_fails_and_its_steps_are_named(run: Audited) -> None:
    found = recomputed(run, lambda rows: rows * 1.1)
    assert found.status is Status.FAIL
    first, second = DRAWN
    told = f"the honest run's own, in steps {first} and {second} without the plugin: all gradients"
    assert found.message.startswith(told)


def test_zeros_that_agree_with_zeros_are_no_evidence(run: Audited) -> None:
    arrays = load(run.files[REPLAYED])
    arrays[audited.ROWS].zero_()
    run.files[REPLAYED] = save(arrays)
    found = run.finding("L1")
    assert found.status is Status.NOT_OBSERVED
    assert "zero" in found.message


def test_what_was_drawn_and_not_recomputed_was_not_observed(run: Audited) -> None:
    found = recomputed(run, lambda rows: rows[:1])
    assert found.status is Status.NOT_OBSERVED
    assert "no process without the plugin" in found.message


def test_where_nothing_can_be_computed_without_the_plugin_the_finding_says_so(
    run: Audited,
) -> None:
    found = recomputed(run, lambda rows: rows[:0])
    assert found.status is Status.PASS
    assert found.message.endswith("none was computed without the plugin, which the device needs")


def test_on_a_cpu_the_reference_repeats_the_steps_and_recomputes_none(run: Audited) -> None:
    del run.files[RECOMPUTED]
    found = run.finding("L1")
    assert found.status is Status.PASS
    assert found.message.endswith("a process without the plugin repeated the steps")
    run.facts = replace(run.facts, on_host=False)
    assert run.finding("L1").status is Status.NOT_OBSERVED


def test_small_elements_that_are_guessed_fail_though_the_large_ones_are_right(
    run: Audited,
) -> None:
    names = [s.name for s in LedgerEvidence.model_validate_json(run.files[LEDGER]).segments]
    own = slice(64 * names.index("lm_head.weight"), 64 * names.index("lm_head.weight") + 64)

    def guessed(rows: torch.Tensor) -> None:
        head = rows[:, own]
        small = head.abs() < head.abs().quantile(0.75)
        head[small] *= 1.08

    found = rewritten(run, guessed)
    assert found.status is Status.FAIL
    assert "half the elements of lm_head.weight are more than 0.0" in found.message
    assert "all gradients together" not in found.message


def test_small_elements_may_be_off_by_a_last_place_of_the_log_of_a_probability(
    run: Audited,
) -> None:
    names = [s.name for s in LedgerEvidence.model_validate_json(run.files[LEDGER]).segments]
    own = slice(64 * names.index("lm_head.weight"), 64 * names.index("lm_head.weight") + 64)

    def rounded(rows: torch.Tensor) -> None:
        head = rows[:, own]
        head[head.abs() < head.abs().quantile(0.75)] *= 1.03

    assert rewritten(run, rounded).status is Status.PASS


def test_in_eight_bits_small_elements_are_not_judged_by_themselves(
    judged_run: Callable[..., Audited],
) -> None:
    run = judged_run(precision=Precision(name="FP8", bits=8, dtype="bfloat16"))
    names = [s.name for s in LedgerEvidence.model_validate_json(run.files[LEDGER]).segments]
    own = slice(64 * names.index("lm_head.weight"), 64 * names.index("lm_head.weight") + 64)

    def guessed(rows: torch.Tensor) -> None:
        head = rows[:, own]
        head[head.abs() < head.abs().quantile(0.6)] *= 3

    assert "half the elements" not in rewritten(run, guessed).message


def test_without_a_nonce_nothing_was_observed(run: Audited) -> None:
    timing = run.facts.repeats[0].model_copy(update={"nonce": None, "commitments": ()})
    found = replace(run, facts=replace(run.facts, repeats=[timing])).finding("L1")
    assert found.status is Status.NOT_OBSERVED


@pytest.mark.parametrize("kind", ["gradients", "exp_avg", "gradients/all"])
def test_distances_of_other_parameters_are_unreadable(run: Audited, kind: str) -> None:
    run.files = run.smaller()
    told = load(run.files[REPLAYED])
    run.files[REPLAYED] = save(told | {kind: told[kind].flatten()[:-1].contiguous()})
    with pytest.raises(UnreadableError, match="distances of other parameters than the ledger has"):
        run.judge()


def test_more_distances_than_the_worker_has_rows_are_unreadable(run: Audited) -> None:
    run.files = run.smaller()
    told = load(run.files[REPLAYED])
    more = torch.cat((told["gradients"], told["gradients"]))
    run.files[REPLAYED] = save(told | {"gradients": more})
    with pytest.raises(UnreadableError, match="26 steps were replayed, of 13 that the worker"):
        run.judge()


def test_earlier_runs_are_judged_without_it(run: Audited) -> None:
    earlier = replace(run, facts=replace(run.facts, rules_version="2"))
    assert "L1" not in {found.id for found in earlier.judge().audit.findings}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"precision": FP16}, "FP16"),
        ({"parallelism": Parallelism(dp_shard=65)}, "more than 64 ranks"),
    ],
    ids=["FP16", "ranks"],
)
def test_where_no_step_can_be_replayed_it_says_why(
    run: Audited, changes: dict[str, Any], why: str
) -> None:
    found = replace(run, facts=replace(run.facts, **changes)).finding("L1")
    assert found.status is Status.NOT_APPLICABLE
    assert why in found.message


@pytest.mark.parametrize(
    ("name", "judged"),
    [("h.0.mlp.c_fc.weight", True), ("h.0.attn.c_attn.weight", False), ("h.0.b.bias", False)],
)
def test_small_elements_of_a_bias_or_of_fused_weights_are_not_judged_by_themselves(
    name: str, judged: bool
) -> None:
    ledger = LedgerEvidence(segments=(LedgerSegment(name=name, elements=64),))
    right = [1.0 if number < 24 else 1e-4 for number in range(64)] * 3
    shown = [value if value == 1 else 2 * value for value in right]
    error = HonestError(of_all=0.01, of_parts={name: 0.01}, times=3.0)
    found = StepByStep(
        ComparedRows.of(Rows(ledger, shown), Rows(ledger, right)), error, 0.0625
    ).faults()
    assert (
        found
        == [
            "half the elements of h.0.mlp.c_fc.weight are more than 1 of themselves off "
            "(limit 0.0625)"
        ]
        * judged
    )


def test_large_elements_of_fused_weights_are_judged_by_themselves() -> None:
    name = "h.0.attn.c_attn.weight"
    ledger = LedgerEvidence(segments=(LedgerSegment(name=name, elements=64),))
    right = [1.0 if number < 24 else 1e-4 for number in range(64)] * 3
    shown = [1.1 * value for value in right]
    error = HonestError(of_all=0.1, of_parts={name: 0.1}, times=3.0)
    compared = ComparedRows.of(Rows(ledger, shown), Rows(ledger, right))
    assert compared.medians[name] == pytest.approx(0.1)
    assert StepByStep(compared, error, 0.0625).faults() == []


@pytest.mark.parametrize(("shown", "accused"), [(7e-7, False), (0.5, True)])
def test_elements_of_rounding_alone_accuse_nobody(shown: float, accused: bool) -> None:
    """Where all tokens are alike the honest run's gradient of a query is exactly zero."""
    names = ("layers.0.q.weight", "layers.0.up.weight")
    ledger = LedgerEvidence(segments=tuple(LedgerSegment(name=n, elements=64) for n in names))
    right = [*[0.0] * 64, *[1.0] * 64] * 3
    own = [*[shown] * 64, *[1.0] * 64] * 3
    error = HonestError(of_all=0.1, of_parts=dict.fromkeys(names, 0.1), times=3.0)
    found = StepByStep(ComparedRows.of(Rows(ledger, own), Rows(ledger, right)), error, 0.0625)
    assert bool(found.faults()) is accused


def of_steps(*distances: float) -> StepByStep:
    """Return 60 steps of which the last are so far off, and the others 0.01."""
    name, count = "layers.0.up.weight", 64
    ledger = LedgerEvidence(segments=(LedgerSegment(name=name, elements=count),))
    right = [(-1.0) ** number for number in range(count)] * 60
    off = [0.01] * (60 - len(distances)) + [*distances]
    shown = [value * (1 + off[n // count]) for n, value in enumerate(right)]
    error = HonestError(of_all=0.005, of_parts={name: 0.005}, times=3.0)
    return StepByStep(ComparedRows.of(Rows(ledger, shown), Rows(ledger, right)), error, 0.0625)


def test_a_twentieth_of_the_steps_may_be_further_off_than_the_total_allows() -> None:
    found = of_steps(0.2, 0.1, 0.2)
    assert found.faults() == []
    assert "without the 3 steps furthest off 0.01 of all, worst 0.01" in found.measured()


def test_one_step_more_than_a_twentieth_counts_in_the_total() -> None:
    assert "together are 0.0283 off (limit 0.015)" in of_steps(0.2, 0.2, 0.2, 0.2).faults()[0]


def test_a_step_further_off_than_any_honest_one_counts_in_the_total_and_is_named() -> None:
    total, *_, odd = of_steps(1.4).faults()
    assert "together are 0.186 off" in total
    assert "in step 59" in odd


def test_within_its_limits_a_total_is_shown_of_all_steps() -> None:
    found = of_steps()
    assert found.faults() == []
    assert "without" not in found.measured()


@pytest.mark.parametrize(
    ("precision", "layers", "expected"),
    [(BF16, 12, 0.0301), (BF16, 4, 0.0174), (BF16, 4000, 0.0492), (FP32, 12, 0.0)],
)
def test_deeper_bfloat16_trainings_may_drift_further(
    run: Audited, precision: Precision, layers: int, expected: float
) -> None:
    workload = run.facts.workload
    workload = workload.model_copy(
        update={"shapes": {**workload.shapes, "num_hidden_layers": layers}}
    )
    facts = replace(run.facts, precision=precision, workload=workload)
    assert drift_of(Bench(run.files.get, facts, 0)) == pytest.approx(expected, rel=2e-3)


# -- part by part ---------------------------------------------------------------------------


@pytest.mark.parametrize("rule", one_part.PASSES)
def test_each_part_of_an_honest_run_keeps_each_rule_that_has_parts(run: Audited, rule: str) -> None:
    found = one_part.parts(rule, Bench(run.smaller().get, run.facts, 0))
    assert len(found) > 10
    assert all(one.kept for one in found), found[0]


def test_the_part_that_l1_names_is_the_worst_and_the_others_are_kept(run: Audited) -> None:
    matrix = "model.layers.1.mlp.down_proj.weight"
    names = [s.name for s in LedgerEvidence.model_validate_json(run.files[LEDGER]).segments]
    own = slice(64 * names.index(matrix), 64 * names.index(matrix) + 64)
    arrays = load(run.files[VALUES])
    arrays[audited.ROWS][:, own] *= 1.1
    run.files[VALUES] = save(arrays)
    first, *others = one_part.parts("L1", Bench(run.smaller().get, run.facts, 0))
    assert (first.part, first.kept) == (matrix, False)
    assert all(one.kept for one in others)


def test_without_an_honest_run_there_are_no_parts(run: Audited) -> None:
    del run.files[evidence.path(0, audited.HONEST)]
    assert one_part.parts("E1", Bench(run.files.get, run.facts, 0)) == ()


HEAD = "lm_head.weight"


def of_a_head(told: int, *, off: float, in_step: int | None, steps: int = 60) -> StepByStep:
    """Return steps in which ``told`` of the head's 64 elements hold most of the length.

    All elements are 0.005 off; in step ``in_step`` one element holds the length, and is ``off``.
    ``in_step`` None: the ``told`` elements are ``off`` in all steps.
    """
    ledger = LedgerEvidence(segments=(LedgerSegment(name=HEAD, elements=64),))
    right, shown = list[float](), list[float]()
    for step in range(steps):
        row = [1.0 if number < told else 1e-3 for number in range(64)]
        wrong = [0.005] * 64
        if in_step is None:
            wrong = [off if number < told else 0.005 for number in range(64)]
        elif step == in_step:
            row[0], wrong[0] = 8.0, off
        right += row
        shown += [value * (1 + by) for value, by in zip(row, wrong, strict=True)]
    error = HonestError(of_all=1.0, of_parts={HEAD: 0.005}, times=3.0)
    return StepByStep(ComparedRows.of(Rows(ledger, shown), Rows(ledger, right)), error, 0.0625)


def test_a_step_in_which_one_element_holds_the_length_is_left_out_of_its_parameters_total() -> None:
    compared = of_a_head(64, off=0.4, in_step=12)
    assert compared.lengths()[HEAD] == pytest.approx(0.005)
    assert compared.faults() == []
    assert of_a_head(64, off=math.nan, in_step=12).faults() != []


def test_with_fewer_than_20_steps_no_step_is_left_out_of_a_parameters_total() -> None:
    assert of_a_head(64, off=0.4, in_step=12, steps=19).faults() == [
        f"{HEAD} is 0.0896 off (limit 0.015)"
    ]


@pytest.mark.parametrize(("told", "limit"), [(64, 0.015), (1, 0.0625)])
def test_few_elements_together_may_be_as_far_off_as_one_element(told: int, limit: float) -> None:
    # 60 steps of one element hold 60 elements in all, and 60 steps of 64 hold 3,840.
    assert of_a_head(told, off=0.9 * limit, in_step=None).faults() == []
    (fault, *_) = of_a_head(told, off=1.2 * limit, in_step=None).faults()
    assert fault == f"{HEAD} is {1.2 * limit:.3g} off (limit {limit:.3g})"


def test_a_moment_of_few_elements_has_the_limit_of_one_element_and_no_median() -> None:
    ledger = LedgerEvidence(segments=(LedgerSegment(name=HEAD, elements=64),))
    right = [1.0 if number == 0 else 1e-3 for number in range(64)] * 60
    error = HonestError(of_all=1.0, of_parts={HEAD: 0.005}, times=3.0)

    def faults(off: float) -> list[str]:
        shown = [value * (1 + (off if value == 1 else 0.9)) for value in right]
        compared = ComparedRows.of(Rows(ledger, shown), Rows(ledger, right))
        return StepByStep(compared, error, 0.09, "exp_avg_sq").faults()

    assert faults(0.08) == []
    assert faults(0.1) == [f"exp_avg_sq of {HEAD} is 0.1 off (limit 0.09)"]


def test_the_median_that_is_named_is_the_one_furthest_beyond_its_own_limit() -> None:
    # Beside the honest error the first is further off, and within the limit for one element.
    names, count = ("a.weight", "b.weight"), 64
    segments = tuple(LedgerSegment(name=name, elements=count) for name in names)
    right = [1.0] * (2 * count)
    shown = [1.06] * count + [1.1] * count
    error = HonestError(of_all=1.0, of_parts={"a.weight": 0.001, "b.weight": 0.02}, times=3.0)
    ledger = LedgerEvidence(segments=segments)
    found = StepByStep(ComparedRows.of(Rows(ledger, shown), Rows(ledger, right)), error, 0.0625)
    assert "half the elements of b.weight are more than 0.1 of themselves off" in str(
        found.faults()
    )
