"""Plugins that are broken in every way there is: one clear line, exit code 3 or 4, nothing lost."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.harness import Ended, run_plugin

UNAVAILABLE, FAILED = 3, 4


def check(done: Ended, *words: str, code: int = UNAVAILABLE) -> None:
    """Hold ``done`` to one line with every word, and to leaving nothing behind."""
    assert done.code == code, done.stderr
    assert len(done.said) == 1, done.stderr
    for word in words:
        assert word in done.said[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not done.output.exists() or list(done.output.iterdir()) == []


def impatient(limit_s: float, output: Path, plugins: list[Path], *arguments: object) -> Ended:
    """Run ``llmb`` in a process of its own in which a plugin is given up after ``limit_s``."""
    code = (
        f"from llmb.supervision import negotiation; negotiation.PROBE_LIMIT_S = {limit_s}\n"
        "from llmb.cli import main; main()"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return harness.ended(command, output, harness.environment(*plugins), None)


# -- what a plugin may do when it is loaded or asked ------------------------------------------

#: A backend of the plugin's own, with one member replaced.
BACKEND = """
from llmb.plugin.builtin.cpu import CpuBackend
class Acme(CpuBackend):
    {member}
@hookimpl
def llmb_backend(config):
    return Acme()
"""
HOOK = "@hookimpl\ndef {}:\n    {}\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import acme_runtime", ["ModuleNotFoundError", "install the package", "'acme_runtime'"]),
        (
            "raise ImportError('acme.so: undefined symbol: _ZN5torch8autograd10deleteNodeE')",
            ["ImportError: acme.so: undefined symbol"],
        ),
        ("raise KeyError('libacme.so')", ["KeyError: 'libacme.so'"]),
        ("os._exit(0)", ["exit status 0", "said nothing"]),
        ("os.kill(os.getpid(), signal.SIGSEGV)", ["SIGSEGV"]),
        ("os.abort()", ["SIGABRT"]),
        ("sys.exit(3)", ["SystemExit: 3"]),
        ("raise KeyboardInterrupt", ["KeyboardInterrupt"]),
        ("raise OSError('half a \\udcff')", ["half a"]),
        (
            HOOK.format("llmb_warm_up_steps(config)", "return 4"),
            ["no hook 'llmb_warm_up_steps'", "did you mean llmb_warmup_steps?"],
        ),
        (
            HOOK.format("llmb_warmup_steps(config, mood)", "return 4"),
            ["llmb_warmup_steps has no argument 'mood'", "it may take config"],
        ),
        (HOOK.format("llmb_options()", "return 'fuse'"), ["llmb_options returned a str"]),
        (HOOK.format("llmb_backend()", "return 5"), ["llmb_backend returned a int", "lacks"]),
        (HOOK.format("llmb_backend()", "sys.exit(9)"), ["llmb_backend raised SystemExit: 9"]),
        (HOOK.format("llmb_warmup_steps()", "os._exit(7)"), ["exit status 7"]),
        (
            BACKEND.format(member="def is_available(self): return False"),
            ["no cpu device was found"],
        ),
        (
            BACKEND.format(member="def is_available(self): raise RuntimeError('no driver')"),
            ["Acme.is_available raised RuntimeError: no driver"],
        ),
        (
            BACKEND.format(member="def memory(self): return {}"),
            ["Acme.memory returned a dict", "expected DeviceMemory"],
        ),
        (
            BACKEND.format(member="def versions(self): return None"),
            ["Acme.versions returned a NoneType"],
        ),
    ],
    ids=lambda value: value.splitlines()[-1].strip()[:40] if isinstance(value, str) else "",
)
def test_a_plugin_that_cannot_be_used_is_one_line_that_says_why(
    tmp_path: Path, source: str, words: list[str]
) -> None:
    check(run_plugin(tmp_path, source), "'odd'", *words)


def test_a_device_of_the_plugin_that_is_not_there_is_told_with_their_number(
    tmp_path: Path,
) -> None:
    folder = harness.plugin(tmp_path / "plugins", "odd", BACKEND.format(member="pass"))
    flags = ("--plugin=odd", "--device=cpu:3", *harness.TINY_RUN)
    done = harness.run(tmp_path / "out", *flags, plugins=[folder])
    check(done, "'odd'", "'cpu:3'", "there are 1 cpu devices, numbered from 0")


@pytest.mark.parametrize("statement", ["raise KeyboardInterrupt", "sys.exit(0)"])
def test_an_exit_or_interrupt_that_a_hook_of_the_worker_raises_is_told_by_its_name(
    tmp_path: Path, statement: str
) -> None:
    done = run_plugin(tmp_path, HOOK.format("llmb_post_process_model(model)", statement))
    assert done.code == UNAVAILABLE
    assert len(done.said) == 1
    assert "'odd': llmb_post_process_model raised" in done.said[0]
    assert not done.finished
    assert "did not finish: plugin 'odd': llmb_post_process_model raised" in done.log


def test_a_plugin_that_is_left_out_cannot_be_asked_for_and_says_why(tmp_path: Path) -> None:
    folder = harness.plugin(tmp_path / "plugins", "odd")
    done = harness.run(
        tmp_path / "out", *harness.with_plugin("odd"), plugins=[folder], LLMB_LOAD_PLUGINS="other"
    )
    check(done, "'odd' is installed", "LLMB_LOAD_PLUGINS='other'")


def test_a_broken_plugin_that_was_not_asked_for_is_a_note_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    folder = harness.plugin(tmp_path / "plugins", "odd", "import acme_runtime")
    done = harness.run(tmp_path / "out", *harness.TINY_RUN, plugins=[folder], quiet=False)
    assert done.code == 0, done.stderr
    assert done.record["config"]["plugin"] != "odd"
    assert "plugin 'odd' is not used: cannot be loaded: ModuleNotFoundError" in done.stderr
    assert "plugin 'odd' is not used" in done.log


# -- plugins that hang ------------------------------------------------------------------------


def test_plugins_that_hang_are_given_up_together_after_one_limit(tmp_path: Path) -> None:
    folders = [
        harness.plugin(tmp_path / name, name, "time.sleep(600)") for name in ("ox", "snail", "tar")
    ]
    began = time.monotonic()
    done = impatient(20.0, tmp_path, folders, "plugin", "list", "--json")
    assert time.monotonic() - began < 60, "not three limits of twenty seconds"
    assert done.code == 0, done.stderr
    offers = {offer["plugin"]: offer for offer in json.loads(done.stdout)}
    for name in ("ox", "snail", "tar"):
        assert offers[name]["state"] == "broken"
        assert "no answer within 20 s" in offers[name]["reason"]
    assert offers["cpu"]["state"] == "ready", "its answer came in the meantime"


def test_a_plugin_that_hangs_is_broken_to_the_doctor_who_goes_on(tmp_path: Path) -> None:
    folder = harness.plugin(tmp_path / "plugins", "odd", "time.sleep(600)")
    done = impatient(15.0, tmp_path, [folder], "doctor")
    assert (done.code, done.stderr) == (0, "")
    assert "plugin odd (llmb-odd) is broken: cannot be probed" in done.stdout
    assert "no answer within 15 s" in done.stdout


def test_a_thread_that_a_plugin_leaves_running_keeps_nobody(tmp_path: Path) -> None:
    source = """
    import threading
    threading.Thread(target=time.sleep, args=(600,)).start()
    """
    done = run_plugin(tmp_path, source)  # given up where nothing moves for two minutes
    assert (done.code, done.said) == (0, [])
    assert done.finished


# -- plugins that talk ------------------------------------------------------------------------

#: Prints when imported, in hooks of every process, from C, and at the end of each process.
TALKING = """
import atexit, ctypes
def talk(where):
    print(f"python {where}")
    print(f"error {where}", file=sys.stderr)
    os.write(1, f"raw {where}\\n".encode())
    libc = ctypes.CDLL(None)
    libc.puts(f"c {where}".encode())
    libc.fflush(None)
