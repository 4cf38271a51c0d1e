"""Packaging takes finished, honest, official runs, refuses the rest, and never half-writes."""

from __future__ import annotations

import json
import os
import zipfile

import pytest

from llmb.errors import BundleRefusedError, UsageError
from llmb.records.bundle import read_bundle
from llmb.records.canonical import pretty_bytes
from llmb.records.system_index import read_index, reason_fault
from llmb.submission.package import is_bundle, package, submission_of
from llmb.submission.verify import verify
from tests import builders
from tests.builders import WHOSE


@pytest.fixture(scope="module")
def record():
    return builders.make_record(repeats=1)


@pytest.fixture
def run(tmp_path, record):
    return builders.write(tmp_path / "runs" / "one", builders.run_files(record))


@pytest.fixture
def output(tmp_path):
    return tmp_path / "submissions"


def test_a_run_becomes_a_verified_bundle_under_a_telling_path(run, output):
    (path,) = package([run], WHOSE, output)
    expected = "acme/box/llama-1.4b_train_BF16-declared/1x-fast-01234567"
    assert path.relative_to(output).as_posix() == expected
    assert verify(path).ok
    assert list(path.parent.glob(".*")) == []


def test_only_the_files_of_a_run_are_copied(run, output):
    (run / "core.dump").write_bytes(b"x" * 100)
    (run / "secret").symlink_to("/etc/passwd")
    (run / "record.json.part").write_bytes(b"")
    (path,) = package([run], WHOSE, output)
    names = {p.name for p in path.rglob("*")}
    assert names.isdisjoint({"core.dump", "secret", "record.json.part"})


