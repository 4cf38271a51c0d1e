"""How well the audit separates: figures from the records of many runs.

LLMB_KEEP_RECORDS=FOLDER pytest tests/cheats     keep the record of every run
python -m tests.cheats.figures FOLDER            the tables

More honest runs, and the numbers of every rule: benchmarks/honest.py.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cheats.corpus import CHEATS, FAILED, GROUPS, REFUSED, TWINS


def _numbers(text: str | None) -> list[float]:
    return [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", text or "")]


def _times(which: int) -> Callable[[dict[str, Any]], float | None]:
    def value(finding: dict[str, Any]) -> float | None:
        shown, honest = _numbers(finding["measured"]), _numbers(finding["honest"])
        return shown[which] / honest[which] if len(shown) > which and honest[which] else None

    return value


def _short(finding: dict[str, Any]) -> float | None:
    shown, honest = _numbers(finding["measured"]), _numbers(finding["honest"])
    return honest[0] - shown[0] if shown and honest else None


def _fewest(finding: dict[str, Any]) -> float | None:
    shown = _numbers(finding["measured"])
    return -min(shown) if shown else None


def _differ(finding: dict[str, Any]) -> float | None:
    shown = _numbers(finding["measured"])
    return shown[0] / shown[1] if len(shown) > 1 and shown[1] else None


def _first(finding: dict[str, Any]) -> float | None:
    shown = _numbers(finding["measured"])
    return abs(shown[0]) if shown else None


@dataclass(frozen=True)
class Numeric:
    """A rule that measures a number: the larger, the less honest."""

    rule: str
    what: str
    value: Callable[[dict[str, Any]], float | None]
    #: What its message says where this number is what fails.
    said: str = ""


_ALL, _WORST = "as far from the reference", "as far off as"
NUMERIC = (
    Numeric("E1", "error of all gradients, times honest", _times(0), _ALL),
    Numeric("E1", "error of the worst parameter, times honest", _times(1), _WORST),
    Numeric("G1", "error of all gradients, times honest", _times(0), _ALL),
    Numeric("G1", "error of the worst parameter, times honest", _times(1), _WORST),
    Numeric("E2", "bits short of honest, in the worst part (P1 by the same)", _short),
    Numeric("E3", "bits of a probe, in the median (negative)", _fewest),
    Numeric("O2", "replayed elements that differ, share", _differ, "replayed elements differ"),
    Numeric("T1", "clocks apart, ms", _first),
)
_HONEST = {twin.plugin for twin in TWINS}


def is_honest(name: str) -> bool:
    """Tell whether the record ``name`` is of an honest plugin."""
    return name.partition("-")[0] in _HONEST


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the kept records by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def _findings(record: dict[str, Any], rule: str) -> Iterator[dict[str, Any]]:
    for finding in record["audit"]["findings"]:
        if finding["id"] == rule and finding["status"] in ("pass", "fail", "flag"):
            yield finding


def separation(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each numeric rule: the largest honest value, and the smallest that failed."""
    yield "| rule | what | honest, largest | runs | cheats that fail it, smallest | runs |"
    yield "|-|-|-|-|-|-|"
    for numeric in NUMERIC:
        honest, failed = [], []
        for name, record in found.items():
            for finding in _findings(record, numeric.rule):
                value = numeric.value(finding)
                if value is None:
                    continue
                if is_honest(name):
                    honest.append(value)
                elif finding["status"] == "fail" and numeric.said in finding["message"]:
                    failed.append(value)
        largest = f"{max(honest):.3g}" if honest else "-"
        smallest = f"{min(failed):.3g}" if failed else "-"
        row = (numeric.rule, numeric.what, largest, len(honest), smallest, len(failed))
        yield f"| {' | '.join(map(str, row))} |"


def detection(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each group: plugins tried, and those that ended as they must."""
    tried: dict[str, list[str]] = defaultdict(list)
    caught: dict[str, list[str]] = defaultdict(list)
    for cheat in CHEATS:
        name = f"{cheat.plugin}-{cheat.precision}"
        if name not in found and cheat.outcome not in (REFUSED, FAILED):
            continue
        tried[cheat.group].append(name)
        verdict = found[name]["audit"]["verdict"] if name in found else "refused"
        if verdict in ("INVALID", "FLAGGED", "refused"):
            caught[cheat.group].append(name)
    yield "| group | tried | caught | not caught |"
    yield "|-|-|-|-|"
    for group in [g for g in GROUPS if tried[g]]:
        missed = sorted(set(tried[group]) - set(caught[group]))
        yield f"| {group} | {len(tried[group])} | {len(caught[group])} | {', '.join(missed)} |"
    counts = [sum(len(x) for x in one.values()) for one in (tried, caught)]
    yield f"| all | {counts[0]} | {counts[1]} | |"


def rules(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each blocking rule: INVALID runs in which the rule fails, alone or not."""
    fails, alone = defaultdict[str, int](int), defaultdict[str, list[str]](list)
    for name, record in found.items():
        audit = record["audit"]
        broken = {
            one["id"]
            for one in audit["findings"]
            if (one["level"], one["status"]) == ("block", "fail")
        }
        if audit["verdict"] != "INVALID":
            continue
        for rule in broken:
            fails[rule] += 1
        if len(broken) == 1:
            alone[min(broken)].append(name)
    yield "| rule | fails | fails alone | runs in which the rule fails alone |"
    yield "|-|-|-|-|"
    for rule in sorted(fails, key=lambda one: -fails[one]):
        yield f"| {rule} | {fails[rule]} | {len(alone[rule])} | {', '.join(alone[rule])} |"


def accusations(found: dict[str, dict[str, Any]]) -> str:
    """Return how many honest runs were accused of anything."""
    honest = {name: record for name, record in found.items() if is_honest(name)}
    accused = [
        f"{name}: {f['id']} {f['status']} ({f['message']})"
        for name, record in honest.items()
        for f in record["audit"]["findings"]
        if f["status"] in ("fail", "flag")
    ]
    verdicts = [record["audit"]["verdict"] for record in honest.values()]
    said = ", ".join(f"{verdicts.count(v)} {v}" for v in sorted(set(verdicts)))
    return "\n".join([f"{len(honest)} honest runs: {said}; accused: {len(accused)}", *accused])


def show(folders: Iterable[Path]) -> None:
    """Print every table."""
    for folder in folders:
        found = records(folder)
        print(f"\n{folder.name}: {len(found)} runs\n")
        print("\n".join(detection(found)), end="\n\n")
        print("\n".join(rules(found)), end="\n\n")
        print(accusations(found), end="\n\n")
        print("\n".join(separation(found)))


def main() -> None:
    """Print the tables of each folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    show(parser.parse_args().folders)


if __name__ == "__main__":
    main()
