"""Whole runs under the audit: an honest run breaks no rule and has the declared precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import harness


@pytest.mark.parametrize("precision", ["FP32", "BF16"])
def test_an_honest_run_is_accused_of_nothing_and_computes_as_declared(
    tmp_path: Path, precision: str
) -> None:
    flags = ("--plugin=xla", "--preset=debug", f"--precision={precision}")
    done = harness.run(tmp_path, *flags)
    assert done.code == 0, done.stderr
    findings = done.record["audit"]["findings"]
    assert [f for f in findings if f["status"] in ("fail", "flag")] == []
    seen = {f["id"] for f in findings if f["status"] == "pass"}
    assert seen >= {"W1", "E1", "E2", "E3", "P1", "P2", "O1", "O2", "G1", "L1", "N1", "S1"}
    assert done.record["precision"]["effective"] == precision
    # The sampled indices of a pause are data: the step's program does not change.
    assert not [text for text in done.record["warnings"] if "compilation" in text]


def test_a_step_that_clips_its_gradients_is_replayed_to_the_bit(tmp_path: Path) -> None:
    flags = ("--plugin=xla", "--preset=debug", "--workload=gpt2-125m", "--precision=FP32")
    done = harness.run(tmp_path, *flags)
    assert done.code == 0, done.stderr
    findings = done.record["audit"]["findings"]
    # P2 reads the products of the step's program, which ends before the optimizer's program begins.
    due = {"W1", "E1", "E2", "E3", "P1", "P2", "O1", "O2", "G1", "L1", "N1", "S1"}
    odd = [f"{f['id']} {f['status']}: {f['message']}" for f in findings if f["status"] != "pass"]
    assert due <= {f["id"] for f in findings if f["status"] == "pass"}, odd
    assert not [text for text in done.record["warnings"] if "compilation" in text]


def test_steps_with_dropout_are_repeated(tmp_path: Path) -> None:
    flags = ("--plugin=xla", "--preset=debug", "--workload=nemo-bert-base", "--precision=FP32")
    done = harness.run(tmp_path, *flags)
    assert done.code == 0, done.stderr
    findings = {f["id"]: f["status"] for f in done.record["audit"]["findings"]}
    assert (findings["G1"], findings["L1"]) == ("pass", "pass")


ONCE_STALE = """
from llmb_xla.plugin import *
from torch import nn

class OnceStale(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls, self.old = inner, 0, None
    def forward(self, ids, labels=None):
        self.calls += 1
        own = ids, labels
        if self.calls == 18:
            own = self.old
        self.old = ids, labels
        return self.inner(own[0], labels=own[1])

@hookimpl
def llmb_post_process_model(model):
    return OnceStale(model)
"""


def test_one_step_with_the_tokens_of_the_step_before_is_invalid(tmp_path: Path) -> None:
    folder = harness.plugin(tmp_path / "plugins", "odd", ONCE_STALE)
    flags = ("--plugin=odd", "--preset=debug", "--precision=BF16")
    done = harness.run(tmp_path / "out", *flags, plugins=[folder])
    assert done.code == 5, done.stderr
    assert done.record["audit"]["verdict"] == "INVALID"
    (l1,) = (f for f in done.record["audit"]["findings"] if f["id"] == "L1")
    assert l1["status"] == "fail", l1
