"""Bundles are found and read safely; what does not verify, and what is doubled, is refused."""

from __future__ import annotations

import shutil

import pytest

from llmb.errors import UsageError
from llmb.submission.bundles import gather
from llmb.submission.manifest import zip_bytes
from llmb.submission.verify import verify
from tests import builders
from tests.unit import builders_board as board


def honest(run=1, change=None):
    """Return the record of a run that verifies; ``change`` edits its JSON data."""
    record = builders.make_record(repeats=1, run_id=f"{run:032x}")
    return builders.edited(record, change) if change else record


def reasons(shelf):
    return {one.path: one.reason for one in shelf.refused}


def test_submitter_and_system_are_those_of_the_place(tmp_path):
    board.put(tmp_path, honest(), "acme", "box-8x")
    (entry,) = gather([tmp_path]).entries
    assert (entry.submitter, entry.system) == ("acme", "box-8x")
    assert entry.path == "acme/box-8x/work/00000001"
    assert (entry.availability, entry.signatures) == (None, ())


def test_the_index_says_whether_the_system_can_be_bought_and_whose_it_is(tmp_path):
    board.put(tmp_path, honest())
    board.index(tmp_path, availability="preview")
    (entry,) = gather([tmp_path]).entries
    assert entry.availability == "preview"
    (alone,) = gather([tmp_path / "acme" / "box" / "work" / "00000001"]).entries
    assert (alone.submitter, alone.system) == ("acme", "box")
    (below,) = gather([tmp_path / "acme"]).entries
    assert (below.submitter, below.system) == ("acme", "box")


def test_an_index_that_names_somebody_else_refuses_the_bundle(tmp_path):
    board.put(tmp_path, honest(), "mallory")
    board.index(tmp_path, "mallory")
    path = tmp_path / "mallory" / "box" / "system.json"
    path.write_text(path.read_text().replace("mallory", "acme"))
    shelf = gather([tmp_path])
    assert shelf.entries == ()
    assert shelf.refused[0].reason == "'system.json': submitter 'acme' lies in a folder 'mallory'"


@pytest.mark.parametrize("text", ["{}", '{"schema": "llmb.system-index/2", "submitter": "acme"}'])
def test_an_index_that_cannot_be_read_refuses_the_bundle(tmp_path, text):
    board.put(tmp_path, honest())
    (tmp_path / "acme" / "box" / "system.json").write_text(text)
    assert gather([tmp_path]).entries == ()


def test_a_bundle_alone_says_whose_it_is_and_no_place_of_this_machine(tmp_path):
    place = board.put(tmp_path, honest())
    moved = shutil.copytree(place, tmp_path / "elsewhere" / "deep" / "er" / "mine")
    (entry,) = gather([moved]).entries
    assert (entry.path, entry.submitter, entry.system) == ("mine", "acme", "box")


def damage(place):
    (place / "sources.diff").write_text("edited")


def lose_manifest(place):
    (place / "MANIFEST.json").unlink()


def add_file(place):
    (place / "extra").write_text("x")


def add_link(place):
    (place / "link").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (damage, "is not the file the manifest lists"),
        (lose_manifest, "this is not a bundle"),
        (add_file, "not in the manifest"),
        (add_link, "is a link"),
    ],
)
def test_a_damaged_bundle_is_refused_with_the_reason_and_others_are_shown(tmp_path, harm, words):
    harm(board.put(tmp_path, honest(1)))
    board.put(tmp_path, honest(2))
    shelf = gather([tmp_path])
    assert [entry.record.run_id[-1] for entry in shelf.entries] == ["2"]
    assert words in reasons(shelf)["acme/box/work/00000001"]
    assert str(tmp_path) not in shelf.refused[0].reason


def faster_on_paper(data):
    data["result"]["tokens_per_second"] *= 2


def better_on_paper(data):
    data["audit"]["verdict"] = "CONSISTENT"


def interval_elsewhere(data):
    data["result"]["ci95"] = [1.0, 2.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (faster_on_paper, "recomputation: result.tokens_per_second"),
        (interval_elsewhere, "recomputation: result.ci95"),
        (better_on_paper, "verdict: it says CONSISTENT, its findings add up to UNVERIFIED"),
    ],
)
def test_what_verify_refuses_is_refused_with_its_first_failed_check(tmp_path, change, words):
    place = board.put(tmp_path, honest(change=change))
    shelf = gather([tmp_path])
    assert shelf.entries == ()
    assert shelf.refused[0].reason.startswith(words)
    failed = [check for check in verify(place).checks if not check.ok]
    assert shelf.refused[0].reason == f"{failed[0].name}: {failed[0].message}"


def test_three_files_without_evidence_are_not_ranked(tmp_path):
    files = builders.run_files(honest())
    kept = {name: files[name] for name in ("record.json", "audit.json", "system.json")}
    builders.write(tmp_path / "acme" / "box" / "work" / "1", builders.with_manifest(kept))
    shelf = gather([tmp_path])
    assert shelf.entries == ()
    assert shelf.refused[0].reason.startswith("files: ")


def test_a_bundle_and_its_zip_count_once(tmp_path):
    place = board.put(tmp_path, honest())
    files = builders.with_manifest(builders.run_files(honest()))
    place.with_name(place.name + ".zip").write_bytes(zip_bytes(files))
    shelf = gather([tmp_path])
    assert [entry.path for entry in shelf.entries] == ["acme/box/work/00000001"]
    assert shelf.refused == ()
    shutil.rmtree(place)
    assert [entry.path for entry in gather([tmp_path]).entries] == ["acme/box/work/00000001.zip"]


def test_of_two_bundles_of_one_run_none_is_shown_where_no_history_tells_whose_it_is(tmp_path):
    board.put(tmp_path, honest(), "acme")
    board.put(tmp_path, honest(), "mallory")
    shelf = gather([tmp_path])
    assert shelf.entries == ()
    unknown = "and no history tells which was there first"
    assert reasons(shelf) == {
        "acme/box/work/00000001": (
            f"clash: its run id is that of 'mallory/box/work/00000001', {unknown}"
        ),
        "mallory/box/work/00000001": (
            f"clash: its run id is that of 'acme/box/work/00000001', {unknown}"
        ),
    }


def test_two_paths_to_one_bundle_show_it_once(tmp_path):
    place = board.put(tmp_path, honest())
    shelf = gather([tmp_path, place])
    assert len(shelf.entries) == 1
    assert shelf.refused == ()


def test_a_place_without_a_bundle_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="there is no bundle in"):
        gather([tmp_path])
    with pytest.raises(UsageError, match="there is nothing at"):
        gather([tmp_path / "none"])


def test_the_order_is_that_of_the_paths_whatever_was_read_first(tmp_path):
    for number, submitter in enumerate(("b", "a", "c")):
        board.put(tmp_path, honest(number), submitter)
    assert [entry.submitter for entry in gather([tmp_path]).entries] == ["a", "b", "c"]


def test_a_readers_texts_are_diffs_and_log_alone(tmp_path):
    board.put(tmp_path, honest(), **{"log.txt": "as an older bundle has it"})
    (entry,) = board.believing([tmp_path]).entries
    assert sorted(entry.texts) == ["log.txt", "model.diff", "settings.diff", "sources.diff"]
