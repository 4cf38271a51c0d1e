"""The window of a run that trains nothing: each call, and each sample, has a fence of its own."""

from __future__ import annotations

import pytest

from llmb.audit.time import judge_schedule
from llmb.config import Mode
from llmb.records.draws import Draws, fence_every
from llmb.records.finding import Status
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.supervision.stream import Window, plan_trial, plan_window
from tests.unit.builders_runtime import run_config, timing

MODES = [Mode.FORWARD, Mode.GENERATE]


def config_of(mode: Mode, **changes: object) -> object:
    return run_config(mode=mode, warmup_steps=1, timed_steps=10, **changes)


def planned(mode: Mode, secret: int) -> Window:
    drawn = Draws(f"{secret:032x}", OFFICIAL_OPTIMIZER, ledger=True)
    return plan_window(config_of(mode), drawn)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("secret", range(20))
def test_there_is_a_fence_after_every_step_from_the_end_of_the_warm_up_on(
    mode: Mode, secret: int
) -> None:
    window = planned(mode, secret)
    assert [steps for steps in range(40) if window.is_fence(steps)] == list(range(1, 40))
    assert window.start in (1, 2)
    assert window.stop == window.start + 10
    assert window.second_fence == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_trial_has_its_fences_there_too(mode: Mode) -> None:
    window = plan_trial(config_of(mode))
    assert [steps for steps in range(12) if window.is_fence(steps)] == list(range(1, 12))


@pytest.mark.parametrize("mode", MODES)
def test_two_steps_of_the_window_are_audited_and_one_before_it(mode: Mode) -> None:
    audited = set()
    for secret in range(200):
        window = planned(mode, secret)
        first, one, other = window.audits
        assert first == max(0, window.start - 2)
        assert window.start <= one < other < window.stop
        audited |= {one - window.start, other - window.start}
    assert audited == set(range(10))


def test_training_keeps_its_ten_steps_between_fences() -> None:
    assert fence_every("train") == 10
    assert {fence_every(mode.value) for mode in MODES} == {1}


@pytest.mark.parametrize("mode", MODES)
def test_a_fence_after_every_step_is_asked_for_by_the_rule_of_the_schedule(mode: Mode) -> None:
    stamps = timing([100] * 5, steps_per_block=1, warmup_steps=1)
    found = judge_schedule([stamps], mode.value)
    assert found.status is Status.PASS, found.message
    assert found.honest == "a fence after every step, in order"
    tens = timing([1000] * 2, steps_per_block=10, warmup_steps=1)
    assert judge_schedule([tens], mode.value).status is Status.FAIL
    assert judge_schedule([tens]).status is Status.PASS
