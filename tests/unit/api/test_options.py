"""The options of ``llmb.run`` are those of the command, under the same names."""

from __future__ import annotations

import inspect
from pathlib import Path

import click
import pytest

import llmb
from llmb.api.options import RunOptions, words_of
from llmb.api.running import run
from llmb.cli import run as command
from llmb.errors import UsageError

#: Options of the command that a result replaces, or that make several runs.
ONLY_OF_THE_COMMAND = {"as_json", "quiet", "scaling", "strong"}


def test_every_option_of_the_command_is_an_option_of_run() -> None:
    named = {*inspect.signature(run).parameters} - {"options", "progress"}
    of_command = {parameter.name for parameter in command.command.params}
    assert not named & {*RunOptions.__annotations__}
    assert named | {*RunOptions.__annotations__} == of_command - ONLY_OF_THE_COMMAND


def test_run_takes_options_by_name_and_none_leaves_the_commands_default() -> None:
    parameters = inspect.signature(run).parameters.values()
    assert {one.kind for one in parameters} == {
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    }
    defaults = {one.name: one.default for one in parameters if one.name != "options"}
    assert {name for name, value in defaults.items() if value is not None} == {"progress"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nproc": 2, "precision": None}, ["--nproc=2"]),
        ({"profile": True, "constant_rate": False}, ["--profile"]),
        ({"mixed_precision": False, "dynamic": False}, ["--no-mixed-precision", "--static"]),
        ({"mixed_precision": True, "dynamic": True}, ["--mixed-precision", "--dynamic"]),
        ({"plugin_options": {"a": True, "b": "x y"}}, ["-Oa=true", "-Ob=x y"]),
        ({"within": 89.5}, ["--within=90s"]),
        ({"within": "1h"}, ["--within=1h"]),
        ({"output_dir": Path("a b")}, ["--output-dir=a b"]),
        ({"workload": {"family": "llama"}}, ['--workload={"family": "llama"}']),
        ({"tags": ["a", "b"], "config": Path("c.toml")}, ["--tag=a", "--tag=b", "--config=c.toml"]),
        ({"prompt": "-x"}, ["--prompt=-x"]),
    ],
)
def test_an_option_has_its_words(options: dict[str, object], words: list[str]) -> None:
    assert words_of(options) == words


def test_the_command_reads_the_words_as_they_were_meant() -> None:
    options = {
        "workload": {"family": "llama", "hidden_size": 512},
        "batch_size": "auto",
        "plugin_options": {"-x": "a=b"},
        "within": 90,
        "mixed_precision": False,
        "rank_timeout": 1.5,
        "prompt": "--seed=3",
        "seed": 2**63 - 1,
    }
    flags = command.command.make_context("llmb run", words_of(options)).params
    read = {name: flags[name] for name in options}
    assert read == options | {
        "workload": '{"family": "llama", "hidden_size": 512}',
        "plugin_options": ("-x=a=b",),
    }


@pytest.mark.parametrize("value", ["a\0b", "\ud83d"])
def test_text_that_no_command_line_takes_is_refused_in_one_line(value: str) -> None:
    with pytest.raises(UsageError, match=r"--device .*: not readable text") as found:
        words_of({"device": value})
    assert str(found.value).isprintable()


def test_a_seed_is_not_read_from_the_callers_standard_input() -> None:
    with pytest.raises(UsageError, match="give a file"):
        words_of({"seed_commitment": "-"})


def test_an_unknown_option_is_no_option() -> None:
    with pytest.raises((TypeError, click.UsageError, UsageError)):
        llmb.run(epochs=3)  # type: ignore[call-arg]
