"""What is allowed in training is accused of nothing where nothing is trained, either."""

from __future__ import annotations

import pytest

from tests.cheats import runner

FORWARD = ("--workload=litgpt-forward", "--timed-steps=10")
GENERATE = ("--workload=litgpt-generation", "--timed-steps=5", "--new-tokens=8")
CASES = [
    ("honest_fused", "BF16", FORWARD),
    ("honest_explicit_attention", "BF16", FORWARD),
    ("honest_autocast", "BF16", FORWARD),
    ("honest_compiled", "BF16", FORWARD),
    ("honest_repacked", "BF16", FORWARD),
    ("honest_fp8", "FP8", FORWARD),
    ("honest_wider_than_declared", "BF16", FORWARD),
    ("honest_eager", "BF16", (*FORWARD, "--dynamic")),
    ("honest_compiled", "FP32", (*FORWARD, "--batch-size=4")),
    ("honest_fused", "BF16", (*FORWARD, "--batch-size=200", "--sequence-length=8")),
    ("honest_compiled", "BF16", GENERATE),
    ("honest_column_major", "BF16", GENERATE),
    ("honest_other_norm", "BF16", GENERATE),
    ("honest_fp8", "FP8", GENERATE),
    ("honest_tf32", "TF32", GENERATE),
    ("honest_eager", "FP32", (*GENERATE, "--executor=inductor")),
    ("honest_other_norm", "FP32", (*GENERATE, "--batch-size=4")),
    ("honest_repacked", "BF16", (*GENERATE, "--batch-size=4")),
]


@pytest.mark.parametrize(("plugin", "precision", "flags"), CASES)
def test_an_honest_transform_is_accused_of_nothing_in_another_mode(
    tmp_path, plugin: str, precision: str, flags: tuple[str, ...]
) -> None:
    ended = runner.run(tmp_path, plugin, precision, *flags)
    assert ended.finished, ended.stderr
    audit = ended.record["audit"]
    accused = [f for f in audit["findings"] if f["status"] in ("fail", "flag")]
    assert not accused, [(f["id"], f["message"]) for f in accused]
    assert audit["verdict"] == "CONSISTENT", [
        f for f in audit["findings"] if f["status"] == "not_observed"
    ]
    assert ended.record["precision"]["effective"] == precision
