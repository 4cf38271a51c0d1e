"""Run the parts of the proof, show one line of progress, and end with a table of what was proved.

    python tests/parts.py quick            # what plain `tox` runs: every part a newcomer needs
    python tests/parts.py full             # everything else
    python tests/parts.py cheats page      # parts by name
    python tests/parts.py table FILE       # the table again, of the rows several calls left in FILE

A part is one or more commands. A part of tests is read from pytest's JUnit file, so that each
folder of tests is a line of the table, with what was skipped and why. Only the standard library is
used, since tox calls this file in every environment.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
#: A file to which the rows of the table are added: several calls, one table (`.ci/run`).
TABLE = "LLMB_TESTS_TABLE"
#: Between two lines of progress where no terminal is watched.
QUIET_S = 60.0
#: Of a failed part without tests, the table shows so many lines.
LAST_LINES = 10
#: What no part makes: minutes to hours each, named and run by hand.
BY_HAND = "not wide and not long and not official"

Command = tuple[str, ...]


def _tool(name: str, *arguments: str) -> Command:
    """A command of this environment. `python -m` would find the sources before the wheel."""
    return (str(Path(sys.executable).with_name(name)), *arguments)


def _pytest(*arguments: str, workers: str | None = "auto", dist: str = "worksteal") -> Command:
    # Stealing work: whole runs are in few files, which one worker would be left with.
    spread = () if workers is None else ("-n", workers, "--dist", dist)
    # The last fence: tests wait for progress (tests/patience.py), not for the clock.
    return _tool("pytest", "--timeout", "3600", *spread, *arguments)


@dataclass(frozen=True)
class Part:
    """What is run together.

    ``alone``: it keeps every core busy; such parts run one after the other. ``apart``: its packages
    do not go with the others', so tox gives it an environment of its own, of the same name.
    """

    name: str
    commands: tuple[Command, ...]
    alone: bool = False
    apart: bool = False


def _part(name: str, *commands: Command, apart: bool = False) -> Part:
    return Part(name, commands, apart=apart)


def _tests(name: str, *commands: Command, apart: bool = False) -> Part:
    return Part(name, commands, alone=True, apart=apart)


_FULL = ("-m", f"full and {BY_HAND}")
PARTS = {
    part.name: part
    for part in (
        _part(
            "lint",
            _tool("ruff", "check", "."),
            _tool("ruff", "format", "--check", "."),
            _tool("codespell"),
        ),
        _part(
            "type",
            _tool("mypy"),
            *(
                _tool("mypy", *(f"plugins/llmb-{name}/llmb_{name}" for name in names))
                for names in (("cuda", "rocm"), ("xpu", "xla"))
            ),
        ),
        _part("imports", _tool("lint-imports")),
        _part(
            "submissions",
            _tool("llmb", "verify", "--tree", "submissions"),
            _pytest("tests/unit/report/test_committed_leaderboard.py", workers=None),
        ),
        _tests("tests", _pytest("-m", f"not full and {BY_HAND}")),
        # The ranks are the parallelism: two worlds at once would hold up each other.
        _tests("distributed", _pytest(*_FULL, "tests/distributed", workers=None)),
        _tests("page", _pytest(*_FULL, "tests/page")),
        _part(
            "interchange",
            _pytest("tests/unit/report/exports", "tests/unit/cli/test_export.py", workers=None),
        ),
        _tests(
            "plugins",
            _pytest(
                *("tests/unit/plugin/kit/test_formats.py", "plugins/llmb-cuda/tests"),
                *("plugins/llmb-rocm/tests", "plugins/llmb-xpu/tests"),
            ),
            _pytest("-m", BY_HAND, "-k", "thunder", "tests/cheats/test_cheats.py", "tests/e2e"),
            apart=True,
        ),
        *(_part(name, apart=True) for name in ("build", "fuzz", "docker")),
        # Last: where time is short, some of these are left out.
        _tests("cheats", _pytest(*_FULL, "tests/cheats")),
        _tests("further", _pytest(*_FULL, "tests/e2e", "tests/unit")),
        # A file at a time: the runs that its tests look at are made once.
        _tests("xpu", _pytest("plugins/llmb-xpu/tests", dist="loadfile"), apart=True),
        # Four at a time: XLA takes every core by itself, but much of a run is not XLA's.
        _tests("xla", _pytest("plugins/llmb-xla/tests", workers="4", dist="loadfile"), apart=True),
    )
}
QUICK = ("lint", "type", "imports", "submissions", "tests")
#: Each of the two holds a torch of its own: 7 GB.
VENDORS = ("xpu", "xla")
FULL = tuple(name for name in PARTS if name not in (*QUICK, *VENDORS))
SETS = {"quick": QUICK, "full": FULL, "vendors": VENDORS}


@dataclass
class Row:
    """A line of the table: how one folder of tests, or one part without tests, ended."""

    part: str
    passed: int | None = None
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)
    error: str | None = None
    #: The tests that failed, each with its message; without tests the last lines of the output.
    failures: list[str] = field(default_factory=list)


# -- reading what pytest found ----------------------------------------------------------------


def rows_of(part: str, junit: Path) -> list[Row]:
    """Return a row for each folder of tests in a JUnit file, with the CPU-bound seconds of each."""
    rows: dict[str, Row] = {}
    reasons: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for case in ElementTree.parse(junit).iter("testcase"):
        place = _folder(case.get("classname") or "")
        row = rows.setdefault(place, Row(f"{part}: {place}" if place else part, passed=0))
        row.seconds += float(case.get("time") or 0)
        skipped = case.find("skipped")
        failure = next((one for one in case if one.tag in ("failure", "error")), None)
        if failure is not None:
            row.failed += 1
            row.failures.append(f"{case.get('name')}: {_one_line(failure.get('message') or '')}")
        elif skipped is not None:
            row.skipped += 1
            reasons[place][_reason(skipped)] += 1
        else:
            row.passed = (row.passed or 0) + 1
    for place, row in rows.items():
        row.reasons = [f"{count} {reason}" for reason, count in reasons[place].most_common()]
    return [rows[place] for place in sorted(rows)]


def _folder(classname: str) -> str:
    """Return the folder below tests/, or a vendor package's name."""
    words = classname.split(".")
    if words[0] == "plugins":
        return words[1]
    return words[1] if words[0] == "tests" and len(words) > 1 else classname


