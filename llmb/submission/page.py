"""The page for people inside a bundle, README.md: written from the record alone, and checked.

Every word of the record is untrusted and stands in a code span, without meaning in Markdown or
HTML. A page states its version. To change the look of pages, add a version: pages of old bundles
are written again in the old version, and compared with the record.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from llmb.records.finding import Finding, Level, Status, Verdict
from llmb.records.run_record import RunRecord

_LONGEST, _MOST = 300, 12
#: Meaning of each verdict (docs/rules.md).
_MEANING = {
    Verdict.INVALID: "a blocking rule failed",
    Verdict.UNVERIFIED: "a blocking rule could not be observed",
    Verdict.FLAGGED: "consistent, and somebody should look",
    Verdict.CONSISTENT: "every blocking rule was observed and kept",
    Verdict.REPRODUCED: "consistent, and repeated by another party",
}
_VERSION = re.compile(rb"<!-- llmb\.page/([1-9][0-9]{0,8}) -->\n")


def page_bytes(record: RunRecord) -> bytes:
    """Return the page of ``record``, in the newest version."""
    return _PAGES[max(_PAGES)](record)


def fault(page: bytes, record: RunRecord) -> str | None:
    """Return why ``page`` differs from llmb's page for ``record``, or None if equal."""
    match = _VERSION.match(page)
    write = _PAGES.get(int(match.group(1))) if match else None
    if write is None:
        return "is not of a version this llmb knows: update llmb?"
    return None if write(record) == page else "does not say what the record does"


def code(text: str) -> str:
    """Return untrusted ``text`` as a Markdown code span: shown unchanged, and inert."""
    shown = "".join(map(_shown, text))
    if len(shown) > _LONGEST:
        shown = shown[: _LONGEST - 3] + "..."
    if not shown.strip():
        return "(empty)"
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    gap = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{gap}{shown}{gap}{fence}"


def _shown(character: str) -> str:
    # Unicode 3.2 data are the same in every Python: a page must not depend on the Python version.
    kind = unicodedata.ucd_3_2_0.category(character)
    if character == " " or kind[0] in "LMNPS":
        return character
    return character.encode("unicode_escape").decode("ascii")


def _page_1(record: RunRecord) -> bytes:
    return _page(1, record)


def _page_2(record: RunRecord) -> bytes:
    """Return the page with the repeated run, if this run repeats a run."""
    return _page(2, record, _repeats(record))


def _page_3(record: RunRecord) -> bytes:
    """Return the page with the measured precision of each matrix product."""
    return _page(3, record, _repeats(record), _recipe(record))


def _page(version: int, record: RunRecord, *below_the_head: Iterable[str]) -> bytes:
    parts = (
        _head(record),
        *below_the_head,
        _result(record),
        _audit(record),
        _system(record),
        _settings(record),
        _plugin(record),
        _checking(),
    )
    written = [lines for part in parts if (lines := list(part))]
    lines = [f"<!-- llmb.page/{version} -->", *(line for part in written for line in (*part, ""))]
    return "\n".join(lines).encode()


def _head(record: RunRecord) -> Iterator[str]:
    rate = f"{record.result.tokens_per_second:,.2f} tokens/s"
    precision = record.precision.effective or f"{record.precision.declared} (declared)"
    work = f"{record.workload.name} {record.workload.mode} {precision}"
    yield f"# {code(work)}: {rate}"
    yield ""
    strict = "strict" if record.plugin.strict else "not strict"
    verdict = record.audit.verdict
    yield f"**{verdict.value}** ({_MEANING[verdict]}), {record.class_}, {strict}."
    yield ""
    yield f"- run {code(record.run_id)}, {code(record.created_utc)}"
    versions = f"llmb {code(record.llmb_version)}, rules {code(record.rules_version)}"
    yield f"- {versions}; this page is written from `record.json`, which is what counts"
    for text in (*record.waivers, *record.warnings):
        yield f"- note: {code(text)}"


def _repeats(record: RunRecord) -> Iterator[str]:
    original = record.reproduction_of
    if original is None:
        return
    yield "## What it repeats"
    yield f"- bundle {code(original.bundle_id)}, run {code(original.run_id)}"
    interval = "not measured"
    if original.ci95 is not None:
        interval = f"{original.ci95[0]:,.2f} to {original.ci95[1]:,.2f}"
    yield f"- that has {original.tokens_per_second:,.2f} tokens/s, 95 % interval {interval}"
    yield f"- this run differs by {original.difference_percent:+.2f} %"


