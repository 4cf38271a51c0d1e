"""Scores llmb's projection against published rows, and fits its constants: one set for all rows.

    python -m benchmarks.projection.score              every table, left out in turn; worst rows
    python -m benchmarks.projection.score --rows       and every row
    python -m benchmarks.projection.score --write      and keep the constants of all rows in llmb

``rows.json`` holds measured rows of five tables, with their sources; ``unseen.json`` those of two
more that no constant is fitted on. No constant is fitted to a row or a table: all share one set,
and what a device's large products and its attention attain is in its description.
Errors are of tokens/s. Tables count alike, however many rows they have.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from llmb.projection.calibration import calibrated
from llmb.projection.hardware_files import Hardware, load
from llmb.projection.job import Job, Model, Recompute
from llmb.projection.step_time import Constants, step_time
from llmb.workloads.memory import MEGATRON

HERE = Path(__file__).parent
KEPT = HERE.parents[1] / "llmb" / "projection" / "constants.json"
#: What is known of each constant before any row is seen, and between which bounds it is sought.
PRIOR = Constants(0.95, 6e-6, 0.7, 0.75, 0.7, 0.6, 0.7, 1.6, 2.0)
LEAST = Constants(0.5, 1e-7, 0.1, 0.3, 0.3, 0.1, 0.0, 1.0, 0.5)
MOST = Constants(1.3, 5e-5, 1.2, 1.0, 1.0, 1.0, 1.0, 4.0, 6.0)
#: A constant as far off as it is large weighs as much as a table off by a fifth: what rows do not
#: tell stays where it was.
_PULL = 0.2
#: An error beyond this counts less than its square: some rows are odd.
_ODD = 0.05
_ZERO = {"no": 0, "zero1": 1, "z2": 2, "z3": 3}
_RECOMPUTE: dict[str, Recompute] = {"none": "none", "full": "full", "attn": "attention"}
#: Heads of models whose rows do not say: those of 128 columns, and the published ones of these.
_HEADS = {6144: 64, 12288: 96, 20480: 128, 25600: 160}


def job_of(row: dict[str, Any]) -> Job:
    """Return the job of a row of ``rows.json``."""
    model = Model(
        layers=row["L"],
        hidden=row["d"],
        intermediate=row["F"],
        heads=_HEADS.get(row["d"], row["d"] // 128),
        kv_share=row["kv"],
        gated=row["glu"],
        vocabulary=row["V"],
        sequence=row["s"],
    )
    return Job(
        model,
        dp=row["dp"],
        tp=row["tp"],
        pp=row["pp"],
        micro_batch=row["mbs"],
        micro_batches=row["m"],
        virtual_stages=row["vp"],
        zero=_ZERO[row["fsdp"]],
        recompute=_RECOMPUTE[row["rc"]],
        sequence_parallel=row["sp"],
        fused_attention=row["flash"],
        fused_elementwise=row["compiled"],
        overlapped_tp=row["tpov"],
        stored=MEGATRON,
    )


def projected(row: dict[str, Any], hardware: Hardware, constants: Constants) -> float:
    """Return tokens per second of one device."""
    job = job_of(row)
    return job.tokens / job.devices / step_time(job, hardware, constants).total


def off(rows: list[dict[str, Any]], constants: Constants) -> list[float]:
    """Return by what share each row is projected too fast."""
    return [projected(r, load(r["hw"].lower()), constants) / r["meas"] - 1 for r in rows]


Tables = dict[str, list[dict[str, Any]]]


def fit(tables: Tables, rate: Callable[[dict[str, Any], Constants], float]) -> Constants:
    """Return the constants that all rows of ``tables`` are nearest to."""
    rows = [(row, len(rows) ** -0.5) for rows in tables.values() for row in rows]
    prior = np.array(astuple(PRIOR))

    def errors(values: Sequence[float]) -> list[float]:
        constants = Constants(*map(float, values))
        off = [weight * np.log(rate(row, constants) / row["meas"]) for row, weight in rows]
        return [*off, *(_PULL * (np.array(values) - prior) / prior)]

    found = least_squares(
        errors,
        prior,
        bounds=(astuple(LEAST), astuple(MOST)),
        loss="soft_l1",
        f_scale=_ODD,
        x_scale=prior,
    )
    return Constants(*(float(f"{value:.4g}") for value in found.x))


def main() -> None:
    """Print how far projections are from what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="every row, too")
    parser.add_argument("--write", action="store_true", help="keep the constants in llmb")
    parser.add_argument("--json", type=Path, help="leave everything in a file")
    asked = parser.parse_args()
    tables: Tables = json.loads((HERE / "rows.json").read_text())["tables"]
    found = score(tables)
    for name, one in found["tables"].items():
        print(f"{name:18}{one['rows']:4} rows", *(f"{k} {one[k]:5.1f} %" for k in MEASURES))
    means = {k: statistics.fmean(t[k] for t in found["tables"].values()) for k in MEASURES}
    print(f"{'mean of tables':27}", *(f"{k} {means[k]:5.1f} %" for k in MEASURES))
    worst = sorted(found["rows"], key=lambda row: -abs(row["left_out"]))
    for row in worst if asked.rows else worst[:8]:
        print(f"  {row['table']}: {row['name']}: {row['left_out']:+.1f} % ({row['all']:+.1f} %)")
    unseen: Tables = json.loads((HERE / "unseen.json").read_text())["tables"]
    for name, rows in unseen.items():
        errors = [100 * one for one in off(rows, Constants(**found["constants"]))]
        line = f"{name:18}{len(rows):4} rows not fitted {_mean(errors):5.1f} %"
        print(line, f"(mean {statistics.fmean(errors):+.1f} %)")
    if asked.write:
        KEPT.write_text(json.dumps(kept(found, means, worst[0]), indent=1) + "\n")
    if asked.json:
        asked.json.write_text(json.dumps({**found, "means": means}, indent=1))


