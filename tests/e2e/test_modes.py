"""Forward, generate, executors, dynamic shapes, checkpointing: real runs, and what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import harness
from tests.e2e.harness import Ended

SMALL = (*harness.TINY, "--batch-size=2", "--timed-steps=10")
GENERATE = ("--new-tokens=4", "--prompt-length=3")
CPU = ("--plugin=cpu", "--device=cpu", "--precision=FP32")


def run_fast(tmp_path: Path, *flags: object) -> Ended:
    """Run on the CPU in a format without a ceiling to be measured, which saves seconds."""
    folder = harness.plugin(tmp_path / "plugins", "odd")
    fixed = ("--plugin=odd", "--device=cpu", "--precision=FP32", *SMALL)
    ended = harness.run(tmp_path / "out", *fixed, *flags, plugins=[folder])
    assert ended.code == 0, ended.stderr
    return ended


def assert_consistent(ended: Ended) -> dict[str, str]:
    """Return rule -> status, once nothing is amiss."""
    audit = ended.record["audit"]
    assert audit["verdict"] == "CONSISTENT", audit["findings"]
    found: dict[str, str] = {}
    for finding in audit["findings"]:
        found.setdefault(finding["id"], finding["status"])
    return found


def compilations(record: dict[str, Any]) -> list[float]:
    return [one.get("compilations", 0.0) for one in record["timing"]["telemetry"]]


# -- inference ------------------------------------------------------------------------------------


def test_a_forward_run_is_timed_call_by_call_and_audited_by_its_logits(tmp_path: Path) -> None:
    ended = run_fast(tmp_path, "--workload=litgpt-forward")
    found, record = assert_consistent(ended), ended.record
    assert record["config"]["mode"] == record["workload"]["mode"] == "forward"
    assert {found[rule] for rule in ("W1", "E1", "E3", "G1", "P1", "L1")} == {"pass"}
    assert {found[rule] for rule in ("E2", "O1", "O2")} == {"not_applicable"}
    timing = record["timing"]
    assert (timing["loss_first"], timing["loss_last"]) == (None, None)
    steps = timing["fence_steps"]
    assert steps == list(range(steps[0], steps[0] + len(steps))), "every call has its own fence"
    assert record["workload"]["tokens_per_step"] == 2 * 16
    assert harness.call("audit", ended.directory).code == 0


@pytest.mark.parametrize(
    ("workload", "scope"),
    [("litgpt-generation", "step"), ("litgpt-model-inference", "model")],
)
def test_tokens_are_generated_in_either_scope_and_keep_every_rule(
    tmp_path: Path, workload: str, scope: str
) -> None:
    ended = run_fast(tmp_path, "--workload", workload, *GENERATE)
    found, record = assert_consistent(ended), ended.record
    assert record["config"]["generate_scope"] == scope
    assert record["config"]["new_tokens"] == 4
    assert {found[rule] for rule in ("W1", "E1", "E3", "G1", "P1", "L1")} == {"pass"}
    assert record["workload"]["tokens_per_step"] == 2 * 4
    prefills = record["timing"]["prefill_ns"]
    assert len(prefills) >= 10
    assert all(ns > 0 for ns in prefills)
    assert harness.call("audit", ended.directory).code == 0


# -- training -------------------------------------------------------------------------------------


def test_the_compiler_compiles_before_the_window_and_not_in_it(tmp_path: Path) -> None:
    ended = run_fast(tmp_path, "--executor=inductor")
    assert_consistent(ended)
    timing, counts = ended.record["timing"], compilations(ended.record)
    assert ended.record["config"]["warmup_steps"] == 4
    assert counts[0] >= 1
    begin = timing["fence_steps"].index(timing["warmup_steps"])
    assert len({*counts[begin:]}) == 1


def test_a_run_without_an_executor_compiles_nothing(tmp_path: Path) -> None:
    record = run_fast(tmp_path, harness.UNAUDITED).record
    assert not any(compilations(record))


def test_sgd_with_other_lengths_in_each_step_keeps_every_rule_and_leaves_a_trace(
    tmp_path: Path,
) -> None:
    flags = ("--workload=litgpt-train", "--dynamic", "--sac-freq=1/2", "--profile")
    ended = run_fast(tmp_path, *flags)
    found, record = assert_consistent(ended), ended.record
    assert {found[rule] for rule in ("O1", "O2", "W1", "L1")} == {"pass"}
    o1 = next(f for f in record["audit"]["findings"] if f["id"] == "O1")
    assert o1["measured"].startswith("torch.optim.sgd.SGD")
    tokens = record["timing"]["step_tokens"]
    assert len({*tokens}) > 2
    assert all(2 * 10 <= n <= 2 * 16 for n in tokens)
    assert record["config"]["sac_freq"] == "1/2"
    trace = json.loads((ended.directory / "profile" / "trace.json").read_bytes())
    assert any("aten::mm" in str(event.get("name")) for event in trace["traceEvents"])
    assert "aten::mm" in (ended.directory / "profile" / "operators.txt").read_text()
    assert harness.call("audit", ended.directory).code == 0


def test_a_run_without_profile_leaves_none(tmp_path: Path) -> None:
    ended = run_fast(tmp_path, harness.UNAUDITED, "--sac-freq=op")
    assert not (ended.directory / "profile").exists()
    assert ended.record["config"]["sac_freq"] == "op"


def test_mixed_precision_in_float16_scales_its_gradients_and_breaks_no_rule(tmp_path: Path) -> None:
    flags = ("--workload=gpt2-125m", "--plugin=cpu", "--precision=FP16", "--mixed-precision")
    # One sequence: of more, the probes' own gradients, which nothing scales, begin to underflow.
    ended = harness.run(tmp_path / "out", *SMALL, *flags, "--sac-freq=op", "--batch-size=1")
    assert ended.code == 0, ended.stderr
    found = {f["id"]: f for f in reversed(ended.record["audit"]["findings"])}
    assert found["O1"]["status"] == found["O2"]["status"] == found["W1"]["status"] == "pass"
    assert not [f for f in found.values() if f["status"] in ("fail", "flag")]
    assert ended.record["config"]["precision"]["master_weights"]
    assert "skipped" in ended.evidence("optimizer.json")


# -- asked for again ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ("--workload=litgpt-train", "--dynamic", "--sac-freq=1/2", "--accumulate=2"),
        ("--workload=litgpt-generation", "--scope=model", *GENERATE),
        ("--executor=inductor", "--compile-mode=max-autotune-no-cudagraphs", "--sac-freq=op"),
    ],
    ids=["train", "generate", "inductor"],
)
def test_the_command_of_a_run_asks_for_the_same_configuration(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    ended = harness.run(tmp_path / "out", *CPU, *SMALL, *flags, harness.UNAUDITED)
    assert ended.code == 0, ended.stderr
    program, run, *words = shlex.split(harness.call("show", ended.directory, "--command").stdout)
    assert (program, run) == ("llmb", "run")
    again = harness.run(tmp_path / "again", *words)
    assert again.code == 0, again.stderr
    assert again.record["config"] == ended.record["config"]


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--mode=predict",), 2, "'predict' is not one of"),
        (("--executor=jax",), 2, "'jax' is not one of"),
        (("--mode=generate",), 2, "has no mode generate (it has train)"),
        (("--workload=litgpt-forward", "--mode=train"), 2, "has no mode train (it has forward)"),
        (("--workload=gpt2-125m", "--sequence-length=1025"), 2, "use at most 1024"),
        (("--sac-freq=4/1",), 2, "--sac-freq 4/1: write q/p"),
        (("--sac-freq=all",), 2, "--sac-freq all: write q/p"),
        (("--batch-size=4", "--accumulate=3"), 2, "cannot be accumulated in 3 equal parts"),
        (("--compile-mode=max-autotune",), 2, "is for --executor inductor, not for eager"),
        (("--workload=litgpt-forward", "--sac-freq=1/2"), 2, "leave it out in mode forward"),
        (("--new-tokens=4",), 2, "--new-tokens 4: only in mode generate"),
        (("--workload=litgpt-generation", "--new-tokens=1"), 2, "--new-tokens"),
        (
            ("--workload=litgpt-generation", "--prompt-length=10", "--new-tokens=7"),
            2,
            "are 17 together",
        ),
        (("--workload=nemo-bert-base", "--dynamic"), 2, "--dynamic: only in modes train"),
        (("--workload=litgpt-generation", "--dynamic"), 2, "--dynamic: only in modes train"),
        (("--mixed-precision",), 2, "--mixed-precision: not with FP32"),
    ],
)
def test_what_does_not_go_together_is_one_line_and_nothing_is_left(
    tmp_path: Path, flags: tuple[str, ...], code: int, words: str
) -> None:
    ended = harness.run(tmp_path / "out", *CPU, *harness.TINY, *flags)
    assert ended.code == code, ended.stderr
    (line,) = ended.said
    assert words in line
    assert "Traceback" not in ended.stderr
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.skipif(harness.has_module("thunder"), reason="thunder is installed here")
def test_an_executor_that_is_not_installed_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    ended = harness.run(tmp_path / "out", *CPU, *SMALL, "--executor=thunder")
    assert ended.code == 3, ended.stderr
    (line,) = ended.said
    assert "--executor thunder: it is not installed" in line
    assert "pip install lightning-thunder" in line
    assert "torch==" in line
