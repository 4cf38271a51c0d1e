"""A run as MLPerf log lines (``:::MLLOG`` and a JSON object), readable by mlperf-logging's parsers.

The log is no MLPerf submission and cannot pass as a submission. llmb does not train to a quality
target, so the log has no ``eval_*`` lines, no division and no name of an MLPerf benchmark. Keys are
MLPerf's own if MLPerf has a key for the quantity (constants.py of mlcommons/logging), such as
``global_batch_size``. All further keys begin with ``llmb_``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from llmb.comparison.figures import Run
from llmb.measure import statistics
from llmb.records.run_record import RunRecord

_TOKEN = ":::MLLOG"
_POINT, _START, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
_CLOCK = "created_utc plus the stamp since the first step: intervals are exact, the date is not"


def lines(run: Run) -> Iterator[str]:
    """Yield the log lines of the headline repeat of ``run``, without line ends."""
    log = _Log(run)
    yield from log.settings()
    yield from log.timeline()
    yield from log.figures()


class _Log:
    """The log lines of one run, on one time axis."""

    def __init__(self, run: Run) -> None:
        self._run, self._record, self._timing = run, run.record, run.headline
        self._zero_ns = min(self._timing.step_ns[0], self._timing.start_ns)
        self._zero_ms = _milliseconds(run.record)

    def settings(self) -> Iterator[str]:
        """Yield benchmark, hardware and settings of the run."""
        record, config, ns = self._record, self._record.config, self._zero_ns
        optimizer, mesh = record.workload.optimizer, config.parallelism
        shapes = record.workload.shapes
        values: dict[str, Any] = {
            "submission_benchmark": f"llmb {record.workload.name} {record.workload.mode}",
            "submission_platform": record.hardware,
            "submission_status": record.class_,
            "seed": config.seed,
            "global_batch_size": config.batch_size * mesh.dp_replicate * mesh.dp_shard,
            "micro_batch_size": config.micro_batch_size,
            "gradient_accumulation_steps": config.accumulate,
            "max_sequence_length": shapes.get("sequence_length"),
            "num_warmup_steps": self._timing.warmup_steps,
            "tensor_parallelism": mesh.tp,
            "pipeline_parallelism": mesh.pp,
            "context_parallelism": 1,  # llmb has no context or expert parallelism
            "expert_parallelism": 1,
            "opt_name": optimizer.name.lower(),
            "opt_base_learning_rate": optimizer.lr,
            "opt_gradient_clip_norm": record.workload.clip_grad_norm,
            "llmb_run_id": record.run_id,
            "llmb_version": record.llmb_version,
            "llmb_rules_version": record.rules_version,
            "llmb_class": record.class_,
            "llmb_verdict": record.audit.verdict.value,
            "llmb_declared_precision": record.precision.declared,
            "llmb_effective_precision": record.precision.effective,
            "llmb_plugin": f"{record.plugin.distribution} {record.plugin.version}",
            "llmb_world_size": record.topology.world_size,
        }
        for key, value in values.items():
            if value is not None:
                yield self._line(_POINT, key, value, ns)

    def timeline(self) -> Iterator[str]:
        """Yield initialisation, timed window, and one block per pair of consecutive fences."""
        timing, record = self._timing, self._record
        mesh = record.config.parallelism
        sequences = record.config.batch_size * mesh.dp_replicate * mesh.dp_shard
        # Every repeat is a new process with empty caches.
        yield self._line(_POINT, "cache_clear", True, self._zero_ns)
        yield self._line(_START, "init_start", None, self._zero_ns)
        yield self._line(_END, "init_stop", None, timing.start_ns)
        yield self._line(_START, "run_start", None, timing.start_ns, {"clock": _CLOCK})
        now, done, tokens = timing.start_ns, 0, record.workload.tokens_per_step
        weighed = statistics.weighed(timing, tokens)
        for block, (count, ns) in zip(statistics.blocks(timing), weighed, strict=True):
            before = {"samples_count": done * sequences, "step_num": done}
            yield self._line(_START, "block_start", None, now, before)
            now, done = now + ns, done + block.steps
            after = {"samples_count": done * sequences, "step_num": done}
            yield self._line(_END, "block_stop", None, now, after)
            stats = {"throughput": count / ns * 1e9, "step_time": ns / block.steps / 1e9}
            yield self._line(
                _POINT, "tracked_stats", stats, now, {"step": done, "unit": "tokens/s"}
            )
        yield self._line(_POINT, "train_samples", done * sequences, timing.stop_ns)
        yield self._line(_END, "run_stop", None, timing.stop_ns, {"status": "success"})

    def figures(self) -> Iterator[str]:
        """Yield every figure, such as ``llmb_tokens_per_second``, with unit and interval."""
        for figure in self._run.figures.values():
            metadata: dict[str, Any] = {"unit": figure.unit}
            if figure.interval is not None:
                metadata["ci95"] = list(figure.interval)
            if figure.basis:
                metadata["basis"] = figure.basis
            yield self._line(
                _POINT, f"llmb_{figure.name}", figure.value, self._timing.stop_ns, metadata
            )

    def _line(
        self, event: str, key: str, value: Any, ns: int, metadata: Mapping[str, Any] | None = None
    ) -> str:
        """Return one line; ``ns`` is a stamp of the run's clock."""
        content = {
            "namespace": "",
            "time_ms": round(self._zero_ms + (ns - self._zero_ns) / 1e6, 3),
            "event_type": event,
            "key": key,
            "value": value,
            "metadata": {"file": "record.json", "lineno": 0, **(metadata or {})},
        }
        # The parser reads the text after the last token of a line. A token in an untrusted text
        # would hide the real line and forge a second line.
        text = json.dumps(content, allow_nan=False).replace(_TOKEN, "\\u003a::MLLOG")
        return f"{_TOKEN} {text}"


def _milliseconds(record: RunRecord) -> float:
    """Return the creation time of the run in ms since 1970; 0 for an invalid date."""
    try:
        return datetime.fromisoformat(record.created_utc.replace("Z", "+00:00")).timestamp() * 1e3
    except (ValueError, OverflowError):
        return 0.0
