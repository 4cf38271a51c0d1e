"""``llmb node``: tests every device of a new node, then all devices, and says yes or no."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli import run, settings
from llmb.cli.amounts import Amount
from llmb.cli.run_options import OF_RANKS
from llmb.cli.tables import wide_option
from llmb.endings import Interrupted
from llmb.errors import RequirementError, UsageError

if TYPE_CHECKING:
    from llmb.config import RunRequest
    from llmb.node.plan import NodePlan

_SHARE = Amount(min=0.0, max=1.0)
#: Foreseen seconds before the plan is known: of asking the plugins, and of a debug examination, in
#: starts of this process.
_ASKING, _EXAMINING = 3.0, 20.0
#: Timed steps of a run, unless something else is said.
_TIMED_STEPS = 20
#: Options that --resume takes from the beginning of the examination.
_KEPT = ("nproc", "preset", "seconds", "min_device", "min_together", "min_efficiency")
#: Options of ``llmb run`` that ``llmb node`` sets itself, or does not need.
_NOT_RUNS = (
    *("audit", "output_dir", "repeats", "profile", "seed_commitment", "timestamp", "as_json"),
    *("quiet", "within", *OF_RANKS),
)


@click.command(
    "node",
    short_help="Test a new node: each device, all at once, DDP.",
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "--nproc",
    type=click.IntRange(min=1),
    metavar="N",
    help="Devices, from the first [default: all; on a processor 2 shares of its cores].",
)
@click.option(
    "--preset",
    type=click.Choice(["full", "debug"]),
    help="debug: tiny runs, no measure of speed [default: debug on a processor, or else full].",
)
@click.option(
    "--seconds",
    type=Amount(min=1),
    default=480.0,
    show_default=True,
    help="Time for all steps, in seconds; step 4 leaves out devices to keep the time.",
)
@click.option(
    "--min-device",
    type=_SHARE,
    help="Least share of the median device's speed [default: 0.9; debug 0.25].",
)
@click.option(
    "--min-together",
    type=_SHARE,
    help="Least share of the speed alone, with all devices busy [default: 0.8; debug 0.25].",
)
@click.option(
    "--min-efficiency",
    type=_SHARE,
    help="Least efficiency of DDP, against all side by side [default: 0.8; debug 0.25].",
)
@click.option(
    "--submissions",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of bundles; the nearest bundle of the same device is compared.",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where the folder of the examination goes.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Continue the examination in this folder, with the recorded options.",
)
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF llmb run]")
@click.pass_context
def command(ctx: click.Context, /, arguments: tuple[str, ...], **flags: Any) -> None:
    """Test whether a new node is fit for training: yes (exit code 0), or no (7) with the reason.

    Steps: 1 doctor, 2 each device's ceilings, 3 collectives between the devices, 4 each device
    alone, 5 all devices side by side, 6 as ranks of one run (DDP). Each run is kept. Any other
    option is llmb run's and holds for every run: --plugin, -O, --precision, --timed-steps.

    \b
    llmb node                                       all accelerators; docs/node.md
    llmb node --preset debug --timed-steps 5        quick, to see that llmb works
    llmb node --precision BF16 --submissions submissions --json > node.json
    llmb node --resume runs/node-5f0c2a91           after Ctrl-C: finished steps are kept
    """
    from llmb.cli import pages
    from llmb.cli.node_tables import print_report
    from llmb.cli.progress import Bar, display
    from llmb.node.examination import examine
    from llmb.records.canonical import pretty_bytes
    from llmb.report.node_page import node_page
    from llmb.supervision.forecast import Forecast, ForecastPart, start_s

    settings.announce(ctx, settings.given_elsewhere(ctx))
    asking = Forecast((ForecastPart("asking", _ASKING * start_s()),))
    bar = Bar(after_s=_EXAMINING * start_s())
    with display(quiet=flags["quiet"], bar=bar) as shown:
        shown.foresee(asking)
        shown.phase("asking the plugins")
        plan = _plan(arguments, flags) if flags["resume"] is None else _again(ctx, arguments, flags)
        bar.after_s = 0.0  # the steps are known now
        try:
            report = examine(plan, shown)
        except KeyboardInterrupt as error:
            by = error.by if isinstance(error, Interrupted) else "SIGINT"
            on = f"to go on: llmb node --resume {shlex.quote(str(plan.folder))}"
            raise Interrupted(by, f"interrupted by {by}: finished steps are kept; {on}") from error
    (plan.folder / "node.json").write_bytes(pretty_bytes(report))
    pages.write_or_warn(plan.folder, lambda: node_page(report))
    if flags["as_json"]:
        click.echo(pretty_bytes(report), nl=False)
    else:
        print_report(report, wide=flags["wide"])
        click.echo(f"\nreport and runs: {plan.folder}")
    if report.reasons:
        more = f" (and {len(report.reasons) - 1} more)" if len(report.reasons) > 1 else ""
        raise RequirementError(f"this node is not fit: {report.reasons[0]}{more}")


def _plan(arguments: Sequence[str], flags: dict[str, Any], folder: Path | None = None) -> NodePlan:
    """Return the examination for the options, settled with the plugins.

    The examination continues in ``folder``, or begins in a new folder.
    """
    from llmb.config import environment
    from llmb.node import plan
    from llmb.node.progress import NodeProgress, read
    from llmb.parallel.place import place_in
    from llmb.records.run_directory import check_writable
    from llmb.submission.bundles import gather
    from llmb.submission.verified import Cache, usual_folder

    if place_in(environment()) is not None:
        raise UsageError("llmb node starts the ranks itself: leave torchrun or srun out")
    cache = Cache(usual_folder())
    below = flags["submissions"]
    submissions = gather([Path(below)], cache.verified).entries if below else ()
    check_writable(flags["output_dir"])
    given, request = _request(arguments, flags["preset"])
    if flags["preset"] is None and not plan.is_debug(request) and plan.is_processor(request):
        given, request = _request(arguments, "debug")
    negotiated, seats = plan.settle(request, flags["nproc"])
    devices = tuple(seat.device for seat in seats)
    if folder is None:
        folder = flags["output_dir"] / f"node-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        progress = NodeProgress(
            arguments=tuple(arguments),
            options={name: flags[name] for name in _KEPT} | {"submissions": str(below or "")},
            batch_size=negotiated.config.batch_size,
            devices=devices,
        )
        progress.write(folder)
    else:
        progress = read(folder)
        progress.check_same(devices, folder)
    device, together = flags["min_device"], flags["min_together"]
    return plan.NodePlan(
        request=request,
        arguments=plan.arguments_of(given, negotiated.config),
        negotiated=negotiated,
        seats=seats,
        limits=plan.limits_of(request, device, together, flags["min_efficiency"]),
        seconds=flags["seconds"],
        folder=folder,
        submissions=submissions,
        progress=progress,
    )


def _again(ctx: click.Context, arguments: Sequence[str], flags: dict[str, Any]) -> NodePlan:
    """Return the examination in the folder ``--resume``, with the recorded options.

    Raises:
        UsageError: further options were given, or the folder holds no examination.
    """
    from llmb.node.progress import read

    typed = click.core.ParameterSource.COMMANDLINE
    names = (*_KEPT, "submissions", "output_dir")
    given = [name for name in names if ctx.get_parameter_source(name) is typed]
    if arguments or given:
        word = arguments[0] if arguments else f"--{given[0].replace('_', '-')}"
        raise UsageError(f"{word}: not with --resume, which has the options of the beginning")
    folder: Path = flags["resume"]
    progress = read(folder)
    return _plan(progress.arguments, {**flags, **progress.options}, folder)


def _request(arguments: Sequence[str], preset: str | None) -> tuple[tuple[str, ...], RunRequest]:
    """Return the options of ``llmb run`` on each device, and the request.

    Raises:
        UsageError: ``llmb node`` chooses one of the options.
    """
    size = ("--preset=debug",) if preset == "debug" else ()
    given = (f"--timed-steps={_TIMED_STEPS}", *arguments, *size)
    ctx = run.command.make_context("llmb node", list(given))
    default = click.core.ParameterSource.DEFAULT
    for name in _NOT_RUNS:
        if ctx.get_parameter_source(name) is not default:
            option = name.removeprefix("as_").replace("_", "-")
            raise UsageError(f"--{option}: llmb node sets it itself; leave it out")
    if ":" in (ctx.params["device"] or ""):
        raise UsageError(f"--device {ctx.params['device']}: all are examined; leave the number out")
    return given, run.request_of(ctx, dict(ctx.params))
