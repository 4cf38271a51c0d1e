"""Prints the summary of a run record, on a terminal or in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmb.measure import link_words
from llmb.measure.statistics import LEAST_SHOWN, interval_values
from llmb.measure.summary import slowest_rank, steal_share
from llmb.records.declared import marked
from llmb.records.finding import Finding, Level, Status
from llmb.records.reproduction import ReproductionOf
from llmb.records.run_record import Duration, RunRecord, TimeStamps
from llmb.records.seed_commitment import SeedCommitment

NOT_MEASURED = "not measured"
#: Rows of the summary on a screen that is too small for all rows.
_BRIEF = ("workload", "precision", "device", "window", "step time", "share of ceiling")


def print_summary(
    record: RunRecord, *, of_a_stranger: bool = False, lines: int | None = None
) -> None:
    """Print headline, context and findings of ``record`` to stdout.

    Args:
        record: the run.
        of_a_stranger: mark declared values without a check (``llmb.records.declared``).
        lines: lines of the screen; rows and notes that would push the headline off are left out.
            None: print all.
    """
    console = Console(highlight=False)
    with console.capture() as captured:
        _print(console, record, of_a_stranger=of_a_stranger, is_brief=False)
    whole = captured.get()
    widths = (Text.from_ansi(line).cell_len for line in whole.splitlines())
    if lines is not None and sum(max(1, ceil(n / console.width)) for n in widths) > lines:
        _print(console, record, of_a_stranger=of_a_stranger, is_brief=True)
    else:
        console.file.write(whole)


def _print(console: Console, record: RunRecord, *, of_a_stranger: bool, is_brief: bool) -> None:
    result = record.result
    label = "OFFICIAL" if record.class_ == "official" else "DEBUG, not comparable"
    head = Text(f"{result.tokens_per_second:,.2f} tokens/s", style="bold")
    values = interval_values(record.timing.repeats)
    if result.ci95 is not None and values >= LEAST_SHOWN:
        head.append(f"   95 % interval {result.ci95[0]:,.2f} to {result.ci95[1]:,.2f}", "dim")
    head.append(f"   [{label}]", "green" if record.class_ == "official" else "yellow")
    console.print(head, soft_wrap=True)

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(record):
        if is_brief and name not in _BRIEF:
            continue
        table.add_row(marked(name) if of_a_stranger else name, Text(value))
    console.print(table)
    notes = [
        *_without_interval(values, len(record.timing.repeats)),
        *record.waivers,
        *record.warnings,
    ]
    if is_brief:
        notes = [*notes[:1], f"{len(notes[1:])} more notes and more rows: llmb show RUN_DIR"]
    for text in notes:
        console.print(Text(f"note: {text}", style="yellow"), soft_wrap=True)
    console.print(_verdict(record), soft_wrap=True)


def _without_interval(values: int, repeats: int) -> Iterator[str]:
    """Yield the reason for no interval, and the option for an interval."""
    if values < LEAST_SHOWN:
        counted = (
            f"{values} {'repeat' if repeats > 1 else 'fence block'}{'' if values == 1 else 's'}"
        )
        verb = "is" if values == 1 else "are"
        yield f"no 95 % interval: {counted} {verb} too few; use --repeats 5"


def _rows(record: RunRecord) -> Iterator[tuple[str, str]]:
    result, config, workload = record.result, record.config, record.workload
    effective = record.precision.effective or "not observed"
    devices = record.system.devices
    device = next((d for d in devices if d.name == config.device), next(iter(devices), None))
    yield "workload", f"{workload.name} {workload.mode}, {workload.parameters:,} parameters"
    yield "precision", f"{config.precision.described} declared, effective {effective}"
    if record.precision_recipe is not None:
        recipe = record.precision_recipe
        of = " (of a step's FLOPs)" if recipe.largest is not None else ""
        yield "measured precision", f"{recipe.headline}{of}"
    yield "batch size", f"{config.batch_size} ({workload.tokens_per_step:,} tokens a step)"
    if (how := ", ".join(_choices(record))) != "":
        yield "computed", how
    if record.seed_commitment is not None:
        yield "seed", _seed(record.seed_commitment)
    if record.reproduction_of is not None:
        yield "reproduces", _link(record.reproduction_of)
    yield from _ranks(record)
    what = record.system.cpu.model if config.device == "cpu" else device and device.description
    yield "device", f"{config.device}, {what or 'unknown'}, plugin {record.plugin.name}"
    if lacking := record.plugin.lacks.named():
        yield "device lacks", ", ".join(lacking)
    yield "window", _window(record)
    if (stamps := record.timing.time_stamps) is not None:
        yield "foreign clock", _foreign_clock(stamps)
    yield "step time", _step_time(record)
    yield "share of ceiling", _ceiling(record)
    yield "MFU", _mfu(record)
    yield "peak memory", _bytes(result.peak_memory_bytes)
    energy = result.energy
    yield "energy", f"{energy.tokens_per_joule:.3f} tokens/J" if energy else NOT_MEASURED
    for metric in result.metrics:
        yield metric.name, f"{metric.value:,.6g} {metric.unit}"
    yield "host", _host(record)
    if record.duration is not None:
        yield "whole run", _duration(record.duration)
    if result.loss_first is not None and result.loss_last is not None:
        yield "loss", f"{result.loss_first:.4f} at START, {result.loss_last:.4f} at STOP"


def _ranks(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the number of ranks, the layout, and the slowest rank."""
    topology, mesh = record.topology, record.config.parallelism
    if topology.world_size == 1:
        return
    sizes = ", ".join(
        f"{name} {size}"
        for name in ("pp", "dp_replicate", "dp_shard", "tp")
        if (size := getattr(mesh, name)) > 1
    )
    hosts = f"{topology.nodes} host{'s' if topology.nodes > 1 else ''}"
    yield "ranks", f"{topology.world_size} on {hosts}: {sizes}"
    if record.interconnect is not None:
        yield "interconnect", link_words.headline(record.interconnect)
    slowest = slowest_rank(topology)
    if slowest is None:
        yield "slowest rank", f"{NOT_MEASURED} (none can make a step alone)"
        return
    rank, ratio = slowest
    where = f"on {rank.device} of host {rank.host}"
    alone = f"a step alone {rank.alone_s:.4g} s, {ratio:.3f} times the median rank's"
    yield "slowest rank", f"{rank.rank} {where}: {alone}"


