"""Facts of a run in words: figures below the headline, settings, machine, plugin and changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmb.measure import link_words
from llmb.measure.summary import steal_share
from llmb.records.declared import marked
from llmb.records.printable import few
from llmb.records.run_record import RepeatTiming, RunRecord
from llmb.report.drawing import seconds
from llmb.report.render import NOT_MEASURED, number

#: Most rows of a table or list on a page.
MOST_ROWS = 60
_MOST_NAMES = 12
_PER_SECOND = ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"))


@dataclass(frozen=True)
class Fact:
    """A name and a value, both in words."""

    name: str
    value: str
    #: Small print below the value.
    note: str = ""


def interval_words(ends: tuple[float, float] | None) -> str | None:
    """Return a 95 % interval in words. Example: ``11.1 to 12.4``."""
    return None if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def flops(rate: float | None) -> str:
    """Return a rate with its unit. Example: ``0.165 TFLOP/s`` is ``165 GFLOP/s``."""
    if rate is None:
        return NOT_MEASURED
    size, unit = next((one for one in _PER_SECOND if rate >= one[0]), _PER_SECOND[-1])
    return f"{rate / size:.3g} {unit}"


def gigabytes(count: int | None) -> str:
    """Return a size. Example: ``7.94 GB``."""
    if count is None:
        return NOT_MEASURED
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.2f} MB"


def tiles(record: RunRecord) -> Iterator[Fact]:
    """Yield the figures below the headline."""
    result, timing, world = record.result, record.timing, record.topology.world_size
    if world > 1:
        each = f"{number(result.tokens_per_second_per_device)} tokens/s"
        yield Fact("Per device", each, f"{world} devices")
    step = result.step_time_s
    if step is not None:
        spread = f"p5 {seconds(step.p5)}, p95 {seconds(step.p95)}, cv {step.cv:.1%}"
        yield Fact("Step time, median", seconds(step.median), spread)
    share = result.fraction_of_ceiling
    of = "of the rate of the model's own matrix products, alone, on this device"
    yield Fact("Share of ceiling", NOT_MEASURED if share is None else f"{share:.1%}", of)
    mfu = result.mfu
    if mfu is not None:
        yield Fact("MFU", f"{mfu.value:.1%}", f"of {flops(mfu.peak_flops)}, {mfu.peak_source}")
    yield Fact("Peak memory", gigabytes(result.peak_memory_bytes), "of the rank with the most")
    energy = result.energy
    if energy is not None:
        watts = _per_second(energy.joules, timing)
        how = f"{number(energy.joules)} J, {watts} W, {energy.scope} by {energy.source}"
        yield Fact("Energy", f"{number(energy.tokens_per_joule)} tokens/J", how)
    if result.loss_first is not None and result.loss_last is not None:
        yield Fact("Loss", f"{result.loss_last:.4f}", f"at STOP; {result.loss_first:.4f} at START")
    window = seconds((timing.stop_ns - timing.start_ns) / 1e9)
    repeats = len(timing.repeats)
    which = f"process {timing.headline_repeat + 1} of {repeats}" if repeats > 1 else "one process"
    judged = len(timing.stops)
    stopped = seconds(sum(stop.ns for stop in timing.stops) / 1e9)
    beside = f"; beside it {stopped} for {judged} judged steps" if judged else ""
    yield Fact("Timed window", window, f"{timing.timed_steps} steps, {which}{beside}")


def _per_second(amount: float, timing: RepeatTiming) -> str:
    """Return ``amount`` over the length of the window. Example: 2,500 J in 5 s are "500"."""
    window_ns = timing.stop_ns - timing.start_ns
    return NOT_MEASURED if window_ns <= 0 else f"{amount / (window_ns / 1e9):,.4g}"


def settings(record: RunRecord) -> Iterator[Fact]:
    """Yield the settings of the run."""
    config, workload, precision = record.config, record.workload, record.precision
    yield Fact(
        "Workload", f"{workload.name} {workload.mode}", f"{workload.parameters:,} parameters"
    )
    measured = precision.effective or "not observed"
    yield Fact("Precision", f"{config.precision.described} declared", f"effective: {measured}")
    tokens = f"{workload.tokens_per_step:,} tokens a step"
    if config.accumulate > 1:
        tokens += f", {config.accumulate} micro-batches"
    yield Fact("Batch size", f"{config.batch_size}", tokens)
    if (world := record.topology.world_size) > 1:
        hosts = f"{world} on {record.topology.nodes} host{'s' if record.topology.nodes > 1 else ''}"
        yield Fact("Ranks", hosts, _mesh(record))
    if (linked := record.interconnect) is not None:
        yield Fact(marked("Interconnect"), link_words.headline(linked), link_words.whose(linked))
    how = f" ({config.compile_mode})" if config.executor == "inductor" else ""
    yield Fact("Executor", f"{config.executor}{how}")
    yield Fact("Tokens", workload.tokens)
    yield Fact("Seed", f"{config.seed}", _committed(record))
    for name, option in list(config.plugin_options.items())[:MOST_ROWS]:
        yield Fact(f"Option {name}", f"{option}")
    rules = f"rules {record.rules_version}, reference {record.reference_digest[:12]}"
    yield Fact("llmb", record.llmb_version, rules)
    stamps = record.timing.time_stamps
    if stamps is not None and stamps.tokens_per_second is not None:
        least = f"at least {number(stamps.tokens_per_second)} tokens/s"
        yield Fact("Foreign clock", least, stamps.authority)
    if record.reproduction_of is not None:
        link = record.reproduction_of
        yield Fact("Repeats", f"bundle {link.bundle_id[:12]}", f"{link.difference_percent:+.2f} %")
    if record.duration is not None:
        real, estimated = record.duration.real_s, record.duration.estimated_s
        yield Fact("Whole run", seconds(real), f"estimated: {seconds(estimated)}")
    if record.interruption is not None:
        yield Fact("Ended early", record.interruption.text)


def _mesh(record: RunRecord) -> str:
    """Return the mesh of the ranks. Example: ``dp_shard 4, tp 2``."""
    mesh = record.config.parallelism
    sizes = ((name, getattr(mesh, name)) for name in ("pp", "dp_replicate", "dp_shard", "tp"))
    return ", ".join(f"{name} {size}" for name, size in sizes if size > 1)


def _committed(record: RunRecord) -> str:
    found = record.seed_commitment
    return "" if found is None else f"committed to by {found.committed_by}"


def environment(record: RunRecord) -> Iterator[Fact]:
    """Yield the machine and its software, as the operating system and the plugin tell."""
    system, before, after = record.system, record.system.load_before, record.system.load_after
    for device in system.devices[:MOST_ROWS]:
        size = "" if device.memory_bytes is None else gigabytes(device.memory_bytes)
        yield Fact(f"Device {device.name}", device.description or "unknown", size)
    cpu = system.cpu
    cores = f"{cpu.usable_cores} usable cores, {cpu.architecture}"
    yield Fact("Processor", cpu.model or "unknown", cores)
    available = f"{gigabytes(system.memory.available_bytes)} available before the run"
    yield Fact("Main memory", gigabytes(system.memory.total_bytes), available)
    share = steal_share(before, after)
    steal = NOT_MEASURED if share is None else f"{share:.1%}"
    loads = (
        NOT_MEASURED if one is None else f"{one:g}" for one in (before.load_1min, after.load_1min)
    )
    yield Fact("Load of the host", " before, ".join(loads) + " after", f"steal {steal}")
    if record.timing.cpu_s is not None:
        cores = _per_second(record.timing.cpu_s, record.timing)
        yield Fact("CPU time of the worker", f"{cores} cores in the window")
    yield Fact("System", system.os, system.python)
    yield Fact("torch", system.torch or "unknown")
    for name, version in list(system.drivers.items())[:MOST_ROWS]:
        yield Fact(name, version)
    for name, value in list(system.env.items())[:MOST_ROWS]:
        yield Fact(name, value)


def plugin(record: RunRecord) -> Iterator[Fact]:
    """Yield the plugin, and what it declares: closed components, helper threads, patches."""
    used = record.plugin
    yield Fact(marked("Plugin"), f"{used.name} {used.version}", used.distribution)
    openness = "strict: the source of every component is open" if used.strict else "not strict"
    yield Fact("Openness", openness, f"{len(used.files)} Python files, each by its digest")
    if lacking := used.lacks.named():
        yield Fact("The device lacks", ", ".join(lacking))
    for part in used.closed_components[:MOST_ROWS]:
        about = (
            f"{gigabytes(part.bytes)}, {part.licence}, {part.where_to_get}, sha256 {part.sha256}"
        )
        yield Fact("Closed component", f"{part.name} {part.version or ''}", about)
    for helper in used.declared_helpers[:MOST_ROWS]:
        yield Fact(
            "Helper thread", helper.name, f"{helper.cpu_share:.1%} of a core: {helper.reason}"
        )
    for patch in used.declared_patches[:MOST_ROWS]:
        yield Fact("Declared patch", patch.target, patch.reason)


def changes(record: RunRecord) -> Iterator[Fact]:
    """Yield the changes by the plugin: modules, settings, and files of llmb."""
    model, sources = record.diff.model, record.diff.sources
    for words, names in (
        ("Modules replaced", model.modules_replaced),
        ("Modules added", model.modules_added),
        ("Modules removed", model.modules_removed),
        ("Parameters repacked", model.parameters_repacked),
    ):
        yield Fact(words, f"{len(names)}" if names else "none", few(names, _MOST_NAMES))
    for change in record.diff.settings[:MOST_ROWS]:
        sides = f"{change.before or 'unset'} → {change.after or 'unset'}"
        yield Fact(f"Setting {change.name}", sides)
    if sources is None:
        yield Fact("Files of llmb", "not compared", record.diff.sources_base)
    else:
        changed = f"{len(sources)} differ from {record.diff.sources_base}"
        yield Fact("Files of llmb", changed, few(sources, _MOST_NAMES))
