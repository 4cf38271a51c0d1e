"""``llmb node``: every step of an examination, the runs it leaves, and its yes or no."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, get_args

import pytest

from llmb.records.interconnect import CollectiveKind
from tests.e2e import harness
from tests.e2e.harness import Ended

RUN = (*harness.TINY, "--batch-size=1", "--timed-steps=2")
ON_CPU = ("--plugin=cpu", "--precision=FP32", *RUN)
#: On a busy machine one of two may well have half the speed of the other.
WHATEVER = ("--min-device=0", "--min-together=0", "--min-efficiency=0")


def node(output: Path, *arguments: object, plugins: tuple[Path, ...] = (), **env: str) -> Ended:
    command = harness.llmb_command("node", "--output-dir", output, "--quiet", *arguments)
    return harness.ended(command, output, harness.environment(*plugins, **env), None)


def report_of(ended: Ended) -> dict[str, Any]:
    """Return the report on stdout, which is the one in the folder; every run of it is whole."""
    report = json.loads(ended.stdout)
    assert json.loads((ended.directory / "node.json").read_bytes()) == report
    speeds = [d[how] for d in report["devices"] for how in ("alone", "together")]
    for speed in filter(None, [*speeds, report["ddp"]]):
        record = json.loads((ended.directory / speed["run"] / "record.json").read_bytes())
        assert record["result"]["tokens_per_second"] == speed["tokens_per_second"]
    return report


def status(report: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["status"] for step in report["steps"]}


def test_one_device_is_examined_alone(tmp_path: Path) -> None:
    ended = node(tmp_path / "out", "--nproc=1", *ON_CPU, "--json")
    assert ended.code == 0, ended.stderr
    report = report_of(ended)
    assert (report["verdict"], report["reasons"], report["size"]) == ("yes", [], "debug")
    assert status(report) == {
        "doctor": "done",
        "ceilings": "done",
        "collectives": "left out",
        "alone": "done",
        "together": "left out",
        "ddp": "left out",
    }
    (device,) = report["devices"]
    assert device["ceiling"]["product_flops_per_second"] > 0
    assert device["ceiling"]["of_datasheet"] is None
    assert device["alone"]["tokens_per_second"] > 0


def test_two_ranks_go_through_every_step(tmp_path: Path) -> None:
    ended = node(tmp_path / "out", "--nproc=2", *ON_CPU, *WHATEVER, "--json")
    assert ended.code == 0, ended.stderr
    report = report_of(ended)
    assert set(status(report).values()) == {"done"}
    together = sum(device["together"]["tokens_per_second"] for device in report["devices"])
    rate = report["ddp"]["tokens_per_second"]
    assert report["ddp_efficiency"] == pytest.approx(rate / together)
    assert {rate["kind"] for rate in report["collectives"]} == set(get_args(CollectiveKind))
    assert report["links"]["numa"]


def test_a_slow_device_and_ranks_that_fail_are_named_and_the_answer_is_no(tmp_path: Path) -> None:
    source = """
    from llmb.plugin.builtin.cpu import CpuBackend
    slow = min(os.sched_getaffinity(0)) > 0
    @hookimpl
    def llmb_backend(config):
        return CpuBackend()
    @hookimpl
    def llmb_post_process_model(model, config):
        def before(call, ids):
            if os.environ.get("RANK") == "1":
                raise ValueError("no more")
            if slow:
                time.sleep(1)
        return Around(model, before)
    """
    folder = harness.plugin(tmp_path / "plugins", "odd", source)
    flags = ("--plugin=odd", "--precision=FP32", *RUN, "--nproc=2", "--min-device=0.5")
    ended = node(tmp_path / "out", *flags, plugins=(folder,))
    assert ended.code == 7, ended.stderr
    report = json.loads((ended.directory / "node.json").read_bytes())
    assert status(report)["ddp"] == "failed"
    assert status(report)["alone"] == status(report)["together"] == "done"
    assert {one["device"] for one in report["outliers"]} == {"share 1"}
    assert any("ddp: rank 1: ValueError: no more" in reason for reason in report["reasons"])
    assert any(reason.startswith("share 1: ") for reason in report["reasons"])
    assert ended.said[-1].startswith("llmb: this node is not fit: ")
    assert "fit: no" in ended.stdout


def test_an_examination_that_is_interrupted_leaves_no_process(tmp_path: Path) -> None:
    flags = (*harness.with_plugin("odd"), "--nproc=2", "--timed-steps=100000")
    flags = tuple(flag for flag in flags if flag != "--timed-steps=20")
    folder = harness.plugin(tmp_path / "plugins", "odd")
    with harness.running(tmp_path / "out", *flags, plugins=[folder], verb="node") as started:
        started.wait_for("share 0 alone")
        started.wait_until(lambda: any((tmp_path / "out").glob("node-*/alone/0/*/log.txt")))
        ended = started.kill(signal.SIGTERM)
        assert ended.code == 130
        assert started.survivors() == []
    (log,) = (tmp_path / "out").glob("node-*/alone/0/*/log.txt")
    assert "interrupted" in log.read_text()


def test_an_examination_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with harness.running(out, "--nproc=2", *WHATEVER, *ON_CPU, verb="node") as started:
        started.wait_for("share 0 alone")
        ended = started.kill(signal.SIGTERM)
    (folder,) = out.glob("node-*")
    assert ended.code == 130
    assert ended.said[-1].endswith(f"to go on: llmb node --resume {folder}")
    before = json.loads((folder / "progress.json").read_bytes())
    assert [step["name"] for step in before["steps"]] == ["doctor", "ceilings", "collectives"]

    command = harness.llmb_command("node", "--resume", folder, "--json")
    again = harness.ended(command, out, harness.environment(), None)
    assert again.code == 0, again.stderr
    report = json.loads(again.stdout)
    assert set(status(report).values()) == {"done"}
    assert report["steps"][:3] == before["steps"]
    assert report["collectives"] == before["collectives"]


@pytest.mark.parametrize(
    ("arguments", "env", "code", "words"),
    [
        (("--audit=full",), {}, 2, "--audit: llmb node sets it itself"),
        (("--resume=.", "--nproc=2"), {}, 2, "--nproc: not with --resume"),
        (("--submissions=nowhere",), {}, 2, "there is nothing at 'nowhere'"),
        ((), {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, 2, "itself"),
        (("--plugin=none",), {}, 3, "'none'"),
        (("--workload=litgpt-forward", "--plugin=cpu"), {}, 2, "--mode forward runs on one rank"),
    ],
)
def test_what_cannot_be_examined_is_refused_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], env: dict[str, str], code: int, words: str
) -> None:
    ended = node(tmp_path / "out", *arguments, **env)
    assert (ended.code, len(ended.said)) == (code, 1), ended.stderr
    assert words in ended.said[0]


def test_accelerators_are_examined_by_name_at_a_batch_size_that_fits(
    tmp_path: Path, fake_site: Path
) -> None:
    flags = ("--precision=FP32", *harness.TINY, "--timed-steps=2", *WHATEVER, "--json")
    small = {"FAKEDEV_KERNEL_US": "400", "FAKEDEV_MEMORY_MB": "110"}
    ended = node(tmp_path / "out", *flags, plugins=(fake_site,), **small)
    report = report_of(ended)
    assert [device["name"] for device in report["devices"]] == ["fakedev:0", "fakedev:1"]
    assert report["batch_size"] in (1, 2, 4, 8)
    assert all(device["alone"] and device["together"] for device in report["devices"])
    # No library of collectives knows the device: it cannot train in ranks, and that is said.
    assert (ended.code, report["verdict"]) == (7, "no")
    assert status(report)["collectives"] == status(report)["ddp"] == "failed"
    assert any(reason.startswith("collectives: ") for reason in report["reasons"])
