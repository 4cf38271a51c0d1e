"""The ranking: groups of comparable bundles, best first, and the bundles without a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from llmb.config import Mode
from llmb.formats import KNOWN
from llmb.records.finding import RULES_VERSION, Verdict
from llmb.records.recomputed_list import Recomputation
from llmb.records.time_stamp import LEAST_SHARE
from llmb.report.standing import reasons_apart
from llmb.submission.bundles import Entry, RefusedBundle, Shelf
from llmb.workloads import WORKLOADS
from llmb.workloads.published import documents

#: Verdict -> reason for a mark in the table.
MARKED = {
    Verdict.FLAGGED: "consistent, and a human should look",
    Verdict.UNVERIFIED: "a blocking rule could not be observed",
}


#: Levels of trust in a figure, lowest first. self-reported: the submitter's own evidence is
#: consistent. recomputed: another party has computed steps again. time-stamped: another party has
#: computed all steps again, and a time-stamp authority bounds the time. repeated: another party has
#: repeated the run on hardware of the same class.
Trust = Literal["self-reported", "recomputed", "time-stamped", "repeated"]
LEVELS: tuple[Trust, ...] = get_args(Trust)


@dataclass(frozen=True)
class Group:
    """The key of one ranking: workload, mode and effective precision."""

    workload: str
    mode: str
    #: Effective precision; if not observed, for example ``BF16 (declared, not observed)``.
    precision: str

    @property
    def title(self) -> str:
        """Workload, mode and precision in one line."""
        return f"{self.workload} {self.mode} {self.precision}"


@dataclass(frozen=True)
class BoardRepetition:
    """A bundle that repeats the run of an original, and the unmet conditions of REPRODUCED."""

    bundle_id: str
    difference_percent: float
    #: Unmet conditions in sentences; empty: the original is REPRODUCED.
    lacking: tuple[str, ...] = ()
    #: True if only the second party is missing: the submitter of the original repeated the run.
    by_same: bool = False


@dataclass(frozen=True)
class BoardRow:
    """One bundle in the leaderboard; None is "not measured" or "not known"."""

    group: Group
    #: 1 is the best of the group; None: not ranked.
    rank: int | None
    #: True if the 95 % intervals of the row and of the row ranked above overlap.
    overlaps: bool
    #: Every reason for no rank, such as ``debug: not comparable``; None: ranked.
    unranked: str | None
    tokens_per_second: float
    ci95: tuple[float, float] | None
    tokens_per_second_per_device: float
    tokens_per_joule: float | None
    energy_source: str | None
    fraction_of_ceiling: float | None
    mfu: float | None
    mfu_source: str | None
    #: Measured formats by share of a step's FLOPs; the lowest format; the format with most FLOPs.
    measured: str | None
    measured_lowest: str | None
    measured_largest: str | None
    verdict: Verdict
    trust: Trust
    #: Reason for the level of trust.
    trusted_because: str
    class_: str
    strict: bool
    #: Qualifications of the figure, such as waivers or ``autocast over FP32 weights``.
    marks: tuple[str, ...]
    plugin: str
    plugin_version: str
    device: str
    devices: int
    submitter: str | None
    system: str | None
    availability: str | None
    batch_size: int
    window_s: float
    executor: str
    created_utc: str
    signatures: int
    repetitions: tuple[BoardRepetition, ...]
    #: Lower bound of tokens/s by the clock of a listed authority; None without time stamps.
    by_foreign_clock: float | None
    entry: Entry

    @property
    def bundle_id(self) -> str:
        """sha256 of the bundle's manifest, in hex."""
        return self.entry.bundle_id


@dataclass(frozen=True)
class BoardReference:
    """A row published in a source document, measured elsewhere and never ranked."""

    workload: str
    document: str
    source: str
    hardware: str
    #: The document's labels of the row.
    row: str
    #: Title -> figure, such as ``("Tokens/s", 3400.0)``.
    figures: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Board:
    """The leaderboard as data."""

    groups: tuple[tuple[Group, tuple[BoardRow, ...]], ...]
    apart: tuple[BoardRow, ...]
    refused: tuple[RefusedBundle, ...]
    references: tuple[BoardReference, ...]

    @property
    def rows(self) -> tuple[BoardRow, ...]:
        """All readable bundles: the ranked rows, then the rows apart."""
        return (*(row for _, rows in self.groups for row in rows), *self.apart)


