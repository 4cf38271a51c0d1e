"""Flat rows (name -> value) of runs, of steps, and of published figures.

``kind`` is "measured", "step" or "published". A published row was never measured by llmb, and has
the source document in ``source``. None: not measured, or not published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from llmb.comparison.figures import Figure, Run
from llmb.measure import statistics
from llmb.records.run_record import RepeatTiming, RunRecord
from llmb.workloads.published import Document, Row, Table, documents

Value = str | int | float | bool | None
FlatRow = Mapping[str, Value]


def run_row(run: Run) -> FlatRow:
    """Return a run as one row: identity, settings, and figures from the run's time stamps."""
    record = run.record
    return {
        "kind": "measured",
        "source": None,
        **_identity(record),
        **_settings(record),
        **_figures(run),
        "loss_first": run.headline.loss_first,
        "loss_last": run.headline.loss_last,
    }


def _identity(record: RunRecord) -> dict[str, Value]:
    return {
        "run_id": record.run_id,
        "created_utc": record.created_utc,
        "llmb_version": record.llmb_version,
        "rules_version": record.rules_version,
        "class": record.class_,
        "waivers": "; ".join(record.waivers) or None,
        "verdict": record.audit.verdict.value,
        "strict": record.plugin.strict,
        "workload": record.workload.name,
        "mode": record.workload.mode,
        "parameters": record.workload.parameters,
        "tokens": record.workload.tokens,
        "declared_precision": record.precision.declared,
        "effective_precision": record.precision.effective,
    }


def _settings(record: RunRecord) -> dict[str, Value]:
    config, plugin, system = record.config, record.plugin, record.system
    mesh, timing = config.parallelism, record.timing
    return {
        "plugin": plugin.name,
        "plugin_distribution": plugin.distribution,
        "plugin_version": plugin.version,
        "executor": config.executor,
        "device": config.device,
        "hardware": record.hardware,
        "processor": system.cpu.model,
        "torch": system.torch,
        "world_size": record.topology.world_size,
        "nodes": record.topology.nodes,
        "batch_size": config.batch_size,
        "global_batch_size": config.batch_size * mesh.dp_replicate * mesh.dp_shard,
        "accumulate": config.accumulate,
        "mixed_precision": config.mixed_precision,
        "dynamic": config.dynamic,
        "sac_freq": config.sac_freq,
        "tokens_per_step": record.workload.tokens_per_step,
        "warmup_steps": timing.warmup_steps,
        "timed_steps": timing.timed_steps,
        "repeats": len(timing.repeats),
        "step_clock": timing.step_clock,
    }


def _figures(run: Run) -> dict[str, Value]:
    """Return all figures by name, with the throughput's interval and the spread of step times."""
    found: dict[str, Value] = {}
    for name, figure in run.figures.items():
        found[name] = int(figure.value) if figure.unit == "B" else figure.value
        if name == "tokens_per_second":
            found |= _ends(figure)
    energy, mfu = run.record.result.energy, run.record.result.mfu
    step = statistics.step_time(run.headline)
    return found | {
        "step_time_p5_s": step.p5 if step else None,
        "step_time_p95_s": step.p95 if step else None,
        "step_time_cv": step.cv if step else None,
        "energy_source": energy.source if energy else None,
        "energy_scope": energy.scope if energy else None,
        "mfu_peak_source": mfu.peak_source if mfu else None,
    }


def _ends(figure: Figure) -> dict[str, Value]:
    low, high = figure.interval or (None, None)
    return {f"{figure.name}_low95": low, f"{figure.name}_high95": high}


def step_rows(record: RunRecord) -> Iterator[FlatRow]:
    """Yield a row for each step of each repeat, warm-up included.

    ``step_time_s`` is None for the first step, and if Python runs ahead of the device
    (``step_clock`` "enqueue").
    """
    for number, repeat in enumerate(record.timing.repeats):
        fences = dict(zip(repeat.fence_steps, repeat.fence_ns, strict=False))
        for step, stamp in enumerate(repeat.step_ns):
            yield {
                "kind": "step",
                "source": None,
                "run_id": record.run_id,
                "workload": record.workload.name,
                "repeat": number,
                "step": step,
                "timed": repeat.warmup_steps <= step < repeat.warmup_steps + repeat.timed_steps,
                "audited": step in repeat.audited_steps,
                "tokens": _tokens(record, repeat, step),
                "step_clock": repeat.step_clock,
                "stamp_ns": stamp,
                "step_time_s": _seconds(repeat, step),
                "fence_ns": fences.get(step + 1),
            }


def _tokens(record: RunRecord, repeat: RepeatTiming, step: int) -> int | None:
    if not repeat.step_tokens:
        return record.workload.tokens_per_step
    return repeat.step_tokens[step] if step < len(repeat.step_tokens) else None


def _seconds(repeat: RepeatTiming, step: int) -> float | None:
    if step == 0 or repeat.step_clock == "enqueue":
        return None
    return (repeat.step_ns[step] - repeat.step_ns[step - 1]) / 1e9


def published_rows(workloads: Collection[str] | None) -> Iterator[FlatRow]:
    """Yield the published rows of ``workloads``; None: of all workloads."""
    for name, document in documents().items():
        for table in document.tables:
            if workloads is None or table.workload in workloads:
                yield from (_published(name, document, table, row) for row in table.rows)


def _published(name: str, document: Document, table: Table, row: Row) -> FlatRow:
    precisions = table.precisions[0] if len(table.precisions) == 1 else None
    return {
        "kind": "published",
        "source": document.source,
        "document": name,
        "table": table.title,
        "row": " ".join(filter(None, row.labels)),
        "workload": table.workload,
        "hardware": document.hardware,
        "world_size": table.world_size,
        "global_batch_size": table.sequences,
        "declared_precision": precisions,
        **{_SETTINGS.get(key, key): value for key, value in row.settings.items()},
        **row.values,
    }


#: Name of a setting in documents -> name of the export's column.
_SETTINGS = {"precision": "declared_precision"}


def columns(rows: Iterable[FlatRow]) -> Sequence[str]:
    """Return the columns of all rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def filled(rows: Sequence[FlatRow]) -> list[dict[str, Value]]:
    """Return ``rows`` with all columns in every row; None for missing values."""
    names = columns(rows)
    return [{name: row.get(name) for name in names} for row in rows]