def _choices(record: RunRecord) -> Iterator[str]:
    """Yield every choice beyond the plain step, such as autocast."""
    config = record.config
    if config.executor != "eager":
        mode = f" ({config.compile_mode})" if config.executor == "inductor" else ""
        yield f"by {config.executor}{mode}"
    if config.mixed_precision:
        yield "float32 weights under autocast"
    if config.accumulate > 1:
        yield f"{config.accumulate} micro-batches of {config.micro_batch_size} accumulated"
    if config.sac_freq is not None:
        yield f"activations of {config.sac_freq} computed again"
    if config.dynamic:
        yield "sequences of many lengths"
    if config.new_tokens is not None:
        prompt, scope = config.prompt_length, config.generate_scope
        yield f"{config.new_tokens} tokens after a prompt of {prompt}, scope {scope}"
    if record.workload.tokens != "random":
        yield f"tokens of {record.workload.tokens}"
    if config.weights is not None:
        yield f"weights of {config.weights.sha256[:12]}"


def _foreign_clock(stamps: TimeStamps) -> str:
    if stamps.tokens_per_second is None:
        return f"{stamps.authority} gave no token at STOP"
    return f"at least {stamps.tokens_per_second:,.2f} tokens/s by {stamps.authority}"


def _seed(commitment: SeedCommitment) -> str:
    where = f" ({commitment.published_at})" if commitment.published_at else ""
    return f"committed to by {commitment.committed_by}{where}, as {commitment.commitment[:12]}"