#: Mean absolute errors: constants of all tables; of all others; and those calibrated with the
#: table's own first row, scored on its rest. How much of that row is believed is the others' too.
MEASURES = ("all", "left_out", "one_row")


def score(tables: Tables) -> dict[str, Any]:
    """Return constants of all rows, and errors in percent by table and by row."""
    hardware = {name: load(name.lower()) for name in {r["hw"] for t in tables.values() for r in t}}

    def rate(row: dict[str, Any], constants: Constants) -> float:
        return projected(row, hardware[row["hw"]], constants)

    every, by_table, by_row = fit(tables, rate), {}, []
    for name, rows in tables.items():
        rest = {k: v for k, v in tables.items() if k != name}
        others = fit(rest, rate)
        own = calibrated(others, rows[0]["meas"], partial(rate, rows[0]), believed(rest, rate))
        errors = {
            which: [100 * (rate(row, constants) / row["meas"] - 1) for row in rows]
            for which, constants in (("all", every), ("left_out", others), ("one_row", own))
        }
        errors["one_row"] = errors["one_row"][1:]
        by_table[name] = {"rows": len(rows), **{k: _mean(v) for k, v in errors.items()}}
        by_row += [
            {"table": name, "name": r["name"], "all": a, "left_out": b}
            for r, a, b in zip(rows, errors["all"], errors["left_out"], strict=True)
        ]
    return {
        "constants": asdict(every),
        "believed": believed(tables, rate),
        "devices": sorted(one.name for one in hardware.values()),
        "tables": by_table,
        "rows": by_row,
    }


def believed(tables: Tables, rate: Callable[[dict[str, Any], Constants], float]) -> float:
    """Return how much of a row's error the other rows of its table share.

    Errors of each table by constants of all others; of their variance (of logarithms), the part
    between tables over the whole: one-way random effects, by moments, tables alike (Searle,
    Casella, McCulloch 1992, *Variance Components*, chapter 3).
    """
    groups = []
    for name, rows in tables.items():
        others = fit({k: v for k, v in tables.items() if k != name}, rate)
        groups.append([float(np.log(rate(row, others) / row["meas"])) for row in rows])
    within = statistics.fmean(map(statistics.variance, groups))
    noise = statistics.fmean(statistics.variance(group) / len(group) for group in groups)
    between = statistics.fmean(statistics.fmean(group) ** 2 for group in groups) - noise
    return max(0.0, between) / (max(0.0, between) + within)


def kept(found: dict[str, Any], means: dict[str, float], worst: dict[str, Any]) -> dict[str, Any]:
    """Return what ``llmb project`` computes with and says of itself."""
    return {
        "constants": found["constants"],
        "rows": len(found["rows"]),
        "tables": sorted(found["tables"]),
        "expected_error_percent": round(means["left_out"], 1),
        "after_one_row_percent": round(means["one_row"], 1),
        "believed": round(found["believed"], 2),
        "devices": found["devices"],
        "worst_row": f"{worst['table']}: {worst['name']}",
        "worst_error_percent": round(worst["left_out"], 1),
    }


def _mean(errors: Iterable[float]) -> float:
    return statistics.fmean(abs(error) for error in errors)


if __name__ == "__main__":
    main()
