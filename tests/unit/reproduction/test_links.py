"""REPRODUCED follows from other bundles, only where every condition of the rules holds."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from llmb.config import (
    FP16,
    AuditMode,
    DataSource,
    Mode,
    Parallelism,
    RunConfig,
    WeightsSource,
)
from llmb.records.finding import RULES_VERSION, Verdict
from llmb.records.run_record import RunRecord
from llmb.reproduction.links import Member, false_links, shortfalls, standings
from tests.unit.builders_reproduction import (
    ORIGINAL_ID,
    OUR_KEY,
    REPETITION_ID,
    THEIR_KEY,
    consistent,
    linked,
    pair,
)


def changed(record: RunRecord, part: str, **fields: Any) -> RunRecord:
    """Return ``record`` with ``fields`` of its ``part`` changed."""
    whole = getattr(record, part)
    return record.model_copy(update={part: whole.model_copy(update=fields)})


def with_record(member: Member, record: RunRecord) -> Member:
    return replace(member, record=record)


def test_every_condition_together_makes_the_original_reproduced_and_not_the_repetition() -> None:
    found = standings(pair())
    assert found[ORIGINAL_ID].verdict is Verdict.REPRODUCED
    (repetition,) = found[ORIGINAL_ID].repetitions
    assert repetition.counts
    assert repetition.reproduction.bundle_id == REPETITION_ID
    assert repetition.reproduction.difference_percent == pytest.approx(2.0)
    assert found[REPETITION_ID].verdict is Verdict.CONSISTENT
    assert found[REPETITION_ID].repetitions == ()


def verdict(word: Verdict) -> Any:
    return lambda record: changed(record, "audit", verdict=word)


def config(**fields: Any) -> Any:
    return lambda record: changed(record, "config", **fields)


def other_cores(record: RunRecord) -> RunRecord:
    (device,) = record.system.devices
    other = device.model_copy(update={"description": "Fast [2]"})
    return changed(record, "system", devices=(other,))


def other_file(record: RunRecord) -> RunRecord:
    first, *more = record.plugin.files
    other = first.model_copy(update={"sha256": "f" * 64})
    return changed(record, "plugin", files=(other, *more))


#: What is changed of the repetition alone, and the words that say so.
REPETITION_LACKS = {
    "consistent": (verdict(Verdict.FLAGGED), "the repetition is FLAGGED"),
    "observed": (verdict(Verdict.UNVERIFIED), "the repetition is UNVERIFIED"),
    "official": (
        lambda record: record.model_copy(update={"class_": "debug"}),
        "the repetition is a debug run",
    ),
    "hardware": (other_cores, r"another class of hardware: Fast \[1\], Fast \[2\]"),
    "rules": (
        lambda record: record.model_copy(update={"rules_version": "77"}),
        f"other rules: {RULES_VERSION}, 77",
    ),
    "workload": (lambda record: changed(record, "workload", parameters=1), "another workload"),
    "reference": (
        lambda record: record.model_copy(
            update={"llmb_version": "0.1.0", "reference_digest": "0" * 64}
        ),
        "another computation of family llama: llmb .*, llmb 0.1.0",
    ),
    "batch size": (config(batch_size=4), "another configuration: batch_size"),
    "options": (config(plugin_options={}), "another configuration: plugin_options"),
    "plugin": (config(plugin="other"), "another configuration: plugin"),
    "precision": (config(precision=FP16), "another configuration: precision"),
    "device": (config(device="slow:0"), "another configuration: device"),
    "effective precision": (
        lambda record: changed(record, "precision", effective="FP16"),
        "another effective precision: BF16, FP16",
    ),
    "files": (other_file, "other files of the plugin"),
    "seed": (config(seed=0), "it has the seed of the original"),
    "run": (lambda record: record.model_copy(update={"run_id": "0" * 32}), "it is the same run"),
}


@pytest.mark.parametrize("name", list(REPETITION_LACKS))
def test_a_repetition_that_lacks_one_condition_is_listed_and_changes_nothing(name: str) -> None:
    change, words = REPETITION_LACKS[name]
    original, again = pair()
    standing = standings([original, with_record(again, change(again.record))])[ORIGINAL_ID]
    assert standing.verdict is Verdict.CONSISTENT
    (repetition,) = standing.repetitions
    assert not repetition.counts
    assert any(re.search(words, each) for each in repetition.lacking)


@pytest.mark.parametrize("word", [Verdict.FLAGGED, Verdict.UNVERIFIED, Verdict.INVALID])
def test_an_original_that_is_not_consistent_keeps_its_verdict(word: Verdict) -> None:
    original, again = pair()
    original = with_record(original, verdict(word)(original.record))
    assert standings([original, again])[ORIGINAL_ID].verdict is word


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        (THEIR_KEY, THEIR_KEY, "the same key"),
        (THEIR_KEY, OUR_KEY | THEIR_KEY, "the same key"),
        (frozenset(), OUR_KEY, "the original has no valid signature"),
        (THEIR_KEY, frozenset(), "the repetition has no valid signature"),
    ],
)
def test_two_bundles_that_are_not_signed_by_two_parties_change_nothing(
    theirs: frozenset[str], ours: frozenset[str], words: str
) -> None:
    original, again = pair()
    members = [replace(original, signers=theirs), replace(again, signers=ours)]
    standing = standings(members)[ORIGINAL_ID]
    assert standing.verdict is Verdict.CONSISTENT
    (lacking,) = standing.repetitions[0].lacking
    assert words in lacking


@pytest.mark.parametrize(
    ("changes", "who"),
    [
        ({"submitter": "their-lab"}, "Their Lab"),
        ({"organisation": "THEIR LAB"}, "Their Lab"),
        ({"organisation": "Their-Lab."}, "Their Lab"),
        ({"submitter": "their-lab", "organisation": None}, "Their Lab"),
    ],
)
def test_a_party_with_two_keys_does_not_reproduce_its_own_run(
    changes: dict[str, Any], who: str
) -> None:
    original, again = pair()
    standing = standings([original, replace(again, **changes)])[ORIGINAL_ID]
    assert standing.verdict is Verdict.CONSISTENT
    (repetition,) = standing.repetitions
    assert repetition.lacking == (f"both are handed in by {who}",)
    assert repetition.by_same


@pytest.mark.parametrize(
    ("rate", "counts"), [(950.0, True), (1050.0, True), (949.9, False), (1050.1, False)]
)
def test_five_percent_is_within_five_percent_and_more_is_not(rate: float, counts: bool) -> None:
    standing = standings(pair(rate))[ORIGINAL_ID]
    assert standing.repetitions[0].counts is counts
    assert (standing.verdict is Verdict.REPRODUCED) is counts


def test_what_a_repetition_may_have_of_its_own_does_not_count_against_it() -> None:
    original, again = pair()
    own = config(seed=8, warmup_steps=5, device="fast:3")(again.record)
    (device,) = own.system.devices
    own = changed(own, "system", devices=(device.model_copy(update={"name": "fast:3"}),))
    own = changed(own, "system", torch="2.9.0", os="Linux 7", env={})
    assert standings([original, with_record(again, own)])[ORIGINAL_ID].repetitions[0].counts


def test_one_repetition_that_counts_is_enough_among_others_that_do_not() -> None:
    original, again = pair()
    slow = Member("c" * 64, linked(consistent("2" * 32, 500.0), original.record), OUR_KEY)
    standing = standings([slow, original, again])[ORIGINAL_ID]
    assert [each.counts for each in standing.repetitions] == [True, False]
    assert standing.verdict is Verdict.REPRODUCED


def test_a_repetition_of_a_repetition_speaks_of_that_one_alone() -> None:
    original, again = pair()
    third = Member("c" * 64, linked(consistent("2" * 32), again.record, REPETITION_ID), THEIR_KEY)
    found = standings([original, again, third])
    assert [len(found[name].repetitions) for name in (ORIGINAL_ID, REPETITION_ID)] == [1, 1]


def test_a_bundle_that_is_there_twice_as_folder_and_zip_is_listed_once() -> None:
    original, again = pair()
    unsigned = replace(again, signers=frozenset())
    found = standings([original, again, original, unsigned])
    assert len(found[ORIGINAL_ID].repetitions) == 1
    assert found[ORIGINAL_ID].verdict is Verdict.REPRODUCED, "who signed either copy signed it"


def test_a_link_whose_original_is_elsewhere_is_neither_false_nor_counted() -> None:
    _, again = pair()
    assert false_links([again]) == {}
    assert standings([again])[REPETITION_ID].repetitions == ()


@pytest.mark.parametrize(
    "stated", [{"tokens_per_second": 1001.0}, {"run_id": "9" * 32}, {"ci95": (1.0, 2000.0)}]
)
def test_a_link_that_misquotes_its_original_is_false_and_counts_for_nothing(
    stated: dict[str, Any],
) -> None:
    original, again = pair()
    lying = with_record(again, changed(again.record, "reproduction_of", **stated))
    assert "it says that it repeats aaaaaaaaaaaa" in false_links([original, lying])[REPETITION_ID]
    standing = standings([original, lying])[ORIGINAL_ID]
    assert (standing.verdict, standing.repetitions) == (Verdict.CONSISTENT, ())


#: Of each field of a configuration a value that the original has not.
OTHER: dict[str, Any] = {
    "executor": "inductor",
    "compile_mode": "max-autotune",
    "dynamic": True,
    "sac_freq": "1/2",
    "generate_scope": "step",
    "prompt_length": 5,
    "new_tokens": 7,
    "prompt_tokens": (1,),
    "workload": "other",
    "definition": {"family": "llama"},
    "mode": Mode.FORWARD,
    "plugin": "other",
    "plugin_options": {"other": 1},
    "precision": FP16,
    "batch_size": 64,
    "accumulate": 2,
    "mixed_precision": True,
    "timed_steps": 500,
    "repeats": 9,
    "shape_overrides": {"hidden_size": 64},
    "audit": AuditMode.QUICK,
    "parallelism": Parallelism(sequence_parallel=True),
    "nonce": "ab" * 16,
    "constant_rate": True,
}
OWN = ("seed", "warmup_steps", "device", "data", "weights")


def test_of_every_field_of_a_configuration_it_is_settled_whether_it_is_shared() -> None:
    assert {*OTHER, *OWN} == {*RunConfig.model_fields}


@pytest.mark.parametrize("field", OTHER)
def test_every_field_that_is_not_a_repetitions_own_must_be_the_same(field: str) -> None:
    original, again = pair()
    other = changed(again.record, "config", **{field: OTHER[field]})
    assert f"another configuration: {field}" in shortfalls(other, original.record)


@pytest.mark.parametrize("field", ["data", "weights"])
def test_files_may_lie_elsewhere_and_hold_nothing_else(field: str) -> None:
    kinds: dict[str, Any] = {
        "data": DataSource(path="/a", kind="text", sha256="a" * 64, tokens=9),
        "weights": WeightsSource(path="/a", sha256="a" * 64),
    }
    original, again = pair()
    theirs = changed(original.record, "config", **{field: kinds[field]})

    def with_file(**changes: Any) -> RunRecord:
        return changed(again.record, "config", **{field: kinds[field].model_copy(update=changes)})

    assert shortfalls(with_file(path="/b"), theirs) == ()
    named = f"another configuration: {field}"
    assert named in shortfalls(with_file(sha256="b" * 64), theirs)
    assert named in shortfalls(again.record, theirs)
