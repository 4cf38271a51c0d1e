"""The hint below ``llmb plugin list``: said where no accelerator is driven, and nowhere else."""

from __future__ import annotations

import pytest

from llmb.cli.offers import print_offers
from llmb.records.lacks import Lacks
from tests.unit.builders_runtime import offer

HINT = "hint: torch 2.13.0 sees no accelerator"


def listed(capsys: pytest.CaptureFixture[str], *offers: object) -> str:
    print_offers(offers)  # type: ignore[arg-type]
    return capsys.readouterr().out


def test_where_only_the_processor_is_driven_it_is_said_what_to_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert HINT in listed(capsys, offer(device="cpu", torch_version="2.13.0"))


def test_where_an_accelerator_is_driven_none_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    both = (offer(device="cpu", torch_version="2.13.0"), offer(device="cuda", available=True))
    assert "sees no accelerator" not in listed(capsys, *both)


def test_an_accelerator_that_cannot_be_used_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    lost = offer(device="cuda", available=False, reason="no driver", torch_version="2.13.0")
    assert HINT in listed(capsys, lost)


def test_where_no_vendors_package_drives_the_device_its_kind_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = listed(capsys, offer(plugin="generic", device="cuda:0"))
    assert "only plugin generic drives cuda; a vendor's plugin may do more" in said


def test_what_a_device_lacks_is_listed_and_nothing_where_nothing_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lacking = offer(device="warp:0", lacks=Lacks(float64=True, memory_figures=True))
    assert "  lacks    float64, memory figures\n" in listed(capsys, lacking)
    assert "lacks" not in listed(capsys, offer(device="warp:0"))
