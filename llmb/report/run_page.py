"""The page of one run, ``report.html``: one self-contained file, made from the record alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from llmb.audit.rules import RULES
from llmb.errors import BundleRefusedError
from llmb.measure import link_words, statistics
from llmb.records.declared import marked
from llmb.records.finding import Finding, Status, Verdict
from llmb.records.precision_recipe import FORWARD, INPUT, WEIGHT, PrecisionRecipe, RecipeRow
from llmb.records.run_record import Rank, RepeatTiming, RunRecord
from llmb.report import run_facts, run_figures
from llmb.report.ceiling_parts import CeilingParts, ceiling_parts
from llmb.report.drawing import Drawing, seconds
from llmb.report.render import NOT_MEASURED, number
from llmb.report.run_facts import MOST_ROWS, flops, gigabytes, interval_words
from llmb.report.run_figures import REST, BarPart, colour
from llmb.report.scales import Scale, scales
from llmb.report.templates import page_of

T = TypeVar("T")

STYLES = ("leaderboard.css", "run.css")
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
_RULES = {rule.id: rule for rule in RULES}


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
        hardware=record.hardware,
        meaning=MEANING[record.audit.verdict],
        verdict=record.audit.verdict.value,
        headline=headline(record),
        interval=interval_words(record.result.ci95),
        tiles=list(run_facts.tiles(record)),
        broken=[f for f in record.audit.findings if f.status in (Status.FAIL, Status.FLAG)],
        rates=drawn(lambda: run_figures.block_rates(record)),
        timeline=drawn(lambda: run_figures.timeline(timing)),
        trace=drawn(lambda: run_figures.step_trace(timing)),
        histogram=drawn(lambda: run_figures.step_histogram(timing)),
        parts=drawn(lambda: ceiling_parts(record)),
        budget=drawn(lambda: _budget(ceiling_parts(record))),
        memory=_memory(record),
        linked=_linked(record),
        gauges=drawn(lambda: run_figures.gauges(timing)) or (),
        recipe=record.precision_recipe,
        recipe_rows=recipe_rows(record.precision_recipe),
        directions=DIRECTIONS,
        recipe_bar=drawn(lambda: _recipe_bar(record)),
        rules=rules_of(record),
        repeats=list(_repeats(record)),
        settings=list(run_facts.settings(record)),
        environment=list(run_facts.environment(record)),
        plugin=list(run_facts.plugin(record)),
        changes=list(run_facts.changes(record)),
        most=MOST_ROWS,
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
        for n, share in enumerate(recipe.shares[:MOST_ROWS])
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
    products = list(dict.fromkeys(row.product for row in recipe.rows))[:MOST_ROWS]
    found = []
    for product in products:
        of_it = [row for row in recipe.rows if row.product == product]
        cells = tuple(
            _recipe_cell([row for row in of_it if row.direction == direction])
            for direction in DIRECTIONS
        )
        found.append(RecipeShown(product, cells, sum(row.flops_share for row in of_it)))
    return found, list(dict.fromkeys(row.why for row in recipe.rows if row.why))[:MOST_ROWS]


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
        of_it = [f for f in record.audit.findings[:MOST_ROWS] if f.status is status]
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


@dataclass(frozen=True)
class LinksShown:
    """The links between ranks on the page: facts in words, and each rate with a bar."""

    headline: str
    whose: str
    sharing: str
    hosts: list[list[tuple[str, str]]]
    #: Words, and the bus bandwidth over the largest of all; None where no bar can be drawn.
    rates: list[tuple[link_words.RateWords, Drawing | None]]


def _linked(record: RunRecord) -> LinksShown | None:
    """Return the links between the ranks, None for a run without."""
    found = record.interconnect
    if found is None:
        return None
    rates = found.rates[:MOST_ROWS]
    most = max((rate.bus_bytes_per_second for rate in rates), default=0.0)
    return LinksShown(
        headline=link_words.headline(found),
        whose=link_words.whose(found),
        sharing=link_words.sharing(found),
        hosts=link_words.kinds_of_hosts(found),
        rates=[
            (
                link_words.rate_words(rate),
                drawn(
                    lambda rate=rate: run_figures.bar(  # type: ignore[misc]
                        rate.bus_bytes_per_second / most, "bus bandwidth"
                    )
                ),
            )
            for rate in rates
        ],
    )


def _memory(record: RunRecord) -> list[MemoryOfRank]:
    sizes = {device.name: device.memory_bytes for device in record.system.devices}
    found = []
    for rank in record.topology.ranks[:MOST_ROWS]:
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
    for n, repeat in enumerate(repeats[:MOST_ROWS] if len(repeats) > 1 else ()):
        rate = drawn(lambda repeat=repeat: statistics.tokens_per_second(repeat, tokens))  # type: ignore[misc]
        yield f"{n + 1}", repeat, NOT_MEASURED if rate is None else number(rate)
