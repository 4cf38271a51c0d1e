"""E1, E3, G1 and P1 of runs that train nothing: honest logits pass, and only they."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from llmb.audit.outputs import Outputs, Shown
from llmb.config import BF16, FP16, FP32, Precision
from llmb.records.audited import AuditedStep, ProbedEvidence, Segment
from llmb.records.finding import Finding, Level, Status

COUNT, LAST, KEPT = 400, 12, 7
PASSES = ("live", "step", "branches", "head")
Arrays = dict[str, list[float]]

#: Relative errors of honest runs, by class: 2 to the minus bits.
BITS = {"FP32": 21.0, "TF32": 10.0, "FP16": 11.0, "BF16": 7.5, "FP8": 3.5}
BORDERS = {"FP32": ("TF32", "BF16", "FP8"), "BF16": ("FP8",), "FP16": ("BF16", "FP8")}


def right() -> Arrays:
    draw = random.Random(1)
    return {f"{name}/logits": [draw.gauss(0, 1) for _ in range(COUNT)] for name in PASSES}


RIGHT = right()


def noisy(name: str, bits: float, seed: object) -> list[float]:
    """Return logits of pass ``name`` whose relative error is exactly 2 to the minus ``bits``."""
    exact, draw = RIGHT[f"{name}/logits"], random.Random(f"{name}{seed}")
    noise = [draw.gauss(0, 1) for _ in exact]
    scale = 2.0**-bits * math.hypot(*exact) / math.hypot(*noise)
    return [value + scale * one for value, one in zip(exact, noise, strict=True)]


def step(index: int = KEPT) -> AuditedStep:
    segment = Segment(name="logits", dtype="bfloat16", gradients=COUNT, states=0)
    return AuditedStep(
        index=index,
        token_seed=1,
        seed=2,
        weights_kept=True,
        steps_before=None,
        foreach=None,
        fused=None,
        capturable=False,
        segments=(segment,),
    )


def shown(precision: Precision = BF16) -> Shown:
    """Return what an honest run shows: three honest computations, each with noise of its own."""
    bits = BITS[precision.name]
    seen = {f"{n}/logits": noisy(n, bits, "worker") for n in PASSES if n != "step"}
    glanced = [0.25, -1.5, 3.0]
    steps = {f"{KEPT}/logits": noisy("step", bits, "worker")}
    for index in (KEPT, LAST):
        steps |= {f"{index}/asked": glanced, f"{index}/asked again": [*glanced]}
    name = precision.name
    honest = {f"{name}/{n}/logits": noisy(n, bits, "device") for n in PASSES}
    for border in BORDERS[precision.name]:
        honest |= {
            f"{border}/{n}/logits": noisy(n, BITS[border], border) for n in PASSES if n != "step"
        }
    host = {f"host/{n}/logits": noisy(n, bits, "host") for n in ("live", "branches")}
    probed = ProbedEvidence(
        seed=3,
        last_step=LAST,
        token_seed=4,
        passes=("live", "branches", "head"),
        missing=(),
    )
    return Shown(probed, step(), seen, steps, honest, {**RIGHT, **host})


def judged(of: Shown, precision: Precision = BF16) -> dict[str, Finding]:
    return {finding.id: finding for finding in Outputs(of, precision, ("e",)).findings()}


def failing(of: Shown, precision: Precision = BF16) -> set[str]:
    return {rule for rule, f in judged(of, precision).items() if f.status is Status.FAIL}


def with_noise(of: Shown, **bits: float) -> Shown:
    """Return ``of`` with other logits of the worker's in the passes that are named."""
    seen, steps = {**of.seen}, {**of.steps}
    for name, few in bits.items():
        if name == "step":
            steps[f"{KEPT}/logits"] = noisy(name, few, "other")
        else:
            seen[f"{name}/logits"] = noisy(name, few, "other")
    return replace(of, seen=seen, steps=steps)


