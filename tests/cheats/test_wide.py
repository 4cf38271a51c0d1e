"""The hardest acts at the true width, one at a time."""

from __future__ import annotations

import pytest

from llmb.plugin.builtin.host import compute_threads
from tests.cheats import runner

pytestmark = pytest.mark.wide
THREADS = str(compute_threads())

#: A third of the layers of the official workload: 614 million parameters, 8 GB.
SHAPES = (
    "--hidden-size=3200",
    "--intermediate-size=6400",
    "--num-hidden-layers=4",
    "--num-attention-heads=32",
    "--sequence-length=256",
    "--timed-steps=10",
)
#: Plugin, and the rules of which each must fail.
HARDEST = {
    "fp8_one_matrix": {"E2", "P1"},
    "fp8_weight_gradient": {"E2", "P1"},
    "fp8_head": {"E2", "P1"},
    "int8_weights": {"E1", "E2", "P1"},
    "ffn_column_pruned": {"E2", "P1"},
    "one_head_windowed": {"E2", "P1"},
    "norm_eps": {"E2", "P1"},
    "one_gradient_scaled": {"E2", "P1"},
    "rotary_angles_rounded": {"E2", "P1"},
    "accumulated_in_bf16": {"E2", "P1"},
}
HONEST = ("honest_eager", "honest_fused", "honest_explicit_attention")


@pytest.mark.parametrize("plugin", HARDEST)
def test_a_small_cheat_is_caught_at_the_true_width(tmp_path, plugin):
    ended = runner.run(tmp_path, plugin, "BF16", *SHAPES, native=True, OMP_NUM_THREADS=THREADS)
    assert ended.finished, ended.stderr
    failed = {f["id"] for f in ended.record["audit"]["findings"] if f["status"] == "fail"}
    assert failed >= HARDEST[plugin]
    assert ended.code == 5


@pytest.mark.parametrize("plugin", HONEST)
def test_an_honest_transform_is_not_accused_at_the_true_width(tmp_path, plugin):
    ended = runner.run(tmp_path, plugin, "BF16", *SHAPES, native=True, OMP_NUM_THREADS=THREADS)
    assert ended.finished, ended.stderr
    findings = ended.record["audit"]["findings"]
    assert [f for f in findings if f["status"] in ("fail", "flag")] == []
    assert ended.record["audit"]["verdict"] == "CONSISTENT"
