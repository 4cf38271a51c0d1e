"""What a recomputation compares of real bundles: enough to refuse a copy, nothing that drifts."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb.audit.bench import PROBED, Bench, facts_of
from llmb.records.bundle import parse_record, read_bundle
from llmb.submission.recomputed_run import QUICK, reach
from tests import committed


def bench_of(path: Path) -> Bench:
    bundle = read_bundle(path)
    record = parse_record(bundle.files["record.json"], "record.json")
    return Bench(bundle.files.get, facts_of(record, (), {}), 0)


@pytest.mark.parametrize("workload", ["llama-1.4b", "llama-128m", "gpt2-125m"])
def test_three_steps_reach_the_probes_of_drawn_rates_and_not_the_last_step(workload: str) -> None:
    # The last steps of honest gpt2-125m and llama-128m runs were 1.06 and 0.79 of their length off.
    for path in committed.bundles(workload):
        bench = bench_of(path)
        quick = reach(bench, QUICK)
        assert (quick.near, quick.near_the_last) == (True, False)
        last = bench.needed(PROBED).last_step
        assert quick.stable == last + 1
        assert reach(bench, last + 1).near_the_last


def test_the_weights_after_a_step_of_bert_are_known_though_its_runs_drift_apart() -> None:
    for path in committed.bundles("nemo-bert-base"):
        bench = bench_of(path)
        found = reach(bench, 0)
        drawn = bool(bench.timing.commitments)  # since rules 4: smaller rates, and no drift
        assert not found.near
        assert found.fences == ((1, 11) if drawn else (1,))