# -- honest ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [FP32, FP16, BF16], ids=lambda p: p.name)
def test_an_honest_run_passes_every_rule(precision: Precision) -> None:
    found = judged(shown(precision), precision)
    assert list(found) == ["E3", "E1", "G1", "P1"]
    for finding in found.values():
        assert finding.status is Status.PASS, finding
        assert finding.level is Level.BLOCK
        assert finding.evidence == ("e",)
    measured = Outputs(shown(precision), precision, ("e",)).measured()
    assert measured is not None
    assert measured.effective == precision.name
    assert measured.bits.forward_min == pytest.approx(BITS[precision.name], abs=0.01)
    assert measured.bits.gradient_min is None


def test_what_computes_better_than_declared_passes_too() -> None:
    better = with_noise(shown(), live=21, step=21, branches=21, head=21)
    assert not failing(better)
    measured = Outputs(better, BF16, ()).measured()
    assert measured is not None
    assert measured.effective == "BF16", "what was declared comes first"


def test_a_run_without_an_audited_step_in_its_window_has_no_g1() -> None:
    assert set(judged(replace(shown(), kept=None))) == {"E1", "E3", "P1"}


# -- E1 and G1 ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rule"), [("live", "E1"), ("step", "G1")])
@pytest.mark.parametrize(("times", "fails"), [(1.45, False), (1.55, True), (4.0, True)])
def test_logits_may_be_one_and_a_half_times_as_far_off_as_honest_ones(
    name: str, rule: str, times: float, fails: bool
) -> None:
    found = judged(with_noise(shown(), **{name: BITS["BF16"] - math.log2(times)}))
    assert (found[rule].status is Status.FAIL) is fails
    if fails:
        assert f"the logits are {times:.3g} times as far off" in found[rule].message
    other = {"E1": "G1", "G1": "E1"}[rule]
    assert found[other].status is Status.PASS


@pytest.mark.parametrize(("times", "fails"), [(3.9, False), (4.1, True)])
def test_in_float32_they_may_be_four_times_as_far_off(times: float, fails: bool) -> None:
    bits = BITS["FP32"] - math.log2(times)
    found = judged(with_noise(shown(FP32), live=bits), FP32)
    assert (found["E1"].status is Status.FAIL) is fails


def test_an_honest_run_that_happens_to_be_exact_is_no_yardstick_for_rounding() -> None:
    of = shown(FP32)
    exact = {**of.honest, "FP32/live/logits": RIGHT["live/logits"]}
    close = with_noise(replace(of, honest=exact), live=20.0)
    assert judged(close, FP32)["E1"].status is Status.PASS
    rough = with_noise(replace(of, honest=exact), live=18.0)
    assert judged(rough, FP32)["E1"].status is Status.FAIL


def lost(of: Shown, name: str) -> Shown:
    return replace(of, seen={k: v for k, v in of.seen.items() if k != f"{name}/logits"})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda values: values[:-1],
        lambda values: [math.nan, *values[1:]],
        lambda values: [math.inf, *values[1:]],
        lambda values: [0.0 for _ in values],
    ],
    ids=["short", "nan", "inf", "zero"],
)
def test_logits_that_are_none_fail(spoil: Callable[[list[float]], list[float]]) -> None:
    of = shown()
    spoiled = replace(of, seen={**of.seen, "live/logits": spoil([*of.seen["live/logits"]])})
    assert {"E1", "P1"} <= failing(spoiled)


def test_logits_that_were_not_shown_count_as_zero() -> None:
    assert {"E1", "P1"} <= failing(lost(shown(), "live"))


@pytest.mark.parametrize(("index", "rule"), [(LAST, "E1"), (KEPT, "G1")])
def test_logits_that_changed_once_they_were_looked_at_fail(index: int, rule: str) -> None:
    of = shown()
    changed = replace(of, steps={**of.steps, f"{index}/asked again": [0.25, -1.5, 3.0001]})
    assert failing(changed) == {rule}
    assert (
        f"1 logits of step {index} changed once it was looked at" in judged(changed)[rule].message
    )


@pytest.mark.parametrize("what", ["asked", "asked again"])
@pytest.mark.parametrize(("index", "rule"), [(LAST, "E1"), (KEPT, "G1")])
def test_logits_that_were_not_read_before_it_was_known_fail(
    what: str, index: int, rule: str
) -> None:
    of = shown()
    for values in (None, []):
        steps = {k: v for k, v in of.steps.items() if k != f"{index}/{what}"}
        if values is not None:
            steps[f"{index}/{what}"] = values
        assert failing(replace(of, steps=steps)) == {rule}


