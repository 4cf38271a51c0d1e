"""The second path: every derived number of a record, computed again from the raw values.

The second path shares no code with the first (``llmb.measure``, ``llmb.workloads``): a defect or a
forgery in one path is found by the other. Definitions: docs/measuring.
"""

from __future__ import annotations

from llmb.records.reproduction import ReproductionOf
from llmb.records.run_record import RunRecord
from llmb.submission.comparison import Mismatch, RecordComparison
from llmb.submission.recompute_links import compare_links
from llmb.submission.recompute_metrics import compare_metrics
from llmb.submission.recompute_time import compare_timing
from llmb.submission.recompute_work import compare_ceilings, compare_workload


def mismatches(record: RunRecord) -> tuple[Mismatch, ...]:
    """Return every field of ``record`` that contradicts the raw values; none if honest."""
    comparison = RecordComparison()
    _compare_configuration(record, comparison)
    _compare_topology(record, comparison)
    _compare_search(record, comparison)
    compare_workload(record, comparison)
    compare_ceilings(record, comparison)
    compare_links(record, comparison)
    if compare_timing(record, comparison):
        _compare_rates(record, comparison)
    return tuple(comparison.mismatches)


def _compare_configuration(record: RunRecord, comparison: RecordComparison) -> None:
    config, timing = record.config, record.timing
    comparison.expect("workload.name", record.workload.name, config.workload)
    comparison.expect("workload.mode", record.workload.mode, config.mode.value)
    comparison.expect("plugin.name", record.plugin.name, config.plugin)
    comparison.expect("plugin.options", record.plugin.options, dict(config.plugin_options))
    strict = record.class_ == "official" and not record.plugin.closed_components
    strict = strict and bool(record.plugin.files)  # without files, strictness is unknown
    comparison.expect("plugin.strict", record.plugin.strict, strict)
    comparison.expect("precision.declared", record.precision.declared, config.precision.name)
    comparison.expect("timing.repeats", len(timing.repeats), config.repeats)
    for n, repeat in enumerate(timing.repeats):
        field = f"timing.repeats.{n}"
        comparison.expect(f"{field}.timed_steps", repeat.timed_steps, config.timed_steps)
        enough = repeat.warmup_steps >= config.warmup_steps
        must = f"at least {config.warmup_steps}"
        comparison.require(f"{field}.warmup_steps", repeat.warmup_steps, enough, must)


def _compare_topology(record: RunRecord, comparison: RecordComparison) -> None:
    topology, mesh = record.topology, record.config.parallelism
    size = mesh.dp_replicate * mesh.dp_shard * mesh.tp * mesh.pp
    comparison.expect("topology.parallelism", topology.parallelism, mesh)
    comparison.expect("topology.world_size", topology.world_size, size)
    places = topology.nodes * topology.devices_per_node
    comparison.expect("topology.nodes x devices_per_node", places, size)
    # As ranges and counts, never a list of `size` numbers: a record may claim a huge size.
    ranks = [rank.rank for rank in topology.ranks]
    in_order = len(ranks) == size and ranks == list(range(len(ranks)))
    comparison.require("topology.ranks", ranks, in_order, f"0 to {size - 1}")
    if topology.ranks:
        first = topology.ranks[0]
        comparison.expect("topology.ranks.0.fence_ns", first.fence_ns, record.timing.fence_ns)
        memory = record.timing.peak_memory_bytes
        comparison.expect("topology.ranks.0.peak_memory_bytes", first.peak_memory_bytes, memory)


def _compare_search(record: RunRecord, comparison: RecordComparison) -> None:
    search = record.batch_size_search
    if search is None:
        return
    rates: dict[int, float] = {}
    for n, trial in enumerate(search.trials):
        measured = trial.status == "measured"
        has_rate = (trial.tokens_per_second is not None) == measured
        field = f"batch_size_search.trials.{n}.tokens_per_second"
        must = "a rate exactly where the trial was measured"
        comparison.require(field, trial.tokens_per_second, has_rate, must)
        if measured and trial.tokens_per_second is not None:
            rates[trial.batch_size] = max(
                trial.tokens_per_second, rates.get(trial.batch_size, trial.tokens_per_second)
            )
    fastest = max(rates.values(), default=None)
    best = search.best in rates and rates[search.best] == fastest
    must = "the measured batch size with the highest throughput"
    comparison.require("batch_size_search.best", search.best, best, must)
    comparison.expect("batch_size_search.best", search.best, record.config.batch_size)


def _compare_rates(record: RunRecord, comparison: RecordComparison) -> None:
    """Compare the fields that are derived from both throughput and work."""
    result, world = record.result, record.topology.world_size
    # The stored throughput was compared before: its error is reported once, there.
    achieved = result.tokens_per_second * record.workload.flops_per_token
    unlike = bool(record.timing.step_tokens)  # sequences of another length in each step
    slow = record.config.precision.is_slow
    if record.ceilings is None or world < 1 or slow or unlike:
        comparison.expect("result.fraction_of_ceiling", result.fraction_of_ceiling, None)
    else:
        attained = [record.ceilings.before.flops_per_second, record.ceilings.after.flops_per_second]
        fraction = achieved / (max(attained) * world) if max(attained) > 0 else None
        comparison.expect("result.fraction_of_ceiling", result.fraction_of_ceiling, fraction)
    if unlike:
        comparison.expect("result.mfu", result.mfu, None)
    elif result.mfu is not None:
        peak = result.mfu.peak_flops * world
        value = achieved / peak if peak > 0 else "a positive peak"
        comparison.expect("result.mfu.value", result.mfu.value, value)
    compare_metrics(record, comparison)


def link_mismatches(record: RunRecord, link: ReproductionOf) -> tuple[Mismatch, ...]:
    """Return the fields of ``link`` (to the repeated bundle) that contradict the record."""
    comparison = RecordComparison()
    field, theirs = "reproduction_of", link.tokens_per_second
    more = 100 * (record.result.tokens_per_second / theirs - 1)
    comparison.expect(f"{field}.difference_percent", link.difference_percent, more)
    if link.ci95 is not None:
        around = 0 <= link.ci95[0] <= theirs <= link.ci95[1]
        must = f"an interval around {theirs}"
        comparison.require(f"{field}.ci95", link.ci95, around, must)
    other = link.run_id != record.run_id
    comparison.require(f"{field}.run_id", link.run_id, other, "the run of another record")
    return tuple(comparison.mismatches)
