"""What a device says is right counts where it agrees with the host in all that both computed."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from llmb.audit.bench import Bench
from llmb.records import audited

RIGHT = array("d", [1.0, 2.0, 3.0])
HOST = {"branches/a": RIGHT, "branches/b": RIGHT, "branches/out/c": RIGHT, "live/a": RIGHT}


def off(bits: float) -> Any:
    """Return ``RIGHT`` with so many bits left."""
    return array("d", [value * (1 + 2.0**-bits) for value in RIGHT])


def reference(host: dict[str, Any] | None, device: dict[str, Any] | None) -> Any:
    bench: Any = object.__new__(Bench)
    bench._known = {
        audited.REFERENCE: host,
        audited.DEVICE_REFERENCE: device,
        audited.GRADIENTS: None,  # nothing is stored by what it differs from the worker's
    }
    return bench.reference


DEVICE = {**HOST, "branches/a": off(20), "live/b": RIGHT}


def test_a_device_that_agrees_adds_what_the_host_did_not_compute() -> None:
    found = reference(HOST, DEVICE)
    assert found["live/b"] == RIGHT
    assert found["branches/a"] == RIGHT, "where both have one, the host's counts"


@pytest.mark.parametrize("name", ["branches/a", "branches/b"])
@pytest.mark.parametrize(("bits", "counts"), [(12.1, True), (11.9, False), (0.0, False)])
def test_one_array_with_too_few_bits_is_enough_to_doubt_a_device(
    name: str, bits: float, counts: bool
) -> None:
    found = reference(HOST, {**DEVICE, name: off(bits)})
    assert ("live/b" in found) is counts


def test_an_array_that_the_device_left_out_is_a_doubt_too() -> None:
    assert reference(HOST, {"branches/a": RIGHT, "live/b": RIGHT}) == HOST


def test_out_projections_are_no_reason_to_doubt_a_device() -> None:
    assert "live/b" in reference(HOST, {**DEVICE, "branches/out/c": off(1)})


def test_a_device_that_can_be_held_against_nothing_is_not_believed() -> None:
    host = {"live/a": RIGHT}
    assert reference(host, DEVICE) == host


def test_without_a_host_there_is_no_reference_and_without_a_device_the_hosts() -> None:
    assert reference(None, DEVICE) is None
    assert reference(HOST, None) == HOST
