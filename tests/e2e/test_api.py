"""``llmb.run`` for real: from a script, a notebook and a test, interrupted, killed, on ranks."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import llmb
from tests import needs
from tests.e2e import harness
from tests.e2e.conftest import Once
from tests.e2e.harness import Ended

EXAMPLE = Path(__file__).parents[2] / "examples" / "pytest"

#: A script without ``if __name__``, whose process has a torch, threads and handlers of its own.
SCRIPT = """
import asyncio, json, os, signal, sys, threading
import psutil, torch
import llmb

torch.set_num_threads(1)
signal.signal(signal.SIGTERM, lambda *_: None)

def state():
    handlers = [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())]
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    loaded = sorted(name for name in sys.modules if name.startswith("llmb.plugin.builtin.cpu"))
    threads = torch.get_num_threads(), threading.active_count()
    return dict(os.environ), os.getcwd(), handlers, threads, children, loaded

async def run():  # as in a notebook, a loop is running
    return llmb.run(preset="debug", precision="BF16", timed_steps=40, output_dir=sys.argv[1])

before = state()
result = asyncio.run(run())
found = {"same": state() == before, "repr": repr(result), "run_dir": str(result.run_dir)}
print(json.dumps(found))
"""


@pytest.fixture(scope="session")
def scripted(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A debug run that a script made, which everybody may look at."""

    def made(folder: Path) -> Ended:
        (folder / "script.py").write_text(SCRIPT)
        command = [sys.executable, str(folder / "script.py"), str(folder / "out")]
        return harness.ended(command, folder / "out", harness.environment(), folder)

    return once("scripted-run", made)


@pytest.mark.quick
def test_a_script_makes_a_run_and_says_nothing(scripted: Ended) -> None:
    assert (scripted.code, scripted.stderr) == (0, "")
    said = json.loads(scripted.stdout)
    assert said["run_dir"] == str(scripted.directory)
    assert "llama-1.4b train BF16" in said["repr"]


@pytest.mark.quick
def test_the_script_keeps_environment_folder_handlers_threads_and_has_no_children_left(
    scripted: Ended,
) -> None:
    assert json.loads(scripted.stdout)["same"]


@pytest.mark.quick
def test_the_run_of_a_script_is_that_of_the_command(scripted: Ended, tiny_run: Ended) -> None:
    made, usual = scripted.directory, tiny_run.directory
    assert {one.name for one in made.iterdir()} == {one.name for one in usual.iterdir()}
    assert scripted.record["processes"] == tiny_run.record["processes"]
    environments = [one.record["system"]["env"] for one in (scripted, tiny_run)]
    assert environments[0] == environments[1]


@pytest.mark.quick
def test_the_result_of_the_script_has_steps_rates_and_a_verdict(scripted: Ended) -> None:
    result = llmb.load(scripted.directory)
    assert result.verdict == "CONSISTENT"
    assert len(result.steps) == 40
    assert result.steps[-1].loss == result.record.result.loss_last
    assert len({step.learning_rate for step in result.steps}) > 30


@pytest.mark.full
def test_the_example_for_pytest_makes_a_run_and_finds_a_loss(scripted: Ended) -> None:
    """No machine is a thousand times better today than it was a minute ago."""
    env = harness.environment(BASELINE=str(scripted.directory), LEAST="1000")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(EXAMPLE)]
    done = harness.ended([*command, "--rootdir", str(EXAMPLE)], Path(), env, EXAMPLE)
    assert "1 failed, 1 passed" in done.stdout
    assert "RequirementError: 1 of 1 conditions not met: fraction_of_ceiling>=1000" in done.stdout


# -- ends -------------------------------------------------------------------------------------

LONG = """
import sys, llmb
try:
    llmb.run(preset="debug", precision="BF16", timed_steps=5000, audit="off",
             output_dir=sys.argv[3], progress=True)
except KeyboardInterrupt as error:
    sys.exit(f"caught {type(error).__name__}: {error}")
"""