def board(
    shelf: Shelf,
    repeated: Mapping[str, Sequence[BoardRepetition]] | None = None,
    recomputed: Mapping[str, Recomputation] | None = None,
) -> Board:
    """Return the leaderboard of ``shelf``.

    The order within a workload, mode and effective precision: higher level of trust first, then
    more tokens/s. Debug runs, INVALID runs, runs under incomparable rules, and models of a user's
    own are listed apart with the reason.

    Args:
        shelf: the bundles.
        repeated: bundle id -> repetitions; a repetition without unmet conditions makes a CONSISTENT
            run REPRODUCED.
        recomputed: bundle id -> recomputation of steps by another party.
    """
    rows = [
        _row(entry, tuple((repeated or {}).get(entry.bundle_id, ())), recomputed or {})
        for entry in shelf.entries
    ]
    members: dict[Group, list[BoardRow]] = {}
    for row in rows:
        if row.unranked is None:
            members.setdefault(row.group, []).append(row)
    groups = sorted(members.items(), key=lambda item: _place(item[0]))
    return Board(
        groups=tuple((group, tuple(_ranked(of_it))) for group, of_it in groups),
        apart=tuple(row for row in rows if row.unranked is not None),
        refused=shelf.refused,
        references=tuple(references()),
    )


def _ranked(rows: Sequence[BoardRow]) -> Iterator[BoardRow]:
    """Yield ``rows`` best first; equal figures have an equal rank. Example: 1, 2, 2, 4."""
    above: BoardRow | None = None
    ordered = sorted(rows, key=lambda row: (*_worth(row), row.bundle_id))
    for number, row in enumerate(ordered, start=1):
        equal = above is not None and _worth(above) == _worth(row)
        rank = above.rank if above is not None and equal else number
        alike = above is not None and above.trust == row.trust
        overlaps = above is not None and alike and _overlap(row, above)
        above = replace(row, rank=rank, overlaps=overlaps)
        yield above


def _worth(row: BoardRow) -> tuple[int, float]:
    return -LEVELS.index(row.trust), -row.tokens_per_second


def _overlap(slower: BoardRow, faster: BoardRow) -> bool:
    high = slower.ci95[1] if slower.ci95 else slower.tokens_per_second
    low = faster.ci95[0] if faster.ci95 else faster.tokens_per_second
    return high >= low


def _place(group: Group) -> tuple[int, str, int, int, str]:
    """Return the sort key of a group: the listed order of workloads, modes and formats."""
    modes = [mode.value for mode in Mode]
    format_ = group.precision.split()[0]
    return (
        _index(list(WORKLOADS), group.workload),
        group.workload,
        _index(modes, group.mode),
        _index([known.name for known in KNOWN], format_),
        group.precision,
    )


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def _row(
    entry: Entry,
    repetitions: tuple[BoardRepetition, ...],
    recomputed: Mapping[str, Recomputation],
) -> BoardRow:
    record, run = entry.record, entry.run
    result, timing, precision = record.result, record.timing, record.precision
    recipe = record.precision_recipe
    group = Group(
        workload=record.workload.name,
        mode=record.workload.mode,
        precision=precision.effective or f"{precision.declared} (declared, not observed)",
    )
    verdict = _verdict(record.audit.verdict, repetitions)
    trust, why = _trust(entry, verdict, repetitions, recomputed.get(entry.bundle_id))
    return BoardRow(
        group=group,
        rank=None,
        overlaps=False,
        unranked=_unranked(entry),
        tokens_per_second=result.tokens_per_second,
        ci95=result.ci95,
        tokens_per_second_per_device=result.tokens_per_second_per_device,
        tokens_per_joule=result.energy.tokens_per_joule if result.energy else None,
        energy_source=f"{result.energy.source}, {result.energy.scope}" if result.energy else None,
        fraction_of_ceiling=result.fraction_of_ceiling,
        mfu=result.mfu.value if result.mfu else None,
        mfu_source=result.mfu.peak_source if result.mfu else None,
        measured=recipe.headline if recipe else None,
        measured_lowest=recipe.lowest if recipe else None,
        measured_largest=recipe.largest if recipe else None,
        verdict=verdict,
        trust=trust,
        trusted_because=why,
        class_=record.class_,
        strict=record.plugin.strict,
        marks=tuple(_marks(entry)),
        plugin=record.plugin.name,
        plugin_version=record.plugin.version,
        device=record.hardware,
        devices=record.topology.world_size,
        submitter=entry.submitter,
        system=entry.system,
        availability=entry.availability,
        batch_size=record.config.batch_size,
        window_s=(timing.stop_ns - timing.start_ns) / 1e9,
        executor=str(run.settings["executor"]),
        created_utc=record.created_utc,
        signatures=len(entry.signatures),
        repetitions=repetitions,
        by_foreign_clock=entry.by_foreign_clock,
        entry=entry,
    )


