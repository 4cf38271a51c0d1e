"""The content of one bundle's page as JSON data: texts cut to a size, figures as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmb.measure import link_words, statistics
from llmb.records.bundle import SIGNATURES
from llmb.records.declared import marked
from llmb.records.finding import Finding
from llmb.records.printable import few
from llmb.records.run_directory import LOG
from llmb.records.run_record import RunRecord
from llmb.report.board import BoardRow
from llmb.report.columns import interval
from llmb.report.render import NOT_MEASURED, number, visible
from llmb.submission.bundles import TEXTS

#: Limit of a shown diff in characters; the bundle has the full diff. All pages are in one file:
#: above 1,000 pages the limit shrinks. Example: 10,000 pages have 1,200 characters per diff.
_LONGEST_TEXT = 12_000
_ALL_TEXTS = 1_000 * _LONGEST_TEXT
_LONGEST_LOG = 4_000
#: Every other text; the longest of a committed bundle, the limit of rule L1, has 1,000 characters.
_LONGEST_VALUE = 2_000
_MOST_POINTS = 400
_MOST_ROWS = 60


def detail(row: BoardRow, command: str | None, pages: int = 1) -> dict[str, Any]:
    """Return the page data of ``row``; ``pages`` is the number of all pages.

    ``command`` repeats the run, such as ``llmb run --workload ...``; None: no command is shown.
    """
    longest = min(_LONGEST_TEXT, _ALL_TEXTS // max(1, pages))
    record = row.entry.record
    plugin = record.plugin
    data = {
        "head": _head(row),
        "facts": [list(pair) for pair in _facts(row)],
        "command": command,
        "trace": _trace(record),
        "memory": _memory(record),
        "search": _search(record),
        "findings": [_finding(finding) for finding in record.audit.findings[:_MOST_ROWS]],
        "limits": list(record.audit.limits),
        "recipe": [list(line) for line in _recipe(record)][:_MOST_ROWS],
        "notes": [*row.marks, *record.warnings][:_MOST_ROWS],
        "changes": [list(pair) for pair in _changes(record)],
        "diffs": [
            {"name": name, "text": _cut(row.entry.texts[name], longest)}
            for name in TEXTS
            if name != LOG and row.entry.texts.get(name)
        ],
        "log": _tail(row.entry.texts.get(LOG, ""), min(_LONGEST_LOG, longest)),
        "closed": [
            {
                "name": part.name,
                "version": part.version or "unknown",
                "sha256": part.sha256,
                "size": _bytes(part.bytes),
                "where": part.where_to_get,
                "licence": part.licence,
            }
            for part in plugin.closed_components[:_MOST_ROWS]
        ],
        "helpers": [
            [helper.name, helper.reason, f"{helper.cpu_share:.1%}"]
            for helper in plugin.declared_helpers[:_MOST_ROWS]
        ],
        "patches": [[patch.target, patch.reason] for patch in plugin.declared_patches[:_MOST_ROWS]],
        "software_title": marked("Software"),
        "software": [list(pair) for pair in _software(record)],
        "repetitions": [
            [
                one.bundle_id[:12],
                f"{one.difference_percent:+.2f} %",
                "; ".join(one.lacking) or "it counts",
            ]
            for one in row.repetitions[:_MOST_ROWS]
        ],
    }
    own = {"diffs", "log"}  # with limits of their own
    data = {name: part if name in own else _bounded(part) for name, part in data.items()}
    shown: dict[str, Any] = _readable(data)
    return shown


def _bounded(part: Any) -> Any:
    """Return ``part`` with every text cut: a text of a record may have thousands of characters."""
    if isinstance(part, dict):
        return {name: _bounded(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_bounded(value) for value in part]
    return _cut(part, _LONGEST_VALUE) if isinstance(part, str) else part


def _head(row: BoardRow) -> dict[str, str | None]:
    return {
        "title": f"{row.system or 'unknown system'}: {row.group.title}",
        "tps": number(row.tokens_per_second),
        "interval": interval(row),
        "verdict": row.verdict.value,
        "openness": "strict" if row.strict else "closed components",
        "unranked": row.unranked,
    }


def _facts(row: BoardRow) -> Iterator[tuple[str, str]]:
    record = row.entry.record
    result, config, timing = record.result, record.config, record.timing
    whose = row.entry.whose
    name = f" ({whose.organisation})" if whose and whose.organisation else ""
    yield marked("Submitter"), f"{row.submitter or 'unknown'}{name}"
    if whose and whose.contact:
        yield marked("Contact"), whose.contact
    if row.availability is not None:
        yield marked("Availability"), row.availability
    yield marked("Device"), f"{row.devices} x {row.device} ({config.device})"
    yield marked("Plugin"), f"{row.plugin} {row.plugin_version} ({record.plugin.distribution})"
    yield from _links(record)
    yield "Precision", f"{record.precision.declared} declared, {_effective(record)}"
    recipe = record.precision_recipe
    yield "Measured precision", recipe.headline if recipe else NOT_MEASURED
    yield "Batch size", f"{config.batch_size} ({record.workload.tokens_per_step:,} tokens a step)"
    yield "Executor", row.executor
    yield "Per device", f"{number(row.tokens_per_second_per_device)} tokens/s"
    yield "Window", f"{timing.timed_steps} steps in {row.window_s:,.2f} s, {_repeats(record)}"
    if (step := result.step_time_s) is not None:
        spread = f"p5 {step.p5:.4g}, p95 {step.p95:.4g}, cv {step.cv:.1%}"
        yield "Step time", f"{step.median:.4g} s median ({spread})"
    share, mfu, energy = row.fraction_of_ceiling, result.mfu, result.energy
    yield "Share of ceiling", NOT_MEASURED if share is None else f"{share:.1%}"
    yield (
        "MFU",
        f"{mfu.value:.1%} of {mfu.peak_source}" if mfu else f"{NOT_MEASURED}: no peak known",
    )
    words = f"{number(energy.tokens_per_joule)} tokens/J ({row.energy_source})" if energy else ""
    yield "Energy", words or NOT_MEASURED
    if result.loss_first is not None and result.loss_last is not None:
        yield "Loss", f"{result.loss_first:.4f} at START, {result.loss_last:.4f} at STOP"
    for metric in result.metrics:
        yield metric.name, f"{metric.value:,.6g} {metric.unit}"
    yield marked("Date"), row.created_utc
    if (link := record.reproduction_of) is not None:
        yield "Repeats", f"bundle {link.bundle_id[:12]}, {link.difference_percent:+.2f} %"
    yield "Rules", f"{record.rules_version}, llmb {record.llmb_version}"
    yield "Signatures", _signatures(row)
    yield "Bundle id", row.bundle_id
    yield "Files", row.entry.path


def _links(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the links between the ranks: bandwidths, ranks of each host, and each kind of host."""
    found = record.interconnect
    if found is None:
        return
    text = f"{link_words.headline(found)}, {link_words.whose(found)}"
    yield marked("Interconnect"), text
    yield from link_words.curves(found)
    yield "Ranks", link_words.sharing(found)
    for words in link_words.kinds_of_hosts(found):
        yield from words


