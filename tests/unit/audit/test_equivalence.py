"""E1 and G1: as near to the reference as an honest run, in all gradients and in the worst."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest

from llmb.audit.equivalence import is_plausible, judge_live, judge_step, loss_limit
from llmb.audit.sums import RoundedSums
from llmb.config import BF16, FP16, FP32, TF32, Precision
from llmb.records.audited import WIDE_LOSS, AuditedStep, ProbedEvidence, Segment
from llmb.records.finding import Finding, Level, Status

NAMES = ("a", "b", "c")
FP8 = Precision(name="FP8", bits=8, dtype="bfloat16")
PROBED = ProbedEvidence(seed=1, last_step=5, token_seed=2, passes=("live",), missing=())
LOSS = 10.0


def vector(seed: int, size: int = 200) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(0, 1) for _ in range(size)]


def off(right: list[float], error: float, seed: int) -> list[float]:
    """Return ``right`` with a relative error of exactly ``error`` in a direction of its own."""
    way = vector(seed, len(right))
    scale = error * math.hypot(*right) / math.hypot(*way)
    return [r + scale * w for r, w in zip(right, way, strict=True)]


RIGHT = {name: vector(i) for i, name in enumerate(NAMES)}


def reference() -> dict[str, list[float]]:
    return {"live/loss": [LOSS], **{f"live/{name}": value for name, value in RIGHT.items()}}


def arrays(errors: Mapping[str, float], prefix: str, loss: float, seed: int = 50):
    found = {
        f"{prefix}live/{n}": off(RIGHT[n], e, seed + i) for i, (n, e) in enumerate(errors.items())
    }
    return {f"{prefix}live/loss": [loss], **found}


def live(
    errors: Mapping[str, float],
    honest: Mapping[str, float] | float = 0.01,
    *,
    precision: Precision = BF16,
    loss: float = LOSS,
    honest_loss: float = LOSS,
    probed: ProbedEvidence = PROBED,
    steps: Mapping[str, list[float]] | None = None,
    **changes: Any,
) -> Finding:
    if not isinstance(honest, Mapping):
        honest = dict.fromkeys(NAMES, honest)
    seen = {**arrays(errors, "", loss), **changes}
    seen = {name: value for name, value in seen.items() if value is not None}
    own = arrays(honest, f"{precision.name}/", honest_loss, 80)
    return judge_live(
        probed,
        steps or glances(5),
        seen,
        own,
        reference(),
        precision,
        ("e",),
        RoundedSums(1, precision),
    )


def glances(*indices: int, **changes: list[float] | None) -> dict[str, list[float]]:
    """Return what was glanced at in steps: the same three times."""
    found: dict[str, list[float] | None] = {
        f"{index}/{name}": [1.0, 2.0, 3.0]
        for index in indices
        for name in ("asked", "asked before", "asked after")
    }
    found |= changes
    return {name: value for name, value in found.items() if value is not None}


def every(error: float) -> dict[str, float]:
    return dict.fromkeys(NAMES, error)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 1.45])
def test_gradients_within_one_and_a_half_times_the_honest_error_pass(factor: float) -> None:
    found = live(every(0.01 * factor))
    assert (found.id, found.level, found.status) == ("E1", Level.BLOCK, Status.PASS)
    assert found.basis == "calibrated"
    assert found.evidence == ("e",)


def test_all_gradients_a_little_too_far_off_fail_and_say_how_far() -> None:
    found = live(every(0.0155))
    assert found.status is Status.FAIL
    assert "1.55 times as far" in found.message
    assert "worst" not in found.message


MXFP4 = Precision(name="MXFP4", bits=4, dtype="bfloat16")


def _one_off(error: float, share: float, precision: Precision, honest: float = 0.5) -> Finding:
    """Return E1 of a run whose small parameter has this error, and holds this share."""
    right = [one * 0.1 for one in vector(7)]
    way = vector(8)
    along = sum(a * b for a, b in zip(way, right, strict=True)) / sum(a * a for a in right)
    way = [a - along * b for a, b in zip(way, right, strict=True)]
    rest = math.sqrt(max(0.0, error**2 - (1 - share) ** 2)) * math.hypot(*right) / math.hypot(*way)
    shown = [share * r + rest * w for r, w in zip(right, way, strict=True)]
    seen = {**arrays(every(honest), "", LOSS), "live/d": shown}
    own = arrays(every(honest), f"{precision.name}/", LOSS, 80)
    own[f"{precision.name}/live/d"] = off(right, honest, 99)
    told = (PROBED, glances(5), seen, own, {**reference(), "live/d": right}, precision, ("e",))
    return judge_live(*told, RoundedSums(1, precision))


@pytest.mark.parametrize(
    ("error", "share", "precision", "status"),
    [
        (0.9, 0.5, MXFP4, Status.PASS),
        (1.08, 1.07, MXFP4, Status.PASS),
        (1.24, 0.75, MXFP4, Status.PASS),
        (1.27, 1.0, MXFP4, Status.FAIL),
        (1.08, 0.65, MXFP4, Status.FAIL),
        (1.0, 0.0, MXFP4, Status.FAIL),
        (1.08, 1.07, FP8, Status.FAIL),
    ],
)
def test_in_few_bits_a_part_may_be_far_off_if_its_gradient_is_all_there(
    error: float, share: float, precision: Precision, status: Status
) -> None:
    found = _one_off(error, share, precision)
    assert found.status is status, found.message
    assert (status is Status.PASS) or "d is " in found.message


def test_in_few_bits_two_and_a_half_honest_errors_are_the_limit_of_a_part() -> None:
    assert _one_off(0.98, 1.0, MXFP4, honest=0.4).status is Status.PASS
    assert "(limit 2.5)" in _one_off(1.05, 1.0, MXFP4, honest=0.4).message


@pytest.mark.parametrize(("honest", "limit"), [(0.3, 0.45), (0.5, 0.67082), (0.6, 0.74833)])
def test_a_rough_format_leaves_no_room_for_much_work_left_out(honest: float, limit: float) -> None:
    four = Precision(name="MXFP4", bits=4, dtype="bfloat16")
    for error, status in ((limit - 0.002, Status.PASS), (limit + 0.002, Status.FAIL)):
        found = live(dict.fromkeys(NAMES, error), honest, precision=four)
        assert found.status is status, found.message


def test_one_parameter_more_than_twice_as_far_off_fails_by_name() -> None:
    assert live({"a": 0.001, "b": 0.0195, "c": 0.001}).status is Status.PASS
    found = live({"a": 0.001, "b": 0.0205, "c": 0.001})
    assert found.status is Status.FAIL
    assert found.message.startswith("b is 2.05 times as far off")


def test_each_parameter_is_held_against_its_own_honest_error_and_not_the_worst_of_all() -> None:
    honest = {"a": 0.005, "b": 0.005, "c": 0.02}
    assert live({"a": 0.004, "b": 0.009, "c": 0.035}, honest).status is Status.FAIL
    found = live({"a": 0.011, "b": 0.004, "c": 0.015}, honest)
    assert found.status is Status.FAIL
    assert found.message.startswith("a is 2.2 times as far off")
    assert live({"a": 0.009, "b": 0.004, "c": 0.02}, honest).status is Status.PASS


def test_the_two_elements_of_berts_order_of_sentences_are_never_the_worst_parameter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = "cls.seq_relationship.bias"
    monkeypatch.setitem(RIGHT, two, vector(9, 2))
    assert live({**every(0.01), two: 0.2}, {**every(0.01), two: 0.01}).status is Status.PASS
    monkeypatch.delitem(RIGHT, two)
    monkeypatch.setitem(RIGHT, "two", vector(9, 2))
    assert live({**every(0.01), "two": 0.2}, {**every(0.01), "two": 0.01}).status is Status.FAIL


def test_a_parameter_that_is_better_by_nature_need_only_be_twice_as_far_off_as_most() -> None:
    honest = {"a": 0.0, "b": 0.01, "c": 0.01}
    assert live({"a": 0.019, "b": 0.001, "c": 0.001}, honest).status is Status.PASS
    assert live({"a": 0.021, "b": 0.001, "c": 0.001}, honest).status is Status.FAIL


def of_two_ways(errors: Mapping[str, float], one: float, other: Mapping[str, float]) -> Finding:
    own = arrays(every(one), "BF16/", LOSS, 80)
    own |= arrays(other, f"BF16{WIDE_LOSS}/", LOSS, 84)
    seen = arrays(errors, "", LOSS)
    return judge_live(
        PROBED, glances(5), seen, own, reference(), BF16, ("e",), RoundedSums(1, BF16)
    )


def test_of_two_honest_ways_the_rougher_is_the_measure_of_all_and_of_each_parameter() -> None:
    assert of_two_ways(every(0.029), 0.01, every(0.02)).status is Status.PASS
    assert of_two_ways(every(0.029), 0.02, every(0.01)).status is Status.PASS
    assert of_two_ways(every(0.031), 0.01, every(0.02)).status is Status.FAIL
    one_rough = {"a": 0.01, "b": 0.02, "c": 0.01}
    assert of_two_ways({"a": 0.01, "b": 0.03, "c": 0.005}, 0.01, one_rough).status is Status.PASS
    found = of_two_ways({"a": 0.021, "b": 0.001, "c": 0.001}, 0.01, one_rough)
    assert found.status is Status.FAIL
    assert found.message.startswith("a is 2.1 times as far off")


@pytest.mark.parametrize(("factor", "status"), [(3.9, Status.PASS), (4.1, Status.FAIL)])
def test_in_float32_kernels_may_differ_more_than_between_narrow_formats(
    factor: float, status: Status
) -> None:
    assert live(every(1e-6 * factor), 1e-6, precision=FP32).status is status


def test_a_float32_run_in_a_narrower_format_is_far_beyond_its_limit() -> None:
    assert live(every(2**-11), 1e-6, precision=FP32).status is Status.FAIL


def test_tf32_has_the_limits_of_narrow_formats() -> None:
    assert live(every(0.0016), 0.001, precision=TF32).status is Status.FAIL


def test_an_honest_error_of_zero_still_leaves_room_for_a_last_place() -> None:
    assert live(every(2**-9), 0.0).status is Status.PASS
    assert live(every(2**-7), 0.0).status is Status.FAIL
    assert live(every(2**-20), 0.0, precision=FP32).status is Status.PASS
    assert live(every(2**-16), 0.0, precision=FP32).status is Status.FAIL


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_never_passes(bad: float) -> None:
    broken = [bad, *RIGHT["b"][1:]]
    found = live(every(0.001), **{"live/b": broken})
    assert found.status is Status.FAIL
    assert "not a number of times" in found.message


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reference_that_is_no_number_lets_nothing_pass(bad: float) -> None:
    right = reference() | {"live/b": [bad, *RIGHT["b"][1:]]}
    own = arrays(every(0.01), "BF16/", LOSS, 80)
    seen = arrays(every(0.0), "", LOSS)
    found = judge_live(PROBED, glances(5), seen, own, right, BF16, ("e",), RoundedSums(1, BF16))
    assert found.status is Status.FAIL
    assert "of all" in str(found.measured)


def test_a_gradient_that_is_missing_fails_by_name_even_among_many() -> None:
    probed = PROBED.model_copy(update={"missing": ("live/b",)})
    found = live({"a": 0.001, "c": 0.001}, probed=probed)
    assert found.status is Status.FAIL
    assert "1 gradients are missing: b" in found.message


def test_a_gradient_that_was_left_out_without_a_word_counts_as_zero_and_fails() -> None:
    assert live({"a": 0.001, "c": 0.001}).status is Status.FAIL


@pytest.mark.parametrize(
    ("precision", "loss", "status"),
    [
        # 10 in BF16 has a last place of 1/16; three of them are allowed.
        (BF16, 10.1875, Status.PASS),
        (BF16, 10.25, Status.FAIL),
        (FP16, 10.02, Status.PASS),
        (FP16, 10.05, Status.FAIL),
        (FP32, 10.00009, Status.PASS),
        (FP32, 10.0002, Status.FAIL),
        (BF16, math.nan, Status.FAIL),
        (BF16, math.inf, Status.FAIL),
    ],
)
def test_the_loss_may_differ_by_a_few_last_places(
    precision: Precision, loss: float, status: Status
) -> None:
    found = live(every(0.0), 0.0, precision=precision, loss=loss)
    assert found.status is status
    assert ("the loss is" in found.message) == (status is Status.FAIL)


def test_the_loss_may_differ_as_much_as_an_honest_runs_and_half_again() -> None:
    assert live(every(0.0), loss=10.7, honest_loss=9.5).status is Status.PASS
    assert live(every(0.0), loss=10.8, honest_loss=9.5).status is Status.FAIL


@pytest.mark.parametrize(("bits", "expected"), [(4, 0.51), (6, 0.51), (8, 0.19), (16, 0.19)])
def test_the_loss_of_a_format_of_few_bits_may_be_further_off(bits: int, expected: float) -> None:
    precision = BF16.model_copy(update={"bits": bits})
    assert loss_limit(12.7655, 12.7655, precision) == pytest.approx(expected, abs=0.005)


def test_the_loss_of_tf32_is_as_rough_as_its_products() -> None:
    # An honest error may be nothing by chance, as -8.6e-6 beside 1.0e-4 of a twin: 3 last places.
    assert loss_limit(12.7383, 12.7383, TF32) == loss_limit(12.7383, 12.7383, FP16) == 3 * 2.0**-7
    assert loss_limit(12.7383, 12.7383, FP32) < 2e-4


def test_a_loss_that_was_not_shown_fails() -> None:
    for name in ("live/loss",):
        found = live(every(0.0), **{name: None})
        assert found.status is Status.FAIL
        assert "the loss was not shown" in found.message
    assert live(every(0.0), **{"live/loss": [LOSS, LOSS]}).status is Status.FAIL


def test_the_finding_shows_measured_and_honest_in_numbers() -> None:
    found = live({"a": 0.012, "b": 0.01, "c": 0.01})
    assert found.measured == "0.0107 of all, worst 0.012"
    assert found.honest == "0.01 of all, worst 0.01"
    assert found.limit == "1.5 and 2.0 times honest"


@pytest.mark.parametrize("seed", range(20))
def test_an_honest_run_beside_another_honest_run_is_never_accused(seed: int) -> None:
    draw = random.Random(seed)
    mine = {name: 0.01 * draw.uniform(0.8, 1.2) for name in NAMES}
    theirs = {name: 0.01 * draw.uniform(0.8, 1.2) for name in NAMES}
    loss = LOSS + draw.uniform(-1, 1) / 16
    assert live(mine, theirs, loss=loss).status is Status.PASS


# -- G1 -------------------------------------------------------------------------------------

STEP = AuditedStep(
    index=7,
    token_seed=1,
    seed=2,
    weights_kept=True,
    steps_before=7.0,
    foreach=None,
    fused=True,
    capturable=False,
    segments=tuple(
        Segment(name=name, dtype="bfloat16", gradients=200, states=10) for name in NAMES
    ),
)


def step(
    errors: Mapping[str, float],
    right: Mapping[str, list[float]] | None = None,
    *,
    audited: AuditedStep | None = None,
    padding: tuple[str, ...] = (),
    glimpsed: Mapping[str, list[float]] | None = None,
    **seen: Any,
) -> Finding:
    known = right or RIGHT
    together = [value for name in NAMES for value in known[name]]
    own = _sampled(known, seen.get("honest", every(0.01)), 90)
    right_step = {"step": together}
    if "host" in seen:
        right_step["host/step"] = _sampled(known, seen["host"], 30)
    shown = [v for i, (n, e) in enumerate(errors.items()) for v in off(known[n], e, 60 + i)]
    return judge_step(
        audited or STEP,
        "step",
        {**(glimpsed or glances(2, 7)), "7/gradient": seen.get("gradient", shown)},
        {"BF16/step": own},
        right_step,
        BF16,
        "all pauses took 0.1 %",
        padding,
        (2, 7),
        ("e",),
        sums=RoundedSums(1, BF16),
    )


def _sampled(
    right: Mapping[str, list[float]], errors: Mapping[str, float], seed: int
) -> list[float]:
    pairs = enumerate(errors.items())
    return [value for i, (name, e) in pairs for value in off(right[name], e, seed + i)]


def test_parameters_that_the_hosts_honest_run_gets_wrong_are_left_out_and_told() -> None:
    chaotic = {"a": 1.2, "b": 0.01, "c": 0.01}
    found = step({"a": 0.8, "b": 0.012, "c": 0.012}, honest=chaotic, host=chaotic)
    assert found.status is Status.PASS
    assert "but for 1 of 3 parameters that no honest run gets right" in found.message
    assert "0.012" in str(found.measured)
    altered = step({"a": 0.8, "b": 0.012, "c": 0.03}, honest=chaotic, host=chaotic)
    assert altered.status is Status.FAIL
    assert "c is" in altered.message


def test_where_most_parameters_are_rough_or_only_the_device_is_nothing_is_compared() -> None:
    chaotic = {"a": 1.2, "b": 0.9, "c": 0.01}
    assert step(every(0.012), honest=chaotic, host=chaotic).status is Status.NOT_OBSERVED
    assert step(every(0.012), honest=every(0.03), host=every(0.01)).status is Status.NOT_OBSERVED
    assert step(every(0.012), honest=every(0.019), host=every(0.01)).status is Status.PASS
    assert step(every(0.012), honest=every(0.3)).status is Status.NOT_OBSERVED
    assert step(every(0.012), honest=every(math.nan)).status is Status.NOT_OBSERVED
    lacking = STEP.model_copy(update={"without_gradient": ("d",)})
    found = step(every(0.012), audited=lacking, honest=chaotic, host=chaotic)
    assert found.status is Status.FAIL


CANCELLED = 7


def with_one_large_error(right: list[float], error: float) -> list[float]:
    """Return ``right`` with an error of that relative size, all of it in one element."""
    shown = list(right)
    shown[CANCELLED] += error * math.hypot(*right)
    return shown


def test_a_parameter_whose_honest_error_is_one_elements_is_not_the_worst() -> None:
    """Large terms cancel there: what is left is a single draw of their rounding."""
    honest = [*with_one_large_error(RIGHT["a"], 0.012), *off(RIGHT["b"], 0.01, 91)]
    honest += off(RIGHT["c"], 0.01, 92)
    seen = [*with_one_large_error(RIGHT["a"], 0.026), *off(RIGHT["b"], 0.001, 61)]
    seen += off(RIGHT["c"], 0.001, 62)

    def judged(own: list[float]) -> Finding:
        right = {"step": [value for name in NAMES for value in RIGHT[name]]}
        shown = {**glances(2, 7), "7/gradient": seen}
        return judge_step(
            STEP,
            "step",
            shown,
            {"BF16/step": own},
            right,
            BF16,
            "",
            (),
            (2, 7),
            (),
            sums=RoundedSums(1, BF16),
        )

    assert judged(honest).status is Status.PASS
    spread = [*off(RIGHT["a"], 0.012, 90), *honest[200:]]
    assert judged(spread).message.startswith("a is 2.17 times as far off")
    assert step({"a": 0.025, "b": 0.001, "c": 0.001}, honest=every(0.0)).status is Status.FAIL


def test_sampled_gradients_of_a_step_like_any_other_are_judged_by_the_same_limits() -> None:
    found = step(every(0.012))
    assert (found.id, found.level, found.status) == ("G1", Level.BLOCK, Status.PASS)
    assert "step 7" in found.message
    assert "all pauses took 0.1 %" in found.message
    assert step(every(0.016)).status is Status.FAIL
    named = step({"a": 0.001, "b": 0.03, "c": 0.001})
    assert "b is" in named.message


def test_zeros_that_agree_with_zeros_are_no_evidence() -> None:
    zeros = {name: [0.0] * len(RIGHT[name]) for name in NAMES}
    found = step(every(0.0), {**zeros, "a": RIGHT["a"]})
    assert found.status is Status.NOT_OBSERVED


def test_a_parameter_without_a_gradient_fails_by_name_unless_it_is_padding() -> None:
    lacking = STEP.model_copy(update={"without_gradient": ("d",)})
    found = step(every(0.001), audited=lacking)
    assert found.status is Status.FAIL
    assert "1 gradients are missing: d" in found.message
    assert step(every(0.001), audited=lacking, padding=("d",)).status is Status.PASS


def test_segments_are_told_apart_by_their_lengths() -> None:
    found = step({"a": 0.001, "b": 0.001, "c": 0.9})
    assert "c is" in found.message


def test_a_parameter_with_hardly_any_gradient_is_not_the_worst_one_but_counts_in_all() -> None:
    for other in (0.0, 1e-3):  # the gradient of a head: many small elements, and a large one
        right = {**RIGHT, "b": [1.0, *[other] * 199]}
        assert step({"a": 0.005, "b": 0.03, "c": 0.005}, right).status is Status.PASS
    right = {**RIGHT, "b": [*[1.0] * 16, *[0.0] * 184]}
    assert step({"a": 0.005, "b": 0.03, "c": 0.005}, right).status is Status.FAIL
    right = {**RIGHT, "b": [1.0, *[0.0] * 199]}
    assert step({"a": 0.005, "b": 30.0, "c": 0.005}, right).status is Status.FAIL


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sampled_gradient_that_is_no_number_never_passes(bad: float) -> None:
    together = [value for name in NAMES for value in RIGHT[name]]
    assert step(every(0.0), gradient=[bad, *together[1:]]).status is Status.FAIL


def test_gradients_of_another_step_have_nothing_to_do_with_these() -> None:
    others = [value for i in range(3) for value in vector(1000 + i)]
    assert step(every(0.0), gradient=others).status is Status.FAIL


def test_fewer_gradients_than_promised_do_not_pass() -> None:
    together = [value for name in NAMES for value in RIGHT[name]]
    assert step(every(0.0), gradient=together[:-1]).status is Status.FAIL
    assert step(every(0.0), gradient=[]).status is Status.FAIL


# -- glances --------------------------------------------------------------------------------

CHANGED = [1.0, 2.0, 3.5]
LOOKED = ("asked", "asked before", "asked after")


@pytest.mark.parametrize("index", [2, 7])
@pytest.mark.parametrize("name", LOOKED)
def test_gradients_that_changed_once_somebody_was_to_look_fail_in_any_audited_step(
    index: int, name: str
) -> None:
    changed = glances(2, 7, **{f"{index}/{name}": CHANGED})
    found = step(every(0.001), glimpsed=changed)
    assert found.status is Status.FAIL
    count = 2 if name == "asked" else 1
    assert f"{count} gradients of step {index} changed once it was to be looked" in found.message


@pytest.mark.parametrize("bad", [None, [], [1.0, 2.0]])
@pytest.mark.parametrize("name", LOOKED)
def test_gradients_that_were_not_read_beforehand_fail(name: str, bad: list[float] | None) -> None:
    for index in (2, 7):
        found = step(every(0.001), glimpsed=glances(2, 7, **{f"{index}/{name}": bad}))
        assert found.status is Status.FAIL
        assert f"of step {index} were not read before" in found.message
    assert live(every(0.001), steps=glances(5, **{f"5/{name}": bad}) or {"x": []}).status is (
        Status.FAIL
    )


@pytest.mark.parametrize("name", LOOKED)
def test_the_last_step_is_glanced_at_as_well(name: str) -> None:
    assert live(every(0.001)).status is Status.PASS
    assert live(every(0.001), steps=glances(5, **{f"5/{name}": CHANGED})).status is Status.FAIL
    assert live(every(0.001), steps=glances(4)).status is Status.FAIL


@pytest.mark.parametrize("bad", [math.nan])
def test_a_glance_that_is_no_number_does_not_agree_with_itself(bad: float) -> None:
    same = {f"7/{name}": [bad, 1.0] for name in LOOKED}
    assert step(every(0.001), glimpsed=glances(2, 7, **same)).status is Status.FAIL


# -- the yardstick --------------------------------------------------------------------------


SCALED = FP16.model_copy(update={"master_weights": True})
HUGE = [math.inf, *RIGHT["a"][1:]]


@pytest.mark.parametrize(
    ("precision", "status"), [(SCALED, Status.NOT_OBSERVED), (FP16, Status.FAIL)]
)
def test_only_scaled_gradients_may_overflow_in_the_last_step_and_then_nothing_is_observed(
    precision: Precision, status: Status
) -> None:
    found = live(every(0.001), 0.001, precision=precision, **{"live/a": HUGE})
    assert found.status is status


def test_an_audited_step_whose_scaled_gradients_overflowed_twice_alike_is_no_fault() -> None:
    bad = {name: [math.nan, 1.0] for name in ("5/asked", "5/asked before", "5/asked after")}
    found = live(every(0.001), 0.001, precision=SCALED, steps=glances(**bad))
    assert found.status is Status.PASS
    changed = {**bad, "5/asked after": [math.nan, 2.0]}
    found = live(every(0.001), 0.001, precision=SCALED, steps=glances(**changed))
    assert found.status is Status.FAIL


def plausible(
    honest: Mapping[str, float] | float = 0.01,
    host: float | None = 0.01,
    precision: Precision = BF16,
    on_host: bool = False,
    **own: Any,
) -> bool:
    if not isinstance(honest, Mapping):
        honest = dict.fromkeys(NAMES, honest)
    right = reference()
    if host is not None:
        right |= arrays(every(host), "host/", LOSS, 70)
    shown = arrays(honest, f"{precision.name}/", LOSS, 80)
    shown |= {name.replace("own_", "BF16/live/"): value for name, value in own.items()}
    shown = {name: value for name, value in shown.items() if value is not None}
    return is_plausible(shown, right, precision, on_host=on_host)


@pytest.mark.parametrize(("device", "expected"), [(0.0, True), (0.019, True), (0.021, False)])
def test_the_devices_honest_run_is_held_to_twice_the_hosts_error(
    device: float, expected: bool
) -> None:
    assert plausible(device) is expected


@pytest.mark.parametrize(("device", "expected"), [(0.0, True), (0.0115, True), (0.0125, False)])
def test_where_the_device_is_the_host_its_honest_run_is_held_to_12_tenths_of_the_hosts_error(
    device: float, expected: bool
) -> None:
    assert plausible(device, on_host=True) is expected


@pytest.mark.parametrize(("error", "expected"), [(0.014, True), (0.019, False)])
def test_where_the_device_is_the_host_no_parameter_is_much_rougher(
    error: float, expected: bool
) -> None:
    small = {**RIGHT, "b": [value * 1e-3 for value in RIGHT["b"]]}
    right = {"live/loss": [LOSS], **{f"live/{n}": v for n, v in small.items()}}
    right |= {f"host/live/{n}": off(v, 0.01, 70) for n, v in small.items()}
    right["host/live/loss"] = [LOSS]
    shown = {f"BF16/live/{n}": off(v, 0.01, 80) for n, v in small.items()}
    shown |= {"BF16/live/loss": [LOSS], "BF16/live/b": off(small["b"], error, 81)}
    assert is_plausible(shown, right, BF16, on_host=True) is expected
    assert is_plausible(shown, right, BF16, on_host=False)


@pytest.mark.parametrize(("device", "expected"), [(0.0311, True), (0.034, False)])
def test_a_loss_near_zero_may_be_as_far_off_as_the_hosts(device: float, expected: bool) -> None:
    """Of a text known by heart: a tenth of a loss of 0.028 is rounding in BF16."""
    right = reference() | arrays(every(0.01), "host/", LOSS, 70)
    right |= {"live/loss": [0.0282], "host/live/loss": [0.0311]}
    shown = arrays(every(0.01), "BF16/", LOSS, 80) | {"BF16/live/loss": [device]}
    assert is_plausible(shown, right, BF16, on_host=True) is expected


@pytest.mark.parametrize(
    ("name", "error", "expected"),
    [("value.bias", 0.12, True), ("value.bias", 0.13, False), ("value.weight", 0.12, False)],
)
def test_a_device_may_add_up_a_bias_in_16_bits(name: str, error: float, expected: bool) -> None:
    small = {**RIGHT, name: [value * 1e-3 for value in RIGHT["b"]]}
    right = {"live/loss": [LOSS], **{f"live/{n}": v for n, v in small.items()}}
    right |= {f"host/live/{n}": off(v, 0.01, 70) for n, v in small.items()}
    right["host/live/loss"] = [LOSS]
    shown = {f"BF16/live/{n}": off(v, 0.01, 80) for n, v in small.items()}
    shown |= {"BF16/live/loss": [LOSS], f"BF16/live/{name}": off(small[name], error, 81)}
    assert is_plausible(shown, right, BF16, on_host=False) is expected


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        (FP32, 2**-10.1, True),
        (FP32, 2**-9.9, False),
        (BF16, 2**-2.1, True),
        (BF16, 2**-1.9, False),
        (FP8, 2**-0.4, True),
        (FP8, 2**-0.2, False),
    ],
)
def test_where_the_host_made_none_it_is_held_to_the_most_its_class_may_have(
    precision: Precision, device: float, expected: bool
) -> None:
    assert plausible(device, None, precision) is expected


@pytest.mark.parametrize(
    ("device", "host", "expected"),
    [(0.019, 0.01, True), (0.021, 0.01, False), (0.021, None, False), (0.019, None, True)],
)
def test_either_honest_way_is_held_to_the_hosts(
    device: float, host: float | None, expected: bool
) -> None:
    """Where the host has made one only, the other is held to that."""
    right = reference() | arrays(every(0.01), "host/", LOSS, 70)
    if host is not None:
        right |= arrays(every(host), f"host{WIDE_LOSS}/", LOSS, 73)
    shown = arrays(every(0.01), "BF16/", LOSS, 80)
    shown |= arrays(every(device), f"BF16{WIDE_LOSS}/", LOSS, 83)
    assert is_plausible(shown, right, BF16, on_host=False) is expected
    del shown[f"BF16{WIDE_LOSS}/live/b"]
    assert not is_plausible(shown, right, BF16, on_host=False)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_honest_run_that_is_no_number_is_nobodys_yardstick(bad: float) -> None:
    assert plausible()
    assert not plausible(own_b=[bad, *RIGHT["b"][1:]])


def test_an_honest_run_that_lacks_a_gradient_is_nobodys_yardstick() -> None:
    assert not plausible(own_b=None)


def test_an_honest_run_that_is_far_off_in_one_small_parameter_is_nobodys_yardstick() -> None:
    """A gain has few elements: in the length of all gradients it does not show."""
    small = {**RIGHT, "b": [value * 1e-3 for value in RIGHT["b"]]}
    right = {"live/loss": [LOSS], **{f"live/{n}": v for n, v in small.items()}}
    right |= {f"host/live/{n}": off(v, 0.01, 70) for n, v in small.items()}
    right["host/live/loss"] = [LOSS]
    shown = {f"BF16/live/{n}": off(v, 0.01, 80) for n, v in small.items()}
    shown["BF16/live/loss"] = [LOSS]
    assert is_plausible(shown, right, BF16, on_host=False)
    shown["BF16/live/b"] = off(small["b"], 0.9, 81)
    assert not is_plausible(shown, right, BF16, on_host=False)


@pytest.mark.parametrize("loss", [math.nan, math.inf, 2 * LOSS])
def test_an_honest_loss_that_is_far_off_is_nobodys_yardstick(loss: float) -> None:
    assert not plausible(own_loss=[loss])


# -- gradients of rounding alone ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "shown", "status"),
    [
        (1e-10, 7e-7, Status.PASS),  # of a text whose tokens are all alike, in BF16
        (1e-10, 0.1, Status.FAIL),
        (1e-6, 1e-10, Status.FAIL),
    ],
)
def test_a_gradient_that_is_rounding_alone_accuses_nobody(
    length: float, shown: float, status: Status
) -> None:
    def of(relative: float, error: float, seed: int) -> dict[str, list[float]]:
        parts = {n: off(vector(i), error, seed + i) for i, n in enumerate(("a", "b", "c", "d"))}
        scores = [relative * value for value in vector(seed + 9)]
        return {f"live/{n}": v for n, v in {**parts, "scores": scores}.items()}

    right = {**of(length, 0.0, 0), "live/loss": [LOSS]}
    own = {**of(length, 0.01, 30), "live/scores": right["live/scores"], "live/loss": [LOSS]}
    seen = {**of(shown, 0.01, 60), "live/loss": [LOSS]}
    found = judge_live(
        PROBED,
        glances(5),
        seen,
        {f"BF16/{name}": value for name, value in own.items()},
        right,
        BF16,
        ("e",),
        RoundedSums(1, BF16),
    )
    assert found.status is status, found.message


# -- few elements -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elements", "precision", "times"),
    [
        *((200, BF16, 2.0), (64, BF16, 2.0), (16, BF16, 3.0), (4, BF16, 5.0)),
        *((64, FP32, 6.0), (4, FP32, 9.0)),
    ],
)
def test_the_last_step_of_a_gain_of_few_elements_may_be_further_off_by_chance(
    elements: int, precision: Precision, times: float
) -> None:
    sizes = {"a": 4000, "b": 4000, "gain": elements}  # "gain" is a small part of the whole
    right = {f"live/{name}": vector(i, size) for i, (name, size) in enumerate(sizes.items())}
    honest = {f"{precision.name}/{n}": off(r, 0.01, 7) for n, r in right.items()}
    loss = {"live/loss": [LOSS]}

    def status(error: float) -> Status:
        seen = {n: off(r, error if "gain" in n else 0.01, 9) for n, r in right.items()}
        own = {**honest, f"{precision.name}/live/loss": [LOSS]}
        found = judge_live(
            PROBED,
            glances(5),
            {**seen, **loss},
            own,
            {**right, **loss},
            precision,
            ("e",),
            RoundedSums(1, precision),
        )
        return found.status

    assert status(0.0099 * times) is Status.PASS
    assert status(0.0101 * times) is Status.FAIL
