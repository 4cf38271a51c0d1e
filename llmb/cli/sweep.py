"""``llmb sweep``: runs every precision at several batch sizes; resumable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli import run, settings
from llmb.cli.help import GroupedCommand
from llmb.cli.run_options import OF_RANKS
from llmb.cli.text import printable
from llmb.endings import Interrupted
from llmb.errors import AuditInvalidError, NotEnoughMemoryError, RunFailedError, UsageError

if TYPE_CHECKING:
    from llmb.cli.progress import Bar
    from llmb.records.sweep_overview import Overview, Point, PointState, SweepPlan, SweepRequest
    from llmb.supervision.run_phases import Display
    from llmb.sweep.directory import SweepDirectory
    from llmb.sweep.execution import Progress
    from llmb.sweep.planning import Planned

#: Batch sizes of ``--preset debug``, in multiples of ``--accumulate``.
_DEBUG_SIZES = (1, 2, 4)
#: Options without influence on the runs.
_ASIDE = ("resume", "show", "as_json", "quiet", "wide")
#: Options of ``llmb run`` that a sweep replaces or lacks. Example: after the first run, a
#: committed seed is no secret.
_NOT_RUNS = (
    *("precision", "batch_size", "micro_batch_size", "seed_commitment", "timestamp"),
    *("as_json", "within", "config", "tags", *OF_RANKS),
)


class BatchSizes(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """Positive integers with commas, such as ``1,2,4``, or ``auto``."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...] | str:
        """Return ``value`` as integers in order, each once, or the word auto."""
        if value == "auto":
            return "auto"
        try:
            sizes = sorted({int(part) for part in str(value).split(",")})
        except ValueError:
            self.fail(f"{value!r} is neither whole numbers such as 1,2,4 nor 'auto'.", param, ctx)
        if sizes[0] < 1:
            self.fail(f"{sizes[0]} is not possible: use at least 1.", param, ctx)
        return tuple(sizes)


def _options() -> Iterator[click.Parameter]:
    """Yield the options of the sweep, then the options of ``llmb run``, in the help's order."""
    yield click.Option(
        ["--precision", "precisions"],
        multiple=True,
        help="Format; repeatable [default: every format in hardware].",
    )
    yield click.Option(
        ["--batch-size", "batch_sizes"],
        type=BatchSizes(),
        metavar="1,2,4|auto",
        help="auto: each run searches [default: doubled until memory ends].",
    )
    yield click.Option(
        ["--max-batch-size"], type=click.IntRange(min=1), help="Where doubling ends at the latest."
    )
    yield click.Option(
        ["--resume"], type=Path, metavar="DIR", help="Go on with the sweep in this folder."
    )
    yield click.Option(["--show"], type=Path, metavar="DIR", help="Show a sweep; nothing is run.")
    yield from (option for option in run.command.params if option.name not in _NOT_RUNS)
    yield click.Option(["--wide"], is_flag=True, help="Show every column of the table.")
    yield click.Option(["--json", "as_json"], is_flag=True, help="Print the overview as JSON.")