# -- E3 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probe", ["branches", "head"])
def test_logits_of_a_probe_that_have_nothing_to_do_with_its_weights_fail(probe: str) -> None:
    of = shown()
    stale = replace(of, seen={**of.seen, f"{probe}/logits": of.seen["live/logits"]})
    found = judged(stale)
    assert {"E3", "P1"} <= failing(stale)
    assert f"(probe {probe})" in found["E3"].message
    assert found["E1"].status is Status.PASS


@pytest.mark.parametrize(("bits", "fails"), [(1.6, False), (1.4, True)])
def test_a_probe_has_one_and_a_half_bits_or_it_was_not_computed_with(
    bits: float, fails: bool
) -> None:
    assert ("E3" in failing(with_noise(shown(), head=bits))) is fails


def test_without_a_reference_of_a_probe_nothing_is_said_of_it() -> None:
    of = shown()
    less = replace(of, reference={k: v for k, v in of.reference.items() if "head/" not in k})
    assert judged(less)["E3"].status is Status.NOT_OBSERVED


# -- P1 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["live", "step", "branches", "head"])
def test_the_bits_of_a_narrower_class_in_one_pass_are_enough_to_convict(name: str) -> None:
    found = judged(with_noise(shown(), **{name: BITS["FP8"]}))
    assert found["P1"].status is Status.FAIL
    assert found["P1"].message in (
        "declared BF16, computes in FP8",
        "declared BF16, computes in no known format",
    )


@pytest.mark.parametrize(
    ("precision", "narrow"), [(FP32, "TF32"), (FP32, "BF16"), (BF16, "FP8"), (FP16, "BF16")]
)
def test_a_run_in_a_narrower_class_is_named_by_it(precision: Precision, narrow: str) -> None:
    few = dict.fromkeys(PASSES, BITS[narrow])
    of = with_noise(shown(precision), **few)
    found = judged(of, precision)["P1"]
    assert found.status is Status.FAIL
    assert found.message == f"declared {precision.name}, computes in {narrow}"


def test_what_reaches_no_class_is_called_by_none() -> None:
    of = with_noise(shown(), live=0.5, step=0.5, branches=2.0, head=2.0)
    assert judged(of)["P1"].message == "declared BF16, computes in no known format"


# -- the yardstick --------------------------------------------------------------------------------


def device(of: Shown, bits: float, name: str = "BF16") -> Shown:
    rough = {f"{name}/{n}/logits": noisy(n, bits, "rough") for n in PASSES}
    return replace(of, honest={**of.honest, **rough})


@pytest.mark.parametrize("bits", [2.5, 6.5])
def test_where_the_devices_honest_run_is_rough_nothing_is_compared_with_it(bits: float) -> None:
    of = device(shown(), bits)
    found = judged(of)
    for rule in ("E1", "G1", "P1"):
        assert found[rule].status is Status.NOT_OBSERVED
        assert "rougher than one" in found[rule].message
    assert found["E3"].status is Status.PASS, "that needs no yardstick"
    assert Outputs(of, BF16, ()).measured() is None


def test_a_rough_yardstick_excuses_no_stale_probe() -> None:
    of = device(with_noise(shown(), head=0.1), 2.5)
    assert failing(of) == {"E3"}


def test_without_the_hosts_honest_run_the_floor_of_the_class_is_what_counts() -> None:
    of = shown()
    alone = replace(of, reference={k: v for k, v in of.reference.items() if "host/" not in k})
    assert not failing(alone)
    assert judged(device(alone, 2.5))["P1"].status is Status.NOT_OBSERVED
    assert judged(device(alone, 6.5))["P1"].status is Status.PASS


def test_without_any_honest_run_of_the_declared_class_nothing_is_observed() -> None:
    of = shown()
    none = replace(of, honest={k: v for k, v in of.honest.items() if not k.startswith("BF16/")})
    assert judged(none)["E1"].status is Status.NOT_OBSERVED
    assert Outputs(none, BF16, ()).measured() is None
