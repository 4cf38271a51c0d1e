"""Who signed two bundles with real keys decides whether one may make the other REPRODUCED."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmb.cli import verify
from llmb.records.bundle import Bundle, from_files
from llmb.records.run_record import RunRecord
from llmb.records.submission import Submission
from llmb.submission.signatures import sign
from tests import builders, needs
from tests.builders import with_manifest
from tests.unit.builders_reproduction import linked

UNLISTED = "has no valid signature by a listed key"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    needs.program("ssh-keygen")
    folder = tmp_path_factory.mktemp("keys")
    for name in ("theirs", "ours"):
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
    return {name: folder / name for name in ("theirs", "ours")}


@pytest.fixture(scope="module")
def bundles() -> tuple[Bundle, Bundle]:
    record = builders.make_record(repeats=1)
    original = bundle_of(record, "theirs")
    again = linked(builders.make_record(1, run_id="f" * 32), record, original.bundle_id)
    return original, bundle_of(again, "ours")


def bundle_of(record: RunRecord, submitter: str) -> Bundle:
    whose = Submission(submitter=submitter, system="box")
    return from_files(with_manifest(builders.run_files(record), whose))


@pytest.mark.parametrize(
    ("signed_by", "listed", "expected"),
    [
        (("theirs", "ours"), ("theirs", "ours"), []),
        (("theirs", "theirs"), ("theirs", "ours"), ["the repetition", UNLISTED]),
        (("theirs", None), ("theirs", "ours"), ["the repetition", UNLISTED]),
        ((None, "ours"), ("theirs", "ours"), ["the original", UNLISTED]),
        (("theirs", "ours"), ("theirs",), ["the repetition", UNLISTED]),
        (("theirs", "ours"), (), ["the original", UNLISTED]),
    ],
)
def test_the_keys_of_two_bundles_are_compared(
    tmp_path: Path,
    keys: dict[str, Path],
    bundles: tuple[Bundle, Bundle],
    signed_by: tuple[str | None, str | None],
    listed: tuple[str, ...],
    expected: list[str],
) -> None:
    for bundle, key, name in zip(bundles, signed_by, "ab", strict=True):
        signed = bundle if key is None else sign(bundle, keys[key])
        builders.write(tmp_path / "tree" / name, signed.files)
    public = {name: keys[name].with_suffix(".pub").read_text().split()[:2] for name in listed}
    lines = [f"{name} {' '.join(key)} Lab {name}\n" for name, key in public.items()]
    (tmp_path / "tree" / "allowed_signers").write_text("".join(lines))
    done = CliRunner().invoke(verify.command, ["--all", str(tmp_path / "tree"), "--json"])
    assert done.exit_code == 0, done.output
    (first, _) = json.loads(done.output)
    (repetition,) = first["reproductions"]
    found = [text for text in repetition["lacking"] if "sign" in text or "handed in" in text]
    assert found == ([" ".join(expected)] if expected else [])
