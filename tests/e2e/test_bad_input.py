"""Bad input: its documented exit code, one clear line that names the value, and nothing written."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests.e2e import harness
from tests.e2e.harness import Ended, run

USAGE, UNAVAILABLE, FAILED = 2, 3, 4


def check(done: Ended, code: int, *words: str) -> None:
    """Hold ``done`` to a refusal with ``code`` and one line that holds every word."""
    assert done.code == code, done.stderr
    assert len(done.said) == 1, done.stderr
    for word in words:
        assert word in done.said[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not done.output.exists() or list(done.output.iterdir()) == []


@pytest.mark.quick
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--workload=gpt-9"], ["gpt-9", "llama-1.4b"]),
        (["--batch-size=0"], ["0", "at least 1"]),
        (["--batch-size=-1"], ["-1", "at least 1"]),
        (["--batch-size=many"], ["'many'", "auto"]),
        (["--batch-size=1.5"], ["'1.5'"]),
        (["--batch-size="], ["--batch-size"]),
        (["--sequence-length=-16"], ["--sequence-length", "-16"]),
        (["--hidden-size=-64"], ["--hidden-size", "-64"]),
        (["--intermediate-size=0"], ["--intermediate-size", "0"]),
        (["--num-hidden-layers=-2"], ["--num-hidden-layers", "-2"]),
        (["--num-attention-heads=-4"], ["--num-attention-heads", "-4"]),
        (["--hidden-size=100", "--num-attention-heads=3"], ["100", "3", "divisible"]),
        (["--hidden-size=12", "--num-attention-heads=4"], ["12", "4", "even"]),
        (["--sequence-length=1"], ["--sequence-length 1"]),
        (["-O", "threads"], ["-O threads", "KEY=VALUE"]),
        (["-O", "=4"], ["=4", "KEY=VALUE"]),
        (["--timed-steps=0"], ["--timed-steps", "0"]),
        (["--warmup-steps=0"], ["--warmup-steps", "0"]),
        (["--repeats=0"], ["--repeats", "0"]),
        (["--seed=-1"], ["--seed", "-1"]),
        (["--seed=9223372036854775808"], ["--seed", "9223372036854775808"]),
        (["--preset=fast"], ["fast", "debug"]),
        (["--frobnicate=11"], ["--frobnicate"]),
        (["fast"], ["fast"]),
        (["--device=\udcff"], ["--device", "not readable text"]),
    ],
    ids=lambda value: ascii(" ".join(value)),
)
def test_a_value_that_cannot_work_is_a_usage_error(
    tmp_path: Path, flags: list[str], words: list[str]
) -> None:
    check(run(tmp_path / "out", *flags), USAGE, *words)


@pytest.mark.quick
def test_an_unknown_command_is_a_usage_error() -> None:
    done = harness.call("fly")
    assert (done.code, len(done.said)) == (USAGE, 1)
    assert "'fly'" in done.said[0]


@pytest.mark.quick
def test_an_unknown_plugin_is_unavailable_and_the_installed_ones_are_named(tmp_path: Path) -> None:
    done = run(tmp_path / "out", "--plugin=warp")
    check(done, UNAVAILABLE, "'warp'", "cpu", "generic", "see the vendor's page")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--precision=FP7"], USAGE, ["FP7", "BF16"]),
        (["--precision=TF32", "--device=cpu"], UNAVAILABLE, ["TF32", "cpu", "FP32"]),
        (["--precision=FP8"], UNAVAILABLE, ["FP8", "cpu"]),
        (["--device=cpu:1"], UNAVAILABLE, ["cpu:1"]),
        (["--device=cpu:x"], UNAVAILABLE, ["cpu:x"]),
        (["--device=cpu:-1"], UNAVAILABLE, ["cpu:-1"]),
        (["--device=toaster"], UNAVAILABLE, ["'cpu'", "'toaster'"]),
        (["-O", "threads=many"], USAGE, ["threads=many", "int"]),
        (["-O", "thread=4"], USAGE, ["thread", "threads"]),
        (["--batch-size=100000000000000000000"], FAILED, ["100000000000000000000"]),
        (["--device=cpu:"], UNAVAILABLE, ["cpu:"]),
        (["-O", "threads=-1"], USAGE, ["threads=-1", "at least 0"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_the_plugin_cannot_do_here_is_refused_after_asking_it(
    tmp_path: Path, flags: list[str], code: int, words: list[str]
) -> None:
    tiny = (*harness.TINY, "--timed-steps=1")
    check(run(tmp_path / "out", "--plugin=cpu", *tiny, *flags), code, *words)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
@pytest.mark.parametrize("device", ["cuda", "toaster"])
def test_a_device_nobody_serves_is_an_error_that_says_what_to_install(
    tmp_path: Path, device: str
) -> None:
    done = run(tmp_path / "out", "--device", device, *harness.TINY_RUN)
    check(done, UNAVAILABLE, repr(device), "install", "llmb-<name>", "cpu: ", "generic: ")


def test_a_run_that_does_not_fit_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    # Sizes of which one sequence fits on any machine, so that there is something else to use.
    flags = ("--preset=debug", "--precision=FP32", "--batch-size=400000", "--quiet")
    command = harness.llmb_command("run", *flags, "--output-dir", tmp_path / "out")
    process = subprocess.Popen(
        command, env=harness.environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    stdout, stderr = (pipe.read().decode() for pipe in (process.stdout, process.stderr))
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    process.stderr.close()
    done = Ended(process.returncode, stdout, stderr, tmp_path / "out")
    check(done, FAILED, "FP32", "400000", "needs about", "GB free", "use --")
    assert usage.ru_maxrss < 2**20, "largest of supervisor and probe, in KiB"


@pytest.mark.quick
@pytest.mark.parametrize("place", ["file", "file/below", "/proc/llmb-runs", "/dev/null"])
def test_an_output_folder_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, place: str
) -> None:
    # A folder without write permission would not stop root.
    (tmp_path / "file").write_text("in the way")
    target = str(tmp_path / place)
    command = harness.llmb_command("run", "--output-dir", target, *harness.TINY_RUN)
    done = harness.ended(command, tmp_path / "nothing", harness.environment(), None)
    check(done, USAGE, "--output-dir", target)
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.quick
def test_a_refused_run_does_not_even_leave_its_output_folder(tmp_path: Path) -> None:
    done = run(tmp_path / "out", "--workload=gpt-9")
    assert (done.code, (tmp_path / "out").exists()) == (USAGE, False)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "nowhere"], USAGE),
        (["verify", "nowhere"], USAGE),
        (["verify"], USAGE),
        (["package-submission", "nowhere", "--submitter=A", "--system=B"], USAGE),
        (["package-submission", "nowhere"], USAGE),
        (["calibrate", "--seconds=0"], USAGE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_other_commands_refuse_what_is_not_there_in_one_line(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    done = harness.call(*arguments, cwd=tmp_path)
    assert (done.code, len(done.said)) == (code, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.quick
def test_output_to_a_full_disk_is_one_line_and_no_traceback(tiny_run: Ended) -> None:
    command = harness.llmb_command("show", tiny_run.directory, "--json")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command,
            env=harness.environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr == "llmb: cannot write the output: No space left on device\n"
    assert done.returncode == 4