@pytest.mark.full
def test_an_interrupt_of_the_script_ends_the_run_and_all_its_processes(tmp_path: Path) -> None:
    with harness.running(tmp_path / "out", first=LONG) as running:
        running.wait_for("first step done")
        done = running.kill(signal.SIGINT)
        assert running.survivors() == []
    assert done.said[-1].startswith("caught Interrupted: interrupted by SIGINT ")
    assert "no result, see " in done.said[-1]
    assert not done.finished


@pytest.mark.full
def test_a_killed_script_takes_the_run_with_it(tmp_path: Path) -> None:
    with harness.running(tmp_path / "out", first=LONG) as running:
        running.wait_for("first step done")
        done = running.kill(signal.SIGKILL)
        assert running.survivors() == []
    assert "interrupted by SIGTERM" in done.log


@pytest.mark.full
def test_two_ranks_are_called_as_one_run(tmp_path: Path) -> None:
    script = (
        "import llmb, sys; r = llmb.run(preset='debug', precision='FP32', timed_steps=5, nproc=2,"
        "audit='off', output_dir=sys.argv[1])\n"
        "print(r.record.topology.world_size, r.run_dir)\n"
        "try: llmb.run(preset='debug', nproc=2, tp=3, output_dir=sys.argv[1])\n"
        "except llmb.errors.UsageError as error: print(error)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    done = harness.ended(command, tmp_path / "out", harness.environment(), tmp_path)
    assert done.stdout.splitlines() == [
        f"2 {done.directory}",
        "tp 3 makes 3 ranks, and there are 2: start 3, or let these options make 2",
    ]
    assert "LLMB_CALLED" not in done.record["system"]["env"]


# -- a notebook -------------------------------------------------------------------------------

CELLS = (
    "import asyncio, os, llmb\nasyncio.get_running_loop().is_running()",
    "result = llmb.run(preset='debug', precision='BF16', timed_steps=6, audit='off',"
    " output_dir='out', progress=True)\nresult",
    "result.to_pandas()",
    "llmb.compare(result, result)",
    "llmb.run(precision='FP99', preset='debug', output_dir='out')",
    "import threading, _thread, time\n"
    "def stop():\n"
    "    while sum(one.name.startswith('20') for one in os.scandir('out')) < 2:\n"
    "        time.sleep(0.1)\n"
    "    os.kill(os.getpid(), 2)\n"
    "threading.Thread(target=stop).start()\n"
    "llmb.run(preset='debug', precision='BF16', timed_steps=5000, audit='off', output_dir='out')",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The outputs of each cell of a notebook in a real kernel."""
    nbclient, nbformat = needs.module("nbclient"), needs.module("nbformat")
    needs.package("ipykernel")
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    folder = tmp_path_factory.mktemp("notebook")
    before = dict(os.environ)
    os.environ.update(harness.environment())
    try:
        nbclient.NotebookClient(
            notebook,
            timeout=None,
            kernel_name="python3",
            allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.full
def test_a_notebook_shows_the_result_as_a_card(outputs: list[list[Any]]) -> None:
    (shown,) = (one for one in outputs[1] if one.output_type == "execute_result")
    assert "<svg" in shown.data["text/html"]
    assert shown.data["text/plain"].startswith("<llmb run: llama-1.4b train BF16")
    assert all(one.output_type != "stream" for one in outputs[1])


@pytest.mark.full
def test_a_notebook_shows_tables_and_comparisons(outputs: list[list[Any]]) -> None:
    needs.package("pandas")
    assert outputs[2][0].data["text/html"].count("<tr") == 1 + 6
    assert "one run twice" in outputs[3][0].data["text/html"]


@pytest.mark.full
def test_errors_and_the_stop_button_of_a_notebook_are_one_line(outputs: list[list[Any]]) -> None:
    (wrong,), (stopped,) = outputs[4], outputs[5]
    assert (wrong.ename, wrong.evalue.partition(":")[0]) == ("UsageError", "--precision FP99")
    assert stopped.ename == "Interrupted"
    assert stopped.evalue.startswith("interrupted by SIGINT ")
