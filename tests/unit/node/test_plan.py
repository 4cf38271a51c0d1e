"""What is given to every run, and what an examination refuses."""

from __future__ import annotations

import click
import pytest

from llmb.cli import node
from llmb.config import RunRequest
from llmb.errors import UsageError
from llmb.node import judgement, plan


def test_options_of_run_hold_for_every_run_and_steps_are_few():
    given, request = node._request(("--precision=BF16", "-O", "threads=2"), None)
    assert request.precision == "BF16"
    assert request.plugin_options == {"threads": "2"}
    assert request.timed_steps == 20
    assert given[0] == "--timed-steps=20"
    assert node._request(("--timed-steps=7",), None)[1].timed_steps == 7
    assert not plan.is_debug(request)


def test_the_debug_preset_is_that_of_run():
    _, request = node._request((), "debug")
    assert request.shape_overrides["hidden_size"] == 128
    assert plan.is_debug(request)


@pytest.mark.parametrize(
    "option",
    ["--audit=full", "--tp=2", "--scaling=1,2", "--output-dir=x", "--json", "--device=cpu:1"],
)
def test_what_the_examination_sets_itself_is_refused(option):
    with pytest.raises(UsageError, match=option.partition("=")[0]):
        node._request((option,), None)


def test_an_option_nobody_knows_is_refused_as_run_does():
    with pytest.raises(click.NoSuchOption, match="--fly"):
        node._request(("--fly",), None)


def test_limits_are_those_of_the_size_unless_given():
    full, debug = RunRequest(), RunRequest(shape_overrides={"hidden_size": 64})
    assert plan.limits_of(full, None, None, None) == judgement.FULL
    assert plan.limits_of(debug, None, None, None) == judgement.DEBUG
    assert plan.limits_of(debug, 0.5, None, 0.0).model_dump() == {
        "device": 0.5,
        "together": judgement.DEBUG.together,
        "efficiency": 0.0,
    }


def test_a_share_of_a_processor_names_its_cores() -> None:
    assert plan._share(1, (2, 3)).description == "cores 2, 3"
    assert plan._share(0, ()).description is None
