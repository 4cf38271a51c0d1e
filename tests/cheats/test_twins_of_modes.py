"""What is allowed in training is accused of nothing where nothing is trained, either."""

from __future__ import annotations

import pytest

from tests.cheats import runner

pytestmark = [pytest.mark.cheats, pytest.mark.slow]

FORWARD = ("--workload=litgpt-forward", "--timed-steps=10")
GENERATE = ("--workload=litgpt-generation", "--timed-steps=5", "--new-tokens=8")
FURTHER = pytest.mark.further
CASES = [
    pytest.param("honest_fused", "BF16", FORWARD, marks=FURTHER),
    pytest.param("honest_explicit_attention", "BF16", FORWARD, marks=FURTHER),
    pytest.param("honest_autocast", "BF16", FORWARD, marks=FURTHER),
    pytest.param("honest_compiled", "BF16", FORWARD, marks=FURTHER),
    ("honest_repacked", "BF16", FORWARD),
    pytest.param("honest_fp8", "FP8", FORWARD, marks=FURTHER),
    pytest.param("honest_wider_than_declared", "BF16", FORWARD, marks=FURTHER),
    pytest.param("honest_eager", "BF16", (*FORWARD, "--dynamic"), marks=FURTHER),
    pytest.param("honest_compiled", "BF16", GENERATE, marks=FURTHER),
    ("honest_column_major", "BF16", GENERATE),
    pytest.param("honest_other_norm", "BF16", GENERATE, marks=FURTHER),
    pytest.param("honest_fp8", "FP8", GENERATE, marks=FURTHER),
    pytest.param("honest_tf32", "TF32", GENERATE, marks=FURTHER),
    pytest.param("honest_eager", "FP32", (*GENERATE, "--executor=inductor"), marks=FURTHER),
]


@pytest.mark.parametrize(("plugin", "precision", "flags"), CASES)
def test_an_honest_transform_is_accused_of_nothing_in_another_mode(
    tmp_path, plugin: str, precision: str, flags: tuple[str, ...]
) -> None:
    ended = runner.run(tmp_path, plugin, precision, *flags)
    assert ended.finished, ended.stderr
    audit = ended.record["audit"]
    assert not [f for f in audit["findings"] if f["status"] in ("fail", "flag")]
    assert audit["verdict"] == "CONSISTENT", [
        f for f in audit["findings"] if f["status"] == "not_observed"
    ]
    assert ended.record["precision"]["effective"] == precision
