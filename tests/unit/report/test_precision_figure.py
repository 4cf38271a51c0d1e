"""Small multiples: the dots lie where the figures say, on axes that all precisions share."""

from __future__ import annotations

import pytest

from llmb.report.board import board
from llmb.report.drawing import LogAxis
from llmb.report.precision_figure import precision_figures
from tests.unit.builders_board import HOSTILE, believing, put, record


def test_a_workload_has_a_row_per_precision_on_common_axes(tmp_path):
    put(tmp_path, record(1, faster=1.0), system="slow")
    put(tmp_path, record(2, faster=10.0, verdict="FLAGGED"), system="fast")
    put(tmp_path, record(3, faster=10.0, effective="FP32"), system="wide")
    (figure,) = precision_figures(board(believing([tmp_path])))
    wide, narrow = figure.rows
    assert (wide.precision, narrow.precision) == ("FP32", "BF16")
    slow, fast = narrow.rates.dots
    assert (slow.style, fast.style) == ("block", "marked")
    assert slow.x < 10 < 90 < fast.x == wide.rates.dots[0].x
    assert narrow.note.startswith("2 bundles, best ")
    assert "fast: " in fast.title
    assert fast.title.endswith("tokens/s, FLAGGED")


def test_of_many_bundles_the_fastest_are_drawn_and_the_rest_counted(tmp_path):
    for number in range(43):
        put(tmp_path, record(number + 1, 1 + number / 10), system=f"box-{number}")
    (figure,) = precision_figures(board(believing([tmp_path])))
    assert len(figure.rows[0].rates.dots) == 40
    assert figure.rows[0].note.startswith("43 bundles")
    assert "the fastest 40 are drawn" in figure.rows[0].note
    assert not any("box-2:" in dot.title for dot in figure.rows[0].rates.dots)


def test_a_share_that_was_not_measured_is_said(tmp_path):
    def unmeasured(data):
        data["result"]["fraction_of_ceiling"] = None

    put(tmp_path, record(1, change=unmeasured), submitter=HOSTILE.replace("/", "_"))
    (figure,) = precision_figures(board(believing([tmp_path])))
    assert figure.rows[0].shares.dots == ()
    assert figure.rows[0].shares.name == "BF16, share of the ceiling: not measured"


@pytest.mark.parametrize("values", [[100.0], [11.75, 152.3], [0.02, 3e6], [1e-3, 1.1e-3], []])
def test_a_logarithmic_axis_has_ticks_in_order_and_every_value_inside(values):
    axis = LogAxis.around(values)
    ticks = axis.ticks(3)
    assert 1 <= len(ticks) <= 3
    assert list(ticks) == sorted(set(ticks))
    assert all(axis.low <= tick <= axis.high for tick in ticks)
    assert all(0 < axis.place(value) < 100 for value in values)
