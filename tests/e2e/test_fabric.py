"""Ranks on a device llmb has never heard of: each on its own, with the vendor's own collectives."""

from __future__ import annotations

from pathlib import Path

from tests.e2e import harness
from tests.e2e.harness import Ended


def ranks(output: Path, sites: list[Path], *flags: str) -> Ended:
    few = ("--plugin=fakedev", "--precision=FP32", *harness.TINY_RUN, "--nproc=2")
    return harness.run(output, *few, *flags, plugins=sites)


def test_each_rank_has_a_device_and_all_speak_through_the_library_of_its_vendor(
    fake_site: Path, fake_plugin_site: Path, tmp_path: Path
) -> None:
    ended = ranks(tmp_path / "out", [fake_plugin_site, fake_site], harness.UNAUDITED)
    assert ended.code == 0, ended.stderr
    topology = ended.record["topology"]
    assert [rank["device"] for rank in topology["ranks"]] == ["fakedev:0", "fakedev:1"]
    assert (topology["nodes"], topology["devices_per_node"]) == (1, 2)
    assert ended.evidence("ranks.json")["library"] == "fakeccl"
    links = ended.record["interconnect"]
    assert (links["library"], links["with_plugin"]) == ("fakeccl", True)
    # The library has no all-gather: what was measured before is kept, and the run goes on.
    assert {rate["kind"] for rate in links["rates"]} == {"all_reduce"}
    assert any("were not measured in full" in text for text in ended.record["warnings"])


def test_what_replicas_train_is_what_one_process_trains(
    fake_site: Path, fake_plugin_site: Path, tmp_path: Path
) -> None:
    ended = ranks(tmp_path / "out", [fake_plugin_site, fake_site])
    assert ended.code == 0, ended.stderr
    assert ended.record["audit"]["verdict"] == "CONSISTENT", ended.record["audit"]["findings"]


def test_more_ranks_than_devices_are_refused_before_any_starts(
    fake_site: Path, fake_plugin_site: Path, tmp_path: Path
) -> None:
    ended = ranks(tmp_path / "out", [fake_plugin_site, fake_site], "--nproc=3")
    assert (ended.code, len(ended.said)) == (3, 1), ended.stderr
    assert "which has 2 fakedev devices: start one rank a device" in ended.said[0]
    assert not (tmp_path / "out").exists()
