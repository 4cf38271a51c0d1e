"""Which precisions a sweep runs, which it leaves out and why, and how far it should get."""

from __future__ import annotations

from typing import Any

import pytest

from llmb import workloads
from llmb.config import BF16, FP16, FP32, Refused, RunRequest
from llmb.errors import UnavailableError, UsageError
from llmb.supervision import memory
from llmb.supervision.negotiation import Chosen
from llmb.sweep import planning
from llmb.sweep.planning import Planned
from llmb.wire.messages import Offer
from tests.unit.builders_runtime import TINY, offer
from tests.unit.sweep.builders_sweep import asked

SLOW_FP16 = FP16.model_copy(update={"native": False})
CPU = offer(precisions=(BF16, FP32, SLOW_FP16))


def settled(offered: Offer = CPU, **changes: Any) -> Planned:
    return planning.settle(asked(**changes), Chosen(offered, ()))


def reasons(planned: Planned) -> dict[str, str]:
    return {each.name: each.reason for each in planned.plan.left_out}


def test_every_format_the_device_computes_in_is_run_in_the_plugins_order() -> None:
    plan = settled().plan
    assert plan.precisions == ("BF16", "FP32")
    assert [each.name for each in plan.left_out if each.emulated] == ["FP16"]


def test_what_is_emulated_refused_or_not_offered_is_left_out_with_the_reason() -> None:
    refused = Refused(name="FP8", reason="its library is not installed")
    found = reasons(settled(CPU.model_copy(update={"refused": (refused,)})))
    assert found == {
        "FP16": "cpu only emulates it",
        "TF32": "plugin cpu does not offer it on cpu",
        "FP8": "its library is not installed",
    }


def test_an_emulated_format_is_run_when_it_is_named_and_others_are_not() -> None:
    planned = settled(precisions=("FP16",))
    assert planned.plan.precisions == ("FP16",)
    assert not {"FP16", "BF16", "FP32"} & reasons(planned).keys()


def test_a_named_format_is_taken_by_its_own_name_and_once() -> None:
    assert settled(precisions=("bf16", "BF16")).plan.precisions == ("BF16",)


@pytest.mark.parametrize(
    ("name", "error"), [("TF32", UnavailableError), ("FP8", UnavailableError), ("X7", UsageError)]
)
def test_a_named_format_that_cannot_be_run_is_refused(name: str, error: type) -> None:
    with pytest.raises(error, match=name):
        settled(precisions=("BF16", name))


def test_a_format_that_an_option_does_not_go_with_is_left_out_unless_it_is_named() -> None:
    request = RunRequest(mixed_precision=True)
    planned = settled(request=request)
    assert planned.plan.precisions == ("BF16",)
    assert "--mixed-precision: not with FP32" in reasons(planned)["FP32"]
    with pytest.raises(UsageError, match="not with FP32"):
        settled(request=request, precisions=("FP32",))


def test_an_option_that_goes_with_no_format_is_refused_as_by_a_run() -> None:
    with pytest.raises(UsageError, match="--compile-mode max-autotune is for --executor inductor"):
        settled(request=RunRequest(compile_mode="max-autotune"))


def test_a_device_that_emulates_everything_has_to_be_told_a_format() -> None:
    with pytest.raises(UsageError, match="name a --precision"):
        settled(offer(precisions=(SLOW_FP16,)))


def test_sizes_that_cannot_be_accumulated_are_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="--batch-size 3 cannot be accumulated in 2 equal parts"):
        settled(request=RunRequest(accumulate=2), batch_sizes=(2, 3))


def test_an_end_of_doubling_is_refused_where_nothing_doubles_or_nothing_would_be_left() -> None:
    with pytest.raises(UsageError, match="--max-batch-size"):
        settled(max_batch_size=4)
    with pytest.raises(UsageError, match="--accumulate 4"):
        settled(request=RunRequest(accumulate=4), batch_sizes=None, max_batch_size=3)


def with_memory_for(size: int, **changes: Any) -> Planned:
    """Plan on a device with memory for a run in BF16 at batch size ``size``, and no larger one."""
    workload = workloads.find("llama-1.4b", {})
    load = memory.Load()
    have = memory.needed_bytes(workload, BF16, size, load)
    return settled(CPU.model_copy(update={"available_memory_bytes": have}), **changes)


@pytest.mark.parametrize("given", [None, (1, 2, 4, 8, 16, 32)])
def test_points_are_expected_up_to_where_memory_should_end(given: Any) -> None:
    expected = with_memory_for(5, batch_sizes=given).expected("BF16")
    assert expected is not None
    assert [p.batch_size for p in expected.fitting] == [1, 2, 4]
    assert expected.end is not None
    assert expected.end.batch_size == 8
    assert [p.batch_size for p in expected.points] == [1, 2, 4, 8]


def test_a_precision_of_which_nothing_fits_is_planned_as_memory_is_a_result() -> None:
    planned = with_memory_for(1)
    expected = planned.expected("FP32")
    assert "FP32" in planned.plan.precisions
    assert expected is not None
    assert expected.fitting == ()


def test_where_memory_is_not_known_doubling_has_no_end_to_expect() -> None:
    unknown = offer(available_memory_bytes=None)
    assert settled(unknown, batch_sizes=None).expected("BF16") is None
    named = settled(unknown, batch_sizes=(1, 2)).expected("BF16")
    assert named is not None
    assert named.end is None


def test_going_on_with_another_torch_or_plugin_is_refused_with_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted: list[RunRequest] = []

    def choose(request: RunRequest) -> Chosen:
        wanted.append(request)
        return Chosen(CPU, ())

    monkeypatch.setattr(planning.negotiation, "choose", choose)
    plan = planning.make(asked()).plan
    assert planning.again(plan, "runs/x").plan == plan
    assert [(request.plugin, request.device) for request in wanted] == [
        (None, None),
        ("cpu", "cpu"),
    ]
    before = plan.ground.model_copy(update={"torch_version": "2.1.0"})
    with pytest.raises(UsageError, match=r"torch_version is .*begun with '2\.1\.0'"):
        planning.again(plan.model_copy(update={"ground": before}), "runs/x")


@pytest.mark.full
def test_a_plugin_that_is_asked_twice_is_the_same_ground() -> None:
    plan = planning.make(asked(request=RunRequest(plugin="cpu", shape_overrides=TINY))).plan
    assert planning.again(plan, "runs/x").plan == plan
