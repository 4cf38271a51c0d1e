"""G1 with dropout: a gradient that holds the honest mean, and is as far from it as honest ones."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from llmb.audit import dropped_step, timed_step
from llmb.audit.bench import HONEST, STEP_VALUES, STEPS
from llmb.audit.dropped_step import HonestSteps
from llmb.audit.equivalence import least_error
from llmb.audit.sums import RoundedSums
from llmb.config import BF16, FP16, FP32, Precision
from llmb.records.audited import (
    DROPPED,
    DROPPED_ALIKE,
    DROPPED_APART,
    MASKS,
    AuditedStep,
    Segment,
    StepsEvidence,
    judged_pass,
)
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import Stop

SIZE = 400
NAMES = ("layer.0.query", "layer.0.value", "layer.1.query", "layer.1.value", "head")
SEGMENTS = tuple(Segment(name=n, dtype="float32", gradients=SIZE, states=64) for n in NAMES)
STEP = AuditedStep(
    index=7,
    token_seed=1,
    seed=2,
    weights_kept=True,
    steps_before=6.0,
    foreach=None,
    fused=None,
    capturable=False,
    segments=SEGMENTS,
)
#: The pass of the step.
STEP_AGAIN = judged_pass(STEP.index)
#: What one step is off, in lengths of the mean.
NOISE = 0.5


def vector(seed: int) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(0, 1) for _ in range(SIZE * len(NAMES))]


MEAN = vector(0)


def drawn(seed: int, noise: float = NOISE) -> list[float]:
    """Return an honest gradient with masks of its own, or one with less ``noise``."""
    return [m + noise * n for m, n in zip(MEAN, vector(seed), strict=True)]


def honest_steps(noise: float = NOISE) -> dict[str, list[float]]:
    rows = [drawn(100 + n, noise) for n in range(MASKS)]
    mean = [sum(column) / MASKS for column in zip(*rows, strict=True)]
    apart = [math.dist(row[one], mean[one]) for row in rows for one in map(of, range(len(NAMES)))]
    return {
        f"BF16/{STEP_AGAIN}/{DROPPED}": mean,
        f"BF16/{STEP_AGAIN}/{DROPPED_APART}": apart,
        f"BF16/{STEP_AGAIN}": MEAN,
    }


def of(number: int) -> slice:
    return slice(number * SIZE, (number + 1) * SIZE)


def with_part(shown: Sequence[float], number: int, part: Sequence[float]) -> list[float]:
    found = [*shown]
    found[of(number)] = part
    return found


def judged(
    shown: Sequence[float],
    *,
    honest: Mapping[str, Sequence[float]] | None = None,
    right: Sequence[float] = MEAN,
    step: AuditedStep = STEP,
    precision: Precision = BF16,
    padding: Sequence[str] = (),
    sequences: float = 4,
    alike: Sequence[float] | None = None,
    other_masks: bool = False,
    **changes: Any,
) -> Finding:
    """Return G1 of a step; the honest step with its masks is equal, or ``alike``."""
    seen = {"7/gradient": shown}
    seen |= {f"7/{name}": [1.0, 2.0] for name in ("asked", "asked before", "asked after")}
    seen |= changes
    own = {**(honest_steps() if honest is None else honest)}
    own[f"BF16/{STEP_AGAIN}/{DROPPED_ALIKE}"] = shown if alike is None else alike
    own = {name.replace("BF16", precision.name): one for name, one in own.items()}
    reference = {STEP_AGAIN: right}
    told = ("0.1 %", padding, (7,), ("e",))
    return dropped_step.judge(
        *(step, STEP_AGAIN, seen, own, reference, precision, *told),
        sequences=sequences,
        other_masks=other_masks,
    )


@pytest.mark.parametrize("precision", [BF16, FP32], ids=lambda p: p.name)
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_step_with_masks_of_its_own_is_honest(seed: int, precision: Precision) -> None:
    found = judged(drawn(seed), precision=precision)
    assert (found.id, found.level, found.status) == ("G1", Level.BLOCK, Status.PASS)
    assert "step 7" in found.message
    assert found.evidence == ("e",)
    assert found.basis == "calibrated"


def test_masks_that_no_honest_step_has_hide_what_is_rounded() -> None:
    shown = drawn(1)
    off = least_error(BF16)

    def apart(times: float, *parts: int) -> list[float]:
        rest, found = vector(5), [*shown]
        for where in map(of, parts):
            length = math.hypot(*shown[where]) / math.hypot(*rest[where])
            found[where] = [
                s + times * off * length * r for s, r in zip(shown[where], rest[where], strict=True)
            ]
        return found

    every = range(len(NAMES))
    assert judged(shown, alike=apart(1.4, *every)).status is Status.PASS
    assert judged(shown, alike=apart(2.1, 1)).status is Status.PASS
    rounded, others = "a narrower format", "torch._inductor.config.fallback_random"
    for alike, hint in (
        (apart(1.6, *every), rounded),
        (apart(2.4, 1), rounded),
        (drawn(2), others),
        ([math.nan] * len(MEAN), others),
    ):
        found = judged(shown, alike=alike)
        assert found.status is Status.NOT_OBSERVED
        assert hint in found.message
    assert "most layer.0.value: 2.4" in judged(shown, alike=apart(2.4, 1)).message
    assert judged(shown, alike=drawn(2), other_masks=True).status is Status.PASS
    assert judged([0.0] * len(MEAN), alike=drawn(2)).status is Status.FAIL, "whatever the masks"


@pytest.mark.parametrize(
    ("bits", "limits"),
    [
        *((4, "3 4.5"), (5, "1.6 2.5"), (6, "1.6 2.5"), (8, "1.75 2.75")),
        *((12, "1.5 2.25"), (16, "1.5 2.25"), (19, "3 4.5"), (32, "3 4.5")),
    ],
)
def test_the_limit_of_equal_masks_follows_from_the_bits_of_the_format(
    bits: int, limits: str
) -> None:
    precision = BF16.model_copy(update={"bits": bits})
    message = judged(drawn(1), alike=drawn(2), precision=precision).message
    assert [*re.findall(r"\(limit ([\d.]+)\)", message)][:2] == limits.split()


def test_no_gradients_and_those_of_another_step_hold_nothing_of_the_mean() -> None:
    for shown in ([0.0] * len(MEAN), vector(9)):
        found = judged(shown)
        assert found.status is Status.FAIL
        assert found.message.startswith(("the gradients hold 0.0", "the gradients hold -0.0"))
        assert "(limit 0.75), least " in found.message


def test_gradients_further_from_the_mean_than_honest_ones_fail_and_say_how_far() -> None:
    assert judged(drawn(1, 1.2 * NOISE)).status is Status.PASS
    found = judged(drawn(1, 1.5 * NOISE))
    assert found.status is Status.FAIL
    assert found.message.startswith("the gradients are 1.4")
    assert "from the mean of honest steps as these are (limit 1.3)" in found.message


def test_the_more_sequences_the_nearer_to_honest_steps() -> None:
    far, near, nearest = (drawn(1, share * NOISE) for share in (1.5, 0.65, 0.5))
    one, many = ([judged(g, sequences=n).status for g in (far, near, nearest)] for n in (1, 64))
    assert one == [Status.PASS, Status.PASS, Status.FAIL]
    assert many == [Status.FAIL, Status.PASS, Status.FAIL]


def test_of_a_short_sequence_few_words_are_masked_and_the_limits_are_wider() -> None:
    far, near = drawn(1, 1.9 * NOISE), drawn(1, 0.4 * NOISE)
    for shown in (far, near):
        assert judged(shown, sequences=1).status is Status.FAIL
        assert judged(shown, sequences=0.25).status is Status.PASS
    assert judged([0.0] * len(MEAN), sequences=0.25).status is Status.FAIL


def test_gradients_nearer_to_the_mean_than_honest_ones_are_without_dropout() -> None:
    found = judged(MEAN)
    assert found.status is Status.FAIL
    assert "only 0.4" in found.message
    assert "dropout is left out, or less" in found.message


def test_a_module_without_gradients_fails_by_name() -> None:
    shown = drawn(1)
    for number in (2, 3):
        shown = with_part(shown, number, [0.0] * SIZE)
    found = judged(shown)
    assert found.status is Status.FAIL
    assert "least layer.1" in found.message
    assert "0.00 (limit 0.1)" in found.message


def test_one_parameter_too_far_off_fails_by_name() -> None:
    wild = [m + 3 * NOISE * n for m, n in zip(MEAN[of(1)], vector(4)[of(1)], strict=True)]
    found = judged(with_part(drawn(1), 1, wild))
    assert found.status is Status.FAIL
    assert "most layer.0.value: 2." in found.message


@pytest.mark.parametrize("name", ["bert.pooler.dense.weight", "cls.seq_relationship.weight"])
def test_a_parameter_of_one_token_of_each_sequence_may_be_twice_as_far_off(name: str) -> None:
    segments = tuple(
        one.model_copy(update={"name": name}) if number == 1 else one
        for number, one in enumerate(STEP.segments)
    )
    step = STEP.model_copy(update={"segments": segments})

    wild = [m + 3 * NOISE * n for m, n in zip(MEAN[of(1)], vector(4)[of(1)], strict=True)]
    message = judged(with_part(drawn(1), 1, wild), step=step).message
    assert message.endswith(f"most {name}: 2.79 times (limit 5.5)"), "all of five are too far off"
    # Of two parameters equally far off, the other one is beyond its limit.
    both = with_part(
        with_part(drawn(1), 1, wild),
        3,
        [m + 3 * (w - m) for m, w in zip(MEAN[of(3)], drawn(4)[of(3)], strict=True)],
    )
    assert "most layer.1.value: " in judged(both, step=step).message


def test_a_number_that_is_none_fails() -> None:
    assert judged(with_part(drawn(1), 1, [math.nan] * SIZE)).status is Status.FAIL
    assert judged([math.inf] * len(MEAN)).status is Status.FAIL


def test_samples_of_another_length_are_no_gradients() -> None:
    assert judged(drawn(1)[:-1]).status is Status.FAIL


def test_gradients_changed_once_they_were_to_be_looked_at_fail() -> None:
    found = judged(drawn(1), **{"7/asked after": [1.0, 3.0]})
    assert found.status is Status.FAIL
    assert "1 gradients of step 7 changed once it was to be looked at" in found.message


def test_a_missing_gradient_fails_by_name_unless_it_is_padding() -> None:
    lacking = STEP.model_copy(update={"without_gradient": ("d",)})
    assert "1 gradients are missing: d" in judged(drawn(1), step=lacking).message
    assert judged(drawn(1), step=lacking, padding=("d",)).status is Status.PASS


def test_without_honest_steps_there_is_nothing_to_compare_with() -> None:
    found = judged(drawn(1), honest={f"BF16/{STEP_AGAIN}": MEAN})
    assert found.status is Status.NOT_OBSERVED
    assert "no honest steps with dropout" in found.message


def test_honest_steps_that_hold_no_reference_or_have_too_much_noise_are_none() -> None:
    assert judged(drawn(1), right=vector(8)).status is Status.NOT_OBSERVED
    assert judged(drawn(1), honest=honest_steps(4.0)).status is Status.NOT_OBSERVED
    broken = {**honest_steps(), f"BF16/{STEP_AGAIN}/{DROPPED}": [math.nan] * len(MEAN)}
    assert judged(drawn(1), honest=broken).status is Status.NOT_OBSERVED


def test_scaled_gradients_may_overflow() -> None:
    scaled = FP16.model_copy(update={"master_weights": True})
    assert scaled.scales_loss
    found = judged([math.inf] * len(MEAN), precision=scaled)
    assert found.status is Status.NOT_OBSERVED
    assert "overflowed" in found.message


def test_what_a_softmax_cannot_see_and_what_few_elements_hold_is_not_judged() -> None:
    names = (*NAMES[:-1], "layer.1.attention.self.key.bias")
    renamed = tuple(s.model_copy(update={"name": n}) for s, n in zip(SEGMENTS, names, strict=True))
    step = STEP.model_copy(update={"segments": renamed})
    assert judged(with_part(drawn(1), 4, [9.0] * SIZE), step=step).status is Status.PASS
    few = [100.0, *[0.0] * (SIZE - 1)]
    honest = honest_steps()
    honest[f"BF16/{STEP_AGAIN}/{DROPPED}"] = with_part(
        honest[f"BF16/{STEP_AGAIN}/{DROPPED}"], 4, few
    )
    assert judged(drawn(1), honest=honest).status is Status.PASS


def test_an_element_that_masks_took_out_of_the_honest_steps_is_not_judged() -> None:
    usual, large = MEAN[of(4)], 60.0
    shown = with_part(drawn(1), 4, [large, *usual[1:]])
    assert judged(shown).status is Status.FAIL
    # Without dropout the element has the length of the sample: its share in four steps is chance.
    assert judged(shown, right=with_part(MEAN, 4, [large, *usual[1:]])).status is Status.PASS


def test_a_parameter_without_noise_is_judged_by_what_the_format_rounds() -> None:
    rows = [with_part(drawn(100 + n), 4, MEAN[of(4)]) for n in range(MASKS)]
    mean = [sum(column) / MASKS for column in zip(*rows, strict=True)]
    apart = [math.dist(row[one], mean[one]) for row in rows for one in map(of, range(len(NAMES)))]
    rounded = with_part(MEAN, 4, [1.01 * m for m in MEAN[of(4)]])
    honest = {
        f"BF16/{STEP_AGAIN}/{DROPPED}": mean,
        f"BF16/{STEP_AGAIN}/{DROPPED_APART}": apart,
        f"BF16/{STEP_AGAIN}": rounded,
    }
    near, far = (with_part(drawn(1), 4, [f * m for m in MEAN[of(4)]]) for f in (1.02, 1.04))
    assert judged(near, honest=honest).status is Status.PASS
    found = judged(far, honest=honest)
    assert found.status is Status.FAIL
    assert "most head" in found.message


def test_an_honest_step_holds_the_mean_and_is_one_distance_from_it() -> None:
    own = honest_steps()
    mean, apart = own[f"BF16/{STEP_AGAIN}/{DROPPED}"], own[f"BF16/{STEP_AGAIN}/{DROPPED_APART}"]
    steps = HonestSteps.of(STEP, mean, apart, MEAN, [MEAN], BF16)
    whole = steps.compare(drawn(1)).whole
    assert whole.share == pytest.approx(1.0, abs=0.03)
    assert whole.distance == pytest.approx(1.0, abs=0.03)
    assert steps.nearest == pytest.approx(1.0, abs=0.05) == steps.furthest


def _of_run(
    rules: str,
    honest: Mapping[str, Sequence[float]] | None,
    *,
    due: Sequence[int] = (7,),
    stopped: Sequence[int] = (7,),
    shown: Mapping[int, Sequence[float]] | None = None,
) -> list[Finding]:
    """Return G1 of a run with dropout and 4 sequences a step, by ``rules``."""
    workload = SimpleNamespace(shapes={"dropout": 0.1, "sequence_length": 8}, tokens_per_step=32)
    shown = {7: drawn(1)} if shown is None else shown
    steps = tuple(STEP.model_copy(update={"index": index}) for index in shown)
    seen = {f"{index}/gradient": values for index, values in shown.items()}
    asked = ("asked", "asked before", "asked after")
    seen |= {f"{index}/{name}": [1.0] for index in shown for name in asked}
    if honest is not None:
        alike = {f"BF16/{judged_pass(i)}/{DROPPED_ALIKE}": one for i, one in shown.items()}
        honest = {**honest, **alike}
    stops = tuple(Stop(step=step, at_ns=0, ns=1) for step in stopped)
    files = {
        STEPS: StepsEvidence(steps=steps, pause_ns=1, longest_pause_ns=1),
        STEP_VALUES: seen,
        HONEST: honest,
    }
    bench = SimpleNamespace(
        trains=True,
        every_step=False,
        drops=True,
        needed=files.__getitem__,
        read=files.get,
        whole_numbers=lambda _: {},
        drawn=SimpleNamespace(judged=lambda window, steps: tuple(due)),
        reference=dict.fromkeys(("step", *map(judged_pass, shown)), MEAN),
        facts=SimpleNamespace(
            workload=workload,
            rules_version=rules,
            precision=BF16,
            parallelism=SimpleNamespace(is_shared=False),
            records_steps=False,
        ),
        measured=object(),
        sums=RoundedSums(1, BF16),
        timing=SimpleNamespace(
            warmup_steps=2, timed_steps=10, start_ns=0, stop_ns=1000, stops=stops, commitments=()
        ),
        paths=lambda *which: tuple(one.name for one in which),
    )
    return list(timed_step.judge(bench))


@pytest.mark.parametrize("rules", ["2", "3"])
def test_by_earlier_rules_no_step_with_dropout_is_judged(rules: str) -> None:
    (found,) = _of_run(rules, {"BF16/step": MEAN})
    assert found.status is Status.NOT_APPLICABLE
    assert "dropout draws each step's gradients" in found.message


def test_a_run_by_these_rules_needs_the_honest_steps() -> None:
    (found,) = _of_run("4", honest_steps())
    assert found.status is Status.PASS
    assert "0.75 of the mean" in str(found.limit)
    (found,) = _of_run("4", {f"BF16/{STEP_AGAIN}": MEAN})
    assert found.status is Status.NOT_OBSERVED
    assert _of_run("4", None) == []  # and so not observed


def of_steps(*steps: int) -> dict[str, list[float]]:
    """Return the honest steps of several judged steps."""
    own = honest_steps()
    return {
        name.replace(STEP_AGAIN, judged_pass(step)): values
        for step in steps
        for name, values in own.items()
    }


def test_every_judged_step_counts_and_the_worst_is_told() -> None:
    both = {"due": (5, 7), "stopped": (5, 7)}
    (found,) = _of_run("4", of_steps(5, 7), **both, shown={5: drawn(1), 7: drawn(2)})
    assert found.status is Status.PASS
    assert found.message.endswith("masks of dropout; likewise step 7")
    for bad in (5, 7):
        shown = {5: drawn(1), 7: drawn(2), bad: [0.0] * len(MEAN)}
        (found,) = _of_run("4", of_steps(5, 7), **both, shown=shown)
        assert found.status is Status.FAIL
        assert "likewise" not in found.message
    (found,) = _of_run("4", of_steps(5), **both, shown={5: drawn(1), 7: drawn(2)})
    assert found.status is Status.NOT_OBSERVED
    assert "step 7" in found.message


@pytest.mark.parametrize("changes", [{"due": (5,)}, {"stopped": ()}, {"stopped": (7, 8)}])
def test_other_steps_than_the_drawn_ones_are_no_judged_steps(changes: Any) -> None:
    (found,) = _of_run("4", honest_steps(), **changes)
    assert found.status is Status.NOT_OBSERVED
    assert "did not hand over the weights" in found.message


def test_a_window_of_one_step_has_no_judged_step() -> None:
    (found,) = _of_run("4", honest_steps(), due=(), stopped=(), shown={})
    assert found.status is Status.NOT_APPLICABLE


def _in_four_bits(*seeds: int) -> list[list[float]]:
    """Return what independent roundings in 4 bits are off: as much as a mask changes."""
    return [[NOISE * one for one in vector(seed)] for seed in seeds]


@pytest.mark.parametrize("other_masks", [False, True])
def test_where_rounding_is_as_large_as_masks_an_honest_step_is_not_accused(
    other_masks: bool,
) -> None:
    rounded, again, plain = _in_four_bits(71, 72, 73)
    small = 0.8  # of an honest step, whose scatter holds masks and rounding
    own = {
        **honest_steps(math.sqrt(2) * NOISE),
        f"BF16/{STEP_AGAIN}": [m + e for m, e in zip(MEAN, plain, strict=True)],
    }
    masks = vector(8)
    shown, alike = (
        [m + small * (NOISE * d + e) for m, d, e in zip(MEAN, masks, off, strict=True)]
        for off in (rounded, again)
    )
    found = judged(shown, honest=own, alike=alike, other_masks=other_masks, sequences=4)
    assert found.status is (Status.NOT_OBSERVED if other_masks else Status.PASS), found.message
    for rough in (1.0, 1.4):  # no dropout: rounding alone, as far off as an honest step
        without = [m + rough * e for m, e in zip(MEAN, rounded, strict=True)]
        found = judged(without, honest=own, alike=alike, sequences=4)
        assert found.status is not Status.PASS
    assert "of what its masks change (limit 0.5)" in found.message
