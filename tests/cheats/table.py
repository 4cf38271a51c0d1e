"""Writes README.md, the table of all acts: ``python -m tests.cheats.table``."""

from __future__ import annotations

from pathlib import Path

from llmb.cli.run import workload_of
from tests.cheats import runner
from tests.cheats.corpus import CHEATS, FAILED, GROUPS, REFUSED, TWINS, Cheat, Twin
from tests.cheats.forgeries import FORGERIES
from tests.cheats.forging import Forgery

README = Path(__file__).with_name("README.md")

_HEAD = """\
# Cheats are tests

Every line is a small plugin, or a forged bundle, that does one forbidden thing; each ends as the
third column says, in a real `llmb run` or `llmb verify`. An honest twin of each permitted transform
must end CONSISTENT. Written by `python -m tests.cheats.table`; numbers are those of the catalogue
of 64 acts, in eleven groups.

Run them: `tox run -e cheats` (half an hour on two cores; plain `tox` makes acts of every group), at
the true width `tox run -e wide`. One by hand: `pytest -k fp8_head tests/cheats`.

Rules may be broken by an act besides those named here. A line that is **not caught** is a test that
is expected to fail: it will say so as soon as something catches it.
"""


def text() -> str:
    """Return the whole file."""
    parts = [_HEAD]
    for group in GROUPS:
        parts.append(f"\n## {group.capitalize()}\n\n| plugin | act | caught by | no. |\n")
        parts.append("|-|-|-|-|\n")
        parts += [_cheat(cheat) for cheat in CHEATS if cheat.group == group]
        parts += [_forgery(forgery) for forgery in FORGERIES if forgery.group == group]
    parts.append("\n## Honest twins\n\n| plugin | what it does | precision |\n|-|-|-|\n")
    parts += [
        f"| {one.plugin}{_workload(one)} | {_line(runner.act(one.plugin))} | {one.precision} |\n"
        for one in TWINS
    ]
    return "".join(parts)


def _cheat(cheat: Cheat) -> str:
    if cheat.unseen:
        caught = f"**not caught**: {cheat.unseen}"
    elif cheat.outcome == REFUSED:
        caught = "refused before it begins"
    elif cheat.outcome == FAILED:
        caught = "the run fails, and leaves no record"
    else:
        caught = f"{' '.join(cheat.rules)}: {cheat.outcome}"
    name = cheat.plugin if cheat.precision == "BF16" else f"{cheat.plugin}, {cheat.precision}"
    name += _workload(cheat)
    return _row(name, runner.act(cheat.plugin), caught, cheat.acts)


def _workload(case: Cheat | Twin) -> str:
    workloads = [flag.partition("=")[2] for flag in case.flags if "workload" in flag]
    return "".join(f", {workload_of(one)[0]}" for one in workloads)


def _forgery(forgery: Forgery) -> str:
    caught = f"**not caught**: {forgery.unseen}" if forgery.unseen else f"verify: {forgery.check}"
    return _row(f"{forgery.name} (bundle)", forgery.act, caught, forgery.acts)


def _row(name: str, what: str, caught: str, acts: tuple[int, ...]) -> str:
    return f"| {name} | {_line(what)} | {caught} | {', '.join(map(str, acts))} |\n"


def _line(words: str) -> str:
    return " ".join(words.split())


if __name__ == "__main__":
    README.write_text(text())