def _reason(skipped: ElementTree.Element) -> str:
    if skipped.get("type") == "pytest.xfail":
        return "known, and said in tests/cheats/README.md"
    return (skipped.get("message") or "no reason given").removeprefix("Skipped: ")


def _one_line(text: str) -> str:
    """Return ``text`` in one line of at most 400 characters."""
    return " ".join(text.split())[:400]


# -- running ----------------------------------------------------------------------------------

_PERCENT = re.compile(r"\[ *(\d+)%\]")


class Progress:
    """One line that says what runs: rewritten on a terminal, else printed now and then."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._running: dict[str, str] = {}
        self._shown = 0.0
        self._lock = threading.Lock()
        self._terminal = sys.stdout.isatty()

    def set(self, part: str, how_far: str | None) -> None:
        """Note how far ``part`` is; None where it has ended."""
        with self._lock:
            if how_far is None:
                self._running.pop(part, None)
            else:
                self._running[part] = how_far
            self._show()

    def say(self, text: str) -> None:
        """Print what stays."""
        with self._lock:
            start = "\r\033[K" if self._terminal else ""
            print(f"{start}{text}", flush=True)

    def _show(self) -> None:
        now = time.monotonic()
        if not self._running or (not self._terminal and now - self._shown < QUIET_S):
            return
        self._shown = now
        passed = int(now - self._began)
        line = f"{passed // 60}:{passed % 60:02} " + ", ".join(
            f"{name} {how_far}".strip() for name, how_far in self._running.items()
        )
        print(f"\r\033[K{line}" if self._terminal else line, end="" if self._terminal else "\n")
        sys.stdout.flush()


def run(part: Part, arguments: Sequence[str], folder: Path, progress: Progress) -> list[Row]:
    """Run the commands of ``part``, all of them even if one fails; return its rows."""
    began, failed = time.monotonic(), []
    found: list[Row] = []
    output, told = folder / f"{part.name}.log", folder / f"{part.name}.table"
    elsewhere = part.apart and os.environ.get("TOX_ENV_NAME") != part.name
    for number, command in enumerate((_environment(part.name),) if elsewhere else part.commands):
        junit = folder / f"{part.name}-{number}.xml"
        extra = [f"--junitxml={junit}", *arguments] if Path(command[0]).name == "pytest" else []
        code = _watched(
            *([*command, *extra], {**os.environ, TABLE: str(told)}, output),
            lambda how_far: progress.set(part.name, how_far),
        )
        if code:
            failed.append(f"{_short(command)} ended with {code}")
        if junit.exists():
            found += rows_of(part.name, junit)
    if told.exists():  # its own environment's table, of which the first row is this part
        found += [Row(**json.loads(line)) for line in told.read_text().splitlines()[1:]]
    progress.set(part.name, None)
    seconds = time.monotonic() - began
    rows = [Row(part.name, seconds=seconds), *found]
    if failed:
        rows[0].error = "; ".join(failed)
        words = output.read_text(errors="replace")
        if not any(row.failures for row in found):
            last = [line for line in words.splitlines() if line.strip()][-LAST_LINES:]
            rows[0].failures = [_one_line(line) for line in last]
        progress.say(words)
    progress.say(f"{'FAILED' if failed else 'ok':7} {part.name} ({seconds:.0f} s)")
    return rows


def _environment(name: str) -> Command:
    folder = os.environ.get("TOX_WORK_DIR")
    return _tool("tox", "run", *(["--workdir", folder] if folder else []), "-e", name)


def _watched(
    command: Sequence[str], env: dict[str, str], output: Path, tell: Callable[[str], None]
) -> int:
    """Run ``command`` with its words in ``output``; tell how far it is."""
    tell("")
    with output.open("a", buffering=1) as log:
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            log.write(f"{command[0]}: {error.strerror}\n")
            return 127
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                log.write(line)
                percent = _PERCENT.search(line)
                if percent:
                    tell(f"[{percent[1]}%]")
        return process.wait()


def _short(command: Command) -> str:
    return " ".join((Path(command[0]).name, *command[1:]))


def run_all(parts: Sequence[Part], arguments: Sequence[str], folder: Path) -> list[Row]:
    """Run all ``parts``: those that leave cores free beside those that do not."""
    progress = Progress()
    rows: dict[str, list[Row]] = {}

    def lane(chosen: Sequence[Part]) -> None:
        for part in chosen:
            rows[part.name] = run(part, arguments, folder, progress)

    lanes = [[p for p in parts if p.alone], [p for p in parts if not p.alone]]
    threads = [threading.Thread(target=lane, args=(chosen,)) for chosen in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [row for part in parts for row in rows[part.name]]


# -- the table ----------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text: part, passed, skipped and why, what failed, seconds."""
    width = max(len(row.part) for row in rows)
    lines = [f"{'part':{width}}  passed  skipped  failed  seconds"]
    for row in rows:
        counts = ("", "", "") if row.passed is None else (row.passed, row.skipped, row.failed)
        numbers = f"{counts[0]!s:>6}  {counts[1]!s:>7}  {counts[2]!s:>6}  {row.seconds:7.0f}"
        lines.append(f"{row.part:{width}}  {numbers}" + (f"  {row.error}" if row.error else ""))
        lines += [f"{'':{width}}  skipped: {reason}" for reason in row.reasons]
        lines += [f"{'':{width}}  failed: {failure}" for failure in row.failures]
    return "\n".join(lines)


def _kept(rows: Sequence[Row]) -> None:
    path = os.environ.get(TABLE)
    if path:
        with Path(path).open("a") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


def main() -> int:
    """Run what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="+", help=f"{', '.join(SETS)}, or parts: {', '.join(PARTS)}")
    known, arguments = parser.parse_known_args()
    names: list[str] = known.parts
    if names[0] == "table":
        kept = Path(names[1]).read_text().splitlines()
        print(table([Row(**json.loads(line)) for line in kept]))
        return 0
    wanted = [name for given in names for name in SETS.get(given, (given,))]
    unknown = sorted({*wanted} - {*PARTS})
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; parts are {', '.join(PARTS)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows = run_all([PARTS[name] for name in wanted], arguments, Path(folder))
    _kept(rows)
    print(f"\n{table(rows)}\n\n{time.monotonic() - began:.0f} s")
    return any(row.error or row.failed for row in rows)


if __name__ == "__main__":
    sys.exit(main())
