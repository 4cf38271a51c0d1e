"""``llmb reproduce``: lists the differences to a bundle's machine, repeats the run, compares."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli.evidence import evidence_option
from llmb.cli.standings import signers_of
from llmb.cli.text import made_by, printable

if TYPE_CHECKING:
    from llmb.config import RankAddress, RunRequest
    from llmb.errors import LlmbError
    from llmb.records.reproduction import Original
    from llmb.records.run_record import RunRecord
    from llmb.reproduction.here import Here
    from llmb.submission.verify import Verification
    from llmb.supervisor import Finished


@click.command("reproduce", short_help="Repeat a bundle's run on this machine, and compare.")
@click.argument("bundle", type=Path)
@click.option("--dry-run", is_flag=True, help="List differences and obstacles; run nothing.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder of the new run directory.",
)
@click.option(
    "-O",
    "--plugin-option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the plugin that the bundle's version lacks; repeatable.",
)
@click.option("--device", help="Another device of the same kind [default: the bundle's].")
@click.option(
    "--data",
    metavar="PREFIX|LIST|TEXT",
    help="Path of the original's data on this machine, if any.",
)
@click.option("--tokenizer", metavar="FILE", help="Path of the original's tokenizer.json, if any.")
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Path of the original's checkpoint, if any.",
)
@evidence_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@click.pass_context
def command(ctx: click.Context, /, bundle: Path, **flags: Any) -> None:
    """Repeat the run of BUNDLE (folder or zip) on this machine, and compare.

    The bundle is verified first; nothing in the bundle is loaded or run. Before the run, llmb lists
    the differences of this machine, with commands to come closer. llmb installs nothing. Package
    names come from the bundle: install only packages that you trust.

    Workload, mode, plugin with options, precision, batch size, executor, steps and repeats are the
    bundle's; the seed is drawn afresh. The new run links to the bundle's id. A CONSISTENT original
    becomes REPRODUCED if the new run is CONSISTENT, within 5 %, on the same class of hardware, and
    handed in (llmb package-submission) by another organisation that the
    tree's allowed_signers lists.

    A bundle of an older llmb is run if the model family computes the same in this llmb. Otherwise
    the exit code is 3, and the message names the version.

    \b
    Examples:
      llmb reproduce submissions/acme/box-8x/llama-1.4b_train_BF16/8x-acme-1f0c2a9b --dry-run
      llmb reproduce acme.zip
    """
    from llmb.config import environment, limit_threads
    from llmb.errors import UsageError
    from llmb.parallel.launch import start
    from llmb.parallel.place import last_of, place_in
    from llmb.plugin.builtin.host import usable_cores
    from llmb.reproduction import here as machine

    for text in map(str, [*flags["options"], *flags["evidence"], *flags.values()]):
        if not text.isprintable():
            raise UsageError(f"{text!r}: not readable text")
    verification = _verified(bundle, flags["evidence"])
    record = verification.record
    ranks = record.config.parallelism.world_size
    place = place_in(environment())
    starts = place is None and ranks > 1
    if starts:
        limit_threads(max(1, usable_cores() // ranks))  # as for the ranks
    request, blocked = _asked(record, flags)
    here = machine.look(record, request, last_of(ranks) if starts else place)
    blocked = blocked or _not_as_many(record, place) or here.blocked
    if place is not None and not place.leads:
        if not flags["dry_run"]:
            _follow(request, place, blocked)
        return
    if starts and blocked is None and not flags["dry_run"]:
        ctx.exit(start(ranks, sys.argv[1:], uuid.uuid4().hex))
    report = _before(bundle, verification, here, blocked)
    if not flags["as_json"]:
        _say_before(report)
    if blocked is not None or flags["dry_run"] or request is None:
        if flags["as_json"]:
            click.echo(json.dumps(report, indent=1))
        if blocked is not None:
            raise blocked
        return
    _run(verification, request, report, flags, place)


def _asked(record: RunRecord, flags: dict[str, Any]) -> tuple[RunRequest | None, LlmbError | None]:
    """Return the request, or the obstacle; the caller prints the differences first."""
    from llmb.cli.run import options_of
    from llmb.errors import UnavailableError
    from llmb.reproduction.request_again import Places, request_of

    places = Places(
        options=options_of(flags["options"]),
        **{name: flags[name] for name in ("data", "tokenizer", "weights", "device")},
    )
    try:
        return request_of(record, places), None
    except UnavailableError as error:
        return None, error


def _not_as_many(record: RunRecord, place: RankAddress | None) -> LlmbError | None:
    """Return the mismatch of the started processes and the record's ranks, None for a match."""
    from llmb.errors import UnavailableError

    ranks, nodes = record.config.parallelism.world_size, record.topology.nodes
    if place is None and nodes > 1:
        return UnavailableError(
            f"the bundle's {ranks} ranks were on {nodes} machines: start llmb reproduce on as "
            "many, under torchrun, mpiexec or srun"
        )
    if place is not None and place.world_size != ranks:
        return UnavailableError(
            f"the bundle is of {ranks} ranks, and {place.world_size} were started: start as many"
        )
    return None