def test_the_zip_is_the_same_bundle_and_the_same_bytes_every_time(run, output, tmp_path):
    (path,) = package([run], WHOSE, output, zip=True)
    packed = path.with_name(path.name + ".zip")
    assert verify(packed).bundle_id == verify(path).bundle_id
    os.utime(run / "record.json", (1, 1))
    (again,) = package([run], WHOSE, tmp_path / "again", zip=True)
    assert again.with_name(again.name + ".zip").read_bytes() == packed.read_bytes()
    with zipfile.ZipFile(packed) as members:
        assert {member.date_time for member in members.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_packaging_twice_changes_nothing(run, output):
    (path,) = package([run], WHOSE, output, zip=True)
    before = {p: p.stat().st_mtime_ns for p in output.rglob("*") if p.is_file()}
    assert package([run], WHOSE, output, zip=True) == [path]
    assert {p: p.stat().st_mtime_ns for p in output.rglob("*") if p.is_file()} == before


def test_a_different_bundle_is_never_overwritten(run, output):
    (path,) = package([run], WHOSE, output)
    (run / "sources.diff").write_text("another story\n")
    before = (path / "sources.diff").read_bytes()
    with pytest.raises(UsageError, match="holds another bundle"):
        package([run], WHOSE, output)
    assert (path / "sources.diff").read_bytes() == before


def test_the_log_stays_in_the_run_directory(run, output):
    (run / "log.txt").write_text("as fast as any, says the submitter\n")
    (path,) = package([run], WHOSE, output)
    assert not (path / "log.txt").exists()
    assert "log.txt" not in (path / "MANIFEST.json").read_text()
    assert verify(path).ok


def test_the_page_of_the_run_stays_in_the_run_directory(run, output):
    (run / "report.html").write_text("<h1>as fast as any</h1>")
    (path,) = package([run], WHOSE, output)
    assert verify(path).ok
    assert not (path / "report.html").exists()
    (path / "report.html").write_text("<h1>as fast as any</h1>")
    with pytest.raises(BundleRefusedError, match=r"'report\.html' is in the bundle and not"):
        verify(path)


def test_something_else_in_the_way_is_not_overwritten(run, output):
    target = output / "acme/box/llama-1.4b_train_BF16-declared/1x-fast-01234567"
    builders.write(target, {"mine.txt": b"precious"})
    with pytest.raises(UsageError, match="in the way"):
        package([run], WHOSE, output)
    assert (target / "mine.txt").read_bytes() == b"precious"


def refused(run, output, match):
    with pytest.raises(BundleRefusedError, match=match):
        package([run], WHOSE, output)
    assert not output.exists(), "a refusal must leave nothing behind"


def test_a_debug_run_is_refused_with_its_waivers(tmp_path, output):
    record = builders.make_record(1, timed_steps=10, waivers=("--timed-steps 10",))
    run = builders.write(tmp_path / "run", builders.run_files(record))
    refused(run, output, r"debug run \(--timed-steps 10\)")


def test_a_debug_run_that_is_asked_for_is_a_sound_bundle_and_stays_debug(tmp_path, output):
    record = builders.make_record(1, timed_steps=10, waivers=("--timed-steps 10",))
    run = builders.write(tmp_path / "run", builders.run_files(record))
    (path,) = package([run], WHOSE, output, debug=True)
    assert verify(path).ok
    assert ", debug, " in verify(path).headline


def test_an_invalid_run_is_refused_with_the_broken_rule(tmp_path, output, record):
    def break_rule(data):
        data["audit"]["verdict"] = "INVALID"
        data["audit"]["findings"][0].update(status="fail", message="weights changed")

    forged = builders.edited(record, break_rule)
    run = builders.write(tmp_path / "run", builders.run_files(forged))
    refused(run, output, r"INVALID \(W1: weights changed\)")


def test_an_unfinished_run_is_refused_with_its_last_words(run, output):
    (run / "record.json").unlink()
    (run / "log.txt").write_text("step 3\nthe run did not finish: out of memory\n\n")
    refused(run, output, "not finished: the run did not finish: out of memory")


def test_a_run_whose_plugin_files_changed_is_refused(run, output):
    (run / "plugin/kernels/fused.py").write_text("FAST = 'very'\n")
    refused(run, output, r"plugin file 'kernels/fused.py' is not the one")


def test_a_run_that_fails_verification_is_refused(run, output, record):
    faster = builders.edited(record, lambda data: data["result"].update(loss_last=1.0))
    (run / "record.json").write_bytes(pretty_bytes(faster))
    refused(run, output, r"recomputation: result.loss_last is 1.0")


def test_a_plugin_name_that_leads_out_of_the_folder_is_refused(tmp_path, output):
    record = builders.make_record(1, plugin="../../x")
    run = builders.write(tmp_path / "run", builders.run_files(record))
    refused(run, output, "the record makes a folder")


def test_one_bad_run_among_good_ones_writes_nothing(run, output, tmp_path):
    bad = builders.write(tmp_path / "bad", {"log.txt": b""})
    with pytest.raises(BundleRefusedError, match="not finished"):
        package([run, bad], WHOSE, output)
    assert not output.exists()


def test_a_path_that_is_no_run_is_a_usage_error(tmp_path, output):
    with pytest.raises(UsageError, match="not a run directory"):
        package([tmp_path / "nothing"], WHOSE, output)


@pytest.mark.parametrize(
    "name",
    [
        *("", "..", "a/b", "a\\b", "CON", "nul.x", "x.", ".hidden", "-rf", "a:b", "a\u202eb"),
        *("<script>", "a&lt;b", "`id`", "$HOME", "a'b", "[x](y)", "a--b", "a\nb", "\x1b[2J"),
        *("a\u200bb", "\u3164", "Acm\u0435", "\u0391cme", "e" + "\u0301" * 9, "a\xa0b", "a" * 300),
    ],
)
def test_what_is_no_id_is_a_usage_error(name):
    with pytest.raises(UsageError, match="--submitter"):
        submission_of(name, "box")
    with pytest.raises(UsageError, match="--system"):
        submission_of("acme", name)


def index_of(output):
    return json.loads((output / "acme/box/system.json").read_bytes())


def test_the_index_lists_every_precision_or_why_it_is_missing(run, output):
    package([run], WHOSE, output, missing={"TF32": "no such hardware"})
    index = index_of(output)
    assert (index["schema"], index["availability"]) == ("llmb.system-index/2", None)
    path = "llama-1.4b_train_BF16-declared/1x-fast-01234567"
    assert index["precisions"] == {
        "FP32": {"bundles": [], "missing": "no run submitted"},
        "TF32": {"bundles": [], "missing": "no such hardware"},
        "FP16": {"bundles": [], "missing": "no run submitted"},
        "BF16": {"bundles": [path], "missing": None},
    }


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("Müller & Söhne", "muller-sohne"), ("Acme, Inc.", "acme-inc"), ("BOX_8x", "box-8x")],
)
def test_a_name_that_is_no_id_is_refused_with_the_nearest_id(name, nearest):
    with pytest.raises(UsageError, match=f"use '{nearest}', and --organisation"):
        submission_of(name, "box")
    with pytest.raises(UsageError, match=f"use '{nearest}', and --system-name"):
        submission_of("acme", name)