@click.command(
    "sweep",
    cls=GroupedCommand,
    params=list(_options()),
    short_help="Run every precision at several batch sizes; resumable.",
)
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Run every precision at several batch sizes; resumable.

    Each point is a run as by `llmb run`, in fresh processes, with a run directory in the sweep's
    folder. Running out of memory is a result, and ends a precision. The sweep notes a failed point,
    continues, and ends in exit code 4.

    After a crash or Ctrl-C use --resume: finished runs are kept, all other points run again.

    \b
    Examples:
      llmb sweep                                        hours: official runs, until memory ends
      llmb sweep --preset debug                         a minute or two, labelled debug
      llmb sweep --precision BF16 --batch-size 1,2,4,8 --repeats 3
      llmb sweep --resume runs/sweep-20261101T120000Z-llama-1.4b-cpu
      llmb sweep --show runs/sweep-20261101T120000Z-llama-1.4b-cpu
    """
    if flags["show"] is not None:
        _show(ctx, flags)
        return
    from llmb.cli.progress import Bar
    from llmb.supervision.forecast import start_s
    from llmb.sweep import execution, overview
    from llmb.wire.forking import fork_server

    start_s()  # measured before the plugins are asked
    settings.announce(ctx, settings.given_elsewhere(ctx))
    directory, planned = _begin(ctx, flags)
    watcher = _StderrWatcher(directory.path, flags["quiet"], Bar())
    watcher.say(_opening(directory))
    for note in (*planned.notes, *_left_out(directory.plan)):
        watcher.say(f"note: {note}")
    try:
        with fork_server(directory.plan.ground.plugin):
            states = execution.carry_out(directory, planned, watcher)
    except KeyboardInterrupt as error:
        by = error.by if isinstance(error, Interrupted) else "SIGINT"
        line = f"interrupted by {by}: finished runs are kept; to go on: {_resume(directory.path)}"
        raise Interrupted(by, line) from error
    found = overview.summed(directory.plan, states)
    _draw(directory, found)
    _write_page(directory, found)
    _print(directory, found, flags)
    _end(directory, found)


def _begin(ctx: click.Context, flags: dict[str, Any]) -> tuple[SweepDirectory, Planned]:
    """Return folder and plan of a new sweep, or of the sweep of ``--resume``."""
    from llmb.sweep import planning
    from llmb.sweep.directory import SweepDirectory
    from llmb.sweep.plan import check_same

    given = _given(ctx)
    if flags["resume"] is None:
        planned = planning.make(_asked(ctx, flags))
        return SweepDirectory.create(flags["output_dir"], planned.plan), planned
    if ctx.get_parameter_source("output_dir") is click.core.ParameterSource.COMMANDLINE:
        raise UsageError("--output-dir: not with --resume DIR, which is where the sweep is")
    directory = SweepDirectory.open(flags["resume"])
    if given:
        check_same(_asked(ctx, flags), directory.plan.asked, str(directory.path))
    return directory, planning.again(directory.plan, str(directory.path))


def _given(ctx: click.Context) -> set[str]:
    """Return the names of the given options that change the runs."""
    default = click.core.ParameterSource.DEFAULT
    names = {str(param.name) for param in ctx.command.params}
    return {n for n in names - {*_ASIDE} if ctx.get_parameter_source(n) is not default}


def _asked(ctx: click.Context, flags: dict[str, Any]) -> SweepRequest:
    from llmb.records.sweep_overview import SweepRequest

    names = [part.strip() for text in flags["precisions"] for part in text.split(",")]
    if not all(name and name.isprintable() for name in names):
        raise UsageError(f"--precision {','.join(names)!r}: not the name of a format")
    open_ones = {"precision": None, "batch_size": None, "micro_batch_size": None}
    own = ("precisions", "batch_sizes", "max_batch_size", *_ASIDE)
    request = run.request_of(ctx, {**{k: v for k, v in flags.items() if k not in own}, **open_ones})
    sizes = flags["batch_sizes"]
    if sizes is None and flags["preset"] == "debug" and flags["max_batch_size"] is None:
        sizes = tuple(size * request.accumulate for size in _DEBUG_SIZES)
    return SweepRequest(
        request=request.model_copy(update={"batch_size": None}),
        precisions=tuple(dict.fromkeys(name.upper() for name in names)),
        batch_sizes=sizes,
        max_batch_size=flags["max_batch_size"],
    )


def _show(ctx: click.Context, flags: dict[str, Any]) -> None:
    from llmb.sweep import overview
    from llmb.sweep.directory import SweepDirectory

    if _given(ctx) or flags["resume"] is not None:
        raise UsageError("--show DIR runs nothing: leave other options out")
    directory = SweepDirectory.open(flags["show"])
    _print(directory, overview.of(directory), flags)


def _draw(directory: SweepDirectory, found: Overview) -> None:
    """Write the figure to the sweep's folder; a failure is a message, as the runs are kept."""
    from llmb.sweep import figure

    try:
        drawn = figure.draw(found)
    except ImportError as error:  # a vendor's numpy and matplotlib may not fit
        click.echo(f"llmb: no figure is drawn: {printable(str(error))}", err=True)
        return
    for name, data in drawn.items():
        directory.write(name, data)


