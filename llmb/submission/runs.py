"""A run as data for table rows: figures by key, settings, hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmb import workloads
from llmb.config import Mode, RunConfig
from llmb.errors import BundleRefusedError, LlmbError
from llmb.measure import metrics, statistics
from llmb.records.run_record import RunRecord

Setting = str | int | bool | None


@dataclass(frozen=True)
class ReportedRun:
    """One measured run."""

    record: RunRecord
    #: Figures by the keys of ``workloads/published.json``.
    values: Mapping[str, float]
    settings: Mapping[str, Setting]

    @property
    def is_debug(self) -> bool:
        """True: the run is not comparable."""
        return self.record.class_ == "debug"


def run_of(record: RunRecord) -> ReportedRun:
    """Return the measured figures of ``record``, computed from the time stamps.

    Raises:
        BundleRefusedError: stamps or sizes give no figures, such as STOP before START.
    """
    try:
        values = _values(record)
    except (LlmbError, ValueError, ArithmeticError, IndexError) as error:
        # An untrusted record may pass the schema and have arbitrary numbers.
        raise BundleRefusedError(
            f"run {record.run_id}: no figures can be made of its stamps and sizes ({error}): "
            "llmb verify says more"
        ) from None
    return ReportedRun(record=record, values=values, settings=settings_of(record.config, record))


def _values(record: RunRecord) -> dict[str, float]:
    timing, tokens, config = record.timing, record.workload.tokens_per_step, record.config
    if timing.stop_ns <= timing.start_ns or tokens < 1:
        raise ValueError("a window without a length")
    rate = statistics.tokens_per_second(timing, tokens)
    world_size = config.parallelism.world_size
    peak = record.result.mfu.peak_flops if record.result.mfu else None
    found = {
        "tokens_per_second": rate,
        "tokens_per_second_per_device": rate / world_size,
        "global_batch_size": float(metrics.step_of(config, timing, tokens).sequences),
    }
    if timing.peak_memory_bytes is not None:
        found["peak_memory_gb"] = timing.peak_memory_bytes / 1e9
    named = metrics.metrics_of(config, workloads.of(config), timing, tokens, peak)
    return found | {metric.name: metric.value for metric in named}


def settings_of(config: RunConfig, record: RunRecord) -> dict[str, Setting]:
    """Return the settings that distinguish rows of a table, such as ``world_size``."""
    mesh, generates = config.parallelism, config.mode is Mode.GENERATE
    size = mesh.world_size
    layouts = {1: "single", mesh.dp_replicate: "DDP", mesh.dp_shard: "FSDP"}
    return {
        "mode": config.mode.value,
        "new_tokens": record.workload.tokens_per_step // config.batch_size if generates else None,
        "executor": _executor(config),
        "dynamic": config.dynamic,
        # FSDP2 that keeps gathered weights until the backward pass shards what ZeRO-2 shards.
        "zero": (3 if mesh.reshard_after_forward else 2) if mesh.dp_shard > 1 else None,
        "sac_freq": config.sac_freq,
        "mixed_precision": config.mixed_precision,
        "precision": record.precision.effective or record.precision.declared,
        "parallelism": "single" if size == 1 else layouts.get(size, "mesh"),
        "world_size": size,
        "sequences": config.batch_size * mesh.dp_replicate * mesh.dp_shard,
    }


def _executor(config: RunConfig) -> str:
    """Return the executor; ``inductor`` if a plugin option ``compile`` is set."""
    compiled = config.plugin_options.get("compile", "none") not in ("none", "", False)
    return "inductor" if config.executor == "eager" and compiled else config.executor