def _recipe(record: RunRecord) -> Iterator[tuple[str, str, str, str]]:
    """Yield product or state, direction, measured format, and share of FLOPs or method."""
    recipe = record.precision_recipe
    if recipe is None:
        return
    for row in recipe.rows:
        layers = f" in {row.layers} layer{'s' if row.layers > 1 else ''}"
        measured = (row.format or NOT_MEASURED) + layers
        yield row.product, row.direction, measured, row.why or f"{row.flops_share:.1%} of FLOPs"
    for state in recipe.state:
        yield state.name, "state", state.value or NOT_MEASURED, state.how


def _effective(record: RunRecord) -> str:
    bits, effective = record.precision.bits, record.precision.effective
    if effective is None:
        return "effective not observed"
    figures = (bits.forward_min, bits.gradient_min)
    known = [f"{bit:.2f}" for bit in figures if bit is not None]
    return f"{effective} measured" + (f" ({' and '.join(known)} bits)" if known else "")


def _repeats(record: RunRecord) -> str:
    count = len(record.timing.repeats)
    return "one process" if count == 1 else f"median of {count} processes"


def _signatures(row: BoardRow) -> str:
    names = [name.removeprefix(SIGNATURES) for name in row.entry.signatures]
    return f"{', '.join(names)}: llmb verify --signers checks them" if names else "none"