def test_names_for_people_are_of_any_script_and_in_the_signed_manifest(run, output):
    whose = submission_of(
        *("tokyo-u", "box", "東京大学", "Großer Kasten"), contact="llm@tokyo-u.example"
    )
    (path,) = package([run], whose, output)
    manifest = json.loads((path / "MANIFEST.json").read_bytes())
    assert manifest["schema"] == "llmb.bundle/2"
    assert manifest["submission"] == {
        "submitter": "tokyo-u",
        "system": "box",
        "organisation": "東京大学",
        "system_name": "Großer Kasten",
        "availability": None,
        "contact": "llm@tokyo-u.example",
    }
    assert read_bundle(path).submission == whose


@pytest.mark.parametrize("line", ["", " ", "two\nlines", "a\u202eb", " padded", "x" * 201])
def test_a_name_for_people_is_one_line_of_printable_text(line):
    for flag in ("organisation", "system_name", "contact"):
        with pytest.raises(UsageError, match=f"--{flag.replace('_', '-')}"):
            submission_of("acme", "box", **{flag: line})


def test_what_a_system_is_declared_to_be_is_kept_until_it_is_declared_anew(run, output, tmp_path):
    package([run], submission_of("acme", "box", availability="preview"), output)
    assert index_of(output)["availability"] == "preview"
    later = builders.make_record(1, run_id="f" * 32)
    second = builders.write(tmp_path / "two", builders.run_files(later))
    (path,) = package([second], WHOSE, output)
    assert index_of(output)["availability"] == "preview"
    assert read_bundle(path).submission.availability == "preview"
    third = builders.write(
        tmp_path / "three", builders.run_files(builders.make_record(1, run_id="e" * 32))
    )
    package([third], submission_of("acme", "box", availability="available"), output)
    assert index_of(output)["availability"] == "available"


def test_an_index_of_the_first_version_is_read_and_written_in_the_new_one(run, output, tmp_path):
    package([run], WHOSE, output, missing={"TF32": "no such hardware"})
    path = output / "acme/box/system.json"
    old = json.loads(path.read_bytes()) | {"schema": "llmb.system-index/1"}
    del old["availability"]
    path.write_text(json.dumps(old, indent=1))
    assert read_index(path).availability is None
    package([run], WHOSE, output)
    assert index_of(output)["schema"] == "llmb.system-index/2"
    assert index_of(output)["precisions"]["TF32"]["missing"] == "no such hardware"


HOSTILE_INDEXES = {
    "of the future": ({"schema": "llmb.system-index/3"}, "made by a newer llmb"),
    "of another submitter": ({"submitter": "Rival"}, "lies in a folder 'acme'"),
    "of another system": ({"system": "bigger box"}, "lies in a folder 'box'"),
    "with markup": ({"submitter": "<script>alert(1)</script>"}, "submitter: Value error"),
    "with a bidi name": ({"system": "x\u202eb"}, "control, bidi"),
    "available tomorrow": ({"availability": "soon"}, "availability: Input should be"),
    "with more": ({"rank": 1}, "Extra inputs"),
    "that climbs out": ({"precisions": {"BF16": {"bundles": ["../../x"]}}}, "name of its own"),
    "with a long reason": ({"precisions": {"BF16": {"missing": "x" * 301}}}, "300 characters"),
    "with an escape": ({"precisions": {"BF16": {"missing": "\x1b[2J"}}}, "printable text"),
}


@pytest.mark.parametrize("attack", HOSTILE_INDEXES)
def test_a_hostile_index_is_refused_with_its_reason(run, output, attack):
    package([run], WHOSE, output)
    change, reason = HOSTILE_INDEXES[attack]
    path = output / "acme/box/system.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    with pytest.raises(BundleRefusedError, match=reason) as refusal:
        read_index(path)
    assert str(refusal.value).isprintable()
    before = path.read_bytes()
    with pytest.raises(BundleRefusedError, match=reason):
        package([run], WHOSE, output)
    assert path.read_bytes() == before


@pytest.mark.parametrize("reason", ["", " ", "a\nb", "\x1b[2J", "x" * 301])
def test_a_reason_that_is_no_line_of_text_is_a_usage_error(run, output, reason):
    with pytest.raises(UsageError, match="--missing TF32="):
        package([run], WHOSE, output, missing={"TF32": reason})
    assert not output.exists()


def test_a_bundle_above_the_budget_is_refused_and_told_what_is_large(run, output, monkeypatch):
    total = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    monkeypatch.setattr("llmb.submission.package.MAX_BYTES_PER_REPEAT", total)
    refused(
        run,
        output,
        r"MiB that 1 repeat may take; the largest: evidence/repeat-0/gradients.safetensors ",
    )