talk("import")
atexit.register(talk, "exit")
@hookimpl
def llmb_options():
    talk("options")
    return []
@hookimpl
def llmb_set_environment(config):
    talk("environment")
@hookimpl
def llmb_post_process_model(model):
    talk("post-processing")
    return Around(model, lambda calls, ids: talk(f"step {calls}") if calls == 3 else None)
"""


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.plugin(tmp_path_factory.mktemp("talking"), "odd", TALKING)


def test_whatever_a_plugin_prints_json_of_a_run_stays_json_and_the_words_are_in_the_log(
    tmp_path: Path, talking: Path
) -> None:
    flags = (*harness.with_plugin("odd"), "--json")
    done = harness.run(tmp_path / "out", *flags, plugins=[talking])
    assert (done.code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == done.record
    for where in ("import", "environment", "post-processing", "step 3"):
        for voice in ("python", "error", "raw", "c"):
            assert f"{voice} {where}\n" in done.log


@pytest.mark.parametrize("command", [("plugin", "list"), ("doctor",)], ids=["list", "doctor"])
def test_whatever_a_plugin_prints_json_of_other_commands_stays_json(
    talking: Path, command: tuple[str, ...]
) -> None:
    done = harness.call(*command, "--json", env=harness.environment(talking))
    assert (done.code, done.stderr) == (0, "")
    assert json.loads(done.stdout)
    for voice in ("python", "raw", "error", "c import"):
        assert f"{voice} import" not in done.stdout


# -- two of one name --------------------------------------------------------------------------


def test_of_two_packages_of_one_name_the_variable_chooses(tmp_path: Path) -> None:
    folders = []
    for name, steps in (("llmb-a", 2), ("llmb-b", 5)):
        source = HOOK.format("llmb_warmup_steps()", f"return {steps}")
        folders.append(harness.plugin(tmp_path / name, "odd", source, distribution=name))
    flags = harness.with_plugin("odd")
    check(harness.run(tmp_path / "out", *flags, plugins=folders), "llmb-a", "llmb-b", "uninstall")
    for name, steps in (("llmb-a", 2), ("llmb-b", 5)):
        done = harness.run(tmp_path / name, *flags, plugins=folders, LLMB_LOAD_PLUGINS=name)
        assert done.code == 0, done.stderr
        (directory,) = (path for path in done.output.iterdir() if (path / "record.json").exists())
        record = json.loads((directory / "record.json").read_bytes())
        assert record["plugin"]["distribution"] == name
        assert record["config"]["warmup_steps"] == steps
        assert [file["path"] for file in record["plugin"]["files"]] == [f"llmb_{name[-1]}.py"]
