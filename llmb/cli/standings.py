"""Relations between bundles verified together: repetitions and clashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.records.run_record import RunRecord
    from llmb.reproduction.links import Member, Repetition
    from llmb.submission.owners import OwnerLine
    from llmb.submission.verify import Verification

#: The last line of ``llmb verify``, where nothing was refused.
MEANING = (
    "consistent: these files fit together; not shown: that the clock, the counters, the device and "
    "the submitter are what they say"
)
#: The rest of the line, by the steps that were computed again.
NOT_COMPUTED = {
    None: ", nor that a step was computed (--recompute full)",
    "quick": ", nor that steps after the first were computed (--recompute full)",
    "full": "",
}


def add_clashes(
    results: Sequence[dict[str, Any]], paths: Sequence[Path], sound: Sequence[Verification]
) -> list[Verification]:
    """Refuse copies of other runs in ``results``; return the remaining sound bundles.

    Args:
        results: outcomes of ``llmb verify``, as JSON data; changed in place.
        paths: the path of each bundle.
        sound: bundles without a failed check, in the same order.
    """
    from llmb.submission.clashes import Placed, clashes
    from llmb.submission.history import arrival

    good = [(result, path) for result, path in zip(results, paths, strict=True) if result["ok"]]
    members = [
        Placed(result["bundle"], path, one.bundle_id, one.content)
        for (result, path), one in zip(good, sound, strict=True)
    ]
    found, kept = clashes(members, arrival), []
    for (result, path), one in zip(good, sound, strict=True):
        if path in found:
            fault = printable(f"clash: {found[path]}")
            result |= {"ok": False, "reason": fault, "clash": True}
        else:
            kept.append(one)
    return kept


def listed_owners(folders: Iterable[Path]) -> list[OwnerLine]:
    """Return the lines of ``allowed_signers`` in ``folders``; folders without the file have none.

    Raises:
        BundleRefusedError: a line cannot be read.
    """
    from llmb.submission.owners import OWNERS, read

    files = [path / OWNERS for path in folders]
    return [line for file in files if file.is_file() for line in read(file.read_bytes())]


def add_standings(
    results: Sequence[dict[str, Any]],
    sound: Sequence[Verification],
    owners: Sequence[OwnerLine] = (),
) -> None:
    """Add repetitions to ``results``; refuse bundles with a false link.

    Args:
        results: outcomes of ``llmb verify``, as JSON data; changed in place.
        sound: bundles without a failed check.
        owners: the list of owners; only signatures by the keys of the list count.
    """
    from llmb.reproduction import links

    members = [
        member_of(one.bundle_id, one.record, signers_of(one), one.submitter, owners)
        for one in sound
    ]
    false, standings = links.false_links(members), links.standings(members)
    for result in results:
        bundle_id = result.get("bundle_id")
        if not result["ok"] or bundle_id not in standings:
            continue
        if bundle_id in false:
            fault = printable(f"reproduction: {false[bundle_id]}")
            result |= {"ok": False, "reason": fault, "link": "false"}
        standing = standings[bundle_id]
        result["verdict"] = standing.verdict.value
        result["reproductions"] = [_as_json(each) for each in standing.repetitions]


def say_standings(results: Sequence[dict[str, Any]]) -> None:
    """Print repetitions, false links, and clashes of bundles."""
    for result in results:
        if result.get("link") == "false" or result.get("clash"):
            click.echo(f"{result['bundle']}\n  refused  {result['reason']}")
        for each in result.get("reproductions", ()):
            click.echo(f"{result['bundle']}  {result['verdict']}")
            lacking = f"; changes nothing: {'; '.join(each['lacking'])}" if each["lacking"] else ""
            click.echo(
                f"  repeated by {each['bundle_id'][:12]}: {each['tokens_per_second']:,.1f} "
                f"tokens/s, {each['difference_percent']:+.2f} %{lacking}"
            )


def signers_of(verification: Verification) -> frozenset[str]:
    """Return the fingerprints of the signing keys; none without a checked signature."""
    return frozenset(signature.fingerprint for signature in verification.signatures)


def member_of(
    bundle_id: str,
    record: RunRecord,
    signers: frozenset[str],
    submitter: str | None,
    owners: Iterable[OwnerLine],
) -> Member:
    """Return a bundle for ``links.standings``: only listed keys of the submitter count."""
    from llmb.reproduction.links import Member
    from llmb.submission.owners import party

    known = party(owners, submitter)
    keys = signers & known.fingerprints
    return Member(bundle_id, record, keys, submitter, known.organisation)


def _as_json(repetition: Repetition) -> dict[str, Any]:
    from llmb.records.canonical import as_json

    return {
        **as_json(repetition.reproduction),
        "ratio_ci95": repetition.agreement.ci95,
        "lacking": [printable(text) for text in repetition.lacking],
    }