def test_the_budget_grows_with_the_repeats_whose_evidence_is_kept(tmp_path, output, monkeypatch):
    record = builders.make_record(repeats=3)
    run = builders.write(tmp_path / "run", builders.run_files(record))
    total = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    monkeypatch.setattr("llmb.submission.package.MAX_BYTES_PER_REPEAT", total / 2)
    assert package([run], WHOSE, output)


def test_a_bundle_has_a_page_that_its_manifest_lists(run, output):
    (path,) = package([run], WHOSE, output)
    listed = json.loads((path / "MANIFEST.json").read_bytes())["files"]
    assert "README.md" in listed
    assert (path / "README.md").read_text().startswith("<!-- llmb.page/3 -->\n# `llama-1.4b train")


def test_notes_beside_a_run_do_not_become_the_page(run, output):
    (run / "README.md").write_text("the fastest of all")
    (path,) = package([run], WHOSE, output)
    assert "fastest" not in (path / "README.md").read_text()


def test_an_output_that_cannot_be_written_is_a_usage_error(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        package([run], WHOSE, tmp_path / "file")


def test_the_index_grows_with_later_bundles_and_keeps_earlier_reasons(run, output, tmp_path):
    package([run], WHOSE, output, missing={"TF32": "no such hardware"})
    later = builders.make_record(1, run_id="f" * 32)
    second = builders.write(tmp_path / "two", builders.run_files(later))
    package([second], WHOSE, output)
    precisions = index_of(output)["precisions"]
    assert len(precisions["BF16"]["bundles"]) == 2
    assert precisions["TF32"]["missing"] == "no such hardware"


def test_a_reason_for_a_precision_that_is_there_is_a_usage_error(run, output):
    with pytest.raises(UsageError, match="BF16"):
        package([run], WHOSE, output, missing={"BF16": "lazy"})
    assert not output.exists()


def test_a_damaged_neighbour_is_named(run, output, tmp_path):
    (path,) = package([run], WHOSE, output)
    (path / "sources.diff").write_text("edited")
    other = builders.make_record(1, run_id="f" * 32)
    second = builders.write(tmp_path / "two", builders.run_files(other))
    with pytest.raises(BundleRefusedError, match=r"already in .* is damaged"):
        package([second], WHOSE, output)


def test_a_failed_write_is_one_line_and_leaves_no_half_bundle(run, output, monkeypatch):
    def no_rename(*_):
        raise OSError(28, "disk full")

    monkeypatch.setattr(os, "rename", no_rename)
    with pytest.raises(UsageError, match=r"cannot write to '.*submissions': disk full"):
        package([run], WHOSE, output)
    assert [p for p in output.rglob("*") if p.is_file()] == []


def test_the_program_of_a_lazy_device_goes_into_the_bundle_with_the_rest(tmp_path, output):
    program = "%d = bf16[8,4] dot(bf16[8,2] %a, bf16[2,4] %b)\n"
    record = builders.make_record(1, program=program)
    run = builders.write(tmp_path / "run", builders.run_files(record, program=program))
    (path,) = package([run], WHOSE, output)
    assert (path / "evidence/repeat-0/program.txt").read_text() == program
    assert verify(path).ok


def test_a_run_whose_program_was_changed_is_refused(tmp_path, output):
    program = "%d = bf16[8,4] dot(bf16[8,2] %a, bf16[2,4] %b)\n"
    record = builders.make_record(1, program=program)
    changed = builders.run_files(record, program=program.replace("bf16[8,2]", "s8[8,2]"))
    run = builders.write(tmp_path / "run", changed)
    refused(run, output, "P2 is pass")


def test_a_reason_may_have_300_characters_and_no_more(run, output):
    package([run], WHOSE, output, missing={"TF32": "x" * 300})
    assert reason_fault("x" * 300) is None
    assert reason_fault("x" * 301) == "has more than 300 characters"


def test_a_file_and_a_folder_with_a_manifest_are_meant_as_bundles_and_a_run_is_not(run, tmp_path):
    file, folder, empty = tmp_path / "a.zip", tmp_path / "bundle", tmp_path / "empty"
    file.write_bytes(b"")
    for each in (folder, empty):
        each.mkdir()
    (folder / "MANIFEST.json").write_text("{}")
    found = [is_bundle(place) for place in (file, folder, empty, run, tmp_path / "none")]
    assert found == [True, True, False, False, False]


def test_a_bundles_folder_can_be_read_by_others_as_any_new_folder(run, output):
    (made,) = package([run], WHOSE, output)
    assert made.stat().st_mode & 0o777 == 0o755
