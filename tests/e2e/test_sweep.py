"""Real sweeps: points that are measured, fail or run out of memory, and sweeps that are resumed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import harness
from tests.e2e.harness import Ended

pytestmark = pytest.mark.long
USAGE, FAILED, INTERRUPTED = 2, 4, 130
#: Shapes at which each run takes seconds, and no audit.
QUICK = (*harness.TINY, "--timed-steps=20", harness.UNAUDITED)
ODD = ("--plugin=odd", "--device=cpu", "--precision=FP32", *QUICK)


def sweep(output: Path, *arguments: object, plugins: list[Path] | None = None) -> Ended:
    env = harness.environment(*(plugins or ()))
    command = harness.llmb_command("sweep", "--output-dir", output, *arguments)
    return harness.ended(command, output, env, None)


def resume(folder: Path, *arguments: object, plugins: list[Path] | None = None) -> Ended:
    env = harness.environment(*(plugins or ()))
    command = harness.llmb_command("sweep", "--resume", folder, *arguments)
    return harness.ended(command, folder.parent, env, None)


def overview(folder: Path) -> dict[str, Any]:
    done = harness.call("sweep", "--show", folder, "--json")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def statuses(folder: Path) -> list[tuple[int | None, str]]:
    return [(p["batch_size"], p["status"]) for p in overview(folder)["points"]]


def run_ids(folder: Path) -> dict[int, str]:
    """Return batch size -> id of the run whose record lies there."""
    records = [json.loads(path.read_bytes()) for path in folder.glob("*/*/record.json")]
    assert len({r["config"]["batch_size"] for r in records}) == len(records)
    return {r["config"]["batch_size"]: r["run_id"] for r in records}


def test_a_sweep_measures_every_point_in_a_run_of_its_own_and_draws_what_it_found(
    tmp_path: Path,
) -> None:
    done = sweep(tmp_path / "out", "--plugin=cpu", "--precision=FP32", "--batch-size=2,1", *QUICK)
    assert done.code == 0, done.stderr
    folder = done.directory
    found = overview(folder)
    assert [(p["batch_size"], p["status"]) for p in found["points"]] == [
        (1, "measured"),
        (2, "measured"),
    ]
    for point in found["points"]:
        record = json.loads((folder / point["run"] / "record.json").read_bytes())
        assert record["run_id"] == point["measured"]["run_id"]
        assert record["config"]["batch_size"] == point["batch_size"]
        assert record["config"]["precision"]["name"] == "FP32"
        assert record["timing"]["timed_steps"] == 20
        assert f"{point['measured']['tokens_per_second']:,.2f}" in done.stdout
    assert len({p["measured"]["run_id"] for p in found["points"]}) == 2
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "sweep.svg").read_text()
    assert "point 1 of about 2: FP32, batch size 1" in done.stderr
    assert "point 2 of about 2: FP32, batch size 2; about" in done.stderr

    before = run_ids(folder)
    again = resume(folder)
    assert again.code == 0, again.stderr
    assert run_ids(folder) == before, "results are kept"
    assert again.stderr.count("kept: ") == 2


#: Memory ends at 8 sequences, and 2 do not work at all.
LIMITED = """
@hookimpl
def llmb_post_process_model(model, config):
    if config.batch_size >= 8:
        raise MemoryError("out of memory: 8 sequences are too many")
    if config.batch_size == 2:
        raise RuntimeError("two is a crowd")
    return model
