"""The leaderboard's columns: one list for JSON, CSV, Markdown, the terminal, and the page.

A column has up to three forms: data fields (JSON, CSV), a text cell (Markdown), and a page cell.
docs/growing.md explains how to add a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmb.audit.rules import RULES
from llmb.records.declared import marked
from llmb.report.board import MARKED, BoardRow, repeated_by_same
from llmb.report.render import NOT_MEASURED, number, plain
from llmb.report.standing import StandingReason, reasons_marked

NOT_RANKED = "not ranked"
RULES_BY_ID = {rule.id: rule for rule in RULES}
#: Best first.
VERDICTS = ("REPRODUCED", "CONSISTENT", "FLAGGED", "UNVERIFIED", "INVALID")


@dataclass(frozen=True)
class CellPart:
    """A part of a page cell: text, or an HTML element with text and further parts."""

    text: str = ""
    tag: str = ""
    style: str = ""
    #: Shown where the pointer rests.
    title: str = ""
    href: str = ""
    parts: tuple[CellPart, ...] = ()


@dataclass(frozen=True)
class LeaderboardColumn:
    """One column of the leaderboard."""

    title: str
    #: Field in JSON and CSV -> value. CSV has ``ci95_low`` and ``ci95_high``, and joins lists.
    data: Mapping[str, Callable[[BoardRow], Any]]
    #: The Markdown cell; None: Markdown does not have the column.
    words: Callable[[BoardRow], str] | None = None
    #: Name of the column in the page; ``order`` returns the sort key of a row.
    key: str = ""
    order: Callable[[BoardRow], float | str | None] | None = None
    #: The page cell; None: the page does not have the column.
    cell: Callable[[BoardRow], tuple[CellPart, ...]] | None = None
    #: Numbers, aligned to the right.
    is_figure: bool = False
    #: The first click sorts from small to large, or from A to Z.
    low_first: bool = False
    #: The cell is the row's header (``<th scope="row">``).
    is_head: bool = False

    @property
    def is_declared(self) -> bool:
        """Whether the submitter declares the value, and no check of llmb covers the value."""
        return marked(self.title) != self.title

    @property
    def style(self) -> str:
        """The CSS class of the cells."""
        return "state" if self.key == "verdict" else self.key

    @property
    def is_text(self) -> bool:
        """Whether the column is sorted as text."""
        return not self.is_figure and self.key not in ("rank", "verdict")


def _small(text: str) -> tuple[CellPart, ...]:
    return (CellPart(plain(text), "small"),) if text else ()


def _figure(text: str, note: str = "") -> tuple[CellPart, ...]:
    """Return a number and a note in small print; a dash for a number that was not measured."""
    if not text:
        hidden = CellPart(f" {NOT_MEASURED}", "span", "hidden-text")
        return (CellPart("–", "span", "none", NOT_MEASURED, parts=(hidden,)),)  # noqa: RUF001
    return (CellPart(text), *_small(note))


def _number(value: float | None) -> str:
    return "" if value is None else number(value)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def row_id(row: BoardRow) -> str:
    """Return the row's id in the page: 16 digits of the bundle's digest."""
    return row.bundle_id[:16]


def openness(row: BoardRow) -> str:
    """Return "strict" if the source of every component of the plugin is open to readers."""
    return "strict" if row.strict else "closed components"


def system_of(row: BoardRow) -> str:
    """Return the id of the system."""
    return plain(row.system or "unknown system")


def submitter_of(row: BoardRow) -> str:
    """Return the submitter's id, and the organisation's name. Example: ``acme (Acme Corp)``."""
    submitter, whose = row.submitter or "unknown submitter", row.entry.whose
    if whose and whose.organisation:
        submitter = f"{submitter} ({whose.organisation})"
    return plain(submitter)


def who(row: BoardRow) -> str:
    """Return the ids of submitter and system, and their display names."""
    ids = f"{row.submitter or 'unknown'} / {row.system or 'unknown'}"
    whose = row.entry.whose
    names = [name for name in (whose.organisation, whose.system_name) if name] if whose else []
    return f"{ids} ({', '.join(names)})" if names else ids


def interval(row: BoardRow) -> str:
    """Return the 95 % interval in words, or an empty text. Example: ``1,203 to 1,217``."""
    return f"{number(row.ci95[0])} to {number(row.ci95[1])}" if row.ci95 else ""


def verdict_words(row: BoardRow) -> str:
    """Return verdict and openness; FLAGGED and UNVERIFIED come with the reason."""
    why = f" ({MARKED[row.verdict]})" if row.verdict in MARKED else ""
    return f"{row.verdict.value}{why}, {openness(row)}"


def _rank_cell(row: BoardRow) -> tuple[CellPart, ...]:
    why = "its interval and that of the row ranked above it overlap"
    overlaps = (CellPart("≈", "abbr", title=why),) if row.overlaps else ()
    return (CellPart("" if row.rank is None else str(row.rank)), *overlaps)


def _system_cell(row: BoardRow) -> tuple[CellPart, ...]:
    available = f", {plain(row.availability)}" if row.availability else ""
    link = CellPart(system_of(row), "a", href=f"#b-{row_id(row)}")
    return (link, *_small(f"{submitter_of(row)}{available}"))


def _device_cell(row: BoardRow) -> tuple[CellPart, ...]:
    count = f"{row.devices} × " if row.devices != 1 else ""  # noqa: RUF001
    return (CellPart(f"{count}{plain(row.device)}"), *_small(f"{row.plugin} {row.plugin_version}"))


def _verdict_cell(row: BoardRow) -> tuple[CellPart, ...]:
    name, because = row.verdict.value, plain(row.trusted_because)
    trust = row.trust if row.trust == "self-reported" else f"{row.trust}: {because}"
    again = repeated_by_same(row)
    small = (
        CellPart(openness(row)),
        CellPart(trust, "span", "trust", because),
        *((CellPart(plain(again), "span", "trust"),) if again else ()),
        *(CellPart(plain(mark), "span", "mark") for mark in row.marks),
    )
    badge = CellPart(name, "span", f"verdict {name.lower()}", MARKED.get(row.verdict, ""))
    why = tuple(
        CellPart(tag="small", style="why", parts=reason_parts(reason))
        for reason in reasons_marked(row.entry.record)
    )
    return (badge, *why, CellPart(tag="small", parts=small))


def reason_parts(reason: StandingReason) -> tuple[CellPart, ...]:
    """Return a reason in words, and links to its rules in the page's list of rules."""
    parts = [CellPart(plain(reason.text), "a", href=f"#why-{reason.topic}")]
    for n, name in enumerate(reason.rules):
        parts.append(CellPart(", " if n else ": "))
        known = name in RULES_BY_ID
        parts.append(CellPart(plain(name), "a" * known, href=f"#rule-{name}" * known))
    return (*parts, CellPart(reason.after))


