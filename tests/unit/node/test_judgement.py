"""A device that falls behind is named with its figure; a node is fit where nothing is."""

from __future__ import annotations

import pytest

from llmb.node import judgement
from llmb.records.node_report import (
    DeviceCeiling,
    Limits,
    Nearest,
    NodeDevice,
    NodeStep,
    Outlier,
    Speed,
)

LIMITS = Limits(device=0.9, together=0.8, efficiency=0.8)


def speed(tokens_per_second):
    return Speed(
        run="alone/0/x",
        tokens_per_second=tokens_per_second,
        ci95=None,
        of_datasheet=None,
        of_ceiling=None,
    )


def device(index, alone=100.0, together=100.0, flops=1e12, memory=1e11):
    ceiling = flops and DeviceCeiling(
        product_flops_per_second=flops, of_datasheet=None, memory_bytes_per_second=memory
    )
    return NodeDevice(
        index=index,
        name=f"dev:{index}",
        description=None,
        ceiling=ceiling,
        alone=speed(alone) if alone else None,
        together=speed(together) if together else None,
    )


def why(devices, steps=(), ddp=None, nearest=None):
    found = judgement.outliers(devices, LIMITS)
    share = judgement.efficiency(devices, speed(ddp) if ddp else None)
    return list(judgement.reasons(steps, devices, found, share, nearest, LIMITS))


def test_alike_devices_that_share_nothing_are_fit():
    assert why([device(i, alone=100 + i) for i in range(8)], ddp=790) == []


@pytest.mark.parametrize(
    ("slow", "figure"),
    [
        ({"flops": 8e11}, "FLOP/s of matrix products"),
        ({"memory": 8e10}, "bytes/s of memory"),
        ({"alone": 80.0, "together": 95.0}, "tokens/s alone"),
        ({"together": 85.0}, "tokens/s beside the others"),
    ],
)
def test_the_one_device_that_falls_behind_is_named_with_the_figure(slow, figure):
    devices = [device(i) for i in range(3)] + [device(3, **slow)]
    (found,) = judgement.outliers(devices, LIMITS)
    assert (found.device, found.figure) == ("dev:3", figure)
    (reason,) = why(devices)
    assert reason.startswith("dev:3: ")
    assert figure in reason


def test_of_two_devices_the_slower_is_held_against_the_other_and_not_against_their_middle():
    found = judgement.outliers([device(0), device(1, alone=89.0)], LIMITS)
    assert [(one.device, one.others) for one in found] == [("dev:1", 100.0)]


def test_what_was_not_measured_is_neither_behind_nor_ahead():
    devices = [device(0), device(1, alone=None, flops=None), device(2)]
    assert judgement.outliers(devices, LIMITS) == ()
    assert judgement.efficiency([device(0), device(1, together=None)], speed(200.0)) is None
    assert judgement.efficiency(devices, None) is None
    assert judgement.outliers([device(0)], LIMITS) == ()


def test_devices_that_slow_one_another_are_a_reason_each():
    reasons = why([device(0, together=70.0), device(1, together=70.0)])
    assert [reason.partition(":")[2].partition(" of")[0] for reason in reasons] == [
        "0: beside the others it has 70%",
        "1: beside the others it has 70%",
    ]


def test_ddp_is_held_against_devices_side_by_side_and_not_alone():
    devices = [device(i, together=90.0) for i in range(2)]
    assert judgement.efficiency(devices, speed(180.0)) == 1.0
    assert why(devices, ddp=180.0) == []
    (reason,) = why(devices, ddp=120.0)
    assert reason.startswith("DDP has 67% of what the devices have side by side")


def test_a_step_that_failed_is_a_reason_with_what_it_said_and_one_left_out_is_none():
    steps = [
        NodeStep(name="doctor", status="done", seconds=1, messages=("numpy is old",)),
        NodeStep(name="ddp", status="failed", seconds=1, messages=("rank 1: no more",)),
        NodeStep(name="together", status="left out", seconds=0, messages=("there is one device",)),
    ]
    assert why([device(0)], steps) == ["ddp: rank 1: no more"]


@pytest.mark.parametrize(("ratio", "reasons"), [(0.85, 1), (0.95, 0), (None, 0)])
def test_a_submission_counts_where_it_did_the_same(ratio, reasons):
    nearest = Nearest(
        path="acme/box",
        submitter="acme",
        system="box",
        workload="llama-1.4b",
        precision="BF16",
        batch_size=1,
        devices=1,
        tokens_per_second_per_device=100.0,
        ratio=ratio,
        differs=() if ratio else ("batch size",),
    )
    assert len(why([device(0), device(1)], nearest=nearest)) == reasons


def test_the_share_of_an_outlier_is_its_value_over_that_of_the_others() -> None:
    found = Outlier(device="warp:1", figure="products", value=30.0, others=40.0)
    assert found.share == 0.75