"""


def test_memorys_end_is_a_result_and_a_failure_is_told_while_the_sweep_goes_on(
    tmp_path: Path,
) -> None:
    plugins = [harness.plugin(tmp_path / "plugins", "odd", LIMITED)]
    done = sweep(tmp_path / "out", "--batch-size=1,2,4,8,16", *ODD, plugins=plugins)
    assert statuses(done.directory) == [
        (1, "measured"),
        (2, "failed"),
        (4, "measured"),
        (8, "out_of_memory"),
        (16, "not_tried"),
    ]
    assert done.code == FAILED
    assert "1 of 5 points failed: first FP32, batch size 2" in done.said[-1]
    assert "Traceback" not in done.stderr
    assert "two is a crowd" in done.stdout

    # What made it fail is repaired: the failure is run again, the rest stays.
    before = run_ids(done.directory)
    module = plugins[0] / "llmb_odd.py"
    module.write_text(module.read_text().replace("== 2", "== 99"))
    again = resume(done.directory, plugins=plugins)
    assert again.code == 0, again.stderr
    after = run_ids(done.directory)
    assert after.keys() == {1, 2, 4}
    assert before.items() < after.items()


def test_auto_is_one_run_that_searches_and_its_trials_are_in_the_overview(tmp_path: Path) -> None:
    source = LIMITED.replace("== 2", "== 99").replace(">= 8", ">= 2")
    plugins = [harness.plugin(tmp_path / "plugins", "odd", source)]
    done = sweep(tmp_path / "out", "--batch-size=auto", *ODD, plugins=plugins)
    assert done.code == 0, done.stderr
    (point,) = overview(done.directory)["points"]
    assert (point["batch_size"], point["status"]) == (None, "measured")
    assert point["measured"]["batch_size"] == 1
    trials = {t["batch_size"]: t["status"] for t in point["measured"]["trials"]}
    assert trials == {1: "measured", 2: "out_of_memory"}
    assert (done.directory / "sweep.svg").exists()


def test_doubling_ends_where_memory_does(tmp_path: Path) -> None:
    source = LIMITED.replace("== 2", "== 99")
    plugins = [harness.plugin(tmp_path / "plugins", "odd", source)]
    done = sweep(tmp_path / "out", *ODD, plugins=plugins)
    assert done.code == 0, done.stderr
    assert statuses(done.directory) == [
        (1, "measured"),
        (2, "measured"),
        (4, "measured"),
        (8, "out_of_memory"),
    ]


#: A worker hangs at 2 sequences as long as a file is not there.
HANGS = """
@hookimpl
def llmb_post_process_model(model, config):
    if config.batch_size == 2 and not pathlib.Path({goes_on!r}).exists():
        time.sleep(600)
    return model
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_a_sweep_ended_in_mid_run_goes_on_where_it_was_and_keeps_what_was_finished(
    tmp_path: Path, number: signal.Signals
) -> None:
    goes_on = tmp_path / "goes-on"
    source = HANGS.format(goes_on=str(goes_on))
    plugins = [harness.plugin(tmp_path / "plugins", "odd", source)]
    flags = ("--batch-size=1,2,4", *ODD)
    with harness.running(tmp_path / "out", *flags, plugins=plugins, verb="sweep") as started:
        started.wait_for("point 2")
        started.wait_for("FP32, batch size 1: ")
        folder = next(started.output.iterdir())
        half = folder / "FP32-batch-2"
        started.wait_until(lambda: "post-processing" in started.stderr.split("point 2")[-1])
        second = resume(folder, plugins=plugins)
        assert second.code == USAGE
        assert "another llmb sweep is at work" in second.said[-1]
        done = started.kill(number)
        assert started.survivors() == []
    assert "Traceback" not in done.stderr
    if number is signal.SIGINT:
        assert done.code == INTERRUPTED
        assert done.said[-1].startswith("llmb: interrupted by SIGINT: finished runs are kept")
        assert f"llmb sweep --resume {folder}" in done.said[-1]
    assert statuses(folder) == [(1, "measured"), (2, "unfinished"), (4, "unfinished")]
    before, (left,) = run_ids(folder), list(half.iterdir())

    refused = resume(folder, "--batch-size=1,2", *ODD, plugins=plugins)
    assert refused.code == USAGE
    assert "--batch-size is 1,2, and the sweep was begun with 1,2,4" in refused.said[-1]
    goes_on.touch()
    again = resume(folder, *flags, plugins=plugins)
    assert again.code == 0, again.stderr
    assert "FP32, batch size 1: kept" in again.stderr
    after = run_ids(folder)
    assert after.keys() == {1, 2, 4}
    assert before.items() < after.items(), "the finished run is kept"
    assert not (left / "record.json").exists(), "the unfinished one was run again"
    assert [status for _, status in statuses(folder)] == ["measured"] * 3
