"""What forgers have: files of finished runs, and ways to put right what follows from an edit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmb import workloads
from llmb.measure import metrics, summary
from llmb.records.bundle import from_files, parse_record
from llmb.records.canonical import pretty_bytes
from llmb.records.run_record import RunRecord
from llmb.submission import rejudge
from tests import builders
from tests.builders import with_manifest

Files = dict[str, bytes]


@dataclass(frozen=True)
class Runs:
    """The finished runs a forger starts from."""

    honest: Files
    other: Files
    invalid: Files
    #: Of a run whose supervisor judged as the plugin's package told it.
    customised: Files
    #: Of an honest run of two narrow layers and as many steps as an official one has.
    toy: Files


@dataclass(frozen=True)
class Forgery:
    """What is forged, and the check of ``llmb verify`` that must refuse it."""

    name: str
    group: str
    acts: tuple[int, ...]
    forge: Callable[[Runs], Files]
    #: None: nothing in the bundle speaks against it; ``unseen`` says what does.
    check: str | None
    unseen: str | None = None

    @property
    def act(self) -> str:
        """What is done, in a sentence."""
        assert self.forge.__doc__ is not None
        return self.forge.__doc__


def record_of(files: Files) -> RunRecord:
    """Return the record among ``files``."""
    return parse_record(files["record.json"], "record.json")


def with_record(files: Files, record: RunRecord) -> Files:
    """Return ``files`` with another record, and its copies."""
    return files | {
        "record.json": pretty_bytes(record),
        "audit.json": pretty_bytes(record.audit),
        "system.json": pretty_bytes(record.system),
    }


def edited(files: Files, edit: Callable[[dict[str, Any]], object]) -> Files:
    """Return ``files`` with the record that ``edit`` makes of its JSON data."""
    return with_record(files, builders.edited(record_of(files), edit))


def judged_again(files: Files) -> Files:
    """Let the record say what its evidence now supports, as an able forger would."""
    record = record_of(files)
    judged = rejudge.judge(from_files(with_manifest(files)), record)
    facts = record.precision.model_copy(update={"effective": judged.effective, "bits": judged.bits})
    follows = {"precision": facts, "precision_recipe": judged.precision_recipe}
    return with_record(files, record.model_copy(update={"audit": judged.audit, **follows}))


def timed_again(files: Files, edit: Callable[[dict[str, Any]], object]) -> Files:
    """Edit the stamps of the first repeat and derive every number that follows from them."""
    record = record_of(files)
    repeats = []
    for number, repeat in enumerate(record.timing.repeats):
        data = json.loads(pretty_bytes(repeat))
        if number == 0:
            edit(data)
        repeats.append(type(repeat).model_validate(data))
    timing = summary.timing_of(repeats, record.workload.tokens_per_step)
    result = summary.result_of(timing, record.workload, 1, record.ceilings, None, None)
    workload, tokens = workloads.of(record.config), record.workload.tokens_per_step
    named = metrics.metrics_of(record.config, workload, timing, tokens, None)
    result = result.model_copy(update={"metrics": named})
    follows = {"fence_ns": timing.fence_ns, "peak_memory_bytes": timing.peak_memory_bytes}
    first = record.topology.ranks[0].model_copy(update=follows)
    topology = record.topology.model_copy(update={"ranks": (first,)})
    changes = {"timing": timing, "result": result, "topology": topology}
    return with_record(files, record.model_copy(update=changes))


def checks(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the checks of ``llmb verify`` that refuse the bundle made of ``files``, with why."""
    from llmb.submission.verify import verify_bundle

    found = verify_bundle(from_files(with_manifest(files))).checks
    return {check.name: check.message for check in found if not check.ok}
