"""``llmb launch``: a job's file on stdout or in a new file, after ARGUMENTS have been judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llmb import cli
from llmb.cli import launch
from llmb.errors import UsageError

JOB = ("slurm", "--", "run", "--preset", "debug")


def call(*words: object) -> str:
    arguments = [str(word) for word in words]
    return CliRunner().invoke(launch.command, arguments, catch_exceptions=False).stdout


def whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of ``llmb launch``, as a shell sees them."""
    monkeypatch.setattr("sys.argv", ["llmb", "launch", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    out = capsys.readouterr()
    return int(code or 0), out.out, out.err


def test_a_file_that_is_named_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    assert call("--print", "slurm", "--output", file, "--", *JOB[2:]) == f"written: {file}\n"
    text = file.read_text()
    assert text == call("--print", *JOB)
    with pytest.raises(UsageError, match="it is there already"):
        call("--print", "slurm", "--output", file, "--", *JOB[2:])
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--", "run", "--bogus", "3"), "--bogus: there is no such option"),
        (
            ("--nodes", "4", "--", "run", "--dp-shard", "7"),
            "dp_shard 7 x dp_replicate 4 makes 28 ranks, and there are 32",
        ),
        (
            ("--nodes", "4", "--", "run", "--tp", "64"),
            "tp 64 makes 64 ranks, and there are 32: start 64, or let",
        ),
        (("--", "sweep"), "'sweep' has no ranks; a job file starts `llmb run`"),
        (("--", "run", "--scaling", "1,2"), "--scaling: the scheduler starts the ranks"),
        (("--", "run", "--help"), "--help starts no ranks"),
        (("--", "run", "--workload", "nobodys"), "nobodys"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_arguments_that_cannot_run_are_refused_before_a_file_is_written(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    code, out, err = whole(monkeypatch, capsys, "--print", "slurm", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def run(*words: str) -> Result:
    return CliRunner().invoke(launch.command, list(words), catch_exceptions=False)


def test_the_memory_of_a_rank_is_said_on_stderr_alone() -> None:
    done = run("--print", *JOB)
    assert "llmb: each rank needs about " in done.stderr
    assert "GB of device memory\n" in done.stderr
    assert "GB" not in done.stdout
    assert done.stdout.startswith("#!")
    assert " GB of memory\n" in run("--print", *JOB, "--device", "cpu").stderr


def test_k8s_is_another_name_of_trainjob() -> None:
    rest = ("--image", "a/b", "--resource", "c.d/e", "--", "run", "--preset", "debug")
    done = run("--print", "k8s", *rest)
    assert done.stdout == run("--print", "trainjob", *rest).stdout
    assert "llmb: k8s is trainjob, for Kubeflow Trainer v2\n" in done.stderr
    assert "kind: TrainJob\n" in done.stdout


def test_pods_that_would_have_no_device_are_noticed() -> None:
    words = ("--print", "jobset", "--image", "a", "--", "run", "--preset", "debug")
    assert "pods ask for no device; --resource says" in run(*words).stderr
    assert "pods ask" not in run(*words, "--device", "cpu").stderr


def test_the_command_line_comes_before_the_site(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('image = "of/site"\nranks_per_node = 2\nresource = "site.example/gpu"\n')
    words = ("--print", "jobset", "--site", str(site))
    arguments = ("--", "run", "--preset", "debug", "--dp-shard", "2")
    of_site = call(*words, *arguments)
    assert "site.example/gpu: 2\n" in of_site
    assert "image: of/site\n" in of_site
    given = call(*words, "--image", "b", "--ranks-per-node", "4", *arguments)
    assert "site.example/gpu: 4\n" in given
    assert "image: b\n" in given


def test_a_wrong_site_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.toml"
    site.write_text('acount = "m1"\n')
    code, out, err = whole(
        monkeypatch, capsys, "--print", "slurm", "--site", str(site), "--", "run"
    )
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "'acount' is unknown" in err
