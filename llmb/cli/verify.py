"""``llmb verify``: checks bundles offline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli.evidence import evidence_option
from llmb.cli.recompute import (
    VerifyCommand,
    add_to_list,
    list_option,
    recompute_option,
    recomputed,
)
from llmb.cli.standings import (
    MEANING,
    NOT_COMPUTED,
    add_clashes,
    add_standings,
    listed_owners,
    say_standings,
)
from llmb.cli.text import made_by, printable
from llmb.cli.tree import judge

if TYPE_CHECKING:
    from llmb.records.bundle import Take
    from llmb.submission.recomputed_run import Extent
    from llmb.submission.verify import Verification


@click.command(
    "verify",
    cls=VerifyCommand,
    short_help="Check a bundle: integrity, schema, every derived number.",
)
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, type=Path)
@click.option(
    "--all",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Verify every bundle below this folder, and the indexes of systems.",
)
@click.option(
    "--signers",
    metavar="FILE",
    type=Path,
    help="Refuse bundles without a signature of an allowed signer in this file (ssh).",
)
@click.option(
    "--authorities",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Refuse time stamps of authorities outside of this file of certificates (PEM).",
)
@click.option(
    "--tree",
    metavar="FOLDER",
    type=Path,
    help="Judge a whole folder of submissions: places, owners, copies, leaderboards, every bundle.",
)
@click.option(
    "--base", metavar="COMMIT", help="With --tree: judge only the changes since this commit."
)
@click.option("--author", metavar="NAME", help="With --base: the account that asks for the change.")
@recompute_option
@list_option
@evidence_option
@click.option("--json", "as_json", is_flag=True, help="Print every check as JSON.")
def command(
    bundles: tuple[Path, ...],
    folder: Path | None,
    signers: Path | None,
    authorities: Path | None,
    tree: Path | None,
    base: str | None,
    author: str | None,
    recompute: Extent | None,
    listed: Path | None,
    evidence: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check bundles (folders or zips) without executing or unpacking a file.

    Checks digests, every derived number, the findings against the evidence, the verdict and the
    signatures; prints the llmb version, and whether this llmb computes the same. Of two bundles
    with the same run id, nonce or evidence, the later bundle by git history is refused. Exit code 6
    for a failed check.

    --recompute repeats the first steps, the last step and both probes from config, seed and nonce,
    on any machine and without a plugin, and compares with the evidence; --recompute full repeats
    all steps. A match proves the computation, not the speed. Memory and time are printed first.

    Large evidence may lie outside of the bundle: --evidence PLACE. Without the evidence only
    digests are checked, and the exit code is 3.

    \b
    Examples:
      llmb verify submissions/acme/box-8x/llama-1.4b_train_BF16/8x-acme-1f0c2a9b
      llmb verify --all submissions
      llmb verify bundle.zip --signers submissions/allowed_signers
      llmb verify bundle.zip --authorities submissions/authorities.pem
      llmb verify --recompute bundle.zip
      llmb verify --all submissions --evidence https://acme.example/evidence
      llmb verify --tree submissions --base origin/main
    """
    from llmb.errors import BundleRefusedError, EvidenceNotHereError
    from llmb.submission.elsewhere import places

    there = places(evidence)
    if tree is not None:
        if bundles or folder or signers or authorities or recompute or listed:
            others = "bundles, --all, --signers, --authorities and --recompute"
            raise click.UsageError(f"--tree goes without {others}")
        if author is not None and base is None:
            raise click.UsageError("--author goes with --base")
        judge(tree, base, author, there, as_json)
        return
    if listed is not None and recompute is None:
        raise click.UsageError("--list-in goes with --recompute")
    if base is not None or author is not None:
        raise click.UsageError("--base and --author go with --tree")
    paths = [*bundles, *(_below(folder) if folder else ())]
    if not paths and folder is None:
        raise click.UsageError("name a bundle, or a folder of bundles with --all")
    sound: list[Verification] = []
    keys = (signers, authorities)
    take = there.take if there else None
    results = [_one(path, keys, recompute, take, as_json, sound) for path in paths]
    owners = listed_owners([folder] if folder else ())
    add_standings(results, add_clashes(results, paths, sound), owners)
    bad_indexes = [*_bad_indexes(folder, as_json)] if folder else []
    if not results and not bad_indexes:
        raise click.UsageError(f"--all {folder}: no bundle (a folder with MANIFEST.json) is there")
    if as_json:
        click.echo(json.dumps([*results, *bad_indexes], indent=1))
    else:
        say_standings(results)
    if listed is not None:
        add_to_list(listed, results)
    refused = [
        result
        for result in [*results, *bad_indexes]
        if not result["ok"] and not result.get("unread")
    ]
    unread = [result for result in results if result.get("unread")]
    if len(refused) == 1:
        raise BundleRefusedError(f"REFUSED  {refused[0]['bundle']}: {refused[0]['reason']}")
    if refused:
        names = ", ".join(result["bundle"] for result in refused)
        raise BundleRefusedError(f"{len(refused)} of {len(results)} refused: {names}")
    if len(unread) == 1:
        raise EvidenceNotHereError(f"NOT VERIFIED  {unread[0]['bundle']}: {unread[0]['reason']}")
    if unread:
        names = ", ".join(result["bundle"] for result in unread)
        raise EvidenceNotHereError(f"{len(unread)} of {len(results)} NOT VERIFIED: {names}")
    if not as_json and folder is not None:
        click.echo(f"{len(results)} bundles verified")
    if not as_json:
        click.echo(MEANING + NOT_COMPUTED[recompute])