def _recipe(record: RunRecord) -> Iterator[str]:
    yield "## Measured precision"
    recipe = record.precision_recipe
    if recipe is None:
        yield "Not measured."
        return
    yield f"**{code(recipe.headline)}** of a step's FLOPs, as a probe of this run saw it."
    yield ""
    yield "| product | direction | format | layers | of FLOPs |"
    yield "|-|-|-|-|-|"
    for row in recipe.rows:
        name = code(row.format) if row.format else f"not measured: {code(row.why or '')}"
        cells = (code(row.product), row.direction, name, f"{row.layers}", f"{row.flops_share:.1%}")
        yield f"| {' | '.join(cells)} |"
    yield ""
    for state in recipe.state:
        value = code(state.value) if state.value else "not measured"
        yield f"- {code(state.name)}: {value} ({code(state.how)})"


def _result(record: RunRecord) -> Iterator[str]:
    result, timing = record.result, record.timing
    seconds = (timing.stop_ns - timing.start_ns) / 1e9
    yield "## Result"
    interval = "not measured"
    if result.ci95 is not None:
        interval = f"{result.ci95[0]:,.2f} to {result.ci95[1]:,.2f}"
    yield f"- tokens/s: {result.tokens_per_second:,.2f}, 95 % interval {interval}"
    devices = f"{record.topology.world_size} on {record.topology.nodes} node(s)"
    yield f"- devices: {devices}, {result.tokens_per_second_per_device:,.2f} tokens/s each"
    warmup, repeats = timing.warmup_steps, len(timing.repeats)
    yield (
        f"- window: {timing.timed_steps} steps in {seconds:,.2f} s after {warmup} untimed ones, "
        f"{repeats} repeat(s)"
    )
    step = result.step_time_s
    if step is not None:
        yield f"- step: {step.median:.4g} s median, {step.p5:.4g} to {step.p95:.4g} s (p5, p95)"
    share = result.fraction_of_ceiling
    yield f"- share of what the device attains: {_or_not(share, '.1%')}"
    yield f"- MFU: {_or_not(result.mfu.value if result.mfu else None, '.1%')}"
    yield f"- peak memory: {_gb(result.peak_memory_bytes)}"
    energy = result.energy
    yield f"- tokens per joule: {_or_not(energy.tokens_per_joule if energy else None, '.4g')}"
    for metric in result.metrics:
        yield f"- {code(metric.name)}: {metric.value:,.6g} {code(metric.unit)}"


def _audit(record: RunRecord) -> Iterator[str]:
    audit = record.audit
    yield f"## Audit: {audit.verdict.value}"
    ids = ", ".join(code(finding.id) for finding in audit.findings if _is_kept(finding)) or "none"
    yield f"- blocking rules that passed: {ids}"
    for finding in audit.findings:
        if not _is_kept(finding):
            yield f"- {_finding(finding)}"
    bits = record.precision.bits
    yield (
        f"- effective bits, run and honest model: forward {_or_not(bits.forward_min, '.3f')} and "
        f"{_or_not(bits.honest_forward_min, '.3f')}, gradients {_or_not(bits.gradient_min, '.3f')} "
        f"and {_or_not(bits.honest_gradient_min, '.3f')}"
    )


def _is_kept(finding: Finding) -> bool:
    return finding.level is Level.BLOCK and finding.status is Status.PASS


def _finding(finding: Finding) -> str:
    status = finding.status.value.replace("_", " ")
    return f"{code(finding.id)} ({finding.level.value}) {status}: {code(finding.message)}"


def _system(record: RunRecord) -> Iterator[str]:
    system = record.system
    yield "## System"
    yield f"- processor: {code(system.cpu.model or 'unknown')}, {system.cpu.usable_cores} cores"
    yield f"- memory: {_gb(system.memory.total_bytes)}"
    for device in system.devices[:_MOST]:
        what = code(device.description or "unknown")
        yield f"- device {code(device.name)}: {what}, memory {_gb(device.memory_bytes)}"
    yield from _more(len(system.devices), "devices")
    yield f"- software: {code(system.os)}, {code(system.python)}, torch {code(system.torch or '')}"
    for name in sorted(system.drivers)[:_MOST]:
        yield f"- {code(name)}: {code(system.drivers[name])}"
    yield from _more(len(system.drivers), "versions")


