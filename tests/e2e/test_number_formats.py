"""Runs in narrow number formats, by plugins written without llmb's emulator: real runs.

An honest run in a format is CONSISTENT and names it; less than declared is INVALID; a format that
nobody knows is UNVERIFIED, with a note that says what to declare.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.harness import Ended
from tests.e2e.number_formats import precision, source

#: The smallest shapes at which one scale for a tensor differs from one for 16 elements.
SHAPES = (
    "--hidden-size=64",
    "--intermediate-size=384",
    "--num-hidden-layers=2",
    "--num-attention-heads=4",
    "--sequence-length=32",
    "--batch-size=1",
    "--timed-steps=20",
)
FORWARD = ("--workload=litgpt-forward", "--timed-steps=10")
GENERATE = ("--workload=litgpt-generation", "--timed-steps=5", "--new-tokens=8")
FIVE = "Format(Element(2, 2, 7.0, scale='e8m0', block=32))"
BITS = {"BF16": 16, "FP8": 8, "MXFP8": 8, "MXFP6": 6, "NVFP4": 4, "MXFP4": 4}
NOTE = "declare its numbers in Precision(format=...)"


def run(tmp_path: Path, declared: str, name: str, computes: str, *flags: str) -> Ended:
    folder = harness.plugin(tmp_path / "plugins", "odd", source(declared, computes))
    fixed = ("--plugin=odd", "--device=cpu", f"--precision={name}", *SHAPES)
    return harness.run(tmp_path / "out", *fixed, *flags, plugins=[folder])


def known(tmp_path: Path, name: str, computes: str, *flags: str) -> Ended:
    return run(tmp_path, precision(name, BITS[name]), name, computes, *flags)


def accused(ended: Ended) -> list[str]:
    """Return what the audit found against a run, in its own words."""
    found = ended.record["audit"]["findings"]
    return [f"{f['id']}: {f['message']}" for f in found if f["status"] in ("fail", "flag")]


def status(ended: Ended, rule: str) -> str:
    return next(f["status"] for f in ended.record["audit"]["findings"] if f["id"] == rule)


HONEST = [
    ("MXFP8", "MXFP8"),
    ("MXFP8", "MXFP8-hybrid"),
    ("FP8", "FP8"),
    ("MXFP6", "MXFP6"),
    ("MXFP6", "MXFP6-E2M3"),
    pytest.param("MXFP4", "MXFP4", marks=pytest.mark.quick),
    ("MXFP4", "MXFP4-stochastic"),
    ("NVFP4", "NVFP4"),
    ("NVFP4", "NVFP4-recipe"),
]


@pytest.mark.parametrize(("name", "computes"), HONEST)
def test_an_honest_run_in_a_known_format_is_consistent_and_its_format_is_named(
    tmp_path: Path, name: str, computes: str
) -> None:
    ended = known(tmp_path, name, computes)
    assert ended.finished, ended.stderr
    record = ended.record
    assert accused(ended) == []
    assert record["audit"]["verdict"] == "CONSISTENT"
    assert record["precision"]["effective"] == name
    assert ended.code == 0


@pytest.mark.parametrize("flags", [FORWARD, GENERATE], ids=["forward", "generate"])
@pytest.mark.parametrize("name", ["MXFP8", "NVFP4", "MXFP4"])
def test_an_honest_run_is_consistent_where_nothing_is_trained(
    tmp_path: Path, name: str, flags: tuple[str, ...]
) -> None:
    ended = known(tmp_path, name, name, *flags)
    assert ended.finished, ended.stderr
    record = ended.record
    assert record["audit"]["verdict"] == "CONSISTENT", record["audit"]["findings"]
    assert record["precision"]["effective"] == name


#: Declared, computed, and the class that a full audit names.
LESS = [
    pytest.param("MXFP8", "MXFP4", marks=pytest.mark.quick),
    ("MXFP8", "NVFP4"),
    ("FP8", "NVFP4"),
    ("MXFP6", "MXFP4"),
    ("NVFP4", "FP4"),
    ("BF16", "NVFP4"),
]


@pytest.mark.parametrize(("name", "computes"), LESS)
def test_a_run_that_computes_in_less_than_it_declares_is_invalid(
    tmp_path: Path, name: str, computes: str
) -> None:
    ended = known(tmp_path, name, computes, "--audit=full")
    assert ended.finished, ended.stderr
    assert ended.record["audit"]["verdict"] == "INVALID"
    assert status(ended, "E2") == status(ended, "P1") == "fail"
    assert ended.record["precision"]["effective"] != name
    assert ended.code == 5


def test_a_format_that_a_plugin_declares_as_data_is_judged_like_the_others(tmp_path: Path) -> None:
    declared = precision("ACME5", 5, FIVE)
    ended = run(tmp_path / "honest", declared, "ACME5", "MXFP5")
    assert ended.finished, ended.stderr
    assert ended.record["audit"]["verdict"] == "CONSISTENT"
    assert ended.record["precision"]["effective"] == "ACME5"
    assert ended.record["config"]["precision"]["format"]["forward"]["exponent_bits"] == 2
    less = run(tmp_path / "less", declared, "ACME5", "FP4")
    assert less.record["audit"]["verdict"] == "INVALID"


def test_a_format_that_nobody_knows_is_unverified_and_the_note_says_what_to_declare(
    tmp_path: Path,
) -> None:
    ended = run(tmp_path, precision("ACME5", 5), "ACME5", "MXFP5")
    assert ended.finished, ended.stderr
    audit = ended.record["audit"]
    assert audit["verdict"] == "UNVERIFIED"
    notes = {f["id"]: f["message"] for f in audit["findings"] if f["status"] == "not_observed"}
    assert {rule for rule, said in notes.items() if NOTE in said} == {"E1", "E2", "G1", "P1"}
    assert not [f for f in audit["findings"] if f["status"] == "fail"]
    assert ended.record["precision"]["effective"] is None


REFUSED = {
    "other data for a known name": (precision("MXFP8", 8, FIVE), "not those of MXFP8"),
    "too many exponent bits": (precision("A", 54, "Format(Element(50, 3, 1.0))"), "50"),
    "a huge block": (
        precision("A", 4, "Format(Element(2, 1, 6.0, scale='e8m0', block=10**9))"),
        "block is 1000000000",
    ),
    "a space in the name": (precision("BF16 ", 16), "'BF16 ' as its name"),
    "more bits than its data": (precision("A5", 8, FIVE), "narrowest operand of its data has 5"),
}


@pytest.mark.parametrize(("declared", "words"), REFUSED.values(), ids=REFUSED)
def test_a_format_that_is_not_what_it_says_is_refused_in_one_line(
    tmp_path: Path, declared: str, words: str
) -> None:
    # Inside the hook, where a plugin makes it.
    made = f"(lambda: {declared})()"
    folder = harness.plugin(
        tmp_path / "plugins",
        "odd",
        source("None", "BF16").replace("return [DECLARED]", f"return [{made}]"),
    )
    fixed = ("--plugin=odd", "--device=cpu", "--precision=A", *SHAPES)
    ended = harness.run(tmp_path / "out", *fixed, plugins=[folder])
    assert ended.code == 3, ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.said) == 1, ended.said
