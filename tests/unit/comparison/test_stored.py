"""The figures that a page reads from a record are those that a comparison computes from stamps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmb.comparison.figures import run_of
from llmb.comparison.stored import stored_figures
from llmb.records.run_record import RunRecord
from tests.builders import edited
from tests.unit.builders_times import template

SUBMISSIONS = Path(__file__).resolve().parents[3] / "submissions"
RECORDS = sorted(SUBMISSIONS.rglob("record.json"))[:2]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_committed_record_has_the_figures_and_errors_of_its_stamps(path):
    record = RunRecord.model_validate(json.loads(path.read_bytes()))
    computed = run_of(record).figures
    stored = stored_figures(record)
    assert {"tokens_per_second", "fraction_of_ceiling"} <= set(stored)
    for name, figure in stored.items():
        assert (figure.unit, figure.basis) == (computed[name].unit, computed[name].basis)
        assert figure.value == pytest.approx(computed[name].value, rel=1e-9)
        if figure.spread is not None:
            expected = computed[name].spread
            assert figure.spread.error == pytest.approx(expected.error, rel=1e-6)
            assert figure.spread.freedom == expected.freedom


def test_a_record_without_an_interval_has_figures_without_an_error():
    def without(data):
        data["result"]["ci95"] = None

    figures = stored_figures(edited(template(), without))
    assert figures["tokens_per_second"].spread is None
