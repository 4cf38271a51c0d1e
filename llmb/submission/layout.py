"""The files of a run directory and of a bundle, and the path of a bundle."""

from __future__ import annotations

import re
from collections.abc import Iterable

from llmb.config import Mode
from llmb.errors import BundleRefusedError
from llmb.records import evidence, member_names
from llmb.records.bundle import MANIFEST, SIGNATURES
from llmb.records.run_directory import (
    AUDIT,
    LOG,
    MODEL_DIFF,
    RECORD,
    SETTINGS_DIFF,
    SOURCES_DIFF,
    SYSTEM,
)
from llmb.records.run_record import OLDER_RULES, PrecisionFacts, RunRecord
from llmb.submission.rejudge import PLUGIN_PREFIX

#: The page for people, made from the record together with the bundle; the first bundles have none.
PAGE = "README.md"
_ALWAYS = (RECORD, AUDIT, SYSTEM, MODEL_DIFF, SETTINGS_DIFF, SOURCES_DIFF)
_OF_EACH_REPEAT = (
    evidence.WEIGHTS,
    evidence.MODEL,
    evidence.SETTINGS,
    evidence.PLUGIN,
)
_EVIDENCE = re.compile(
    r"evidence/repeat-(0|[1-9][0-9]*)/[A-Za-z0-9_-]+\.(json|safetensors|txt|tsr)"
)


def is_known(name: str) -> bool:
    """Return whether ``name`` is a file of a run directory that a bundle includes.

    The log is left out: no check can compare free text with the rest of a bundle.
    """
    plugin = name.startswith(PLUGIN_PREFIX)
    return name in _ALWAYS or plugin or _EVIDENCE.fullmatch(name) is not None


def faults(names: Iterable[str], record: RunRecord) -> list[str]:
    """Return the missing and the surplus files of a bundle with files ``names`` for ``record``."""
    present = set(names)
    repeats = range(len(record.timing.repeats))
    of_each = [*_OF_EACH_REPEAT]
    if record.workload.mode == Mode.TRAIN.value:
        of_each.append(evidence.OPTIMIZER)
    required = [*_ALWAYS, *(evidence.path(n, file) for n in repeats for file in of_each)]
    missing = [f"{name} is missing" for name in required if name not in present]
    may = {MANIFEST, PAGE, *((LOG,) if record.rules_version in OLDER_RULES else ())}
    beside = {n for n in present - may if not n.startswith(SIGNATURES)}
    strange = sorted(n for n in beside if not is_known(n) or _repeat_of(n) not in {None, *repeats})
    return missing + [f"{name!r} is not a file of a run" for name in strange]


def _repeat_of(name: str) -> int | None:
    match = _EVIDENCE.fullmatch(name)
    return int(match.group(1)) if match else None


def precision_folder(precision: PrecisionFacts) -> str:
    """Return a bundle's precision folder: measured ("BF16"), or declared ("BF16-declared")."""
    return precision.effective or f"{precision.declared}-declared"


def bundle_path(record: RunRecord) -> str:
    """Return the path of the bundle of ``record`` below the folder of its system.

    Example: ``llama-1.4b_train_BF16/1x-cpu-0123abcd``.

    Raises:
        BundleRefusedError: a name in the record cannot be part of a path on every system.
    """
    work = f"{record.workload.name}_{record.workload.mode}_{precision_folder(record.precision)}"
    run = f"{record.topology.world_size}x-{record.plugin.name}-{record.run_id[:8]}"
    for part in (work, run):
        fault = member_names.part_fault(part)
        if fault is not None:
            raise BundleRefusedError(f"the record makes a folder {part!r}, which {fault}")
    return f"{work}/{run}"