def _link(link: ReproductionOf) -> str:
    rate = f"{link.tokens_per_second:,.2f} tokens/s"
    return f"bundle {link.bundle_id[:12]} with {rate}: {link.difference_percent:+.2f} %"


def _window(record: RunRecord) -> str:
    timing = record.timing
    seconds = (timing.stop_ns - timing.start_ns) / 1e9
    repeats = len(timing.repeats)
    of = f", median of {repeats} repeats" if repeats > 1 else ""
    text = f"{timing.timed_steps} steps in {seconds:,.2f} s after {timing.warmup_steps} untimed{of}"
    stopped = sum(stop.ns for stop in timing.stops) / 1e9
    judged = len(timing.stops)
    steps = "step" if judged == 1 else "steps"
    return f"{text}; {judged} judged {steps}, {stopped:,.2f} s" if judged else text


def _step_time(record: RunRecord) -> str:
    step = record.result.step_time_s
    if step is None:
        return NOT_MEASURED
    spread = f"p5 {step.p5:.4g}, p95 {step.p95:.4g}, cv {step.cv:.1%}"
    return f"{step.median:.4g} s median ({spread})"


def _ceiling(record: RunRecord) -> str:
    fraction, ceilings = record.result.fraction_of_ceiling, record.ceilings
    if fraction is None or ceilings is None:
        return NOT_MEASURED
    attainable = max(ceilings.before.flops_per_second, ceilings.after.flops_per_second)
    text = f"{fraction:.1%} of the {attainable / 1e12:.3g} TFLOP/s its matrix products attain here"
    held, share = ceilings.after.sustained, ceilings.after.sustained_share
    if held is None or share is None:
        return text
    return (
        f"{text} in bursts of 20 ms; {held.name} holds {share:.1%} of its burst's rate for "
        f"{held.seconds:.1g} s"
    )


def _mfu(record: RunRecord) -> str:
    mfu = record.result.mfu
    if mfu is None:
        return f"{NOT_MEASURED} (no datasheet peak is known for this device)"
    return f"{mfu.value:.1%} of {mfu.peak_flops / 1e12:,.0f} TFLOP/s ({mfu.peak_source})"


def _host(record: RunRecord) -> str:
    before, after = record.system.load_before, record.system.load_after
    share, timing = steal_share(before, after), record.timing
    parts = [f"load {_or_not(before.load_1min)} before, {_or_not(after.load_1min)} after"]
    parts.append(f"steal {'not measured' if share is None else f'{share:.1%}'}")
    if timing.cpu_s is not None:
        cores = timing.cpu_s / ((timing.stop_ns - timing.start_ns) / 1e9)
        parts.append(f"{cores:.2f} of {record.system.cpu.usable_cores} cores busy in the window")
    return ", ".join(parts)


def _duration(duration: Duration) -> str:
    off = duration.real_s / duration.estimated_s - 1
    return f"{duration.real_s:,.0f} s, {off:+.0%} of the estimated {duration.estimated_s:,.0f} s"


def _or_not(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:g}"


def _bytes(value: int | None) -> str:
    return NOT_MEASURED if value is None else f"{value / 1e9:.2f} GB"


def _verdict(record: RunRecord) -> Text:
    findings = record.audit.findings
    blocking = [f for f in findings if f.level is Level.BLOCK]
    text = Text("audit: ", style="dim").append(record.audit.verdict.value, "bold")
    for status, words in ((Status.FAIL, "failed"), (Status.PASS, "passed")):
        text.append(_listed(blocking, status, words))
    text.append(_listed(blocking, Status.NOT_OBSERVED, "not observed"))
    for finding in findings:
        if finding.status in (Status.FAIL, Status.FLAG):
            text.append(f"\n  {finding.id}: {finding.message}", "red")
    return text


def _listed(findings: list[Finding], status: Status, words: str) -> str:
    ids = dict.fromkeys(f.id for f in findings if f.status is status)
    return f"; {words} {', '.join(ids)}" if ids else ""
