"""A bundle that was tampered with fails the check that is there for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmb.errors import BundleRefusedError
from llmb.records import references
from llmb.records.bundle import from_files
from llmb.records.canonical import pretty_bytes
from llmb.records.references import Reference, ReferenceTable
from llmb.submission import verify as verification
from llmb.submission.clashes import Content
from llmb.submission.manifest import zip_bytes
from llmb.submission.verify import Verification, VerifyCheck, verify, verify_bundle
from tests import builders
from tests.builders import with_manifest


@pytest.fixture(scope="module")
def record():
    return builders.make_record(repeats=2)


@pytest.fixture(scope="module")
def files(record):
    return builders.run_files(record)


def failed(files):
    """Return the names of failed checks of a bundle re-made, manifest and all, by a forger."""
    return [c.name for c in verify_bundle(from_files(with_manifest(files))).checks if not c.ok]


def forge(record, edit):
    """Return the run files of an edited record whose copies were edited along with it."""
    forged = builders.edited(record, edit)
    return builders.run_files(record) | {
        "record.json": pretty_bytes(forged),
        "audit.json": pretty_bytes(forged.audit),
        "system.json": pretty_bytes(forged.system),
    }


def test_an_honest_bundle_passes_every_check_as_folder_and_zip(tmp_path, record):
    everything = builders.bundle_files(record)
    folder = builders.write(tmp_path / "bundle", everything)
    packed = tmp_path / "bundle.zip"
    packed.write_bytes(zip_bytes(everything))
    for path in (folder, packed):
        verification = verify(path)
        assert verification.ok, [c for c in verification.checks if not c.ok]
        assert "official, UNVERIFIED" in verification.headline


def test_a_bundle_is_verified_where_there_is_no_torch_and_no_numpy(tmp_path, record):
    folder = builders.write(tmp_path / "bundle", builders.bundle_files(record))
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from pathlib import Path; from llmb.submission.verify import verify\n"
        "assert verify(Path(sys.argv[1])).ok"
    )
    root = Path(verification.__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code, folder], cwd=root, check=True)


def test_any_flipped_file_is_refused(record):
    everything = builders.bundle_files(record)
    for name, content in everything.items():
        flipped = bytes([content[0] ^ 1]) + content[1:] if content else b"x"
        with pytest.raises(BundleRefusedError):
            from_files(everything | {name: flipped})


#: Files nothing else in the bundle is derived from: only the bundle id vouches for them.
FREE = {"model.diff", "settings.diff", "sources.diff"}


def test_a_changed_file_under_a_new_manifest_is_still_found(files):
    for name in sorted(files.keys() - FREE):
        more = b',"forged":1}\n' if name.endswith(".json") else b"#\n"
        changed = files[name].rstrip().rstrip(b"}") + more
        try:
            assert failed(files | {name: changed}), name
        except BundleRefusedError:
            assert name == "record.json"  # nothing can be checked without one


@pytest.mark.parametrize("name", ["audit.json", "system.json", "plugin/__init__.py"])
def test_a_missing_file_is_found(files, name):
    assert failed({n: c for n, c in files.items() if n != name})


@pytest.mark.parametrize("evidence", ["optimizer", "weights", "model", "settings", "plugin"])
def test_missing_evidence_of_any_repeat_is_found(files, evidence):
    name = f"evidence/repeat-1/{evidence}.json"
    assert "files" in failed({n: c for n, c in files.items() if n != name})


@pytest.mark.parametrize(
    "name", ["more.txt", "evidence/repeat-2/optimizer.json", "evidence/repeat-0/x.pkl"]
)
def test_a_file_that_no_run_has_is_found(files, name):
    assert failed(files | {name: b"{}"}) == ["files"]


def test_a_plugin_file_that_was_not_loaded_is_found(files):
    assert failed(files | {"plugin/extra.py": b""}) == ["plugin", "audit"]


def test_a_changed_plugin_file_is_found(files):
    assert failed(files | {"plugin/kernels/fused.py": b"FAST = None\n"}) == ["plugin", "audit"]


def test_a_changed_system_in_the_record_is_found(record):
    def upgrade(data):
        data["system"]["cpu"]["model"] = "Better CPU"

    forged = builders.edited(record, upgrade)
    found = failed(builders.run_files(record) | {"record.json": pretty_bytes(forged)})
    assert found == ["copies"]


def test_a_faster_number_is_found(record):
    def faster(data):
        data["result"]["tokens_per_second"] *= 1.001

    assert failed(forge(record, faster)) == ["recomputation"]


def finding(data, rule):
    return next(f for f in data["audit"]["findings"] if f["id"] == rule)


def unobserved():
    """Return rules of which the built record shows no evidence."""
    return ["W1", "E1", "E2", "E3", "P1", "O2", "G1", "N1"]


@pytest.mark.parametrize("rule", unobserved())
@pytest.mark.parametrize("status", ["pass", "not_applicable", "note"])
def test_a_forged_outcome_of_a_rule_nobody_observed_is_found(record, rule, status):
    def forged(data):
        assert finding(data, rule)["status"] == "not_observed"
        finding(data, rule)["status"] = status

    assert "audit" in failed(forge(record, forged))


def test_a_forged_consistent_verdict_is_found(record):
    def forged(data):
        data["audit"]["verdict"] = "CONSISTENT"

    assert failed(forge(record, forged)) == ["verdict"]


def test_forging_every_finding_along_with_the_verdict_is_found(record):
    def forged(data):
        for one in data["audit"]["findings"]:
            one["status"] = "pass"
        data["audit"]["verdict"] = "CONSISTENT"

    assert failed(forge(record, forged)) == ["audit"]


def test_a_blocking_rule_made_a_note_is_found(record):
    def forged(data):
        finding(data, "W1")["level"] = "note"

    assert "audit" in failed(forge(record, forged))


def test_a_rule_left_out_is_found(record):
    def forged(data):
        data["audit"]["findings"].remove(finding(data, "W1"))

    assert "audit" in failed(forge(record, forged))


def test_an_invented_rule_is_found(record):
    def forged(data):
        data["audit"]["findings"].append({**finding(data, "P3"), "id": "Z9"})

    assert "audit" in failed(forge(record, forged))


@pytest.mark.parametrize("rule", ["P3", "T3"])
def test_context_may_be_added_to_a_note(record, rule):
    def noted(data):
        finding(data, rule).update(status="note", observer="supervisor", message="steal 1 %")

    assert failed(forge(record, noted)) == []


@pytest.mark.parametrize("rule", ["O1", "T1", "T2", "K1", "K2", "S1"])
@pytest.mark.parametrize("field", ["message", "measured", "status"])
def test_an_edited_observed_finding_is_found(record, rule, field):
    def forged(data):
        finding(data, rule)[field] = "fail" if field == "status" else "99 parameters"

    assert "audit" in failed(forge(record, forged))


def test_bad_evidence_behind_a_pass_is_found_in_any_repeat(files):
    for n in range(2):
        name = f"evidence/repeat-{n}/optimizer.json"
        said = json.loads(files[name]) | {"step_is_torchs": False}
        assert failed(files | {name: json.dumps(said).encode()}) == ["audit"]


def test_evidence_of_fewer_steps_than_the_window_is_found(files):
    name = "evidence/repeat-0/optimizer.json"
    said = json.loads(files[name]) | {"steps_expected": 3, "steps_min": 3, "steps_max": 3}
    found = failed(files | {name: json.dumps(said).encode()})
    assert found == ["audit", "precision"], "what cannot be judged shows no precision either"


def test_disagreeing_clocks_behind_a_pass_are_found(record):
    def stretch(data):
        worker = data["timing"]["repeats"][0]["fence_worker_ns"]
        worker[-1] += 10**9
        headline = data["timing"]["headline_repeat"]
        data["timing"].update(data["timing"]["repeats"][headline])

    assert failed(forge(record, stretch)) == ["audit"]


def test_a_lack_of_fences_behind_a_pass_is_found(record):
    def drop(data):
        for field in ("fence_ns", "fence_worker_ns", "fence_steps"):
            del data["timing"]["repeats"][1][field][2]

    assert "audit" in failed(forge(record, drop))


def test_no_repeats_at_all_is_found_and_no_crash(record):
    def forged(data):
        data["timing"]["repeats"] = []

    assert {"recomputation", "audit"} <= set(failed(forge(record, forged)))


def test_limits_left_out_of_the_audit_are_found(record):
    def forged(data):
        data["audit"]["limits"].pop()

    assert failed(forge(record, forged)) == ["audit"]


def test_another_version_of_the_rules_is_found(record):
    def forged(data):
        data["rules_version"] = "0"

    assert failed(forge(record, forged)) == ["audit"]


def test_a_bundle_of_the_first_rules_is_refused(record):
    def forged(data):
        data["rules_version"] = data["audit"]["rules_version"] = "1"
        data["audit"]["verdict"] = "UNVERIFIED"

    assert "audit" in failed(forge(record, forged))


@pytest.mark.parametrize(("longest", "said"), [(16_384, []), (16_385, ["files"])])
def test_a_text_of_a_record_has_a_longest_length(record, longest, said):
    for change in ({"warnings": ["x" * longest]}, {"created_utc": "x" * longest}):
        assert failed(forge(record, lambda data, change=change: data.update(change))) == said


def test_a_claimed_reproduction_is_found(record):
    def forged(data):
        claim = {"bundle_id": "0", "run_id": "0", "tokens_per_second": 1, "difference_percent": 0}
        data["audit"]["reproductions"].append(claim)

    assert failed(forge(record, forged)) == ["audit"]


@pytest.mark.parametrize(
    "claim",
    [
        {"effective": "FP32", "how": "measured"},
        {"effective": "BF16"},
        {"how": "measured"},
        {"bits": {"forward_min": 8.0}},
    ],
)
def test_an_effective_precision_nobody_measured_is_found(record, claim):
    def forged(data):
        data["precision"].update(claim)
        bits = dict.fromkeys(
            ("forward_min", "gradient_min", "honest_forward_min", "honest_gradient_min")
        )
        data["precision"]["bits"] = bits | claim.get("bits", {})

    assert failed(forge(record, forged)) == ["precision"]


def test_hidden_changes_to_the_model_are_found(files):
    name = "evidence/repeat-0/model.json"
    said = {"before": {"norm": "RMSNorm"}, "after": {"norm": "Identity"}}
    assert failed(files | {name: json.dumps(said).encode()}) == ["evidence", "diff"]


@pytest.mark.parametrize("n", [0, 1])
def test_a_hidden_closed_component_or_patch_is_found(files, n):
    name = f"evidence/repeat-{n}/plugin.json"
    patch = [{"target": "torch.optim.*", "reason": "speed"}]
    said = json.loads(files[name]) | {"declared_patches": patch}
    assert failed(files | {name: json.dumps(said).encode()}) == ["plugin"]


def test_another_reference_is_said_so(record):
    def forged(data):
        data["reference_digest"] = "0" * 64

    verification = verify_bundle(from_files(with_manifest(forge(record, forged))))
    check = next(check for check in verification.checks if not check.ok)
    assert (check.name, "nobody published" in check.message) == ("reference", True)


def made_by(version, digest):
    return lambda data: data.update(llmb_version=version, reference_digest=digest)


def test_a_reference_that_was_published_once_stays_known_under_its_own_version(record, monkeypatch):
    rows = (Reference("0.0.1", "1" * 64, {}), Reference("0.0.2", "0" * 64, {}))
    monkeypatch.setattr(references, "table", lambda: ReferenceTable(rows))
    assert failed(forge(record, made_by("0.0.2", "0" * 64))) == []
    assert failed(forge(record, made_by("0.0.1", "0" * 64))) == ["reference"]
    assert failed(forge(record, made_by("0.0.2", "2" * 64))) == ["reference"]
    assert failed(forge(record, lambda data: None)) == []  # this llmb's own is always known


def test_a_version_that_never_had_the_reference_is_named_with_the_one_that_did(record):
    first = references.table().references[0]
    files = forge(record, made_by("0.0.9", first.digest))
    (check,) = (c for c in verify_bundle(from_files(with_manifest(files))).checks if not c.ok)
    expected = f"reference {first.digest[:12]!r} is that of llmb 0.1.0, and of no '0.0.9'"
    assert check.message == expected


def test_every_published_reference_is_accepted_and_said_to_be_run_here_or_not(record):
    found = {}
    for row in references.table().references:
        files = forge(record, made_by(row.version, row.digest))
        verified = verify_bundle(from_files(with_manifest(files)))
        assert verified.ok, row
        found[row.digest[:12]] = verified.provenance.is_same
    # Nobody compared the numbers of the first, whose rules no longer run either.
    assert found == {"649af7d83608": False, "17021ed72954": True} | {
        digest: True for digest in found if digest not in ("649af7d83608", "17021ed72954")
    }


def committed(**changes):
    return lambda data: data.update(seed_commitment=builders.seed_commitment() | changes)


def seed_check(record, edit):
    """Return the failed checks of a record edited so, and what is said of the commitment."""
    checks = verify_bundle(from_files(with_manifest(forge(record, edit)))).checks
    (said,) = [check.message for check in checks if check.name == "seed commitment"]
    return [check.name for check in checks if not check.ok], said


def test_a_true_commitment_passes_and_says_what_to_compare_it_with(record):
    found, said = seed_check(record, committed())
    assert found == []
    assert builders.seed_commitment()["commitment"] in said
    assert "'A [conference]' published (https://seeds.example, 2026-11-02)" in said


@pytest.mark.parametrize("change", [{"commitment": "0" * 64}, {"salt": "ab" * 16}])
def test_a_commitment_that_seed_and_salt_do_not_give_is_found(record, change):
    found, said = seed_check(record, committed(**change))
    assert found == ["seed commitment"]
    assert (builders.seed_commitment() | change)["commitment"] in said


def test_a_true_commitment_to_another_seed_than_the_runs_is_found(record):
    found, said = seed_check(record, committed(**builders.seed_commitment(seed=8)))
    assert found == ["seed commitment"]
    assert "seed 8, the run's is 7" in said


def test_the_commitment_of_a_debug_run_is_checked_as_well():
    debug = builders.make_record(repeats=1, timed_steps=20, waivers=("--timed-steps 20",))
    assert debug.class_ == "debug"
    assert seed_check(debug, committed())[0] == []
    found, said = seed_check(debug, committed(commitment="0" * 64))
    assert found == ["seed commitment"]
    assert f"the commitment is {'0' * 64}" in said


def test_a_commitment_of_no_possible_form_is_refused_with_its_record(files):
    data = json.loads(files["record.json"])
    committed(salt="00")(data)
    forged = with_manifest(files | {"record.json": json.dumps(data).encode()})
    with pytest.raises(BundleRefusedError, match=r"seed_commitment\.salt"):
        verify_bundle(from_files(forged))


def test_a_record_from_before_there_were_commitments_still_passes(files):
    data = json.loads(files["record.json"])
    assert data.pop("seed_commitment") is None
    older = (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()
    checks = verify_bundle(from_files(with_manifest(files | {"record.json": older}))).checks
    assert all(check.ok for check in checks)
    assert "seed commitment" not in [check.name for check in checks]


# -- the program of a lazy device -------------------------------------------------------------

DOT = "%d.3 = bf16[8,4]{1,0} dot(bf16[8,2]{1,0} %a.1, bf16[2,4]{1,0} %b.2)"
PROGRAM = f"HloModule step\n  {DOT}\n  {DOT}\n"
TEXT = "evidence/repeat-0/program.txt"


@pytest.fixture(scope="module")
def lazy():
    """Return record and files of a run whose device showed its program."""
    record = builders.make_record(repeats=2, program=PROGRAM)
    return record, builders.run_files(record, program=PROGRAM)


def test_types_seen_in_a_program_are_judged_again_and_agree(lazy, tmp_path):
    record, files = lazy
    p2 = next(f for f in record.audit.findings if f.id == "P2")
    assert (p2.status.value, p2.measured) == ("pass", "2 bf16 x bf16 -> bf16")
    assert failed(files) == []
    packed = tmp_path / "bundle.zip"
    packed.write_bytes(zip_bytes(with_manifest(files)))
    assert verify(packed).ok


@pytest.mark.parametrize("repeat", [0, 1])
@pytest.mark.parametrize(
    "forged",
    [
        PROGRAM.replace("bf16", "f8e4m3fn"),
        PROGRAM.replace("dot(", "custom-call("),
        "HloModule step\n",
        "",
    ],
    ids=["narrower", "hidden in a custom call", "no product", "empty"],
)
def test_another_program_under_a_new_manifest_is_found_in_any_repeat(lazy, forged, repeat):
    text = TEXT.replace("repeat-0", f"repeat-{repeat}")
    assert failed(lazy[1] | {text: forged.encode()}) == ["audit"]


def test_a_flipped_byte_of_the_program_is_refused(lazy):
    everything = with_manifest(lazy[1])
    changed = everything[TEXT].replace(b"bf16[8,4]", b"bf16[8,5]", 1)
    with pytest.raises(BundleRefusedError):
        from_files(everything | {TEXT: changed})


@pytest.mark.parametrize("repeat", [0, 1])
def test_a_program_that_was_taken_away_is_found_with_the_finding_it_was_for(lazy, repeat):
    gone = TEXT.replace("repeat-0", f"repeat-{repeat}")
    assert failed({n: c for n, c in lazy[1].items() if n != gone}) == ["audit"]


def test_a_program_put_beside_a_run_that_showed_none_is_found(record, files):
    more = {TEXT.replace("repeat-0", f"repeat-{n}"): PROGRAM.encode() for n in range(2)}
    assert failed(files | more) == ["audit"]


def test_a_flag_made_a_pass_is_found(lazy):
    record = builders.make_record(repeats=2, program=PROGRAM.replace("bf16", "s8"))
    files = builders.run_files(record, program=PROGRAM.replace("bf16", "s8"))
    assert failed(files) == []

    def forged(data):
        finding(data, "P2").update(status="pass", message="no matrix product is narrower")

    lying = builders.edited(record, forged)
    copies = {"record.json": pretty_bytes(lying), "audit.json": pretty_bytes(lying.audit)}
    assert failed(files | copies) == ["audit"]


def test_a_program_that_is_no_text_at_all_is_judged_and_no_crash(lazy):
    assert failed(lazy[1] | {TEXT: b"\xff\xfe\x00= bf16[" * 1000}) == ["files", "audit"]


def test_evidence_of_the_timed_steps_without_the_warm_up_is_found(record, files):
    name, timing = "evidence/repeat-0/optimizer.json", record.timing.repeats[0]
    steps = timing.timed_steps + timing.warmup_steps - 1
    said = json.loads(files[name]) | dict.fromkeys(
        ("steps_expected", "steps_min", "steps_max"), steps
    )
    assert failed(files | {name: json.dumps(said).encode()}) == ["audit", "precision"]


def test_one_check_that_failed_is_enough(record):
    good, bad = VerifyCheck("digests", True, ""), VerifyCheck("audit", False, "")
    content = Content(run_id=record.run_id, nonces=(), evidence={})
    assert Verification("b" * 64, record, (good, good), content).ok
    assert not Verification("b" * 64, record, (good, bad, good), content).ok


def test_a_plugin_file_that_the_record_lists_twice_is_found(record):
    def twice(data):
        data["plugin"]["files"] += data["plugin"]["files"][:1]

    (said,) = (
        check.message
        for check in verify_bundle(from_files(with_manifest(forge(record, twice)))).checks
        if check.name == "plugin"
    )
    assert "the record lists a plugin file twice" in said


@pytest.mark.parametrize(
    ("version", "rules", "ok"),
    [
        ("0.1.0", "2", True),
        ("0.1.0", "3", False),
        ("0.2.0", "2", False),
        ("0.1.1.dev3", "2", False),
        ("old", "2", False),
    ],
)
def test_only_llmb_up_to_0_1_0_wrote_manifests_that_name_nobody(version, rules, ok):
    def older(data):
        data.update(llmb_version=version, rules_version=rules)
        data["audit"]["rules_version"] = rules

    record = builders.edited(builders.make_record(1), older)
    files = builders.older_manifest(builders.run_files(record))
    checks = {check.name: check for check in verify_bundle(from_files(files)).checks}
    assert checks["owner"].ok is ok, checks["owner"].message


def test_a_bundle_says_whose_it_is():
    whose = builders.WHOSE.model_copy(update={"organisation": "Acme, Inc."})
    files = builders.with_manifest(builders.run_files(builders.make_record(1)), whose)
    (owner,) = (one for one in verify_bundle(from_files(files)).checks if one.name == "owner")
    assert (owner.ok, owner.message) == (True, "handed in by acme (Acme, Inc.), system box")


@pytest.mark.parametrize("name", ["model.diff", "sources.diff", "README.md"])
@pytest.mark.parametrize("byte", [b"\x1b[2J", b"\x07", b"\x7f", b"\r"])
def test_a_text_that_a_terminal_may_obey_is_refused(name, byte):
    files = builders.run_files(builders.make_record(1))
    files[name] = files.get(name, b"") + byte + b"\n"
    (check,) = (
        one for one in verify_bundle(from_files(with_manifest(files))).checks if one.name == "files"
    )
    assert f"{name!r} holds a control byte" in check.message
