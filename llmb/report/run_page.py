"""The page of one run, ``report.html``: one self-contained file, made from the record alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from llmb.audit.rules import RULES
from llmb.errors import BundleRefusedError
from llmb.measure import statistics
from llmb.measure.summary import steal_share
from llmb.records.declared import marked
from llmb.records.finding import Finding, Status, Verdict
from llmb.records.precision_recipe import FORWARD, INPUT, WEIGHT, PrecisionRecipe, RecipeRow
from llmb.records.run_record import Rank, RepeatTiming, RunRecord
from llmb.report import run_figures
from llmb.report.ceiling_parts import CeilingParts, ceiling_parts
from llmb.report.drawing import Drawing, seconds
from llmb.report.render import NOT_MEASURED, number
from llmb.report.run_figures import REST, BarPart, colour
from llmb.report.runs import hardware_of
from llmb.report.scales import Scale, scales
from llmb.report.templates import page_of

T = TypeVar("T")

STYLES = ("leaderboard.css", "run.css")
_MOST_ROWS = 60
MEANING = {
    Verdict.INVALID: "a blocking rule failed",
    Verdict.UNVERIFIED: "a blocking rule could not be observed",
    Verdict.FLAGGED: "consistent, and somebody should look",
    Verdict.CONSISTENT: "every blocking rule was observed and kept",
    Verdict.REPRODUCED: "consistent, and repeated by another party",
}
#: Findings by status, in the order of the page.
_STATUSES = (
    (Status.FAIL, "Failed"),
    (Status.FLAG, "Flagged"),
    (Status.NOT_OBSERVED, "Not observed"),
    (Status.PASS, "Passed"),
    (Status.NOTE, "Notes"),
    (Status.NOT_APPLICABLE, "Not applicable"),
)
_SIGNS = {
    Status.PASS: "✓ pass",
    Status.FAIL: "✗ fail",
    Status.FLAG: "⚑ flag",
    Status.NOT_OBSERVED: "? not observed",
    Status.NOTE: "note",
    Status.NOT_APPLICABLE: "not applicable",
}
_PER_SECOND = ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"))
_RULES = {rule.id: rule for rule in RULES}


@dataclass(frozen=True)
class Fact:
    """A name and a value, both in words."""

    name: str
    value: str
    #: Small print below the value.
    note: str = ""


@dataclass(frozen=True)
class RuleShown:
    """A finding on the page, with the rule's title and the scales of its numbers."""

    finding: Finding
    title: str
    sign: str
    scales: tuple[Scale, ...]
    #: Likely honest causes of a broken rule, and what the rule cannot see.
    causes: tuple[str, ...]
    cannot_see: str


@dataclass(frozen=True)
class MemoryOfRank:
    """Peak memory of one rank, beside the memory of its device."""

    rank: Rank
    text: str
    drawing: Drawing | None


def run_page(record: RunRecord, command: str | None) -> str:
    """Return the page of ``record`` as HTML: no script, nothing loaded, below 1 MB.

    Figures are computed from the record's stamps. A figure of stamps that fit no figure is left
    out: a stranger's record may hold any numbers.

    Args:
        record: the run.
        command: the command that repeats the run; None: no command can be shown.

    Raises:
        BundleRefusedError: the record's numbers are of no run, such as a stamp of 400 digits.
    """
    try:
        return _page(record, command)
    except (ValueError, ArithmeticError, IndexError) as error:
        raise BundleRefusedError(
            f"run {record.run_id}: no page can be made of its numbers ({error}): llmb verify says "
            "more"
        ) from None


def _page(record: RunRecord, command: str | None) -> str:
    timing = record.timing
    return page_of(
        "run.html.jinja",
        STYLES,
        record=record,
        command=command,
        title=title_of(record),
        hardware=hardware_of(record),
        meaning=MEANING[record.audit.verdict],
        verdict=record.audit.verdict.value,
        headline=headline(record),
        interval=interval_words(record.result.ci95),
        tiles=list(_tiles(record)),
        broken=[f for f in record.audit.findings if f.status in (Status.FAIL, Status.FLAG)],
        rates=drawn(lambda: run_figures.block_rates(record)),
        timeline=drawn(lambda: run_figures.timeline(timing)),
        trace=drawn(lambda: run_figures.step_trace(timing)),
        histogram=drawn(lambda: run_figures.step_histogram(timing)),
        parts=drawn(lambda: ceiling_parts(record)),
        budget=drawn(lambda: _budget(ceiling_parts(record))),
        memory=_memory(record),
        gauges=drawn(lambda: run_figures.gauges(timing)) or (),
        recipe=record.precision_recipe,
        recipe_rows=recipe_rows(record.precision_recipe),
        directions=DIRECTIONS,
        recipe_bar=drawn(lambda: _recipe_bar(record)),
        rules=rules_of(record),
        repeats=list(_repeats(record)),
        settings=list(_settings(record)),
        environment=list(_environment(record)),
        plugin=list(_plugin(record)),
        changes=list(_changes(record)),
        most=_MOST_ROWS,
        marked=marked,
        flops=flops,
        gigabytes=gigabytes,
        number=number,
        seconds=seconds,
        bar=run_figures.bar,
        not_measured=NOT_MEASURED,
    )


