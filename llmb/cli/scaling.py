"""``llmb run --scaling 1,2,4``: a run per number of ranks, and the scaling efficiency."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.errors import AuditInvalidError, RunFailedError, UsageError

if TYPE_CHECKING:
    from llmb.comparison.ratio import Ratio
    from llmb.records.run_record import RunRecord

#: Options of the whole scaling study (value: has an argument), and options that count ranks.
_OURS = {"--scaling": True, "--strong": False, "--output-dir": True, "--json": False}
_COUNTED = ("nproc", "dp_replicate", "dp_shard", "tp", "pp")


@dataclass(frozen=True)
class ScalingPoint:
    """The record of a number of ranks, the path, and the ratios to a single rank."""

    ranks: int
    record: RunRecord
    path: Path
    #: Throughput over the throughput of a single rank; and speedup over the number of ranks.
    speedup: Ratio
    efficiency: Ratio


def counts_of(text: str) -> tuple[int, ...]:
    """Return the numbers of ranks in ``text``, always with 1 first.

    Raises:
        UsageError: the text is not like ``1,2,4``.
    """
    parts = text.split(",")
    if not all(part.strip().isdigit() and 0 < int(part) <= 1024 for part in parts):
        raise UsageError(f"--scaling {text!r}: write whole numbers such as 1,2,4")
    return tuple(sorted({1, *map(int, parts)}))


def run(flags: dict[str, Any], batch_size: object, typed: Sequence[str]) -> int:
    """Run every number of ranks, print the table, and return the exit code of the first failure.

    ``typed`` are the arguments of ``llmb`` for the same run.

    Raises:
        AuditInvalidError: a run is INVALID; the table is printed.
        UsageError: an option contradicts ``--scaling``.
        RunFailedError: a rank ended without a word.
    """
    from llmb.config import limit_threads
    from llmb.parallel.launch import start
    from llmb.plugin.builtin.host import usable_cores
    from llmb.records.finding import Verdict

    counts = counts_of(flags["scaling"])
    given = [name for name in _COUNTED if flags[name] is not None]
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise UsageError(f"--scaling says how many ranks there are: leave {option} out")
    folder = flags["output_dir"] / f"scaling-{uuid.uuid4().hex[:8]}"
    limit_threads(max(1, usable_cores() // max(counts)))  # of each rank the same, however many
    for count in counts:
        arguments = [*_without_ours(typed), f"--output-dir={folder / str(count)}"]
        if flags["strong"]:
            arguments.append(f"--batch-size={_share(batch_size, count)}")
        if count > 1:
            arguments.append(f"--nproc={count}")
        with _aside():
            code = start(count, arguments, uuid.uuid4().hex)
        if code not in (0, AuditInvalidError.exit_code):  # an INVALID run has a record
            return code
    points = [*_points(folder, counts)]
    _show(points, flags)
    invalid = [p.ranks for p in points if p.record.audit.verdict is Verdict.INVALID]
    if invalid:
        counted = ", ".join(map(str, invalid))
        raise AuditInvalidError(
            f"with {counted} rank{'s' if invalid != [1] else ''} the run is INVALID: see the "
            f"audit.json of each in {folder}"
        )
    return 0


@contextmanager
def _aside() -> Iterator[None]:
    """Send the output of child processes to stderr: stdout is for the table."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _share(batch_size: object, count: int) -> int:
    if not isinstance(batch_size, int):
        raise UsageError("--strong: give the --batch-size that all ranks share")
    if batch_size % count:
        raise UsageError(
            f"--strong: {count} ranks cannot share --batch-size {batch_size}: give a multiple"
        )
    return batch_size // count


def _without_ours(arguments: Sequence[str]) -> Iterator[str]:
    """Yield ``arguments`` without the options of the whole study."""
    skip = False
    for word in arguments:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name in _OURS:
            skip = _OURS[name] and not equals
        else:
            yield word


def _points(folder: Path, counts: Sequence[int]) -> Iterator[ScalingPoint]:
    from dataclasses import replace

    from llmb.comparison.figures import run_of
    from llmb.comparison.ratio import ratio_of
    from llmb.records.bundle import read_record

    alone = None
    for count in counts:
        path = next(filter(Path.is_dir, (folder / str(count)).iterdir()), None)
        if path is None or not (path / "record.json").exists():
            raise RunFailedError(f"{folder / str(count)} has no record: see its log.txt")
        record = read_record(path)
        figures = run_of(record).figures
        alone = alone or figures
        rate, each = (f"tokens_per_second{end}" for end in ("", "_per_device"))
        yield ScalingPoint(
            ranks=count,
            record=record,
            path=path,
            speedup=ratio_of(alone[rate], figures[rate]),
            efficiency=ratio_of(replace(alone[rate], name=each), figures[each]),
        )


def _show(points: Sequence[ScalingPoint], flags: dict[str, Any]) -> None:
    kind = "strong" if flags["strong"] else "weak"
    if flags["as_json"]:
        click.echo(json.dumps({"scaling": kind, "points": [_data(p) for p in points]}, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("ranks", "tokens/s", "speed-up", "efficiency", "95 % interval", "verdict"):
        table.add_column(title, justify="right" if title != "verdict" else "left")
    for point in points:
        interval = point.efficiency.interval
        shown = "not measured" if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}"
        table.add_row(
            str(point.ranks),
            f"{point.record.result.tokens_per_second:,.2f}",
            f"{point.speedup.ratio:.2f}",
            f"{point.efficiency.ratio:.1%}",
            shown,
            point.record.audit.verdict.value,
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    words = "each rank has as much to do" if kind == "weak" else "all ranks share the same batch"
    click.echo(f"{kind} scaling: {words}; runs in {points[0].path.parent.parent}")


def _data(point: ScalingPoint) -> dict[str, Any]:
    return {
        "ranks": point.ranks,
        "tokens_per_second": point.record.result.tokens_per_second,
        "speedup": point.speedup.ratio,
        "efficiency": point.efficiency.ratio,
        "efficiency_ci95": point.efficiency.interval,
        "verdict": point.record.audit.verdict.value,
        "run": str(point.path),
    }