def _trace(record: RunRecord) -> dict[str, Any] | None:
    """Return the time per step, or per fence block if the step clock is ``enqueue``."""
    timing = record.timing
    try:
        values = statistics.step_times_s(timing)
    except (ValueError, IndexError, ZeroDivisionError):
        return None
    by_block = timing.step_clock == "enqueue"
    stride = max(1, -(-len(values) // _MOST_POINTS))
    return {
        "per": "fence block" if by_block else "step",
        "stride": stride,
        "first": timing.warmup_steps + 1,
        "values": [float(f"{value:.5g}") for value in values[::stride]],
        "audited": [] if by_block else [step + 1 for step in timing.audited_steps],
    }


def _memory(record: RunRecord) -> list[list[Any]]:
    """Return label, peak bytes and device memory in bytes for every rank; None: unknown."""
    sizes = {device.name: device.memory_bytes for device in record.system.devices}
    ranks = [rank for rank in record.topology.ranks if rank.peak_memory_bytes is not None]
    return [
        [f"rank {rank.rank}", rank.peak_memory_bytes, sizes.get(rank.device)]
        for rank in ranks[:_MOST_ROWS]
    ]


def _search(record: RunRecord) -> list[list[str]]:
    if record.batch_size_search is None:
        return []
    trials = sorted(record.batch_size_search.trials, key=lambda trial: trial.batch_size)
    return [
        [
            str(trial.batch_size),
            trial.status.replace("_", " "),
            "" if trial.tokens_per_second is None else number(trial.tokens_per_second),
            "" if trial.peak_memory_bytes is None else _bytes(trial.peak_memory_bytes),
        ]
        for trial in trials[:_MOST_ROWS]
    ]


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "level": finding.level.value,
        "status": finding.status.value.replace("_", " "),
        "observer": finding.observer,
        "message": finding.message,
        "measured": finding.measured,
        "honest": finding.honest,
        "limit": finding.limit,
    }


def _changes(record: RunRecord) -> Iterator[tuple[str, str]]:
    model, sources = record.diff.model, record.diff.sources
    for words, names in (
        ("Modules replaced", model.modules_replaced),
        ("Modules added", model.modules_added),
        ("Modules removed", model.modules_removed),
        ("Parameters repacked", model.parameters_repacked),
    ):
        yield words, few(names, 3) or "none"
    for change in record.diff.settings[:_MOST_ROWS]:
        yield f"Setting {change.name}", f"{change.before or 'unset'} → {change.after or 'unset'}"
    compared = "nothing to compare with" if sources is None else few(sources, 3) or "none"
    yield f"Files of llmb that differ from {record.diff.sources_base}", compared


def _software(record: RunRecord) -> Iterator[tuple[str, str]]:
    system = record.system
    cpu = f"{system.cpu.model or 'unknown'}, {system.cpu.usable_cores} cores usable"
    yield "Processor", f"{cpu}, {system.cpu.architecture}"
    yield "Main memory", _bytes(system.memory.total_bytes)
    yield "System", f"{system.os}, {system.python}, torch {system.torch or 'unknown'}"
    yield from list(system.drivers.items())[:_MOST_ROWS]
    yield from list(system.env.items())[:_MOST_ROWS]


def _bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n... cut here, {len(text) - longest:,} characters more in the bundle"


def _tail(text: str, longest: int) -> str:
    return text if len(text) <= longest else "..." + text[-longest:]


def _readable(item: Any) -> Any:
    """Return ``item`` with hidden characters escaped in every text, line by line."""
    if isinstance(item, str):
        if item.isprintable() and len(item) <= _LONGEST_TEXT:
            return item
        text = _cut(item, 2 * _LONGEST_TEXT).expandtabs(4)
        return "\n".join(visible(line) for line in text.split("\n"))
    if isinstance(item, dict):
        return {key: _readable(part) for key, part in item.items()}
    if isinstance(item, list):
        return [_readable(part) for part in item]
    return item