def drawn(figure: Callable[[], T]) -> T | None:
    """Return the figure, or None where a record's numbers fit no figure."""
    try:
        return figure()
    except (ValueError, ArithmeticError, IndexError):
        return None


def title_of(record: RunRecord) -> str:
    """Return workload, mode and precision.

    Example: ``llama-1.4b train BF16``, or ``... BF16 declared, FP8 measured``.
    """
    precision, effective = record.precision.declared, record.precision.effective
    if effective != precision:
        precision += f" declared, {effective + ' measured' if effective else 'not observed'}"
    return f"{record.workload.name} {record.workload.mode} {precision}"


def headline(record: RunRecord) -> str:
    """Return tokens/s. Example: ``12,345``, ``11.5``."""
    return number(record.result.tokens_per_second)


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


def _tiles(record: RunRecord) -> Iterator[Fact]:
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
    yield Fact("Timed window", window, f"{timing.timed_steps} steps, {which}")


def _per_second(amount: float, timing: RepeatTiming) -> str:
    """Return ``amount`` over the length of the window. Example: 2,500 J in 5 s are "500"."""
    window_ns = timing.stop_ns - timing.start_ns
    return NOT_MEASURED if window_ns <= 0 else f"{amount / (window_ns / 1e9):,.4g}"


def _budget(parts: CeilingParts | None) -> tuple[Drawing, tuple[BarPart, ...]] | None:
    if parts is None or not parts.budget:
        return None
    return run_figures.shares_bar("A step of the timed window", parts.budget), parts.budget


def _recipe_bar(record: RunRecord) -> tuple[Drawing, tuple[BarPart, ...]] | None:
    recipe = record.precision_recipe
    if recipe is None or recipe.largest is None:
        return None
    parts = tuple(
        BarPart(
            share.format or NOT_MEASURED,
            share.flops_share,
            f"{share.flops_share:.1%}",
            colour(n) if share.format else REST,
        )
        for n, share in enumerate(recipe.shares[:_MOST_ROWS])
    )
    return run_figures.shares_bar("FLOPs of a step by measured format", parts), parts


@dataclass(frozen=True)
class RecipeShown:
    """One product of the recipe: a cell for each direction, and the share of a step's FLOPs."""

    product: str
    cells: tuple[str, ...]
    share: float


DIRECTIONS = (FORWARD, INPUT, WEIGHT)


def recipe_rows(recipe: PrecisionRecipe | None) -> tuple[list[RecipeShown], list[str]]:
    """Return a row for each product, and the reasons for missing measurements, each once.

    A cell names format, bits and layers. Example: ``BF16, 7.0 bits`` where all layers are alike,
    ``FP8, 2.9 bits in 10 layers; BF16, 7.0 bits in 2 layers`` where they differ.
    """
    if recipe is None:
        return [], []
    products = list(dict.fromkeys(row.product for row in recipe.rows))[:_MOST_ROWS]
    found = []
    for product in products:
        of_it = [row for row in recipe.rows if row.product == product]
        cells = tuple(
            _recipe_cell([row for row in of_it if row.direction == direction])
            for direction in DIRECTIONS
        )
        found.append(RecipeShown(product, cells, sum(row.flops_share for row in of_it)))
    return found, list(dict.fromkeys(row.why for row in recipe.rows if row.why))[:_MOST_ROWS]


def _recipe_cell(rows: Sequence[RecipeRow]) -> str:
    def words(row: RecipeRow) -> str:
        bits = "" if row.significand_bits is None else f", {row.significand_bits:.1f} bits"
        layers = f" in {row.layers} layer{'s' if row.layers > 1 else ''}" if len(rows) > 1 else ""
        return f"{row.format or NOT_MEASURED}{bits}{layers}"

    return "; ".join(map(words, rows))


def rules_of(record: RunRecord) -> list[tuple[str, list[RuleShown]]]:
    """Return the findings by status, the worst first. Example: ``("Failed", [...])``."""
    found = []
    for status, title in _STATUSES:
        of_it = [f for f in record.audit.findings[:_MOST_ROWS] if f.status is status]
        if of_it:
            found.append((title, [_rule(finding) for finding in of_it]))
    return found


