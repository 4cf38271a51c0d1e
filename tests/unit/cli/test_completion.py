"""Values that the shell completes: names that exist here, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from llmb import cli


def completed(*words: str) -> list[str]:
    """Return the completions of the last of ``words``."""
    found = ShellComplete(cli.llmb, {}, "llmb", "_LLMB_COMPLETE")
    return [item.value for item in found.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("sh",), ["show"]),
        (("run", "--workload", "gpt2-1"), ["gpt2-125m", "gpt2-1.5b"]),
        (("workload", "show", "llama-4"), ["llama-410m", "llama-45m"]),
        (("run", "--plugin", "gen"), ["generic"]),
        (("run", "--preset", ""), ["debug"]),
        (("run", "--recipe", "nanotron"), ["nanotron-llama2-7b"]),
        (("run", "--workload", "mine.js"), ["mine.js"]),
        (("workload", "new", "mine", "--family", "gp"), ["gpt2"]),
    ],
    ids=["command", "workload", "argument", "plugin", "preset", "recipe", "file", "family"],
)
def test_names_that_begin_with_the_typed_text_are_offered(
    words: tuple[str, ...], values: list[str]
) -> None:
    assert completed(*words) == values


def test_finished_runs_are_offered_newest_first_and_unfinished_runs_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("20261101T1-a", "20261102T1-b", "20261103T1-c"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for name in ("20261101T1-a", "20261102T1-b"):
        (tmp_path / "runs" / name / "record.json").touch()
    assert completed("show", "") == ["runs/20261102T1-b", "runs/20261101T1-a"]
    assert completed("audit", "runs/20261101") == ["runs/20261101T1-a"]
