"""Options that do not go together are refused in one line, by each command, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from llmb.cli import export, launch, node, project, report, run, scaling, verify
from llmb.errors import UsageError
from tests import builders

RANK = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def refused(command: click.Command, words: Sequence[str]) -> str:
    done = CliRunner().invoke(command, list(words), standalone_mode=False)
    error = done.exception
    assert isinstance(error, (UsageError, click.UsageError)), error
    assert error.exit_code == 2
    said = error.format_message() if isinstance(error, click.UsageError) else str(error)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (export.command, ("--format", "csv"), "name a run, or ask for --published rows alone"),
        (
            export.command,
            ("--published", "--steps", "--format", "csv"),
            "--steps and --published: choose one",
        ),
        (
            export.command,
            ("--published", "--format", "mllog"),
            "takes no --steps, --published",
        ),
        (export.command, ("RUN", "--steps", "--format", "mllog"), "takes no --steps, --published"),
        (
            launch.command,
            ("--print", "slurm", "--image", "x", "--", "run"),
            "image: slurm starts no container by itself",
        ),
        (
            launch.command,
            ("--print", "torchrun", "--minutes", "5", "--", "run"),
            "--minutes: torchrun ends no run after a time",
        ),
        (launch.command, ("--print", "slurm", "--", "run", "a\x1b"), "not readable text"),
        (
            launch.command,
            ("--print", "slurm", "--", "run", "--nproc", "2"),
            "--nproc: the scheduler starts the ranks",
        ),
        (
            launch.command,
            ("--print", "k8s", "--resource", "a b", "--", "run"),
            "--resource is 'a b': write it as vendor.example/gpu",
        ),
        (report.command, ("--json", "--csv"), "choose one format"),
        (report.command, ("--json", "--format", "html"), "choose one format"),
        (report.command, ("--debug",), "--debug goes with --like"),
        (report.command, ("--like", "nemo", "--format", "html"), "goes without --like"),
        (verify.command, (), "name a bundle, or a folder of bundles with --all"),
        (
            run.command,
            ("--scaling", "1,2", "--nproc", "2"),
            "--scaling says how many ranks there are: leave --nproc out",
        ),
        (run.command, ("--scaling", "1,x"), "write whole numbers such as 1,2,4"),
        (run.command, ("--scaling", "0"), "write whole numbers such as 1,2,4"),
        (
            run.command,
            ("--scaling", "1", "--recipe", "litgpt-fsdp-zero3"),
            "--recipe says how many ranks there are",
        ),
        (project.command, ("job", "--hardware", "h100"), "whose step is it? name a --workload"),
        (
            project.command,
            (
                *("node-hours", "--steps", "1@512", "--target-global-batch", "8"),
                *("--rate", "512:1samples/s"),
            ),
            "--steps needs --nodes",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_it_is_refused_in_one_line(
    tmp_path: Path, command: click.Command, words: tuple[str, ...], said: str
) -> None:
    places = {}
    if "RUN" in words:
        files = builders.bundle_files(builders.make_record(1))
        places["RUN"] = str(builders.write(tmp_path / "run", files))
    assert said in refused(command, [places.get(word, word) for word in words])


def test_a_file_that_is_there_is_not_overwritten_with_a_job(tmp_path: Path) -> None:
    there = tmp_path / "job.sh"
    there.write_text("mine")
    words = ("--print", "slurm", "--output", str(there), "--", "run")
    assert "it is there already" in refused(launch.command, words)
    assert there.read_text() == "mine"


def test_an_examination_of_a_node_starts_its_ranks_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    words = ("--output-dir", str(tmp_path))
    assert "llmb node starts the ranks itself" in refused(node.command, words)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (None, "give the --batch-size that all ranks share"),
        ("auto", "give the --batch-size that all ranks share"),
        (3, "2 ranks cannot share --batch-size 3: give a multiple"),
    ],
)
def test_a_batch_that_ranks_cannot_share_is_refused(size: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        scaling._share(size, 2)


def test_ranks_share_a_batch_evenly_and_one_rank_alone_is_always_first() -> None:
    assert scaling._share(6, 3) == 2
    assert scaling.counts_of("4,2") == (1, 2, 4)
    assert scaling.counts_of("1,1,2") == (1, 2)