def _date_cell(row: BoardRow) -> tuple[CellPart, ...]:
    signed = (CellPart(f", {row.signatures} signed"),) if row.signatures else ()
    digest = CellPart(row_id(row)[:8], "code")
    link = CellPart(tag="a", title="link to this row", href=f"#row-{row_id(row)}", parts=(digest,))
    small = CellPart(tag="small", parts=(link, *signed))
    return (CellPart(plain(row.created_utc[:10])), small)


def _repeated_by(row: BoardRow) -> list[str]:
    return [one.bundle_id for one in row.repetitions if not one.lacking]


def _repeated_by_same(row: BoardRow) -> list[str]:
    return [one.bundle_id for one in row.repetitions if one.by_same]


#: From left to right.
COLUMNS = (
    LeaderboardColumn(
        "#",
        {
            "rank": lambda row: row.rank,
            "overlaps_above": lambda row: row.overlaps,
            "unranked": lambda row: row.unranked,
        },
        lambda row: NOT_RANKED if row.rank is None else f"{row.rank}" + (" ≈" * row.overlaps),
        "rank",
        lambda row: row.rank,
        _rank_cell,
        low_first=True,
    ),
    LeaderboardColumn(
        "System",
        {
            "workload": lambda row: row.group.workload,
            "mode": lambda row: row.group.mode,
            "precision": lambda row: row.group.precision,
            "submitter": lambda row: row.submitter,
            "system": lambda row: row.system,
            "organisation": lambda row: row.entry.whose.organisation if row.entry.whose else None,
            "availability": lambda row: row.availability,
        },
        who,
        "system",
        system_of,
        _system_cell,
        low_first=True,
        is_head=True,
    ),
    LeaderboardColumn(
        "Device",
        {"device": lambda row: row.device, "devices": lambda row: row.devices},
        lambda row: f"{row.devices} x {row.device}",
        "device",
        lambda row: plain(row.device),
        _device_cell,
        low_first=True,
    ),
    LeaderboardColumn(
        "Tokens/s",
        {"tokens_per_second": lambda row: row.tokens_per_second},
        lambda row: number(row.tokens_per_second),
        "tps",
        lambda row: row.tokens_per_second,
        lambda row: (CellPart(number(row.tokens_per_second), "b"), *_small(interval(row))),
        is_figure=True,
    ),
    LeaderboardColumn(
        "95 % interval",
        {"ci95": lambda row: row.ci95},
        lambda row: interval(row) or NOT_MEASURED,
    ),
    LeaderboardColumn(
        "Per device",
        {"tokens_per_second_per_device": lambda row: row.tokens_per_second_per_device},
        lambda row: number(row.tokens_per_second_per_device),
        "each",
        lambda row: row.tokens_per_second_per_device,
        lambda row: _figure(number(row.tokens_per_second_per_device)),
        is_figure=True,
    ),
    LeaderboardColumn(
        "Tokens/J",
        {
            "tokens_per_joule": lambda row: row.tokens_per_joule,
            "energy_source": lambda row: row.energy_source,
        },
        lambda row: _number(row.tokens_per_joule) or NOT_MEASURED,
        "tpj",
        lambda row: row.tokens_per_joule,
        lambda row: _figure(_number(row.tokens_per_joule), row.energy_source or ""),
        is_figure=True,
    ),
    LeaderboardColumn(
        "Of ceiling",
        {"fraction_of_ceiling": lambda row: row.fraction_of_ceiling},
        lambda row: _percent(row.fraction_of_ceiling) or NOT_MEASURED,
        "ceiling",
        lambda row: row.fraction_of_ceiling,
        lambda row: _figure(_percent(row.fraction_of_ceiling)),
        is_figure=True,
    ),
    LeaderboardColumn(
        "MFU",
        {"mfu": lambda row: row.mfu, "mfu_source": lambda row: row.mfu_source},
        lambda row: (
            (_percent(row.mfu) or NOT_MEASURED) + (f" ({row.mfu_source})" if row.mfu_source else "")
        ),
        "mfu",
        lambda row: row.mfu,
        lambda row: _figure(_percent(row.mfu), row.mfu_source or ""),
        is_figure=True,
    ),
    LeaderboardColumn(
        "Measured precision",
        {
            "measured_precision": lambda row: row.measured,
            "measured_lowest": lambda row: row.measured_lowest,
            "measured_largest": lambda row: row.measured_largest,
        },
        lambda row: row.measured or NOT_MEASURED,
        "measured",
        lambda row: plain(row.measured or ""),
        lambda row: _figure(plain(row.measured or "")),
        low_first=True,
    ),
    LeaderboardColumn(
        "Verdict",
        {
            "verdict": lambda row: row.verdict.value,
            "class": lambda row: row.class_,
            "strict": lambda row: row.strict,
            "marks": lambda row: list(row.marks),
        },
        lambda row: ", ".join((verdict_words(row), *row.marks)),
        "verdict",
        lambda row: VERDICTS.index(row.verdict.value),
        _verdict_cell,
        low_first=True,
    ),
    LeaderboardColumn(
        "Trust",
        {
            "trust": lambda row: row.trust,
            "trusted_because": lambda row: row.trusted_because,
            "tokens_per_second_by_foreign_clock": lambda row: row.by_foreign_clock,
            "signatures": lambda row: row.signatures,
            "repeated_by": _repeated_by,
            "repeated_by_same_organisation": _repeated_by_same,
        },
        lambda row: "; ".join(filter(None, (row.trust, repeated_by_same(row)))),
    ),
    LeaderboardColumn(
        "Plugin",
        {
            "plugin": lambda row: row.plugin,
            "plugin_version": lambda row: row.plugin_version,
            "executor": lambda row: row.executor,
        },
        lambda row: f"{row.plugin} {row.plugin_version}",
    ),
    LeaderboardColumn(
        "Window",
        {"window_s": lambda row: row.window_s, "batch_size": lambda row: row.batch_size},
        None,
        "window",
        lambda row: row.window_s,
        lambda row: _figure(f"{row.window_s:,.1f} s", f"{row.executor}, batch {row.batch_size}"),
        is_figure=True,
    ),
    LeaderboardColumn(
        "Date",
        {"created_utc": lambda row: row.created_utc},
        lambda row: row.created_utc[:10],
        "date",
        lambda row: plain(row.created_utc[:10]),
        _date_cell,
        low_first=True,
    ),
    LeaderboardColumn(
        "Bundle",
        {"bundle_id": lambda row: row.bundle_id, "path": lambda row: row.entry.path},
        lambda row: row.bundle_id[:12],
    ),
)


def row_data(row: BoardRow) -> dict[str, Any]:
    """Return the JSON data of a row: every field of every column; None: not measured."""
    found = {name: value(row) for column in COLUMNS for name, value in column.data.items()}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}


def flat_fields() -> Iterator[str]:
    """Yield the field names of a CSV line."""
    for column in COLUMNS:
        for name in column.data:
            yield from (f"{name}_low", f"{name}_high") if name == "ci95" else (name,)


def flat(row: BoardRow) -> dict[str, object]:
    """Return the fields of a CSV line."""
    found: dict[str, object] = {}
    for name, value in row_data(row).items():
        if name == "ci95":
            found[f"{name}_low"], found[f"{name}_high"] = value or (None, None)
        else:
            found[name] = "; ".join(value) if isinstance(value, list) else value
    return found
