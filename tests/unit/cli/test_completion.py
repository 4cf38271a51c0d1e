"""Values that the shell completes: names that exist here, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from llmb import cli
from llmb.records import run_tags


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


def test_names_and_tags_of_runs_are_offered_newest_first_and_then_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["20261101T120000Z-a", "20261102T120000Z-b", "20261103T120000Z-c"]
    for name in names:
        (tmp_path / "runs" / name).mkdir(parents=True)
    for name in names[:2]:
        (tmp_path / "runs" / name / "record.json").touch()
    run_tags.add(Path("runs") / names[0], "base")
    assert completed("show", "") == ["latest", "base", *reversed(names)]
    assert completed("audit", "20261101") == [names[0]]
    assert completed("compare", "latest", "b") == ["base"]
    assert completed("list", "--tag", "") == completed("tag", "") == ["base"]
    assert completed("show", "runs/") == ["runs/"]