def _verdict(own: Verdict, repetitions: Sequence[BoardRepetition]) -> Verdict:
    counts = any(not repetition.lacking for repetition in repetitions)
    return Verdict.REPRODUCED if own is Verdict.CONSISTENT and counts else own


def _trust(
    entry: Entry,
    verdict: Verdict,
    repetitions: Sequence[BoardRepetition],
    again: Recomputation | None,
) -> tuple[Trust, str]:
    """Return the level of trust of a row, and the reason."""
    if verdict is Verdict.REPRODUCED:
        by = [one for one in repetitions if not one.lacking]
        return "repeated", f"by {_named(by)}"
    if again is None:
        return "self-reported", "nobody else has computed it again"
    steps = f"{again.steps} of {again.of_steps} steps, {again.date}, llmb {again.llmb_version}"
    # Time stamps prove nothing about steps without a recomputation: all steps must be recomputed.
    whole = 0 < again.of_steps <= again.steps
    share = (entry.by_foreign_clock or 0.0) / entry.record.result.tokens_per_second
    if whole and share >= LEAST_SHARE:
        return "time-stamped", f"{share:.1%} of the figure by a foreign clock; {steps}"
    return "recomputed", steps


def repeated_by_same(row: BoardRow) -> str | None:
    """Return a line for repetitions by the submitter of ``row``; None: there are none.

    Example: ``repeated by the same organisation: bundle 1f0c2a9b (+0.4 %)``. The line changes
    neither verdict nor level of trust.
    """
    by = [one for one in row.repetitions if one.by_same]
    return f"repeated by the same organisation: {_named(by)}" if by else None


def _named(by: Sequence[BoardRepetition]) -> str:
    each = ", ".join(f"{one.bundle_id[:8]} ({one.difference_percent:+.1f} %)" for one in by)
    return f"bundle {each}"


def _unranked(entry: Entry) -> str | None:
    return "; ".join(reason.words for reason in reasons_apart(entry.record)) or None


def _marks(entry: Entry) -> Iterator[str]:
    record, config = entry.record, entry.record.config
    if record.class_ != "debug":
        yield from (f"waived: {waiver}" for waiver in record.waivers)
    if record.rules_version != RULES_VERSION:
        yield f"rules {record.rules_version}"
    if config.mixed_precision:
        yield "autocast over FP32 weights"
    if config.dynamic:
        yield "sequences of many lengths"
    if record.workload.tokens != "random":
        yield f"tokens of {record.workload.tokens}"
    if entry.by_foreign_clock is not None:
        yield f"at least {entry.by_foreign_clock:,.1f} tokens/s by a foreign clock"


def references() -> Iterator[BoardReference]:
    """Yield every published row with a figure, from all source documents."""
    for document in documents().values():
        for table in document.tables:
            titles = {column.key: column.title for column in table.columns}
            for row in table.rows:
                if row.values:
                    yield BoardReference(
                        workload=table.workload,
                        document=document.name,
                        source=document.source,
                        hardware=document.hardware,
                        row=", ".join((table.title, *row.labels)),
                        figures=tuple((titles[key], row.values[key]) for key in row.values),
                    )
