"""A step counts as long as its work takes, not as long as its recording.

Ratios of the shortest of several times taken side by side, with generous limits: hosts are busy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests import patience
from tests.e2e import harness
from tests.e2e.harness import Ended

#: Much work for the device, little for Python: a single layer, and the head's large product.
SHAPE = {
    "sequence_length": 256,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
BATCH_SIZE = 8


@pytest.fixture(scope="module")
def by_hand() -> dict[str, float]:
    """Seconds of the fastest step, taken by hand in the same environment as llmb's."""
    script = Path(__file__).with_name("measure_steps.py")
    order = json.dumps({"batch_size": BATCH_SIZE, **SHAPE})
    command = [sys.executable, str(script), order]
    done = patience.run(command, env=harness.environment(PJRT_DEVICE="CPU"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The same steps, timed by llmb."""
    flags = [f"--{name.replace('_', '-')}={size}" for name, size in SHAPE.items()]
    flags += ["--plugin=xla", "--precision=FP32", f"--batch-size={BATCH_SIZE}", "--timed-steps=5"]
    done = harness.run(tmp_path_factory.mktemp("reported"), *flags, PJRT_DEVICE="CPU")
    assert done.code == 0, done.stderr
    return done


def test_an_unsynchronised_step_looks_many_times_too_fast(by_hand: dict[str, float]) -> None:
    # 67 times on a quiet host, 14 on a busy host.
    assert by_hand["done"] > 5 * by_hand["recorded"]


def test_after_synchronize_results_are_there_to_be_read(by_hand: dict[str, float]) -> None:
    # If the device were still at work, reading would wait.
    assert by_hand["read"] < by_hand["done"] / 20


def test_the_step_time_that_llmb_reports_is_that_of_a_synchronised_step(
    by_hand: dict[str, float], reported: Ended
) -> None:
    timing = reported.record["timing"]
    step_s = (timing["stop_ns"] - timing["start_ns"]) / 1e9 / timing["timed_steps"]
    assert step_s > 5 * by_hand["recorded"]
    # The host may have become three times as quiet since.
    assert step_s > by_hand["done"] / 4


def test_single_steps_are_not_claimed_to_be_timed_where_python_runs_ahead(
    reported: Ended,
) -> None:
    assert reported.record["timing"]["step_clock"] == "enqueue"