def _below(folder: Path) -> Iterator[Path]:
    """Yield every bundle below ``folder``; a plugin's file inside of a bundle is no bundle."""
    found = _bundles(folder)
    yield from sorted(path for path in found if found.isdisjoint(path.parents))
    yield from sorted(path for path in folder.rglob("*.zip") if found.isdisjoint(path.parents))


def _bundles(folder: Path) -> set[Path]:
    from llmb.records.bundle import MANIFEST

    return {path.parent for path in folder.rglob(MANIFEST)}


def _bad_indexes(folder: Path, quiet: bool) -> Iterator[dict[str, Any]]:
    """Yield an outcome for every refused system index below ``folder``."""
    from llmb.errors import BundleRefusedError
    from llmb.records.system_index import INDEX
    from llmb.submission.system_index import fault

    bundles = _bundles(folder)
    for path in sorted(folder.rglob(INDEX)):
        if not bundles.isdisjoint(path.parents):
            continue  # part of a bundle
        try:
            reason = fault(path)
        except BundleRefusedError as error:
            reason = str(error)
        if reason is None:
            continue
        name, reason = printable(str(path)), printable(reason)
        if not quiet:
            click.echo(f"{name}\n  refused  {reason}")
        yield {"bundle": name, "ok": False, "reason": reason, "checks": []}


def _one(
    path: Path,
    keys: tuple[Path | None, Path | None],
    recompute: Extent | None,
    take: Take | None,
    quiet: bool,
    sound: list[Verification],
) -> dict[str, Any]:
    """Verify a bundle; print the checks unless ``quiet``; return the outcome as JSON data.

    A bundle without a fault is added to ``sound``.
    """
    from llmb.errors import BundleRefusedError, EvidenceNotHereError
    from llmb.submission.verify import verify

    name, (signers, authorities) = printable(str(path)), keys
    try:
        verification, figures = verify(path, signers, take, authorities), None
    except EvidenceNotHereError as error:
        if not quiet:
            click.echo(f"{name}\n  not verified  {printable(str(error))}")
        reason = printable(str(error))
        return {"bundle": name, "ok": False, "unread": True, "reason": reason, "checks": []}
    except BundleRefusedError as error:
        if not quiet:
            click.echo(f"{name}\n  refused  {printable(str(error))}")
        return {"bundle": name, "ok": False, "reason": printable(str(error)), "checks": []}
    if recompute is not None:
        verification, figures = recomputed(path, verification, recompute, take)
    checks = [
        {"name": check.name, "ok": check.ok, "message": printable(check.message)}
        for check in verification.checks
    ]
    failed = [f"{check['name']}: {check['message']}" for check in checks if not check["ok"]]
    if not failed:
        sound.append(verification)
    if not quiet:
        click.echo(name)
        for check in checks:
            click.echo(
                f"  {'ok      ' if check['ok'] else 'refused '} {check['name']}: {check['message']}"
            )
        if not failed:
            click.echo(f"OK  {verification.bundle_id}\n    {printable(verification.headline)}")
            click.echo(f"    {printable(str(verification.provenance))}")
    return {
        "bundle": name,
        "ok": not failed,
        "reason": "; ".join(failed) or None,
        "bundle_id": verification.bundle_id,
        "headline": printable(verification.headline),
        "made_by": made_by(verification.provenance),
        "checks": checks,
        **({"recompute": figures} if recompute is not None else {}),
        "signatures": [
            {
                "file": one.name,
                "key_type": one.key_type,
                "fingerprint": one.fingerprint,
                "principal": one.principal and printable(one.principal),
            }
            for one in verification.signatures
        ],
    }
