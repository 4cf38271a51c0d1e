"""What the page needs to compare rows that a reader chooses: conditions and figures of every row.

Pairs are too many to compute ahead (500,000 for 1,000 rows). The page therefore holds
``comparability.conditions`` of each row, as numbers into one list of values per item, and
the figures with their standard errors. ``template/compare.js`` applies the rules of
``llmb.comparison`` to two rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from llmb.comparison.comparability import (
    ITEMS,
    REMARKS,
    SAME_RUN,
    ComparedItem,
    Condition,
    conditions,
)
from llmb.comparison.figures import Figure
from llmb.comparison.ratio import WIDEST
from llmb.comparison.stored import stored_figures
from llmb.report.board import BoardRow
from llmb.report.columns import row_id
from llmb.report.render import plain

#: Most rows of one comparison.
MOST_ROWS = 8
#: Figure -> title in the page.
TITLES = {
    "tokens_per_second": "Tokens/s",
    "tokens_per_second_per_device": "Tokens/s per device",
    "tokens_per_joule": "Tokens/J",
    "fraction_of_ceiling": "Of ceiling",
    "mfu": "MFU",
}
#: Most entries, and most characters, shown of a condition: one bundle may declare 15,000 variables.
_MOST_PAIRS, _LONGEST = 60, 2_000
#: Intervals of the table of Student's t.
_QUANTILES = 128


def comparing(rows: Iterable[BoardRow]) -> dict[str, Any]:
    """Return the page's data for comparisons of ``rows``."""
    values = [_Values() for _ in ITEMS]
    found: dict[str, Any] = {}
    for row in rows:
        record = row.entry.record
        told = conditions(record)
        found[row_id(row)] = {
            "run": record.run_id,
            "verdict": record.audit.verdict.value,
            "conditions": [
                known.number(told[item.name]) for item, known in zip(ITEMS, values, strict=True)
            ],
            "figures": {name: _numbers(one) for name, one in stored_figures(record).items()},
        }
    return {
        "items": [_item(item) for item in ITEMS],
        "same_run": _item(SAME_RUN),
        "remarks": {verdict.value: [w.value, reason] for verdict, (w, reason) in REMARKS.items()},
        "values": [known.shown for known in values],
        "titles": [list(pair) for pair in TITLES.items()],
        "student": _student(),
        "widest": WIDEST,
        "most": MOST_ROWS,
        "rows": found,
    }


@dataclass
class _Values:
    """The different values of one item, each once: ``[number of the key, words, is a remark]``.

    Values with one number are alike. None: like no other value.
    """

    shown: list[list[Any]] = field(default_factory=list)
    _keys: dict[str, int] = field(default_factory=dict)
    _known: dict[tuple[str | None, str, bool], int] = field(default_factory=dict)

    def number(self, one: Condition) -> int:
        """Return the place of the value of ``one`` in the list."""
        whole = (one.key, repr(one.value), one.is_remark)
        if whole not in self._known:
            key = None if one.key is None else self._keys.setdefault(one.key, len(self._keys))
            words = _text(one.value) if isinstance(one.value, str) else _pairs(one.value)
            self._known[whole] = len(self.shown)
            self.shown.append([key, words, one.is_remark])
        return self._known[whole]


def _numbers(figure: Figure) -> list[Any]:
    """Return value, standard error, degrees of freedom, and further conditions of the figure."""
    error, freedom = (figure.spread.error, figure.spread.freedom) if figure.spread else (None, None)
    return [figure.value, error, freedom, plain(figure.basis)]


def _item(item: ComparedItem) -> list[Any]:
    return [item.name, item.weight.value, item.reason, list(item.within)]


def _pairs(table: Mapping[str, object]) -> list[list[str]]:
    """Return the entries of ``table`` as texts, in order; of many entries the first ones."""
    first, rest = sorted(table)[:_MOST_PAIRS], len(table) - _MOST_PAIRS
    told = [[_text(name), _text(table[name])] for name in first]
    return [*told, ["...", f"{rest} more"]] if rest > 0 else told


def _text(value: object) -> str:
    return plain(str(value)[:_LONGEST])


def _student() -> list[float]:
    """Return the logarithm of the 97.5 % quantile of Student's t for freedom 128/n, n = 0 to 128.

    Linear interpolation in 1/freedom is off by at most 0.002 %.
    """
    from scipy import special

    every = [special.stdtrit(_QUANTILES / n, 0.975) for n in range(1, _QUANTILES + 1)]
    normal = NormalDist().inv_cdf(0.975)
    return [round(math.log(float(quantile)), 8) for quantile in (normal, *every)]