def _follow(request: RunRequest | None, place: RankAddress, blocked: LlmbError | None) -> None:
    """Run a rank above 0; the process of rank 0 prints the results."""
    from llmb import supervisor
    from llmb.cli.progress import display
    from llmb.wire.forking import fork_server

    if blocked is not None:
        raise blocked
    assert request is not None
    with fork_server(request.plugin, request.device), display(quiet=True) as shown:
        supervisor.follow(request, place, shown)


def _verified(path: Path, evidence: tuple[str, ...]) -> Verification:
    from llmb.errors import BundleRefusedError
    from llmb.submission.elsewhere import places
    from llmb.submission.verify import verify

    there = places(evidence)
    verification = verify(path, take=there.take if there else None)
    failed = [check for check in verification.checks if not check.ok]
    if failed:
        reasons = "; ".join(f"{check.name}: {check.message}" for check in failed)
        raise BundleRefusedError(f"REFUSED  {path}: {reasons}")
    return verification


def _before(
    path: Path, verification: Verification, here: Here, blocked: Exception | None
) -> dict[str, Any]:
    """Return the differences known before the run, as JSON data."""
    from llmb.cli.show import command_line
    from llmb.records.provenance import provenance
    from llmb.reproduction import conditions, hardware, request_again
    from llmb.reproduction.differences import differences

    record = verification.record
    found = differences(conditions.of_record(record), here.conditions)
    ours, unlike = here.conditions.hardware, None
    if ours is not None:
        unlike = [printable(text) for text in hardware.unlike(hardware.of_record(record), ours)]
    return {
        "bundle": printable(str(path)),
        "bundle_id": verification.bundle_id,
        "headline": printable(verification.headline),
        "made_by": made_by(provenance(record, here.conditions.reference)),
        "signers": sorted(map(printable, signers_of(verification))),
        "command": command_line(record, same_seed=False),
        "differences": [
            {
                "subject": printable(each.subject),
                "there": printable(each.there),
                "here": printable(each.here),
                "closer": each.closer and printable(each.closer),
                "line": printable(str(each)),
            }
            for each in found
        ],
        # None: without the plugin, the hardware here is unknown.
        "same_class_of_hardware": None if unlike is None else not unlike,
        "unlike": unlike,
        "notes": [printable(note) for note in request_again.notes(record)],
        "blocked": blocked and printable(str(blocked)),
    }


def _say_before(report: dict[str, Any]) -> None:
    click.echo(f"{report['bundle']}  {report['bundle_id'][:12]}")
    click.echo(f"  {report['headline']}")
    click.echo(f"what is run: {report['command']}")
    click.echo("what differs here:" if report["differences"] else "nothing differs here")
    for each in report["differences"]:
        click.echo(f"  {each['line']}")
    if report["unlike"]:
        click.echo(f"not the same class of hardware: {'; '.join(report['unlike'])}")
    elif report["unlike"] is not None:
        click.echo("the same class of hardware")
    for note in report["notes"]:
        click.echo(f"note: {note}")
    if report["signers"]:
        names = ", ".join(report["signers"])
        click.echo(f"signed by {names}: a repetition counts only by another organisation")
    else:
        click.echo("not signed: it cannot become REPRODUCED")