def _write_page(directory: SweepDirectory, found: Overview) -> None:
    from llmb.cli import pages
    from llmb.report.sweep_page import sweep_page

    pages.write_or_warn(directory.path, lambda: sweep_page(found))


def _print(directory: SweepDirectory, found: Overview, flags: Mapping[str, Any]) -> None:
    from llmb.cli.sweep_table import print_overview
    from llmb.records.canonical import pretty_bytes

    if flags["as_json"]:
        click.echo(pretty_bytes(found), nl=False)
        return
    print_overview(found, directory.path, wide=flags["wide"])
    if found.unfinished:
        click.echo(f"\nnot finished; to go on: {_resume(directory.path)}")


def _end(directory: SweepDirectory, found: Overview) -> None:
    """Raise the error for the exit code: failed, INVALID, or out of memory."""
    if found.failed:
        raise RunFailedError(
            f"{len(found.failed)} of {len(found.points)} points failed: first "
            f"{found.failed[0].point}; to try them again: {_resume(directory.path)}"
        )
    if found.invalid:
        raise AuditInvalidError(
            f"{len(found.invalid)} of {len(found.points)} points are INVALID: first "
            f"{found.invalid[0].point}, see {directory.path / str(found.invalid[0].run)}"
        )
    if not found.best:
        raise NotEnoughMemoryError("nothing was measured: no point fits into memory")


def _opening(directory: SweepDirectory) -> str:
    plan = directory.plan
    return (
        f"sweep of {', '.join(plan.precisions)} by plugin {plan.ground.plugin} on "
        f"{plan.ground.device}, in {directory.path}"
    )


def _left_out(plan: SweepPlan) -> Iterator[str]:
    for each in plan.left_out:
        how = f"; --precision {each.name} runs it all the same" if each.emulated else ""
        yield f"{each.name} is left out: {each.reason}{how}"


def _resume(path: Path) -> str:
    import shlex

    return shlex.join(("llmb", "sweep", "--resume", str(path)))


@dataclass(frozen=True)
class _StderrWatcher:
    """Prints the present point to stderr, and writes the page of each run when it ends.

    The run's own progress is shown below.
    """

    folder: Path
    quiet: bool
    #: The bar of the whole sweep; None: each point begins a new bar.
    bar: Bar | None = None

    def say(self, text: str) -> None:
        """Write a line, unless nothing is to be shown."""
        if not self.quiet:
            click.echo(f"llmb: {printable(text)}", err=True)

    def begins(self, point: Point, progress: Progress) -> AbstractContextManager[Display]:
        """Say where the sweep stands, and return the display of the run."""
        from llmb.cli.progress import Bar, display

        bar = self.bar or Bar()
        bar.after_s, bar.more_runs = progress.later_s or 0.0, 0
        if progress.later_s is None and progress.of is not None:
            bar.more_runs = progress.of - progress.number
        of = "" if progress.of is None else f" of about {progress.of}"
        left = "" if progress.left_s is None else f"; about {_duration(progress.left_s)} left"
        self.say(f"point {progress.number}{of}: {point}{left}")
        return display(quiet=self.quiet, bar=bar, prefix=f"point {progress.number}{of}: ")

    def ended(self, state: PointState, *, kept: bool) -> None:
        """Print the result of a point."""
        how = "kept: " if kept else ""
        if state.run is not None and state.measured and not kept:
            _write_report(self.folder / state.run)
        if state.measured:
            self.say(f"{state.point}: {how}{state.measured.tokens_per_second:,.2f} tokens/s")
        else:
            self.say(f"{state.point}: {how}{state.message or state.status}")


def _write_report(run_directory: Path) -> None:
    from llmb.cli import pages
    from llmb.records.bundle import read_record

    pages.write_report(run_directory, read_record(run_directory))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