def _settings(record: RunRecord) -> Iterator[str]:
    config, changes = record.config, record.diff.settings
    yield "## Settings"
    yield f"- plugin {code(config.plugin)}, device {code(config.device)}, seed {config.seed}"
    yield f"- batch size {config.batch_size}, {record.workload.tokens_per_step:,} tokens a step"
    if record.batch_size_search is not None:
        trials = len(record.batch_size_search.trials)
        yield f"- found by a search of {trials} trials, which `record.json` lists"
    for name in sorted(config.plugin_options)[:_MOST]:
        yield f"- option {code(name)}: {code(str(config.plugin_options[name]))}"
    yield from _more(len(config.plugin_options), "options")
    if record.seed_commitment is not None:
        yield f"- the seed was committed to by {code(record.seed_commitment.committed_by)}"
    stamps = record.timing.time_stamps
    if stamps is not None and stamps.tokens_per_second is not None:
        least = f"at least {stamps.tokens_per_second:,.1f} tokens/s"
        yield f"- time stamps of {code(stamps.authority)}: {least} by its clock"
    yield f"- changed by the plugin (`settings.diff`): {len(changes)}"
    for change in changes[:_MOST]:
        yield f"  - {code(change.name)}: {_side(change.before)} to {_side(change.after)}"
    yield from _more(len(changes), "changes")


def _plugin(record: RunRecord) -> Iterator[str]:
    plugin, model = record.plugin, record.diff.model
    yield "## Plugin, and what it changed"
    package = code(f"{plugin.distribution} {plugin.version}")
    yield f"- {package}, {len(plugin.files)} files in `plugin/`"
    for words, names in (
        ("modules replaced", model.modules_replaced),
        ("modules added", model.modules_added),
        ("modules removed", model.modules_removed),
        ("parameters repacked", model.parameters_repacked),
    ):
        yield f"- {words} (`model.diff`): {_list(names)}"
    if helpers := [f"{h.name} ({h.cpu_share:.1%} of a core)" for h in plugin.declared_helpers]:
        yield f"- helper threads it declares: {_list(helpers)}"
    yield f"- patches it declares: {_list([patch.target for patch in plugin.declared_patches])}"
    sources = record.diff.sources
    base = code(record.diff.sources_base)
    shown = "not compared" if sources is None else _list(sources)
    yield f"- llmb's own files that differ from {base} (`sources.diff`): {shown}"
    yield f"- closed components: {len(plugin.closed_components)}"
    for part in plugin.closed_components[:_MOST]:
        where = f"{code(part.where_to_get)}, licence {code(part.licence)}"
        yield f"  - {code(part.name)} {code(part.version or 'of no version')}, {part.bytes:,} bytes"
        yield f"    sha256 {code(part.sha256)}, from {where}"
    yield from _more(len(plugin.closed_components), "components")


def _checking() -> Iterator[str]:
    yield "## Check it"
    yield "From the folder of this page:"
    yield ""
    yield "```bash"
    yield "llmb verify .            # files, every derived number, every finding, signatures"
    yield "llmb show . --command    # the command line of this run"
    yield "llmb reproduce .         # the same run again, on hardware of the same class"
    yield "```"


def _more(count: int, what: str) -> Iterator[str]:
    if count > _MOST:
        yield f"- and {count - _MOST} more {what}"


def _list(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"{len(names)}: {', '.join(map(code, names[:_MOST]))}{more}"


def _side(value: str | None) -> str:
    return "unset" if value is None else code(value)


def _gb(value: int | None) -> str:
    return "not measured" if value is None else f"{value / 1e9:,.2f} GB"


def _or_not(value: float | None, form: str) -> str:
    return "not measured" if value is None else format(value, form)


#: Version -> writer of the page. Versions are only added.
_PAGES: dict[int, Callable[[RunRecord], bytes]] = {1: _page_1, 2: _page_2, 3: _page_3}
