"""``llmb verify --recompute``: repeats a bundle's run from seed and nonce, and compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.records.bundle import Take
    from llmb.submission.recomputed_run import Extent, Recomputed, RecomputePlan
    from llmb.submission.verify import Verification, VerifyCheck

#: Most faults in the line of a bundle.
_SHOWN = 3
_EXTENTS = ("quick", "full")


class VerifyCommand(click.Command):
    """Accepts ``--recompute`` with and without a value: only ``quick`` or ``full`` is a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``--recompute BUNDLE`` as ``--recompute=quick BUNDLE``."""
        given, following = list(args), [*args[1:], ""]
        for number, following_one in enumerate(following[: len(given)]):
            if given[number] == "--recompute" and following_one not in _EXTENTS:
                given[number] = "--recompute=quick"
        return super().parse_args(ctx, given)


recompute_option = click.option(
    "--recompute",
    type=click.Choice(_EXTENTS),
    metavar="[quick|full]",
    help="Make the first steps (full: all), the last and the probes again; needs torch.",
)


list_option = click.option(
    "--list-in",
    "listed",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --recompute: add bundles that pass to FOLDER/recomputed.json (for maintainers).",
)


def add_to_list(folder: Path, results: Sequence[dict[str, Any]]) -> None:
    """Add every passed bundle of ``results`` with recomputed steps to the list in ``folder``.

    Raises:
        BundleRefusedError: the present list cannot be read.
        UsageError: the list cannot be written.
    """
    from llmb import __version__
    from llmb.errors import UsageError
    from llmb.records.canonical import pretty_bytes
    from llmb.records.recomputed_list import RECOMPUTED, Recomputation, read_recomputed
    from llmb.submission.store import write_file

    before = read_recomputed(folder)
    day = datetime.now(timezone.utc).date().isoformat()
    new = {
        result["bundle_id"]: Recomputation(
            llmb_version=__version__,
            date=day,
            steps=sum(result["recompute"]["steps"]),
            of_steps=sum(result["recompute"]["of_steps"]),
        )
        for result in results
        if result["ok"] and result.get("recompute") and any(result["recompute"]["steps"])
    }
    for result in results:
        if result["ok"] and result.get("bundle_id") not in new:
            click.echo(f"not listed: {result['bundle']}: no step was made again", err=True)
    after = before.model_copy(update={"bundles": {**before.bundles, **new}})
    try:
        write_file(folder / RECOMPUTED, pretty_bytes(after))
    except OSError as error:
        raise UsageError(f"--list-in {str(folder)!r}: {error.strerror or error}") from None


def recomputed(
    path: Path, verification: Verification, extent: Extent, take: Take | None = None
) -> tuple[Verification, dict[str, Any] | None]:
    """Return ``verification`` with the check ``recompute``, and the figures for ``--json``.

    A bundle with another failed check is not recomputed.

    Raises:
        UnavailableError: this machine cannot recompute the run. NotEnoughMemoryError: too little
            memory.
    """
    from llmb.cli.progress import display
    from llmb.errors import BundleRefusedError
    from llmb.records.bundle import read_bundle
    from llmb.submission import recomputed_run
    from llmb.submission.verify import VerifyCheck
    from llmb.supervision.forecast import Forecast, ForecastPart
    from llmb.supervision.sizing import readable

    if not verification.ok:
        return verification, None
    bundle = read_bundle(path, take)
    try:
        if bundle.bundle_id != verification.bundle_id:
            raise BundleRefusedError("its files have changed since they were checked")
        planned = recomputed_run.plan(bundle, verification.record, extent)
        seconds = recomputed_run.estimate_s(planned)
        click.echo(f"{printable(str(path))}\n  {planned}, about {readable(seconds)}", err=True)
        with display(quiet=False) as shown:
            shown.foresee(Forecast((ForecastPart("recompute", seconds),)))
            found = recomputed_run.recompute(bundle, verification.record, planned, shown)
    except BundleRefusedError as error:
        check = VerifyCheck("recompute", False, str(error))
        return _with(verification, check), None
    return _with(verification, check_of(planned, found)), _data(planned, found)


def check_of(planned: RecomputePlan, found: Recomputed) -> VerifyCheck:
    """Return the check ``recompute``: refused where anything does not follow from the seeds."""
    from llmb.submission.verify import VerifyCheck

    return VerifyCheck("recompute", not found.faults, _message(planned, found))


def _with(verification: Verification, check: VerifyCheck) -> Verification:
    return replace(verification, checks=(*verification.checks, check))


def _message(planned: RecomputePlan, found: Recomputed) -> str:
    if found.faults:
        more = f"; and {len(found.faults) - _SHOWN} more" if len(found.faults) > _SHOWN else ""
        faults = "; ".join(found.faults[:_SHOWN])
        return f"not computed from this seed and nonce: {faults}{more}"
    same, every = found.same_weights
    parts = [f"{one.what}: {one.measured:.2g} (limit {one.limit:.2g})" for one in found.compared]
    left_out = "".join(f"; not compared: {one}" for one in found.left_out)
    return (
        f"{planned.extent_text} made again, what is compared follows from seed and nonce: off by "
        f"{', '.join(parts)}; {same} of {every} first weights are the same bit for bit{left_out}"
    )


def _data(planned: RecomputePlan, found: Recomputed) -> dict[str, Any]:
    return {
        "steps": list(planned.steps),
        "of_steps": list(planned.all_steps),
        "compared": [
            {
                "what": one.what,
                "relative_error": one.measured,
                "limit": one.limit,
                "faults": [printable(fault) for fault in one.faults],
            }
            for one in found.compared
        ],
        "same_first_weights": list(found.same_weights),
        "left_out": list(found.left_out),
        "seconds": found.seconds,
    }