def _run(
    verification: Verification,
    request: RunRequest,
    report: dict[str, Any],
    flags: dict[str, Any],
    place: RankAddress | None,
) -> None:
    from llmb import supervisor
    from llmb.cli import pages
    from llmb.cli.progress import display
    from llmb.errors import AuditInvalidError, NotEnoughMemoryError
    from llmb.records.finding import Verdict
    from llmb.reproduction.here import explained
    from llmb.wire.forking import fork_server

    try:
        with fork_server(request.plugin, request.device), display(quiet=flags["quiet"]) as shown:
            finished = supervisor.run(
                request,
                flags["output_dir"],
                shown,
                original=_original(verification),
                place=place,
            )
    except NotEnoughMemoryError as error:
        raise explained(error, verification.record) from error
    pages.write_report(finished.path, finished.record)
    report |= _outcome(verification, finished)
    if flags["as_json"]:
        click.echo(json.dumps(report, indent=1))
    else:
        _say_outcome(verification, finished, report)
    if finished.record.audit.verdict is Verdict.INVALID:
        raise AuditInvalidError(f"the run is INVALID, see {finished.path / 'audit.json'}")


def _original(verification: Verification) -> Original:
    from llmb.records.reproduction import Original

    record = verification.record
    return Original(
        bundle_id=verification.bundle_id,
        run_id=record.run_id,
        tokens_per_second=record.result.tokens_per_second,
        ci95=record.result.ci95,
    )


def _outcome(verification: Verification, finished: Finished) -> dict[str, Any]:
    """Return how the two runs compare, as JSON data."""
    from llmb.reproduction import links
    from llmb.reproduction.agreement import LIMIT_PERCENT

    record = finished.record
    agrees = links.agreement_of(record, verification.record)
    return {
        "run_directory": str(finished.path),
        "run_id": record.run_id,
        "class": record.class_,
        "verdict": record.audit.verdict.value,
        "tokens_per_second": record.result.tokens_per_second,
        "ci95": record.result.ci95,
        "original_tokens_per_second": verification.record.result.tokens_per_second,
        "original_ci95": verification.record.result.ci95,
        "ratio": agrees.ratio,
        "ratio_ci95": agrees.ci95,
        "difference_percent": agrees.difference_percent,
        "limit_percent": LIMIT_PERCENT,
        "within_limit": agrees.is_within_limit,
        "interval_says_the_same": agrees.is_settled,
        # Obstacles to the standing REPRODUCED, apart from the signature.
        "lacking": [printable(text) for text in links.shortfalls(record, verification.record)],
    }


def _say_outcome(verification: Verification, finished: Finished, report: dict[str, Any]) -> None:
    theirs, ours = verification.record.result, finished.record.result
    label = "" if report["class"] == "official" else "   [DEBUG, not comparable]"
    click.echo(f"\noriginal  {_rate(theirs.tokens_per_second, theirs.ci95)}")
    click.echo(f"here      {_rate(ours.tokens_per_second, ours.ci95)}{label}")
    click.echo(f"audit     {report['verdict']}")
    interval = "no interval"
    if report["ratio_ci95"] is not None:
        low, high = report["ratio_ci95"]
        interval = f"95 % interval {low:.4f} to {high:.4f}"
    within = "within" if report["within_limit"] else "not within"
    sure = {True: "", False: "; the interval leaves it open", None: ""}
    click.echo(
        f"ratio     {report['ratio']:.4f} ({interval}): {report['difference_percent']:+.2f} %, "
        f"{within} 5 %{sure[report['interval_says_the_same']]}"
    )
    for text in report["lacking"]:
        click.echo(f"keeps the original from being REPRODUCED: {text}")
    click.echo(f"\nrun directory: {printable(report['run_directory'])}")
    if report["class"] == "official":
        click.echo("to hand it in: llmb package-submission, signed with your listed key")


def _rate(rate: float, ci95: tuple[float, float] | None) -> str:
    interval = f"   95 % interval {ci95[0]:,.2f} to {ci95[1]:,.2f}" if ci95 else ""
    return f"{rate:,.2f} tokens/s{interval}"
