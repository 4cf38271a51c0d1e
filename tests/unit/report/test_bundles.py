"""Bundles are found and read safely; damaged, doubled and contradictory ones are refused."""

from __future__ import annotations

import shutil

import pytest

from llmb.errors import UsageError
from llmb.report.bundles import gather
from llmb.submission.manifest import zip_bytes
from tests import builders
from tests.unit import builders_board as board


def reasons(shelf):
    return {one.path: one.reason for one in shelf.refused}


def test_submitter_and_system_are_those_of_the_place(tmp_path):
    board.put(tmp_path, board.record(), "Acme", "box-8x")
    (entry,) = gather([tmp_path]).entries
    assert (entry.submitter, entry.system) == ("Acme", "box-8x")
    assert entry.path == "Acme/box-8x/work/00000001"
    assert (entry.availability, entry.signatures) == (None, ())


def test_the_index_says_whether_the_system_can_be_bought_and_whose_it_is(tmp_path):
    board.put(tmp_path, board.record())
    board.index(tmp_path, availability="on-premise")
    (entry,) = gather([tmp_path]).entries
    assert entry.availability == "on-premise"
    (alone,) = gather([tmp_path / "Acme" / "box" / "work" / "00000001"]).entries
    assert (alone.submitter, alone.system) == ("Acme", "box")
    (below,) = gather([tmp_path / "Acme"]).entries
    assert (below.submitter, below.system) == ("Acme", "box")


def test_an_index_that_names_somebody_else_refuses_the_bundle(tmp_path):
    board.put(tmp_path, board.record(), "Mallory")
    board.index(tmp_path, "Mallory")
    path = tmp_path / "Mallory" / "box" / "system.json"
    path.write_text(path.read_text().replace("Mallory", "Acme"))
    shelf = gather([tmp_path])
    assert shelf.entries == ()
    assert "names submitter 'Acme'" in shelf.refused[0].reason


def test_a_bundle_alone_names_no_submitter_and_no_place_of_this_machine(tmp_path):
    place = board.put(tmp_path, board.record())
    moved = shutil.copytree(place, tmp_path / "elsewhere" / "deep" / "er" / "mine")
    (entry,) = gather([moved]).entries
    assert (entry.path, entry.submitter, entry.system) == ("mine", None, None)


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
    harm(board.put(tmp_path, board.record(1)))
    board.put(tmp_path, board.record(2))
    shelf = gather([tmp_path])
    assert [entry.record.run_id[-1] for entry in shelf.entries] == ["2"]
    assert words in reasons(shelf)["Acme/box/work/00000001"]
    assert str(tmp_path) not in shelf.refused[0].reason


def faster_on_paper(data):
    data["result"]["tokens_per_second"] *= 2
    data["result"]["ci95"] = None


def better_on_paper(data):
    data["audit"]["findings"][0]["status"] = "fail"


def reproduced_by_nobody(data):
    data["audit"]["verdict"] = "REPRODUCED"


def interval_elsewhere(data):
    data["result"]["ci95"] = [1.0, 2.0]


def other_group(data):
    data["workload"]["name"] = "gpt2-125m"


def fewer_devices(data):
    data["topology"]["world_size"] = 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_group, "what ran is llama-1.4b train"),
        (fewer_devices, "its mesh is another size"),
        (faster_on_paper, "its stamps give"),
        (better_on_paper, "its findings add up to INVALID"),
        (reproduced_by_nobody, "its findings add up to CONSISTENT"),
        (interval_elsewhere, "does not hold its figure"),
    ],
)
def test_a_headline_that_does_not_follow_from_the_record_is_refused(tmp_path, change, words):
    board.put(tmp_path, board.record(change=change))
    shelf = gather([tmp_path])
    assert shelf.entries == ()
    assert words in shelf.refused[0].reason


def test_a_bundle_without_an_interval_is_shown(tmp_path):
    def without(data):
        data["result"]["ci95"] = None

    board.put(tmp_path, board.record(change=without))
    shelf = gather([tmp_path])
    assert shelf.refused == ()
    assert len(shelf.entries) == 1


def test_a_bundle_and_its_zip_count_once(tmp_path):
    place = board.put(tmp_path, board.record())
    files = builders.with_manifest(builders.run_files(board.record()))
    place.with_name(place.name + ".zip").write_bytes(zip_bytes(files))
    shelf = gather([tmp_path])
    assert [entry.path for entry in shelf.entries] == ["Acme/box/work/00000001"]
    assert shelf.refused == ()
    shutil.rmtree(place)
    assert [entry.path for entry in gather([tmp_path]).entries] == ["Acme/box/work/00000001.zip"]


def test_the_run_of_another_cannot_be_handed_in_again(tmp_path):
    board.put(tmp_path, board.record(), "Acme")
    board.put(tmp_path, board.record(), "Mallory")
    board.put(tmp_path, board.record(), "Mallory", "other", **{"log.txt": "mine"})
    shelf = gather([tmp_path])
    assert [entry.submitter for entry in shelf.entries] == ["Acme"]
    assert {one.reason for one in shelf.refused} == {
        "the run of it is that of 'Acme/box/work/00000001'"
    }
    assert len(shelf.refused) == 2


def test_a_place_without_a_bundle_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="there is no bundle in"):
        gather([tmp_path])
    with pytest.raises(UsageError, match="there is nothing at"):
        gather([tmp_path / "none"])


def test_the_order_is_that_of_the_paths_whatever_was_read_first(tmp_path):
    for number, submitter in enumerate(("b", "a", "c")):
        board.put(tmp_path, board.record(number), submitter)
    assert [entry.submitter for entry in gather([tmp_path]).entries] == ["a", "b", "c"]


def elsewhere(device_rate=1.0, mode="train", **interval):
    def change(data):
        data["result"]["tokens_per_second_per_device"] *= device_rate
        data["workload"]["mode"] = mode
        rate = data["result"]["tokens_per_second"]
        if interval:
            data["result"]["ci95"] = [rate * interval["low"], rate * interval["high"]]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (elsewhere(device_rate=2.0), "it says tokens_per_second_per_device"),
        (elsewhere(mode="forward"), "it says llama-1.4b forward, what ran is llama-1.4b train"),
        (elsewhere(low=1.01, high=1.02), "does not hold its figure"),
        (elsewhere(low=0.9, high=0.99), "does not hold its figure"),
    ],
)
def test_every_part_of_a_headline_is_held_to_the_record(tmp_path, change, words):
    board.put(tmp_path, board.record(change=change))
    assert words in gather([tmp_path]).refused[0].reason


def test_an_interval_may_end_at_its_figure(tmp_path):
    board.put(tmp_path, board.record(change=elsewhere(low=1.0, high=1.0)))
    assert gather([tmp_path]).refused == ()


def test_a_readers_texts_are_diffs_and_log_alone(tmp_path):
    board.put(tmp_path, board.record(), **{"log.txt": "as an older bundle has it"})
    (entry,) = gather([tmp_path]).entries
    assert sorted(entry.texts) == ["log.txt", "model.diff", "settings.diff", "sources.diff"]
