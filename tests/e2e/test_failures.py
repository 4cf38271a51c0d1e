"""Whatever goes wrong in a run: its exit code, one line, and a run directory that says why."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e import harness
from tests.e2e.harness import Ended, run_plugin

UNAVAILABLE, FAILED, INTERRUPTED = 3, 4, 130


def check(done: Ended, code: int, *words: str) -> None:
    """Hold ``done`` to a failure: code, one line with every word, no record, no traceback.

    The line ends with where the log is, once there is one, and the log says the same.
    """
    assert done.code == code, done.stderr
    assert len(done.said) == 1, done.stderr
    for word in words:
        assert word in done.said[0]
    assert "Traceback" not in done.stderr
    if not (done.output.exists() and list(done.output.iterdir())):
        assert "log.txt" not in done.said[0]
        return
    assert not done.finished
    message, _, place = done.said[0].removeprefix("llmb: ").partition(" (see ")
    assert place.endswith(f"/{done.directory.name}/log.txt)")
    first_line = message.split(r"\n")[0]  # a terminal is shown an escaped line break
    assert f"the run did not finish: {first_line}" in done.log


# -- hooks that misbehave ---------------------------------------------------------------------

# What each hook may do wrong is a matter for tests/unit/plugin; here, one hook of each process.


def test_a_hook_that_raises_while_plugins_are_asked_is_named_with_what_it_raised(
    tmp_path: Path,
) -> None:
    source = """
    @hookimpl
    def llmb_backend(config):
        raise KeyError("no such register")
    """
    done = run_plugin(tmp_path, source)
    check(done, UNAVAILABLE, "'odd'", "llmb_backend", "KeyError", "no such register")
    assert list(done.output.iterdir()) == []


def test_a_hook_that_raises_in_the_worker_is_told_in_one_line_and_its_traceback_is_in_the_log(
    tmp_path: Path,
) -> None:
    source = """
    @hookimpl
    def llmb_post_process_model(model):
        raise RuntimeError("first line\\nsecond line")
    """
    done = run_plugin(tmp_path, source)
    check(done, UNAVAILABLE, "'odd'", "llmb_post_process_model", "RuntimeError: first line")
    assert "Traceback" in done.log
    assert "llmb_odd.py" in done.log


@pytest.mark.parametrize(
    ("hook", "value"),
    [
        ("llmb_environment_variables()", "{'A=B': '1'}"),
        ("llmb_parameter_map(model)", "[]"),
        ("llmb_optimizer_options(config)", "{'fused': True, 'foreach': True}"),
        ("llmb_optimizer_options(config)", "{'capturable': True}"),
    ],
)
def test_a_hook_that_returns_the_wrong_thing_is_named(
    tmp_path: Path, hook: str, value: str
) -> None:
    source = f"""
    @hookimpl
    def {hook}:
        return {value}
    """
    done = run_plugin(tmp_path, source)
    check(done, UNAVAILABLE, "'odd'", hook.partition("(")[0], "returned")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import llmb_odd_missing", ["ModuleNotFoundError", "llmb_odd_missing"]),
        ("sys.exit(3)", ["SystemExit: 3"]),
        ("os.kill(os.getpid(), signal.SIGSEGV)", ["SIGSEGV"]),
    ],
    ids=["missing", "exit", "crash"],
)
def test_a_plugin_that_cannot_be_imported_says_why(
    tmp_path: Path, source: str, words: list[str]
) -> None:
    done = run_plugin(tmp_path, source)
    check(done, UNAVAILABLE, "'odd'", *words)
    assert list(done.output.iterdir()) == []


def test_a_plugin_that_hangs_in_its_import_is_given_up_after_the_limit(tmp_path: Path) -> None:
    folder = harness.plugin(tmp_path / "plugins", "odd", "time.sleep(600)")
    # The limit is a minute; here it is two seconds, in a process of its own.
    code = (
        "from llmb.supervision import negotiation; negotiation.PROBE_LIMIT_S = 2.0\n"
        "from llmb.cli import main; main()"
    )
    flags = ("run", "--quiet", "--output-dir", str(tmp_path / "out"), *harness.with_plugin("odd"))
    command = [sys.executable, "-c", code, *flags]
    done = harness.ended(command, tmp_path / "out", harness.environment(folder), None)
    check(done, UNAVAILABLE, "'odd'", "no answer within 2 s")


def test_two_distributions_that_claim_one_name_are_both_named(tmp_path: Path) -> None:
    folders = [
        harness.plugin(tmp_path / name, "odd", distribution=name) for name in ("llmb-a", "llmb-b")
    ]
    done = harness.run(tmp_path / "out", *harness.with_plugin("odd"), plugins=folders)
    check(done, UNAVAILABLE, "'odd'", "llmb-a", "llmb-b", "uninstall")


def test_a_vendor_cannot_take_the_name_of_a_built_in_plugin(tmp_path: Path) -> None:
    folder = harness.plugin(tmp_path / "plugins", "cpu")
    done = harness.run(tmp_path / "out", *harness.with_plugin("cpu"), plugins=[folder])
    check(done, UNAVAILABLE, "'cpu'", "llmb itself", "llmb-cpu")


def test_a_broken_plugin_is_listed_with_the_reason_beside_those_that_work(tmp_path: Path) -> None:
    folder = harness.plugin(tmp_path, "odd", "import llmb_odd_missing")
    done = harness.call("plugin", "list", env=harness.environment(folder))
    assert done.code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["odd", "broken", "llmb-odd", "0.1"] in lines
    assert any(line[0] == "reason" and "'llmb_odd_missing';" in line for line in lines)
    assert any(line[:2] == ["cpu", "ready"] for line in lines)


# -- workers that fail ------------------------------------------------------------------------


def in_step(statement: str, step: int = 5) -> str:
    """Return a plugin that does ``statement`` ahead of the forward pass of ``step``."""
    return f"""
    def before(calls, ids):
        if calls == {step}:
            {statement}
    @hookimpl
    def llmb_post_process_model(model):
        return Around(model, before)
    """


def test_a_model_that_becomes_non_finite_during_training_ends_the_run(tmp_path: Path) -> None:
    source = in_step("torch.nn.init.constant_(list(Around.model.parameters())[0], float('nan'))")
    source = source.replace("return Around", "Around.model = model\n        return Around")
    check(run_plugin(tmp_path, source), FAILED, "the loss is nan after 11 steps", "non-finite")


def test_a_model_whose_loss_cannot_be_trained_on_ends_the_run(tmp_path: Path) -> None:
    source = """
    class Odd(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
        def forward(self, ids, labels=None):
            loss = self.inner(ids, labels=labels)
            return torch.stack([loss, loss])
    @hookimpl
    def llmb_post_process_model(model):
        return Odd(model)
    """
    done = run_plugin(tmp_path, source)
    check(done, FAILED)
    assert "Traceback" in done.log, "where it happened is for whoever reads the log"


def test_a_model_that_returns_more_than_its_loss_is_told_what_to_return(tmp_path: Path) -> None:
    source = """
    class Both(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
        def forward(self, ids, labels=None):
            return {"loss": self.inner(ids, labels=labels), "logits": None}
    @hookimpl
    def llmb_post_process_model(model):
        return Both(model)
    """
    done = run_plugin(tmp_path, source)
    check(done, FAILED, "the model returned a dict", "must return its loss")


def test_a_worker_that_simply_exits_while_training_is_reported(tmp_path: Path) -> None:
    check(run_plugin(tmp_path, in_step("sys.exit(0)")), FAILED, "exit status 0")


def test_a_dead_worker_is_noticed_although_a_process_it_forked_lives_on(tmp_path: Path) -> None:
    forked = tmp_path / "forked"
    alone = f"pathlib.Path({str(forked)!r}).write_text(str(os.getpid())), time.sleep(600)"
    statement = f"os.fork() or ({alone}); os.kill(os.getpid(), signal.SIGKILL)"
    folder = harness.plugin(tmp_path / "plugins", "odd", in_step(statement))
    try:
        with harness.running(
            tmp_path / "out", *harness.with_plugin("odd"), plugins=[folder]
        ) as started:
            assert started.wait() == FAILED
            assert "SIGKILL" in started.stderr
    finally:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(int(forked.read_text())).kill()


def test_a_worker_that_dies_in_post_processing_is_reported_and_leaves_no_temporary_file(
    tmp_path: Path,
) -> None:
    source = """
    @hookimpl
    def llmb_post_process_model(model):
        os.kill(os.getpid(), signal.SIGKILL)
    """
    scratch = Path("/tmp") / f"llmb-e2e-{os.getpid()}"  # short enough for a socket
    scratch.mkdir()
    try:
        done = run_plugin(tmp_path, source, TMPDIR=str(scratch))
        assert list(scratch.glob("llmb-*")) == [], "torch may leave its caches there"
    finally:
        shutil.rmtree(scratch)
    check(done, FAILED, "llmb.processes.worker was killed by SIGKILL")


def test_running_out_of_memory_in_post_processing_is_a_failed_run(tmp_path: Path) -> None:
    source = """
    @hookimpl
    def llmb_post_process_model(model):
        torch.empty(2**50)
    """
    check(run_plugin(tmp_path, source), FAILED, "allocate memory")


def test_a_plugin_that_replaces_the_optimizers_step_gives_an_invalid_run_and_code_5(
    tmp_path: Path,
) -> None:
    source = """
    @hookimpl
    def llmb_set_environment(config):
        torch.optim.AdamW.step = lambda self, closure=None: None
    """
    done = run_plugin(tmp_path, source)
    assert done.record["audit"]["verdict"] == "INVALID"
    assert "audit: INVALID" in done.stdout
    assert "O1" in done.stdout
    assert (done.code, len(done.said)) == (5, 1)
    assert str(done.directory / "audit.json") in done.said[0]


def test_a_ceiling_that_cannot_be_measured_is_a_warning_and_not_a_failed_run(
    tmp_path: Path,
) -> None:
    source = """
    @hookimpl(tryfirst=True)
    def llmb_precisions():
        return [FP32]
    @hookimpl
    def llmb_set_environment(config):
        if "llmb.processes.ceilings" in sys.orig_argv:
            raise torch.OutOfMemoryError("out of memory")
    """
    done = run_plugin(tmp_path, source)
    assert (done.code, done.said) == (0, [])
    assert done.record["ceilings"] is None
    (warning,) = (w for w in done.record["warnings"] if "ceiling" in w)
    assert warning in done.stdout
    assert "the ceiling was not measured: " in done.log


# -- evidence that was touched ----------------------------------------------------------------

TOUCH = """
import atexit
def touch():
    for file in pathlib.Path(os.environ["OUTPUT"]).glob("*/evidence/repeat-0/{name}"):
        {statement}
if "llmb.processes.worker" in sys.orig_argv:
    atexit.register(touch)
"""


@pytest.mark.parametrize(
    ("name", "statement", "words"),
    [
        ("weights.json", "file.write_bytes(file.read_bytes() + b' ')", "altered"),
        ("optimizer.json", "file.unlink()", "missing"),
    ],
)
def test_evidence_altered_between_worker_and_supervisor_ends_the_run(
    tmp_path: Path, name: str, statement: str, words: str
) -> None:
    source = TOUCH.format(name=name, statement=statement)
    done = run_plugin(tmp_path, source, OUTPUT=str(tmp_path / "out"))
    check(done, FAILED, name, words)


# -- signals ----------------------------------------------------------------------------------

LONG = ("--timed-steps=100000",)


def interrupted(started: harness.Running, number: int) -> Ended:
    """Interrupt a run, and hold it to leaving one line and no process."""
    done = started.kill(number)
    assert started.family, "there was a child to end"
    assert started.survivors() == []
    assert done.code == INTERRUPTED, done.stderr
    assert [line for line in done.said if "interrupted" in line] == done.said[-1:]
    name = signal.Signals(number).name
    assert done.said[-1].startswith(f"llmb: interrupted by {name}")
    assert "Traceback" not in done.stderr
    return done


def test_an_interrupt_while_plugins_are_asked_leaves_nothing(tmp_path: Path) -> None:
    here = tmp_path / "here"
    source = f"pathlib.Path({str(here)!r}).touch(); time.sleep(600)"
    folder = harness.plugin(tmp_path / "plugins", "odd", source)
    flags = harness.with_plugin("odd")
    with harness.running(tmp_path / "out", *flags, plugins=[folder]) as started:
        started.wait_until(here.exists)
        done = interrupted(started, signal.SIGTERM)
    assert list(done.output.iterdir()) == []


def test_an_interrupt_in_a_later_repeat_keeps_the_earlier_ones(tmp_path: Path) -> None:
    # The second worker hangs in its post-processing, where no message can reach it.
    source = f"""
    @hookimpl
    def llmb_post_process_model(model):
        here = pathlib.Path({str(tmp_path / "here")!r})
        if here.exists():
            time.sleep(600)
        here.touch()
    """
    folder = harness.plugin(tmp_path / "plugins", "odd", source)
    flags = (*harness.with_plugin("odd"), "--repeats=2")
    with harness.running(tmp_path / "out", *flags, plugins=[folder]) as started:
        started.wait_for("timing 2 of 2: post-processing")
        done = interrupted(started, signal.SIGINT)
    assert len(done.record["timing"]["repeats"]) == 1
    assert done.record["interruption"]["by"] == "SIGINT"
    assert "ended early (repeat 2 of 2, before the timed window: SIGINT)" in done.log
    assert (done.directory / "evidence/repeat-0/weights.json").exists(), "what was done is kept"


def test_an_interrupt_while_training_is_in_the_log_and_ends_the_workers_helpers_too(
    tmp_path: Path,
) -> None:
    statement = "import subprocess; subprocess.Popen(['sleep', '600'])"
    folder = harness.plugin(tmp_path / "plugins", "odd", in_step(statement))
    flags = (*harness.with_plugin("odd"), *LONG)
    with harness.running(tmp_path / "out", *flags, plugins=[folder]) as started:
        supervisor = psutil.Process(started.process.pid)
        started.wait_until(lambda: "sleep" in [c.name() for c in supervisor.children(True)])
        done = interrupted(started, signal.SIGTERM)
    assert not done.finished
    assert "the run did not finish: interrupted" in done.log


def test_a_supervisor_killed_without_warning_leaves_no_worker_behind(tmp_path: Path) -> None:
    # A worker in its post-processing listens to nobody.
    source = """
    @hookimpl
    def llmb_post_process_model(model):
        time.sleep(600)
    """
    folder = harness.plugin(tmp_path / "plugins", "odd", source)
    flags = harness.with_plugin("odd")
    with harness.running(tmp_path / "out", *flags, plugins=[folder]) as started:
        started.wait_for("timing: post-processing")
        done = started.kill(signal.SIGKILL)
        assert started.family
        assert started.survivors() == []
    assert done.code == -signal.SIGKILL
    assert not done.finished


# -- full disks -------------------------------------------------------------------------------


def can_mount() -> bool:
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return False
    script = 'mount -t tmpfs -o size=64k llmb "$0"'
    with_tmp = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "/mnt"]
    return subprocess.run(with_tmp, capture_output=True, check=False).returncode == 0


needs_tmpfs = pytest.mark.skipif(not can_mount(), reason="no small tmpfs can be mounted here")

NO_SPACE = "No space left on device"

#: A plugin that fills the disk of the run directory to the last byte at a chosen moment.
FILL = """
def fill():
    with open(os.environ["DISK"] + "/filler", "ab", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            pass
"""


def on_small_disk(tmp_path: Path, source: str, *flags: str, size: str, before: str = "") -> Ended:
    """Run a plugin with its run directory on a tmpfs of ``size``; ``before`` is a shell command."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    folder = harness.plugin(tmp_path / "plugins", "odd", FILL + "\n" + source)
    command = harness.llmb_command("run", "--quiet", "--output-dir", disk / "out", *flags)
    script = f"""
        mount -t tmpfs -o size={size} llmb "$0" || exit 99
        export DISK="$0"
        {before or ":"}
        "$@"
        code=$?
        cp -r "$0" "{kept}"
        exit $code
    """
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(disk)]
    return harness.ended([*unshare, *command], kept / "out", harness.environment(folder), None)


@needs_tmpfs
def test_a_disk_that_is_full_from_the_start_is_a_wrong_output_folder_and_left_as_it_was(
    tmp_path: Path,
) -> None:
    flags = (*harness.with_plugin("odd"), harness.UNAUDITED)
    fill = 'head -c 1000000 /dev/zero > "$0/filler" 2>/dev/null'
    done = on_small_disk(tmp_path, "", *flags, size="128k", before=fill)
    assert (done.code, len(done.said)) == (2, 1), done.stderr
    assert NO_SPACE in done.said[0]
    assert list(done.output.iterdir()) == []


AT_POST_PROCESSING = """
@hookimpl
def llmb_post_process_model(model):
    fill()
"""
AT_END_OF_WORKER = """
import atexit
if "llmb.processes.worker" in sys.orig_argv:
    atexit.register(fill)
"""


@needs_tmpfs
@pytest.mark.parametrize(
    "source", [AT_POST_PROCESSING, AT_END_OF_WORKER], ids=["post-processing", "end of worker"]
)
def test_a_disk_that_fills_up_fails_the_run_and_the_log_still_says_why(
    tmp_path: Path, source: str
) -> None:
    # Without an audit: its whole weights would give room back when they are deleted.
    flags = (*harness.with_plugin("odd"), harness.UNAUDITED)
    done = on_small_disk(tmp_path, source, *flags, size="1m")
    check(done, FAILED, NO_SPACE)
    assert NO_SPACE in done.log


@needs_tmpfs
def test_a_disk_that_fills_up_while_a_run_is_audited_fails_it_and_keeps_the_timing(
    tmp_path: Path,
) -> None:
    flags = harness.with_plugin("odd")
    done = on_small_disk(tmp_path, AT_END_OF_WORKER, *flags, size="160m")
    assert done.code == FAILED, done.stderr
    (line,) = done.said
    assert NO_SPACE in line
    assert line.endswith(
        f"llmb audit --resume {done.output.parent.parent / 'disk/out'}/{done.directory.name}"
    )
    assert done.record["audit"]["verdict"] == "UNVERIFIED"
    assert done.record["result"]["tokens_per_second"] > 0, "the window was complete"
    assert NO_SPACE in done.record["interruption"]["by"]
    assert not list(done.directory.glob(".scratch*"))


@needs_tmpfs
def test_a_disk_with_too_little_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    flags = (*harness.with_plugin("odd"), "--hidden-size=512", "--num-attention-heads=8")
    done = on_small_disk(tmp_path, "", *flags, size="16m")
    assert (done.code, len(done.said)) == (FAILED, 1), done.stderr
    assert "GB are free, and the run needs" in done.said[0]
    assert list(done.output.iterdir()) == []
