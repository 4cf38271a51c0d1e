"""``llmb reproduce`` refuses before it runs anything, says why, and installs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmb import supervisor
from llmb.cli import reproduce, verify
from llmb.config import Parallelism, RunRequest
from llmb.errors import (
    AuditInvalidError,
    BundleRefusedError,
    NotEnoughMemoryError,
    UnavailableError,
    UsageError,
)
from llmb.parallel.place import last_of
from llmb.records.canonical import pretty_bytes
from llmb.records.reproduction import Original
from llmb.records.run_record import RunRecord
from llmb.submission.clashes import Content
from llmb.submission.manifest import zip_bytes
from llmb.submission.verify import Verification
from llmb.supervisor import Finished
from tests import builders
from tests.builders import with_manifest
from tests.unit.builders_reproduction import linked


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return builders.make_record(repeats=1)


@pytest.fixture
def bundle(tmp_path: Path, record: RunRecord) -> Path:
    return builders.write(tmp_path / "bundle", builders.bundle_files(record))


def call(*words: object) -> Result:
    """Run the command; what it raises is in the result, as ``main`` would catch it."""
    return CliRunner().invoke(reproduce.command, [str(word) for word in words])


def test_a_missing_plugin_is_said_with_the_differences_and_ends_in_three(bundle: Path) -> None:
    done = call(bundle, "--dry-run")
    assert isinstance(done.exception, UnavailableError)
    assert "install llmb-fast 1.0 as its vendor says" in str(done.exception)
    assert "  plugin fast: llmb-fast 1.0 there, not installed here" in done.output
    assert "note: the seed is drawn afresh" in done.output
    (line,) = (line for line in done.output.splitlines() if line.startswith("what is run: "))
    assert "llmb run --workload llama-1.4b --mode train --plugin fast --device fast:0" in line
    assert "--seed" not in line


def test_without_dry_run_the_same_is_in_the_way_and_nothing_is_run(
    bundle: Path, tmp_path: Path
) -> None:
    done = call(bundle, "--output-dir", tmp_path / "runs")
    assert isinstance(done.exception, UnavailableError)
    assert not (tmp_path / "runs").exists()


def test_json_is_one_object_with_what_is_in_the_way(tmp_path: Path, record: RunRecord) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(zip_bytes(builders.bundle_files(record)))
    done = call(path, "--dry-run", "--json")
    data = json.loads(done.stdout)
    assert data["blocked"] == str(done.exception)
    assert data["same_class_of_hardware"] is None
    (plugin,) = (each for each in data["differences"] if each["subject"] == "plugin fast")
    assert plugin["closer"] == "install llmb-fast 1.0 as its vendor says"


#: The references of llmb 0.1.0: of the flagship bundles, and an earlier one.
SAME = "17021ed72954ec1e5343180f741ee8a83891feccf9231d52781d69cb14af9cf8"
EARLIER = "649af7d83608b5067109ea718ef3f0fce24e609314ada6221fbe096abf664886"


def older(tmp_path: Path, record: RunRecord, digest: str) -> Path:
    """Write the bundle of ``record`` as llmb 0.1.0 would have made it with that reference."""
    changes = {"llmb_version": "0.1.0", "reference_digest": digest}
    files = builders.bundle_files(record.model_copy(update=changes))
    return builders.write(tmp_path / "older", files)


def test_an_older_llmb_whose_family_computes_the_same_is_said_in_one_line(
    tmp_path: Path, record: RunRecord
) -> None:
    path = older(tmp_path, record, SAME)
    done = call(path, "--dry-run")
    (line,) = (line for line in done.output.splitlines() if "made by" in line)
    assert line.startswith("note: made by llmb 0.1.0 (reference 17021ed72954); the llama comp")
    assert "reference:" not in done.output, "it is no difference"
    assert "plugin 'fast' is not installed" in str(done.exception), "and nothing else is in the way"
    made = json.loads(call(path, "--dry-run", "--json").stdout)["made_by"]
    assert (made["same_computation"], made["family"]) == (True, "llama")
    assert len(made["reasons"]) == 2, "one for each later change of the code"


def test_an_older_llmb_whose_family_computes_otherwise_ends_in_three_with_the_version(
    tmp_path: Path, record: RunRecord
) -> None:
    done = call(older(tmp_path, record, EARLIER), "--dry-run", "--json")
    assert isinstance(done.exception, UnavailableError)
    assert "(reference 649af7d83608); the llama computation is not the same" in str(done.exception)
    assert str(done.exception).endswith(": use llmb 0.1.0")
    data = json.loads(done.stdout)
    assert data["blocked"] == str(done.exception)
    assert (data["made_by"]["same_computation"], data["made_by"]["reasons"]) == (False, [])
    (reference,) = (each for each in data["differences"] if each["subject"] == "reference")
    assert reference["there"] == "649af7d83608"


def test_a_damaged_bundle_is_refused_before_anything_else(bundle: Path) -> None:
    (bundle / "record.json").write_text("{}")
    assert isinstance(call(bundle).exception, BundleRefusedError)


def test_a_bundle_that_fails_a_check_is_refused_with_the_check(
    tmp_path: Path, record: RunRecord
) -> None:
    faster = builders.edited(record, lambda data: data["result"].update(loss_last=1.0))
    files = builders.run_files(record) | {"record.json": pretty_bytes(faster)}
    path = builders.write(tmp_path / "forged", with_manifest(files))
    done = call(path)
    assert isinstance(done.exception, BundleRefusedError)
    assert "recomputation: result.loss_last is 1.0" in str(done.exception)
    assert done.output == ""


def test_a_bundle_of_a_newer_llmb_is_refused(tmp_path: Path, record: RunRecord) -> None:
    files = builders.run_files(record)
    newer = json.loads(files["record.json"]) | {"schema": "llmb.run/2"}
    files["record.json"] = json.dumps(newer).encode()
    path = builders.write(tmp_path / "newer", with_manifest(files))
    done = call(path)
    assert isinstance(done.exception, BundleRefusedError)
    assert "made by a newer llmb" in str(done.exception)


def test_a_run_directory_is_no_bundle(tmp_path: Path, record: RunRecord) -> None:
    run = builders.write(tmp_path / "run", builders.run_files(record))
    done = call(run)
    assert isinstance(done.exception, BundleRefusedError)
    assert "this is not a bundle" in str(done.exception)


def test_nothing_there_is_a_usage_error(tmp_path: Path) -> None:
    assert isinstance(call(tmp_path / "none").exception, UsageError)


def test_words_of_a_stranger_cannot_act_on_a_terminal(tmp_path: Path, record: RunRecord) -> None:
    def colour(data: dict[str, Any]) -> None:
        data["plugin"]["version"] = "1.0\x1b[2J"
        data["system"]["os"] = "Linux\x1b[31m\u202e"

    odd = builders.edited(record, colour)
    path = builders.write(tmp_path / "odd", builders.bundle_files(odd))
    done = call(path, "--dry-run")
    assert isinstance(done.exception, UnavailableError)
    assert done.output.isascii()
    assert "\x1b" not in done.output
    assert "pip" not in str(done.exception)


def test_a_forbidden_option_is_a_usage_error_that_says_what_the_original_has(bundle: Path) -> None:
    done = call(bundle, "-O", "level=4", "--dry-run")
    assert isinstance(done.exception, UsageError)
    assert "the original has it as '3'" in str(done.exception)


# -- llmb verify, of several bundles ----------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path, record: RunRecord) -> Path:
    """Give a folder with a bundle and one that repeats it."""
    original = with_manifest(builders.run_files(record))
    again = builders.make_record(repeats=1, run_id="f" * 32)
    builders.write(tmp_path / "tree" / "a", original)
    link = linked(again, record, bundle_id(original))
    builders.write(tmp_path / "tree" / "b", with_manifest(builders.run_files(link)))
    return tmp_path / "tree"


def bundle_id(files: dict[str, bytes]) -> str:
    import hashlib

    return hashlib.sha256(files["MANIFEST.json"]).hexdigest()


def test_verify_says_of_a_bundle_who_repeated_it_and_why_that_changes_nothing(tree: Path) -> None:
    done = CliRunner().invoke(verify.command, ["--all", str(tree)])
    assert done.exit_code == 0
    assert f"{tree / 'a'}  UNVERIFIED\n  repeated by " in done.output
    assert "changes nothing: the original is UNVERIFIED, not CONSISTENT" in done.output


def test_verify_gives_the_repetitions_as_json(tree: Path) -> None:
    done = CliRunner().invoke(verify.command, ["--all", str(tree), "--json"])
    first, second = json.loads(done.output)
    (repetition,) = first["reproductions"]
    assert repetition["bundle_id"] == second["bundle_id"]
    assert repetition["difference_percent"] == 0.0
    assert "both are handed in by acme" in repetition["lacking"]
    assert second["reproductions"] == []
    assert first["verdict"] == "UNVERIFIED"


def test_verify_refuses_a_link_that_misquotes_the_original_beside_it(
    tree: Path, record: RunRecord
) -> None:
    again = builders.make_record(repeats=1, run_id="e" * 32)
    slower = record.model_copy(
        update={
            "result": record.result.model_copy(
                update={"tokens_per_second": record.result.tokens_per_second / 2, "ci95": None}
            )
        }
    )
    lie = linked(again, slower, bundle_id(with_manifest(builders.run_files(record))))
    builders.write(tree / "c", with_manifest(builders.run_files(lie)))
    done = CliRunner().invoke(verify.command, ["--all", str(tree)])
    assert isinstance(done.exception, BundleRefusedError)
    assert str(tree / "c") in str(done.exception)
    assert f"{tree / 'c'}\n  refused  reproduction: it says that it repeats" in done.output


def of_ranks(record: RunRecord, nodes: int) -> RunRecord:
    """Return the record of two ranks on so many machines."""
    config = record.config.model_copy(update={"parallelism": Parallelism(tp=2)})
    topology = record.topology.model_copy(update={"nodes": nodes, "world_size": 2})
    return record.model_copy(update={"config": config, "topology": topology})


def test_other_than_as_many_ranks_are_in_the_way(record: RunRecord) -> None:
    two = of_ranks(record, nodes=1)
    assert reproduce._not_as_many(two, None) is None, "they are started here"
    assert reproduce._not_as_many(two, last_of(2)) is None
    assert "of 2 ranks, and 3 were started" in str(reproduce._not_as_many(two, last_of(3)))
    assert "of 1 ranks, and 2 were started" in str(reproduce._not_as_many(record, last_of(2)))


def test_ranks_of_several_machines_are_not_started_by_llmb(record: RunRecord) -> None:
    apart = of_ranks(record, nodes=2)
    assert "2 ranks were on 2 machines: start" in str(reproduce._not_as_many(apart, None))
    assert reproduce._not_as_many(apart, last_of(2)) is None


# -- the run itself, without one -----------------------------------------------------------------


class Ran:
    """What the supervisor was asked for, and what it gave back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, record: RunRecord, **changes: Any) -> None:
        self.asked: list[Any] = []
        self.error: Exception | None = None

        def edit(data: dict[str, Any]) -> None:
            data["run_id"] = "f" * 32
            for name, value in changes.items():
                section, _, field = name.partition("__")
                data[section][field] = value

        self.record = builders.edited(record, edit)

        def run(*given: Any, **more: Any) -> Finished:
            self.asked.append((*given, more))
            if self.error is not None:
                raise self.error
            return Finished(self.record, Path("runs/new"))

        monkeypatch.setattr(supervisor, "run", run)


