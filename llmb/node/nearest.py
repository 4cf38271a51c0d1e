"""Finds the submission to compare a node with: the same device, and the most similar settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmb.records.finding import Verdict
from llmb.records.node_report import Nearest
from llmb.records.run_record import RunRecord
from llmb.submission.bundles import Entry


def nearest(
    entries: Sequence[Entry], record: RunRecord, tokens_per_second: float
) -> Nearest | None:
    """Return the submission on the same device most similar to the run ``record``, None if none.

    ``tokens_per_second`` is the rate of one device of the node. Debug and INVALID runs do not
    count.
    """
    hardware = record.hardware
    same = [
        entry
        for entry in entries
        if entry.record.hardware == hardware
        and not entry.run.is_debug
        and entry.record.audit.verdict is not Verdict.INVALID
    ]
    if not same:
        return None
    return _held(
        min(same, key=lambda entry: _distance(entry.record, record)), record, tokens_per_second
    )


def _held(entry: Entry, record: RunRecord, tokens_per_second: float) -> Nearest:
    theirs, rate = entry.record, entry.run.values["tokens_per_second_per_device"]
    differs = tuple(name for name, (a, b) in _sides(theirs, record).items() if a != b)
    return Nearest(
        path=entry.path,
        submitter=entry.submitter,
        system=entry.system,
        workload=theirs.config.workload,
        precision=theirs.config.precision.name,
        batch_size=theirs.config.batch_size,
        devices=theirs.topology.world_size,
        tokens_per_second_per_device=rate,
        ratio=None if differs else tokens_per_second / rate,
        differs=differs,
    )


def _sides(theirs: RunRecord, ours: RunRecord) -> dict[str, tuple[object, object]]:
    """Return the settings that must be equal for a comparison of speeds, most important first."""
    a, b = theirs.config, ours.config
    return {
        "workload": (a.workload, b.workload),
        "mode": (a.mode, b.mode),
        "shapes": (theirs.workload.shapes, ours.workload.shapes),
        "precision": (a.precision.name, b.precision.name),
        "executor": (a.executor, b.executor),
        "cores": _cores(theirs, ours),
        "batch size": (a.batch_size, b.batch_size),
    }


def _cores(theirs: RunRecord, ours: RunRecord) -> tuple[int, int]:
    """Return the usable cores of both hosts; 0 and 0 unless the device is ``cpu``."""
    if ours.config.device != "cpu":
        return 0, 0
    return theirs.system.cpu.usable_cores, ours.system.cpu.usable_cores


def _distance(theirs: RunRecord, ours: RunRecord) -> tuple[object, ...]:
    sides = _sides(theirs, ours)
    unlike = tuple(a != b for a, b in sides.values())
    return (*unlike, abs(math.log(theirs.config.batch_size / ours.config.batch_size)))
