"""``llmb run --seed-commitment``: which files are taken, and what the supervisor is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmb import supervisor
from llmb.cli import run
from llmb.config import RankAddress, RunRequest
from llmb.errors import UsageError
from llmb.records.seed_commitment import SeedCommitment
from llmb.supervision.time_authority import TimeAuthority
from llmb.supervisor import Finished
from tests import builders

Given = list[tuple[RunRequest, SeedCommitment | None]]
DOCUMENT = json.dumps(builders.seed_commitment())


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Given:
    """What the supervisor was given, in place of a run."""
    monkeypatch.chdir(tmp_path)  # the history of runs is written here
    seen: Given = []

    def pretend(
        request: RunRequest,
        output: Path,
        display: Any,
        commitment: SeedCommitment | None,
        place: RankAddress | None,
        authority: TimeAuthority | None,
        tags: tuple[str, ...],
    ) -> Finished:
        assert (place, tags) == (None, ())
        assert authority is None
        seen.append((request, commitment))
        return Finished(builders.make_record(), output)

    monkeypatch.setattr(supervisor, "run", pretend)
    return seen


def call(*flags: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(run.command, ["--quiet", *map(str, flags)], input=stdin)


def file(tmp_path: Path, text: str = DOCUMENT) -> Path:
    path = tmp_path / "seed.json"
    path.write_text(text)
    return path


def test_a_file_is_handed_on_beside_a_request_that_holds_nothing_of_it(
    tmp_path: Path, given: Given
) -> None:
    assert call("--seed-commitment", file(tmp_path)).exit_code == 0
    ((request, commitment),) = given
    assert request == RunRequest(within_s=600.0)
    assert commitment == SeedCommitment.model_validate(builders.seed_commitment())


def test_a_dash_reads_the_document_from_standard_input(given: Given) -> None:
    assert call("--seed-commitment", "-", stdin=DOCUMENT).exit_code == 0
    ((_, commitment),) = given
    assert commitment is not None
    assert commitment.seed == 7


def test_without_the_option_there_is_no_commitment(given: Given) -> None:
    assert call("--seed", 7).exit_code == 0
    assert given == [(RunRequest(seed=7, within_s=600.0), None)]


@pytest.mark.parametrize("seed", [7, 0])
def test_a_seed_beside_it_is_refused_even_if_it_is_the_same(
    tmp_path: Path, given: Given, seed: int
) -> None:
    error = call("--seed", seed, "--seed-commitment", file(tmp_path)).exception
    assert isinstance(error, UsageError)
    assert "--seed and --seed-commitment" in str(error)
    assert given == []


UNREVEALED = json.dumps(builders.seed_commitment() | {"seed": None, "salt": None})
OTHER = json.dumps(builders.seed_commitment() | {"seed": 8})


@pytest.mark.parametrize(
    ("text", "words"),
    [(UNREVEALED, "not revealed yet"), (OTHER, "another seed"), (" " * 10**5, "more than 16384")],
    ids=["not revealed", "another seed", "huge"],
)
def test_a_document_that_proves_nothing_starts_no_run(
    tmp_path: Path, given: Given, text: str, words: str
) -> None:
    for done in (
        call("--seed-commitment", file(tmp_path, text)),
        call("--seed-commitment", "-", stdin=text),
    ):
        assert isinstance(done.exception, UsageError)
        assert words in str(done.exception)
    assert given == []


@pytest.mark.parametrize("path", ["missing.json", "/dev/zero"])
def test_what_is_no_readable_file_is_a_usage_error_and_no_wait(
    tmp_path: Path, given: Given, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = call("--seed-commitment", path).exception
    assert isinstance(error, UsageError)
    assert f"'{path}'" in str(error)
    assert given == []


def test_a_folder_is_a_usage_error(tmp_path: Path, given: Given) -> None:
    done = call("--seed-commitment", tmp_path)
    assert (done.exit_code, given) == (2, [])
    assert "is a directory" in done.output
