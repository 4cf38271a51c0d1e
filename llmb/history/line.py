"""One line of the history: the facts and figures of one finished run."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from llmb.comparison.figures import run_of
from llmb.config import JsonFile
from llmb.errors import BundleRefusedError
from llmb.measure.statistics import interval_values
from llmb.records.finding import Verdict
from llmb.records.repository import Head
from llmb.records.run_record import RunClass, RunRecord

# Version history of a line, one line per change; every version is read for ever.
# llmb.history/1  2026-11  first version.
SCHEMA: Literal["llmb.history/1"] = "llmb.history/1"

#: Largest rate in any unit: ratios of two rates stay finite.
_MOST = 1e100
Rate = Annotated[float, Field(gt=0, lt=_MOST)]
#: Longest text of a line, in characters; a device's name is the longest text in practice.
_LONGEST = 255
Words = Annotated[str, Field(max_length=_LONGEST)]
_OF_THE_MODEL = {"name", "family", "mode", "tokens", "shapes", "optimizer", "clip_grad_norm"}
_OF_THE_STEP = {
    *("accumulate", "mixed_precision", "executor", "compile_mode", "dynamic", "sac_freq"),
    *("prompt_length", "new_tokens", "generate_scope", "parallelism"),
}


class HistoryLine(JsonFile):
    """One finished run; None stands for an unknown value."""

    schema_: Literal["llmb.history/1"] = Field(alias="schema", default=SCHEMA)
    #: Time of the run in UTC, such as ``2026-11-27T21:06:08Z``.
    created_utc: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
    run_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    #: Name of the run directory or bundle, such as ``20261127T210608Z-llama-1.4b-BF16-cpu``.
    run: Words
    #: First 16 hex digits of the sha256 over model, settings and plugin (``work_of``). Only runs
    #: with equal digests are one series.
    work: str = Field(pattern=r"^[0-9a-f]{16}$")
    workload: Words
    mode: Words
    class_: RunClass = Field(alias="class")
    #: The option ``--preset`` of ``llmb run``; None without the option, and for added runs.
    preset: Literal["debug"] | None
    #: Settings in words, such as ``batch 2, eager``.
    settings: Words
    #: The declared format, and the measured format.
    precision: Words
    effective_precision: Words | None
    plugin: Words
    plugin_version: Words
    #: The device's description; on processors, the processor's.
    device: Words
    cpu: Words | None
    cores: int = Field(ge=1)
    world_size: int = Field(ge=1)
    commit: str | None = Field(pattern=r"^[0-9a-f]{40,64}$")
    branch: Words | None
    tokens_per_second: Rate
    #: 95 % interval of ``tokens_per_second``, and the number of repeats or fence blocks behind it.
    ci95: tuple[float, float] | None
    interval_values: int = Field(ge=1)
    #: FLOP/s of the model's matrix products alone, on one device, before and after the run.
    ceilings_flops_per_second: tuple[Rate, Rate] | None
    fraction_of_ceiling: Rate | None
    #: Load of the host in the minute before the run, over the usable cores.
    load: float | None = Field(ge=0)
    verdict: Verdict
    rules_version: Words
    llmb_version: Words
    torch: Words | None

    @property
    def machine(self) -> tuple[str, str | None, int]:
        """Device, processor and cores: equal for runs of equal machines."""
        return self.device, self.cpu, self.cores

    @property
    def ceiling(self) -> float | None:
        """The higher of both ceilings, which ``fraction_of_ceiling`` is a share of."""
        found = self.ceilings_flops_per_second
        return None if found is None else max(found)


def line_of(
    record: RunRecord,
    name: str,
    head: Head | None = None,
    preset: Literal["debug"] | None = None,
) -> HistoryLine:
    """Return the line of a run that this llmb has made: the record's own figures.

    Args:
        record: the run.
        name: of the run directory or bundle.
        head: commit and branch; None: unknown, as for runs made elsewhere.
        preset: the option ``--preset`` of the run, if known.
    """
    ceilings, load = record.ceilings, record.system.load_before.load_1min
    cpu, head, share = (
        record.system.cpu,
        head or Head(None, None),
        record.result.fraction_of_ceiling,
    )
    return HistoryLine(
        created_utc=record.created_utc,
        run_id=record.run_id,
        run=_cut(name),
        work=work_of(record),
        workload=_cut(record.workload.name),
        mode=_cut(record.workload.mode),
        class_=record.class_,
        preset=preset,
        settings=_cut(", ".join(_settings(record))),
        precision=_cut(record.precision.declared),
        effective_precision=_cut_or_none(record.precision.effective),
        plugin=_cut(record.plugin.name),
        plugin_version=_cut(record.plugin.version),
        device=_cut(record.hardware),
        cpu=_cut_or_none(cpu.model),
        cores=max(1, cpu.usable_cores),
        world_size=max(1, record.topology.world_size),
        commit=head.commit,
        branch=head.branch,
        tokens_per_second=record.result.tokens_per_second,
        ci95=record.result.ci95,
        interval_values=max(1, interval_values(record.timing.repeats)),
        ceilings_flops_per_second=None
        if ceilings is None
        else (ceilings.before.flops_per_second, ceilings.after.flops_per_second),
        fraction_of_ceiling=share or None,
        load=None if load is None else max(0.0, load) / max(1, cpu.usable_cores),
        verdict=record.audit.verdict,
        rules_version=_cut(record.rules_version),
        llmb_version=_cut(record.llmb_version),
        torch=_cut_or_none(record.system.torch),
    )


def line_of_a_stranger(record: RunRecord, name: str, head: Head | None = None) -> HistoryLine:
    """Return the line of a run made elsewhere: every figure is computed from the stamps.

    Raises:
        BundleRefusedError: stamps give no figures, or other tokens/s than the record's, or a field
            does not fit into a line.
    """
    run = run_of(record)
    rate, share = run.figures["tokens_per_second"], run.figures.get("fraction_of_ceiling")
    try:
        line = line_of(record, name, head)
        changes = {"ci95": rate.interval, "fraction_of_ceiling": share.value if share else None}
        return HistoryLine.model_validate({**line.model_dump(by_alias=True), **changes})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise BundleRefusedError(f"run {record.run_id}: {field}: {first['msg']}") from None


def work_of(record: RunRecord) -> str:
    """Return the digest of model, settings and plugin: equal for runs of one series.

    A searched batch size counts as ``auto``. Machine, versions, seed and number of steps do not
    count.
    """
    facts: dict[str, Any] = {
        "workload": record.workload.model_dump(mode="json", include=_OF_THE_MODEL),
        "config": record.config.model_dump(mode="json", include=_OF_THE_STEP),
        "class": record.class_,
        "precision": record.precision.declared,
        "batch_size": "auto" if record.batch_size_search else record.config.batch_size,
        "plugin": [record.plugin.name, record.plugin.options],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _settings(record: RunRecord) -> list[str]:
    """Return the settings that tell most series apart; plugin options count for ``work`` alone."""
    config, world = record.config, record.topology.world_size
    size = f"{config.batch_size}{' (auto)' if record.batch_size_search else ''}"
    found = [f"batch {size}", config.executor]
    found += [f"{config.accumulate} micro-batches"] * (config.accumulate > 1)
    found += ["autocast"] * config.mixed_precision
    found += [f"{world} ranks"] * (world > 1)
    return found


def _cut(text: str) -> str:
    return text[:_LONGEST]


def _cut_or_none(text: str | None) -> str | None:
    return None if text is None else _cut(text)
