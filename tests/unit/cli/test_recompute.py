"""``llmb verify --recompute``: how it is read, when nothing is made again, and what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from llmb import cli
from llmb.audit.recomputed import Compared
from llmb.cli.recompute import VerifyCommand, add_to_list, check_of, recompute_option
from llmb.config import BF16, DataSource, WeightsSource
from llmb.errors import (
    BundleRefusedError,
    LlmbError,
    NotEnoughMemoryError,
    UnavailableError,
    UsageError,
)
from llmb.plugin.builtin import host
from llmb.records import audited, evidence
from llmb.records.bundle import from_files
from llmb.records.recomputed_list import read_recomputed
from llmb.records.run_record import RunRecord
from llmb.submission import recomputed_run
from llmb.submission.recomputed_run import Recomputed, RecomputePlan
from tests import builders
from tests.unit.builders_runtime import run_config

PROBED = evidence.path(0, audited.PROBED)


@click.command(cls=VerifyCommand)
@click.argument("paths", nargs=-1)
@recompute_option
def echo(paths: tuple[str, ...], recompute: str | None) -> None:
    click.echo(json.dumps([recompute, *paths]))


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (["--recompute", "bundle.zip"], ["quick", "bundle.zip"]),
        (["bundle.zip", "--recompute"], ["quick", "bundle.zip"]),
        (["--recompute", "full", "bundle.zip"], ["full", "bundle.zip"]),
        (["--recompute=full", "bundle.zip"], ["full", "bundle.zip"]),
        (["--recompute", "quick", "full"], ["quick", "full"]),
        (["bundle.zip"], [None, "bundle.zip"]),
    ],
)
def test_the_option_may_stand_before_a_bundle(arguments: list[str], read: list[str | None]) -> None:
    assert json.loads(CliRunner().invoke(echo, arguments).stdout) == read


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli.llmb, [str(part) for part in arguments])


def error_of(done: Result) -> LlmbError:
    assert isinstance(done.exception, LlmbError), done.output
    return done.exception


def written(tmp_path: Path, edit: Callable[[dict[str, Any]], object] | None = None) -> Path:
    record = builders.make_record(repeats=1)
    if edit is not None:
        record = builders.edited(record, edit)
    return builders.write(tmp_path / "bundle", builders.bundle_files(record))


def test_a_run_without_an_audit_shows_nothing_that_could_be_compared() -> None:
    record = builders.make_record(repeats=1)
    files = {name: raw for name, raw in builders.run_files(record).items() if name != PROBED}
    with pytest.raises(UnavailableError, match="--audit off"):
        recomputed_run.plan(from_files(builders.with_manifest(files)), record, "quick")


def test_nothing_of_a_bundle_that_another_check_refuses_is_made_again(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["result"]["tokens_per_second"] *= 1.01

    done = call("verify", "--recompute", written(tmp_path, edit))
    assert isinstance(error_of(done), BundleRefusedError)
    assert "recompute: " not in done.output


def test_with_a_tree_it_is_a_misuse(tmp_path: Path) -> None:
    done = call("verify", "--recompute", "--tree", tmp_path)
    assert done.exit_code == UsageError.exit_code
    assert "--recompute" in done.output


def planned(record: RunRecord, last_step: int = 60) -> RecomputePlan:
    """Plan to make a run again that was audited in its last step."""
    probed = audited.ProbedEvidence(
        seed=1, last_step=last_step, token_seed=2, passes=("live", "branches", "head"), missing=()
    )
    files = builders.run_files(record) | {PROBED: probed.model_dump_json().encode()}
    return recomputed_run.plan(from_files(builders.with_manifest(files)), record, "quick")


def test_more_memory_than_there_is_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = builders.make_record(repeats=1)
    monkeypatch.setattr(host, "available_memory_bytes", lambda: 10**12)
    assert planned(record).steps == (recomputed_run.QUICK,)
    monkeypatch.setattr(host, "available_memory_bytes", lambda: 10**9)
    with pytest.raises(NotEnoughMemoryError, match=r"llama-1.4b in BF16 needs about .* GB, there"):
        planned(record)


@pytest.mark.parametrize("last_step", [900_000, 3])
def test_a_stream_that_does_not_fit_its_window_is_refused(last_step: int) -> None:
    with pytest.raises(BundleRefusedError, match=f"claims {last_step + 1} steps"):
        planned(builders.make_record(repeats=1), last_step=last_step)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (
            {"data": DataSource(path="tokens", kind="text", sha256="0" * 64, tokens=9)},
            "tokens are of files",
        ),
        ({"weights": WeightsSource(path="checkpoint", sha256="0" * 64)}, "a checkpoint that"),
    ],
    ids=["data", "weights"],
)
def test_what_follows_from_files_that_no_bundle_holds_cannot_be_made(
    setting: dict[str, Any], told: str
) -> None:
    record = builders.make_record(repeats=1)
    config = record.config.model_copy(update=setting)
    with pytest.raises(UnavailableError, match=told):
        planned(record.model_copy(update={"config": config}))


PLAN = RecomputePlan(run_config(precision=BF16), (3,), (60,), 10**9, 2 * 10**9, None)


def found(*compared: Compared) -> Recomputed:
    return Recomputed(compared, (21, 21), (), 1.0)


def test_a_refusal_names_step_part_distance_and_limit() -> None:
    fault = "the gradients of step 1 are 1.41 of their length off (limit 0.4)"
    check = check_of(PLAN, found(Compared("gradients of steps 0 to 2", 1.41, 0.03, (fault,))))
    assert (check.name, check.ok) == ("recompute", False)
    assert check.message == f"not computed from this seed and nonce: {fault}"


def test_of_many_faults_a_few_are_shown() -> None:
    faults = tuple(f"fault {n}" for n in range(9))
    assert check_of(PLAN, found(Compared("gradients", 2.0, 0.03, faults))).message.endswith(
        "fault 0; fault 1; fault 2; and 6 more"
    )


def test_what_passes_says_how_far_it_was_off_and_what_was_left_out() -> None:
    made = Recomputed((Compared("probe head", 0.01, 0.75),), (10, 21), ("steps: dropout",), 1.0)
    check = check_of(PLAN, made)
    assert check.ok
    assert check.message.startswith("3 of 60 steps made again, what is compared follows from seed")
    assert "probe head: 0.01 (limit 0.75)" in check.message
    assert "10 of 21 first weights are the same bit for bit" in check.message
    assert check.message.endswith("not compared: steps: dropout")


def outcome(bundle_id: str, ok: bool, steps: list[int] | None) -> dict[str, Any]:
    figures = None if steps is None else {"steps": steps, "of_steps": [66] * len(steps)}
    return {"bundle": bundle_id[:4], "bundle_id": bundle_id, "ok": ok, "recompute": figures}


def test_what_passed_is_added_to_the_list_and_nothing_else(tmp_path: Path, capsys) -> None:
    add_to_list(tmp_path, [outcome("a" * 64, True, [3, 3])])
    results = [
        outcome("b" * 64, True, [66]),
        outcome("c" * 64, False, [3]),
        outcome("d" * 64, True, None),
        outcome("e" * 64, True, [0]),  # dropout: no step can be made again
        {"bundle": "damaged.zip", "ok": False, "reason": "no zip", "checks": []},
    ]
    add_to_list(tmp_path, results)
    found = read_recomputed(tmp_path).bundles
    counts = {name[0]: (one.steps, one.of_steps) for name, one in found.items()}
    assert counts == {"a": (6, 132), "b": (66, 66)}
    assert "not listed: eeee: no step was made again" in capsys.readouterr().err


def test_a_list_is_made_of_what_was_recomputed_alone(tmp_path: Path) -> None:
    done = call("verify", written(tmp_path), "--list-in", tmp_path)
    assert done.exit_code == 2
    assert "--list-in goes with --recompute" in done.output
