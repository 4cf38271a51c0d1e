"""The figures of a verified record, with the standard error behind the record's own interval.

``figures.run_of`` draws thousands of resamples for a record; a page of 1,000 rows has no time for
that. ``llmb verify`` has computed every figure and interval read here.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmb.comparison.figures import Figure
from llmb.measure import statistics
from llmb.measure.statistics import Spread, student_t975
from llmb.records.run_record import RunRecord


def stored_figures(record: RunRecord) -> dict[str, Figure]:
    """Return the headline figures of ``record`` by name.

    Tokens per second, per device and MFU have an interval. Tokens per joule have none here
    (``llmb compare`` computes theirs from repeats), and the share of the ceiling has none anywhere.
    """
    return {figure.name: figure for figure in _figures(record) if figure.value > 0.0}


def _figures(record: RunRecord) -> Iterator[Figure]:
    result = record.result
    error = _relative_error(record)

    def scaled(name: str, unit: str, value: float) -> Figure:
        if error is None:
            return Figure(name, unit, value, "more")
        relative, freedom = error
        return Figure(name, unit, value, "more", Spread(value, relative * value, freedom))

    yield scaled("tokens_per_second", "tokens/s", result.tokens_per_second)
    yield scaled("tokens_per_second_per_device", "tokens/s", result.tokens_per_second_per_device)
    if result.energy is not None:
        basis = f"{result.energy.source} of the {result.energy.scope}"
        value = result.energy.tokens_per_joule
        yield Figure("tokens_per_joule", "tokens/J", value, "more", basis=basis)
    if result.mfu is not None:
        yield scaled("mfu", "", result.mfu.value)
    if result.fraction_of_ceiling is not None:
        yield Figure("fraction_of_ceiling", "", result.fraction_of_ceiling, "more")


def _relative_error(record: RunRecord) -> tuple[float, int] | None:
    """Return the relative standard error of tokens/s and its degrees of freedom.

    The upper end of the interval is the value plus Student's t times the error; the lower end may
    be cut at 0.
    """
    rate, interval = record.result.tokens_per_second, record.result.ci95
    freedom = statistics.interval_values(record.timing.repeats) - 1
    if interval is None or freedom < 1 or rate <= 0.0:
        return None
    return (interval[1] - rate) / student_t975(freedom) / rate, freedom
