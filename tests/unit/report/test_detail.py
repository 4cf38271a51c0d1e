"""The page of one bundle: each figure of its record under its own name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmb.report.board import BoardRepetition, board
from llmb.report.detail import detail
from llmb.report.render import number
from tests.unit.builders_board import believing, index, put, record
from tests.unit.builders_page import interconnect


def shown(folder: Path, change: Any = lambda data: None, **repeated: Any) -> dict[str, Any]:
    put(folder, record(change=change), **{"log.txt": "finished\n"})
    index(folder, availability="preview")
    shelf = believing([folder])
    found = board(shelf, {shelf.entries[0].bundle_id: repeated.get("by", [])})
    return detail(found.rows[0], "llmb run --seed 7")


RECORD = record()
RESULT, TIMING = RECORD.result, RECORD.timing


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Submitter (declared)", "acme"),
        ("Availability (declared)", "preview"),
        ("Device (declared)", "1 x Fast [1] (fast:0)"),
        ("Plugin (declared)", "fast 1.0 (llmb-fast)"),
        ("Precision", "BF16 declared, BF16 measured"),
        (
            "Batch size",
            f"{RECORD.config.batch_size} ({RECORD.workload.tokens_per_step:,} tokens a step)",
        ),
        ("Per device", f"{number(RESULT.tokens_per_second_per_device)} tokens/s"),
        ("Share of ceiling", f"{RESULT.fraction_of_ceiling:.1%}"),
        ("MFU", f"{RESULT.mfu.value:.1%} of datasheet" if RESULT.mfu else ""),
        ("Loss", f"{RESULT.loss_first:.4f} at START, {RESULT.loss_last:.4f} at STOP"),
        ("Date (declared)", RECORD.created_utc),
        ("Rules", f"{RECORD.rules_version}, llmb {RECORD.llmb_version}"),
        ("Signatures", "none"),
        ("Files", "acme/box/work/00000001"),
    ],
)
def test_a_fact_has_the_records_own_words(tmp_path: Path, name: str, words: str) -> None:
    assert dict(map(tuple, shown(tmp_path)["facts"]))[name] == words


def test_window_step_time_and_energy_are_said_with_their_spread(tmp_path: Path) -> None:
    facts = dict(map(tuple, shown(tmp_path)["facts"]))
    seconds = (TIMING.stop_ns - TIMING.start_ns) / 1e9
    assert facts["Window"] == f"{TIMING.timed_steps} steps in {seconds:,.2f} s, one process"
    step, energy = RESULT.step_time_s, RESULT.energy
    assert step is not None
    assert energy is not None
    assert facts["Step time"].startswith(f"{step.median:.4g} s median (p5 {step.p5:.4g}, ")
    assert facts["Step time"].endswith(f"p95 {step.p95:.4g}, cv {step.cv:.1%})")
    assert facts["Energy"].startswith(f"{number(energy.tokens_per_joule)} tokens/J (")


def test_links_between_ranks_are_facts_of_a_row(tmp_path: Path) -> None:
    found = shown(tmp_path, lambda data: data.update(interconnect=interconnect()))
    facts = dict(map(tuple, found["facts"]))
    head = "nccl, all-reduce 150 GB/s bus at 256 MiB, measured in the plugin's process"
    assert facts["Interconnect (declared)"] == head
    assert facts["all-gather"] == "1 MiB in 10.5 us; 256 MiB 150 GB/s"
    assert facts["Ranks"] == "4 on 2 hosts: 0-1; 2-3"
    assert facts["Network cards"].startswith("infiniband 400 Gb/s")
    assert "Interconnect (declared)" not in dict(map(tuple, shown(tmp_path / "one")["facts"]))


def unmeasured(data: dict[str, Any]) -> None:
    data["result"] |= {"energy": None, "mfu": None, "fraction_of_ceiling": None}
    data["precision"] |= {"effective": None, "how": "not observed"}


def test_what_was_not_measured_is_said_so(tmp_path: Path) -> None:
    facts = dict(map(tuple, shown(tmp_path, unmeasured)["facts"]))
    assert facts["Precision"] == "BF16 declared, effective not observed"
    assert facts["MFU"] == "not measured: no peak known"
    assert facts["Energy"] == facts["Share of ceiling"] == "not measured"


def test_the_head_the_command_and_every_finding_are_there(tmp_path: Path) -> None:
    page = shown(tmp_path)
    assert page["head"] == {
        "title": "box: llama-1.4b train BF16",
        "tps": number(RESULT.tokens_per_second),
        "interval": page["head"]["interval"],
        "verdict": "CONSISTENT",
        "openness": "strict",
        "unranked": None,
    }
    assert page["command"] == "llmb run --seed 7"
    assert [one["id"] for one in page["findings"]] == [f.id for f in RECORD.audit.findings]
    assert page["limits"] == list(RECORD.audit.limits)
    assert page["log"] == "finished\n"


def test_each_timed_step_is_a_point_and_audited_ones_are_marked(tmp_path: Path) -> None:
    def audited(data: dict[str, Any]) -> None:
        for one in (data["timing"], *data["timing"]["repeats"]):
            one["audited_steps"] = [5, 20]

    trace = shown(tmp_path, audited)["trace"]
    assert (trace["per"], trace["stride"], trace["first"]) == ("step", 1, TIMING.warmup_steps + 1)
    assert len(trace["values"]) == TIMING.timed_steps
    assert trace["audited"] == [6, 21]


def test_memory_is_of_each_rank_beside_its_devices(tmp_path: Path) -> None:
    (row,) = shown(tmp_path)["memory"]
    rank, device = RECORD.topology.ranks[0], RECORD.system.devices[0]
    assert row == ["rank 0", rank.peak_memory_bytes, device.memory_bytes]


def test_the_search_is_in_order_of_size(tmp_path: Path) -> None:
    sizes = [int(row[0]) for row in shown(tmp_path)["search"]]
    assert RECORD.batch_size_search is not None
    assert sizes == sorted(trial.batch_size for trial in RECORD.batch_size_search.trials)


def test_a_repetition_says_why_it_does_not_count_or_that_it_does(tmp_path: Path) -> None:
    by = [BoardRepetition("b" * 64, 1.5, ("the same key",)), BoardRepetition("c" * 64, -1.5)]
    assert shown(tmp_path, by=by)["repetitions"] == [
        ["b" * 12, "+1.50 %", "the same key"],
        ["c" * 12, "-1.50 %", "it counts"],
    ]


def test_changes_name_three_and_count_the_rest(tmp_path: Path) -> None:
    def changed(data: dict[str, Any]) -> None:
        data["diff"]["model"]["modules_replaced"] = ["a", "b", "c", "d", "e"]
        data["diff"]["settings"] = [{"name": "x", "before": None, "after": "1"}]

    changes = dict(map(tuple, shown(tmp_path, changed)["changes"]))
    assert changes["Modules replaced"] == "a, b, c and 2 more"
    assert changes["Modules added"] == "none"
    assert changes["Setting x"] == "unset → 1"


def test_texts_and_lists_of_one_record_are_bounded(tmp_path: Path) -> None:
    def long(data: dict[str, Any]) -> None:
        data["warnings"] = ["w" * 10_000] * 500
        data["system"]["env"] = {f"VAR_{n}": "v" for n in range(5_000)}

    page = shown(tmp_path, long)
    assert len(page["notes"]) == 60
    assert "cut here" in page["notes"][-1]
    assert max(map(len, page["notes"])) < 2_100
    assert len(page["software"]) < 130
