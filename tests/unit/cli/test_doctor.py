"""``llmb doctor``: each thing that was found is a line, and 0 whatever is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from llmb.cli.doctor import command
from llmb.records.canonical import pretty_bytes
from llmb.records.system import Device
from llmb.supervision import doctor
from llmb.supervision.diagnosis import Diagnosis, Restriction
from tests.unit.supervision.test_missing import (
    BROKEN_TORCH,
    EXTENSION,
    WARP,
    diagnosis,
    host,
    torch,
)


def told(monkeypatch: pytest.MonkeyPatch, found: Diagnosis, *flags: str) -> str:
    monkeypatch.setattr(doctor, "examine", lambda: found)
    done = CliRunner().invoke(command, list(flags))
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "llmb          0.1.0, rules 1"),
        ({}, "reference     as published, digest 000000000000"),
        ({}, "python        CPython 3.11.7, Linux 6 x86_64"),
        ({}, "cpu           CPU, 8 of 8 cores usable, load 0.1"),
        ({}, "memory        1000.0 GB free of 1000.0 GB"),
        ({}, "free disk     1.0 GB for working folder, unknown for temporary files"),
        ({}, "limits        none"),
        ({}, "pci           nothing that may be an accelerator"),
        ({}, "torch         2.13.0, imported in 2.0 s"),
        ({}, "              made for no accelerator, sees 0"),
        ({}, "torch loads   no extension by itself"),
        ({}, "plugin cpu    ready, llmb 0.1.0"),
        ({}, "              BF16"),
        ({}, "llmb run      finds nothing to use"),
        ({}, "compilers     g++"),
        ({}, "environment   nothing that steers torch is set"),
        ({}, "missing       nothing that llmb knows of"),
        ({"choice": "cpu"}, "llmb run      would take cpu"),
        ({"compilers": ()}, "compilers     none"),
        ({"environment": {"OMP_NUM_THREADS": "4"}}, "environment   OMP_NUM_THREADS=4"),
        ({"environment": {"LONG": "x" * 201}}, f"environment   LONG={'x' * 200}..."),
        ({"missing": ("one", "two")}, "missing       one"),
        ({"missing": ("one", "two")}, "              two"),
        ({"packages": {"torch": "2"}}, "packages      torch 2"),
        ({"host": host(limits={"cpu.max": "4"})}, "limits        cpu.max 4"),
        ({"host": host(bus=("a card",))}, "pci           a card"),
        ({"torch": BROKEN_TORCH}, "torch         2.13.0, cannot be imported"),
        ({"torch": BROKEN_TORCH}, "              error: OSError: libtorch.so: not found"),
        ({"torch": torch(troubles=("odd",))}, "              trouble: odd"),
        ({"torch": torch(autoload="0")}, "              TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
        (
            {"torch": torch(accelerator="warp", accelerators=2)},
            "              made for 'warp', sees 2",
        ),
        (
            {"torch": torch(extensions=(EXTENSION,))},
            "torch loads   warpdev = warp:go (torch-warp 2)",
        ),
        (
            {"restriction": Restriction(value="x", left_out=("warp",), unknown=())},
            "restricted    LLMB_LOAD_PLUGINS='x' leaves out warp",
        ),
    ],
)
def test_what_was_found_is_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], line: str
) -> None:
    assert line in told(monkeypatch, diagnosis(**changes)).splitlines()


def test_a_changed_reference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = diagnosis().llmb.model_copy(update={"reference_changed": ("llama.py",)})
    assert "reference     changed: llama.py, digest" in told(monkeypatch, diagnosis(llmb=changed))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"state": "no device", "reason": "no driver"}, "              no driver"),
        (
            {"devices": (Device(name="warp:0", description="Warp 9", memory_bytes=8 * 10**9),)},
            "              warp:0: Warp 9, 8.0 GB",
        ),
        ({"devices": (Device(name="warp:0"),)}, "              warp:0: not described"),
        (
            {"precisions": ("BF16", "FP16", "FP32"), "slow": ("FP16",), "widened": ("BF16",)},
            "              BF16 (products in FP32), FP16 (slow), FP32",
        ),
        ({"refused": {"FP8": "too old"}}, "              no FP8: too old"),
        ({"options": {"threads": 4}}, "              -O threads=4"),
        ({"facts": {"driver": "1.2"}}, "              driver 1.2"),
    ],
)
def test_a_plugin_is_shown_with_all_that_it_said(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], line: str
) -> None:
    plugin = WARP.model_copy(update=changes)
    assert line in told(monkeypatch, diagnosis(plugins=(plugin,))).splitlines()


def test_json_is_everything_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosis(missing=("one",))
    assert json.loads(told(monkeypatch, found, "--json")) == json.loads(pretty_bytes(found))
