"""A process of a run ends without Python taking its modules apart, and nothing is lost by it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llmb.wire.forking import BOOT, ROOT

LEAVING = """
import atexit, os, sys, threading, time
{}
from llmb.plugin.builtin.host import leave
leave()
"""


def left(what: str) -> subprocess.CompletedProcess[str]:
    """Return how a process ends that does ``what`` and leaves."""
    code = LEAVING.format(what)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_it_ends_with_success() -> None:
    assert left("").returncode == 0


def test_exit_handlers_are_called() -> None:
    assert left("atexit.register(os.write, 1, b'handled')").stdout == "handled"


def test_what_was_written_and_not_sent_comes_out() -> None:
    assert left("sys.stdout.write('kept')").stdout == "kept"


def test_what_an_exit_handler_writes_comes_out() -> None:
    assert left("atexit.register(sys.stdout.write, 'kept')").stdout == "kept"


def test_a_thread_that_is_at_work_is_waited_for() -> None:
    work = "lambda: (time.sleep(0.2), os.write(1, b'done'))"
    assert left(f"threading.Thread(target={work}).start()").stdout == "done"


def test_an_output_that_was_closed_is_no_failure() -> None:
    assert left("sys.stdout.close()").returncode == 0


def test_no_module_is_taken_apart() -> None:
    kept = "class Kept:\n    def __del__(self): os.write(1, b'taken apart')\nkept = Kept()"
    assert left(kept).stdout == ""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 0),
        ("raise ValueError", 1),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
    ],
)
def test_a_spawned_process_ends_with_the_status_of_its_module(
    tmp_path_factory: pytest.TempPathFactory, body: str, status: int
) -> None:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "ending.py").write_text(body, encoding="utf-8")
    boot = BOOT.replace("del sys.path[0]", f"sys.path[0] = {str(folder)!r}")
    done = subprocess.run(
        [sys.executable, "-c", boot, "ending", str(ROOT)], capture_output=True, check=False
    )
    assert done.returncode == status
