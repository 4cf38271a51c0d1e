"""Decisions of ``llmb compare --baseline`` for CI: GitHub's job summary, and JUnit XML."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from xml.etree import ElementTree

from llmb.history.baseline import BaselineDecision, percent
from llmb.report.render import NOT_MEASURED, number, plain

_TITLES = (
    *("work", "tokens/s", "change", "95 % interval", "by", "ceiling", "baseline", "verdict"),
    "outcome",
)
_SIGNS = {
    "regression": "🔴 regression",
    "improvement": "🟢 improvement",
    "no change shown": "⚪ no change shown",
    "not decided": "🟡 not decided",
}


def markdown(decided: Sequence[BaselineDecision]) -> str:
    """Return the decisions as GitHub's Markdown: a table, then a sentence and remarks for each run.

    Every text is inert (``inert_code``, or entities): no text can become markup, link or mention.
    """
    lines = ["### llmb: runs beside the baseline", ""]
    lines += [_row(_TITLES), _row("---" for _ in _TITLES)]
    lines += [_row(_cells(one)) for one in decided]
    for one in decided:
        lines += ["", f"- {inert_code(one.run.run)}: {_entities(one.conclusion)}"]
        lines += [f"  - {_entities(note)}" for note in one.notes]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(one: BaselineDecision) -> tuple[str, ...]:
    run, ends = one.run, one.ci95
    return (
        inert_code(f"{run.workload} {run.mode} {run.precision}, {run.settings}"),
        number(run.tokens_per_second),
        _percent(one.change),
        NOT_MEASURED if ends is None else " to ".join(map(percent, ends)),
        one.measure,
        _percent(one.ceiling_change),
        f"{inert_code(one.baseline)}, {len(one.runs)} runs",
        run.verdict.value,
        _SIGNS[one.outcome],
    )


def _percent(change: float | None) -> str:
    return NOT_MEASURED if change is None else percent(change)


def inert_code(text: str) -> str:
    """Return ``text`` as code for GitHub's Markdown, in a table as well.

    GitHub links no mention, issue, commit or address inside ``<code>``. Every sign but letters,
    digits and spaces is an entity, which Markdown never reads as markup. Example: ``a|b`` is
    ``<code>a&#124;b</code>``.
    """
    return f"<code>{_entities(text)}</code>"


def _entities(text: str) -> str:
    shown = plain(text)
    return "".join(c if c.isalnum() or c in _PLAIN else f"&#{ord(c)};" for c in shown)


#: Signs without a meaning in the middle of a line of Markdown, and no part of an address.
_PLAIN = " ,%;()"


def junit(decided: Sequence[BaselineDecision], failing: Collection[str] = ("regression",)) -> str:
    """Return the decisions as JUnit XML: one test case for each run.

    A failure is an outcome in ``failing``; any other undecided run is skipped, with the reason.
    """
    suite = ElementTree.Element("testsuite", name="llmb compare", errors="0")
    counts = {"failure": 0, "skipped": 0}
    for one in decided:
        run = one.run
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=plain(f"llmb.{run.workload}.{run.mode}"),
            name=plain(f"{run.precision} {run.settings} against {one.baseline}"),
            time="0",
        )
        kind = "failure" if one.outcome in failing else "skipped"
        if kind == "failure" or one.outcome == "not decided":
            counts[kind] += 1
            said = ElementTree.SubElement(case, kind, message=plain(one.conclusion))
            if kind == "failure":
                said.set("type", one.outcome)
        output = ElementTree.SubElement(case, "system-out")
        output.text = "\n".join(map(plain, (run.run, one.conclusion, *one.notes)))
    suite.set("tests", f"{len(decided)}")
    suite.set("failures", f"{counts['failure']}")
    suite.set("skipped", f"{counts['skipped']}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'
