"""What is given to every run, and what an examination refuses."""

from __future__ import annotations

import click
import pytest

from llmb.cli import node
from llmb.config import RunRequest
from llmb.errors import UsageError
from llmb.node import judgement, plan
from llmb.records.system import Device
from llmb.supervision.negotiation import Negotiated
from llmb.wire.messages import Offer, Terms
from tests.unit.builders_runtime import offer, run_config


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
    assert request.shape_overrides["hidden_size"] == 64
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


# -- seats and sizes --------------------------------------------------------------------------


def negotiated(offered: Offer, **config: object) -> Negotiated:
    terms = Terms(environment={}, warmup_steps=1, facts={}, peak=None)
    settled = run_config(device=offered.device, **config)
    return Negotiated(offered, settled, terms, ("a note",), "a log")


CARDS = tuple(Device(name=f"fast:{n}", description=f"Fast {n}") for n in range(3))


@pytest.mark.parametrize(("nproc", "count"), [(None, 3), (2, 2), (3, 3)])
def test_a_seat_is_one_of_the_first_devices(nproc, count):
    seats = plan._seats(negotiated(offer(device="fast", devices=CARDS)), nproc)
    assert [seat.name for seat in seats] == [f"fast:{n}" for n in range(count)]
    assert [(seat.device.index, seat.device.name) for seat in seats] == [
        (n, f"fast:{n}") for n in range(count)
    ]
    assert seats[0].device.description == "Fast 0"
    assert seats[0].cores == ()


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(UsageError, match="--nproc 4: there are 3 fast devices"):
        plan._seats(negotiated(offer(device="fast", devices=CARDS)), 4)


@pytest.mark.parametrize(("nproc", "count"), [(None, 2), (1, 1), (3, 3)])
def test_a_processor_is_cut_into_shares_of_its_cores(monkeypatch, nproc, count):
    monkeypatch.setattr(plan, "cores_of", lambda shares: tuple((n,) for n in range(shares)))
    seats = plan._seats(negotiated(offer()), nproc)
    assert [seat.cores for seat in seats] == [(n,) for n in range(count)]
    assert {seat.name for seat in seats} == {"cpu"}


def test_several_processors_that_a_plugin_lists_are_devices():
    devices = tuple(Device(name=f"cpu:{n}") for n in range(2))
    seats = plan._seats(negotiated(offer(devices=devices)), None)
    assert [(seat.name, seat.cores) for seat in seats] == [("cpu:0", ()), ("cpu:1", ())]


def test_a_plugin_that_lists_no_device_has_the_one_it_offers():
    assert plan.devices_of(offer(device="fast")) == (Device(name="fast"),)
    assert plan.devices_of(offer(device="fast", devices=CARDS)) == CARDS


def test_an_accelerator_begins_with_the_largest_usual_batch_that_fits():
    roomy = plan._sized(negotiated(offer(device="fast", available_memory_bytes=10**13)))
    assert roomy.config.batch_size == 8
    assert (roomy.notes, roomy.log) == (("a note",), "a log")
    parts = negotiated(offer(device="fast", available_memory_bytes=10**13), accumulate=3)
    assert plan._sized(parts).config.batch_size == 24
    none = negotiated(offer(device="fast", available_memory_bytes=1), batch_size=5)
    assert plan._sized(none).config.batch_size == 5
    assert plan._sized(negotiated(offer())).config.batch_size == 1, "a processor's stays"


def test_what_was_settled_comes_after_what_was_given_and_nothing_is_audited():
    words = plan.arguments_of(("--precision=FP32",), run_config(plugin="fast"))
    assert words == ("--precision=FP32", "--plugin=fast", "--precision=BF16", "--audit=off")