@pytest.fixture
def verified(record: RunRecord) -> Verification:
    content = Content(run_id=record.run_id, nonces=(), evidence={})
    return Verification("b" * 64, record, (), content)


def carried_out(verified: Verification, *, as_json: bool = False) -> dict[str, Any]:
    report: dict[str, Any] = {}
    flags = {"quiet": True, "output_dir": Path("runs"), "as_json": as_json}
    reproduce._run(verified, RunRequest(), report, flags, None)
    return report


def test_the_run_is_told_which_bundle_it_repeats(
    monkeypatch: pytest.MonkeyPatch, record: RunRecord, verified: Verification
) -> None:
    ran = Ran(monkeypatch, record)
    carried_out(verified)
    ((request, output, _, more),) = ran.asked
    assert (request, output, more["place"]) == (RunRequest(), Path("runs"), None)
    assert more["original"] == Original(
        bundle_id="b" * 64,
        run_id=record.run_id,
        tokens_per_second=record.result.tokens_per_second,
        ci95=record.result.ci95,
    )


@pytest.mark.parametrize(("factor", "within"), [(1.04, True), (1.06, False), (0.9, False)])
def test_two_throughputs_are_held_against_each_other(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record: RunRecord,
    verified: Verification,
    factor: float,
    within: bool,
) -> None:
    rate = record.result.tokens_per_second
    ran = Ran(monkeypatch, record, result__tokens_per_second=rate * factor, result__ci95=None)
    report = carried_out(verified)
    assert report["ratio"] == pytest.approx(factor)
    assert report["difference_percent"] == pytest.approx(100 * factor - 100)
    assert (report["within_limit"], report["limit_percent"]) == (within, 5.0)
    assert (report["tokens_per_second"], report["original_tokens_per_second"]) == (
        ran.record.result.tokens_per_second,
        rate,
    )
    assert (report["ci95"], report["original_ci95"]) == (None, record.result.ci95)
    told = capsys.readouterr().out
    assert f"{100 * factor - 100:+.2f} %, {'within' if within else 'not within'} 5 %" in told