def _rule(finding: Finding) -> RuleShown:
    rule = _RULES.get(finding.id)
    is_broken = finding.status in (Status.FAIL, Status.FLAG)
    return RuleShown(
        finding=finding,
        title=rule.title if rule else "a rule that this llmb does not know",
        sign=_SIGNS[finding.status],
        scales=scales(finding),
        causes=rule.causes if rule and is_broken else (),
        cannot_see=rule.cannot_see if rule else "",
    )


def _memory(record: RunRecord) -> list[MemoryOfRank]:
    sizes = {device.name: device.memory_bytes for device in record.system.devices}
    found = []
    for rank in record.topology.ranks[:_MOST_ROWS]:
        peak, room = rank.peak_memory_bytes, sizes.get(rank.device)
        text, drawing = gigabytes(peak), None
        if peak is not None and room:
            text += f" of {gigabytes(room)} ({peak / room:.0%})"
            drawing = run_figures.bar(peak / room, f"Peak memory of rank {rank.rank}")
        if rank.alone_s is not None:
            text += f"; a step without communication: {seconds(rank.alone_s)}"
        found.append(MemoryOfRank(rank, text, drawing))
    return found


def _repeats(record: RunRecord) -> Iterator[tuple[str, RepeatTiming, str]]:
    """Yield number, timing and tokens/s of each repeat, if there are several."""
    repeats = record.timing.repeats
    tokens = record.workload.tokens_per_step
    for n, repeat in enumerate(repeats[:_MOST_ROWS] if len(repeats) > 1 else ()):
        rate = drawn(lambda repeat=repeat: statistics.tokens_per_second(repeat, tokens))  # type: ignore[misc]
        yield f"{n + 1}", repeat, NOT_MEASURED if rate is None else number(rate)


def _settings(record: RunRecord) -> Iterator[Fact]:
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
    how = f" ({config.compile_mode})" if config.executor == "inductor" else ""
    yield Fact("Executor", f"{config.executor}{how}")
    yield Fact("Tokens", workload.tokens)
    yield Fact("Seed", f"{config.seed}", _committed(record))
    for name, option in list(config.plugin_options.items())[:_MOST_ROWS]:
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


def _environment(record: RunRecord) -> Iterator[Fact]:
    """Yield the machine and its software, as the operating system and the plugin tell."""
    system, before, after = record.system, record.system.load_before, record.system.load_after
    for device in system.devices[:_MOST_ROWS]:
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
    for name, version in list(system.drivers.items())[:_MOST_ROWS]:
        yield Fact(name, version)
    for name, value in list(system.env.items())[:_MOST_ROWS]:
        yield Fact(name, value)


def _plugin(record: RunRecord) -> Iterator[Fact]:
    plugin = record.plugin
    yield Fact(marked("Plugin"), f"{plugin.name} {plugin.version}", plugin.distribution)
    openness = "strict: the source of every component is open" if plugin.strict else "not strict"
    yield Fact("Openness", openness, f"{len(plugin.files)} Python files, each by its digest")
    if lacking := plugin.lacks.named():
        yield Fact("The device lacks", ", ".join(lacking))
    for part in plugin.closed_components[:_MOST_ROWS]:
        about = (
            f"{gigabytes(part.bytes)}, {part.licence}, {part.where_to_get}, sha256 {part.sha256}"
        )
        yield Fact("Closed component", f"{part.name} {part.version or ''}", about)
    for helper in plugin.declared_helpers[:_MOST_ROWS]:
        yield Fact(
            "Helper thread", helper.name, f"{helper.cpu_share:.1%} of a core: {helper.reason}"
        )
    for patch in plugin.declared_patches[:_MOST_ROWS]:
        yield Fact("Declared patch", patch.target, patch.reason)


def _changes(record: RunRecord) -> Iterator[Fact]:
    model, sources = record.diff.model, record.diff.sources
    for words, names in (
        ("Modules replaced", model.modules_replaced),
        ("Modules added", model.modules_added),
        ("Modules removed", model.modules_removed),
        ("Parameters repacked", model.parameters_repacked),
    ):
        yield Fact(words, f"{len(names)}" if names else "none", _some(names))
    for change in record.diff.settings[:_MOST_ROWS]:
        sides = f"{change.before or 'unset'} → {change.after or 'unset'}"
        yield Fact(f"Setting {change.name}", sides)
    if sources is None:
        yield Fact("Files of llmb", "not compared", record.diff.sources_base)
    else:
        changed = f"{len(sources)} differ from {record.diff.sources_base}"
        yield Fact("Files of llmb", changed, _some(sources))


def _some(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
