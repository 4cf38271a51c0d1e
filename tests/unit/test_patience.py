"""Tests wait for progress: who makes none is given up with all descendants, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import patience
from tests.patience import StuckError, Watch

#: Of these tests: whoever shows less for so long is given up.
SHORT_S = 2.0
#: Computes a tenth of the time, for twice as long, and says nothing.
COMPUTES = f"""
import time
while time.process_time() < {0.2 * SHORT_S}:
    time.sleep(0.1)
    until = time.process_time() + 0.01
    while time.process_time() < until: pass
"""


def run(code: str, **how: object) -> subprocess.CompletedProcess[str]:
    return patience.run([sys.executable, "-c", code], patience_s=SHORT_S, **how)


def left(word: object) -> list[psutil.Process]:
    """Return the processes that were started with ``word`` and are still there."""
    found = [p for p in psutil.process_iter(["cmdline"]) if str(word) in str(p.info["cmdline"])]
    return [p for p in found if p.status() != psutil.STATUS_ZOMBIE]


def test_code_and_words_are_those_of_the_process() -> None:
    done = run("import sys; print('a\\r\\nb'); print('é', file=sys.stderr); sys.exit(3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\nb\n", "é\n")


def test_who_is_silent_and_computes_nothing_is_given_up_and_leaves_no_family(
    tmp_path: Path,
) -> None:
    child = f"import time; time.sleep(600)  # {tmp_path}"
    code = "import subprocess, sys; print('waiting', flush=True)\n"
    with pytest.raises(StuckError, match=r"(?s)for 2 s nobody computed.*waiting"):
        run(f"{code}subprocess.run([sys.executable, '-c', {child!r}])")
    assert left(tmp_path) == []


def test_who_only_wakes_up_now_and_then_makes_no_progress() -> None:
    with pytest.raises(StuckError):
        run("import time\nwhile True: time.sleep(0.1)")


@pytest.mark.full
def test_what_llmb_says_of_a_child_that_shows_nothing_is_no_progress() -> None:
    line = "llmb: timing: step 5 of at most 25, running for 1 min 00 s, worker idle"
    with pytest.raises(StuckError, match="worker idle"):
        run(f"import time\nwhile True: print({line!r}, flush=True); time.sleep(0.2)")


def test_a_child_that_keeps_its_parents_pipe_open_is_given_up_as_well(tmp_path: Path) -> None:
    child = f"import time; time.sleep(600)  # {tmp_path}"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}])"
    with pytest.raises(StuckError):
        run(f"{code}; time.sleep({SHORT_S / 2})")
    assert left(tmp_path) == []


@pytest.mark.full
def test_who_computes_silently_is_waited_for() -> None:
    assert run(f"{COMPUTES}\nprint('done')").stdout == "done\n"


@pytest.mark.full
def test_who_prints_slowly_is_waited_for() -> None:
    code = "import time\nfor _ in range(15): print('.', end='', flush=True); time.sleep(0.2)"
    assert run(code).stdout == "." * 15


@pytest.mark.full
def test_who_writes_slowly_to_a_file_that_is_watched_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    code = "import time\nlog = open('run/log.txt', 'w', buffering=1)\n"
    code += "for _ in range(15): print('on', file=log); time.sleep(0.2)"
    assert run(code, cwd=tmp_path, output=tmp_path).returncode == 0


def test_a_child_that_computes_for_a_waiting_parent_is_progress() -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTES!r}])"
    assert run(code).returncode == 0


def test_several_are_heard_at_once_and_each_has_its_own_words() -> None:
    # Each fills its pipe, and the first waits for the second.
    ours, theirs = os.pipe()
    codes = [
        f"import os; print('a' * 200_000); os.read({ours}, 1)",
        f"import os; print('b' * 200_000); os.write({theirs}, b'.')",
    ]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(ours, theirs),
        )
        for code in codes
    ]
    first, second = patience.finished(processes)
    assert (first.stdout, second.stdout) == ("a" * 200_000 + "\n", "b" * 200_000 + "\n")
    os.close(ours)
    os.close(theirs)


def test_a_condition_is_waited_for_as_long_as_somebody_works_on_it(tmp_path: Path) -> None:
    code = f"{COMPUTES}\nopen({str(tmp_path / 'x')!r}, 'w')"
    process = subprocess.Popen([sys.executable, "-c", code])
    patience.until((tmp_path / "x").exists, [process], patience_s=SHORT_S)
    assert patience.ended(process) == 0


def test_an_interrupt_kills_the_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Watch) -> None:
        assert left(tmp_path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "look", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(f"import time; print(flush=True); time.sleep(600)  # {tmp_path}")
    assert left(tmp_path) == []
