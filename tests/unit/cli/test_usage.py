"""Wrong command lines: one line, and the nearest right word in a second."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from llmb import cli
from llmb.cli import run, usage

Call = Callable[..., list[str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function from the words of a command line to what it is answered on stderr."""
    monkeypatch.setattr(cli.endings, "listen", lambda: None)

    def call(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["llmb", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        return shown.err.splitlines()

    return call


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ("run", "--precison", "BF16"),
            ["llmb: --precison: there is no such option", "did you mean --precision?"],
        ),
        (("rnu",), ["llmb: No such command 'rnu'.", "did you mean run?"]),
        (
            ("report", "--format", "htm"),
            [
                "llmb: Invalid value for '--format': 'htm' is not one of 'markdown', 'csv', "
                "'json', 'html'.",
                "did you mean html?",
            ],
        ),
        (
            ("run", "--epochs", "3"),
            ["llmb: --epochs: there is no such option", "did you mean --timed-steps?"],
        ),
        (("run", "--zzz"), ["llmb: --zzz: there is no such option"]),
        (("audit",), ["llmb: Missing argument 'RUN'."]),
        (("run", "--timed-steps"), ["llmb: Option '--timed-steps' requires an argument."]),
    ],
    ids=[
        "option",
        "command",
        "choice",
        "synonym",
        "nothing near",
        "argument",
        "value",
    ],
)
def test_a_wrong_command_line_is_one_line_and_the_nearest_right_word(
    said: Call, words: tuple[str, ...], lines: list[str]
) -> None:
    assert said(*words) == lines


def test_every_synonym_of_another_tool_is_an_option_of_run_and_no_option_itself() -> None:
    options = {name for param in run.command.params for name in param.opts}
    assert {*usage.SYNONYMS.values()} <= options
    assert not options & usage.SYNONYMS.keys()


def test_what_was_typed_moves_no_cursor(said: Call) -> None:
    assert said("run", "--\x1b[2J") == ["llmb: --\\x1b[2J: there is no such option"]


@pytest.mark.parametrize("words", [(), ("plugin",)], ids=["llmb", "group"])
def test_a_group_without_a_command_is_answered_with_its_help(
    said: Call, words: tuple[str, ...]
) -> None:
    lines = said(*words)
    assert lines[0].startswith("Usage: ")
    assert "Options:" in lines
    assert max(map(len, lines)) <= 80