def test_what_keeps_it_from_counting_is_said_line_by_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record: RunRecord,
    verified: Verification,
) -> None:
    Ran(monkeypatch, record)  # of the same seed
    report = carried_out(verified)
    told = capsys.readouterr().out
    assert any("it has the seed of the original" in text for text in report["lacking"])
    assert all(f"from being REPRODUCED: {text}" in told for text in report["lacking"])
    assert "run directory: runs/new" in told
    assert "to hand it in: llmb package-submission" in told


def test_as_json_a_run_is_one_object(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record: RunRecord,
    verified: Verification,
) -> None:
    Ran(monkeypatch, record)
    report = carried_out(verified, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(report))
    assert (found["run_directory"], found["run_id"]) == ("runs/new", "f" * 32)


def test_a_repetition_that_is_invalid_ends_in_5_once_it_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record: RunRecord,
    verified: Verification,
) -> None:
    Ran(monkeypatch, record, audit__verdict="INVALID")
    with pytest.raises(AuditInvalidError, match=r"see runs/new/audit\.json"):
        carried_out(verified)
    assert "audit     INVALID" in capsys.readouterr().out


def test_too_little_memory_says_that_the_batch_size_is_the_bundles(
    monkeypatch: pytest.MonkeyPatch, record: RunRecord, verified: Verification
) -> None:
    Ran(monkeypatch, record).error = NotEnoughMemoryError("80 GB are needed")
    with pytest.raises(NotEnoughMemoryError) as caught:
        carried_out(verified)
    assert str(caught.value).startswith("80 GB are needed; a reproduction has the batch size of ")
    assert str(record.config.batch_size) in str(caught.value)
