"""Who has repeated which of the bundles that were verified together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.reproduction.links import Member, Repetition
    from llmb.submission.verify import Verification


def add_standings(results: Sequence[dict[str, Any]], sound: Sequence[Verification]) -> None:
    """Add to each of ``results`` by whom it was repeated; refuse one whose link is false.

    Args:
        results: outcomes of ``llmb verify``, as JSON data; changed in place.
        sound: those bundles that passed every check.
    """
    from llmb.reproduction import links

    members = [_member(verification) for verification in sound]
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
    """Print for every bundle that was repeated by whom, and which links are false."""
    for result in results:
        if result.get("link") == "false":
            click.echo(f"{result['bundle']}\n  refused  {result['reason']}")
        for each in result.get("reproductions", ()):
            click.echo(f"{result['bundle']}  {result['verdict']}")
            lacking = f"; changes nothing: {'; '.join(each['lacking'])}" if each["lacking"] else ""
            click.echo(
                f"  repeated by {each['bundle_id'][:12]}: {each['tokens_per_second']:,.1f} "
                f"tokens/s, {each['difference_percent']:+.2f} %{lacking}"
            )


def signers_of(verification: Verification) -> frozenset[str]:
    """Return the fingerprints of the keys that signed; none where no signature was checked."""
    return frozenset(signature.fingerprint for signature in verification.signatures)


def _member(verification: Verification) -> Member:
    from llmb.reproduction.links import Member

    return Member(verification.bundle_id, verification.record, signers_of(verification))


def _as_json(repetition: Repetition) -> dict[str, Any]:
    from llmb.records.canonical import as_json

    return {
        **as_json(repetition.reproduction),
        "ratio_ci95": repetition.agreement.ci95,
        "lacking": [printable(text) for text in repetition.lacking],
    }
