"""A comparison as JSON data; null is what could not be told."""

from __future__ import annotations

from typing import Any

from llmb.comparison.compare import Comparison
from llmb.comparison.figures import Run


def run_data(name: str, run: Run) -> dict[str, Any]:
    """Return what is to be known of one run; ``name`` is how it was named."""
    record = run.record
    figures = {
        figure.name: {"value": figure.value, "unit": figure.unit, "ci95": figure.interval}
        for figure in run.figures.values()
    }
    return {
        "path": name,
        "run_id": record.run_id,
        "class": record.class_,
        "verdict": record.audit.verdict.value,
        "effective_precision": record.precision.effective,
        "figures": figures,
    }


def comparison_data(one: Comparison) -> dict[str, Any]:
    """Return everything of ``one`` but the runs themselves."""
    return {
        "refused": [str(difference) for difference in one.refusals],
        "differences": [
            {
                "item": difference.item,
                "base": difference.base,
                "other": difference.other,
                "weight": difference.weight.value,
                "reason": difference.reason,
            }
            for difference in one.differences
        ],
        "ratios": [
            {
                "name": ratio.name,
                "unit": ratio.unit,
                "base": ratio.base,
                "other": ratio.other,
                "ratio": ratio.ratio,
                "ci95": ratio.interval,
                "better": ratio.better,
                "outcome": ratio.outcome,
            }
            for ratio in one.ratios
        ],
        "not_compared": [{"name": left.name, "reason": left.reason} for left in one.left_out],
        "rank_test": None
        if one.steps is None
        else {
            "of": one.steps.of,
            "values": one.steps.values,
            "independent_values": one.steps.independent,
            "other_is_faster": one.steps.other_is_faster,
            "p_value": one.steps.p_value,
            "p_value_as_independent": one.steps.p_value_as_independent,
        },
        "conclusion": list(one.conclusion),
    }
