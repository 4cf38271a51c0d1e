"""Writes the table of rules into docs/rules.md: ``python -m tests.architecture.rules_page``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from llmb.audit.holes import HOLES, Hole
from llmb.audit.rule import TRAINING, Rule
from llmb.audit.rules import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"
COMMAND = "python -m tests.architecture.rules_page"
_BEGIN = f"<!-- from llmb/audit by `{COMMAND}` -->\n"
_END = "<!-- end of what is from llmb/audit -->\n"
_BEGIN_HOLES = "<!-- from llmb/audit/holes.py by the same command -->\n"
_END_HOLES = "<!-- end of what is from llmb/audit/holes.py -->\n"


def table(rules: Iterable[Rule]) -> str:
    """Return the Markdown table of ``rules``."""
    rows = ["| id | level | rule | evidence |", "|-" * 4 + "|"]
    for rule in rules:
        level = f"{rule.level.value}, flag" if rule.also_flags else rule.level.value
        files = " or " if rule.any_evidence else " "
        shown = files.join(f"`{file.name}`" for file in rule.evidence) or "the record"
        cells = (f"[{rule.id}](#{rule.id.lower()})", level, rule.title, shown)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def sections(rules: Iterable[Rule]) -> str:
    """Return a section for each rule: how the rule measures, its limits, what it cannot see."""
    found = []
    for rule in rules:
        found.append(f"\n### {rule.id}\n{rule.title[0].upper()}{rule.title[1:]}.\n")
        for what, text in (
            ("Measured as", rule.measured),
            ("Limit", rule.limit),
            ("Cannot see", rule.cannot_see),
        ):
            points = [one[0].upper() + one[1:] for one in _points(text)]
            if len(points) == 1:
                found.append(f"\n**{what}**: {text}.\n")
            else:
                found.append(f"\n**{what}**\n\n" + "".join(f"- {point}\n" for point in points))
    return "".join(found)


def _points(text: str) -> Iterator[str]:
    """Yield the parts of ``text`` between semicolons and full stops outside parentheses."""
    depth, begin = 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and text[place : place + 2] in ("; ", ". "):
            yield text[begin:place]
            begin = place + 2
    yield text[begin:]


def causes(rules: Iterable[Rule]) -> str:
    """Return the table of the likely honest causes of each rule that can accuse."""
    rows = ["\n| id | most likely honest cause | next likely |", "|-|-|-|"]
    rows += [f"| {' | '.join((rule.id, *rule.causes))} |" for rule in rules if rule.causes]
    return "\n".join(rows) + "\n"


def of_training(rules: Iterable[Rule]) -> str:
    """Return the sentence with the rules of training alone."""
    ids = ", ".join(rule.id for rule in rules if rule.modes == TRAINING)
    return f"\nModes forward and generate train nothing: all rules apply but {ids}.\n"


def known(holes: Iterable[Hole]) -> str:
    """Return the table of what no rule sees."""
    titles = ("gain", "from", "mode", "what a plugin saves", "where", "passes", "rules", "test")
    rows = [f"| {' | '.join(titles)} |", "|-" * len(titles) + "|"]
    for hole in holes:
        cheats = " ".join(f"`{cheat}`" for cheat in hole.cheats)
        gain, basis = (f"{hole.gain}", hole.basis) if hole.gain else ("none", "")
        said = (hole.mode.value, hole.saved, hole.where, hole.passes)
        cells = (gain, basis, *said, " ".join(hole.rules), cheats)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def rendered(page: str) -> str:
    """Return ``page`` with the tables as they are now."""
    rules = f"{table(RULES)}{of_training(RULES)}{sections(RULES)}{causes(RULES)}"
    page = _between(page, _BEGIN, rules, _END)
    return _between(page, _BEGIN_HOLES, known(HOLES), _END_HOLES)


def _between(page: str, begin: str, text: str, end: str) -> str:
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{text}{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
