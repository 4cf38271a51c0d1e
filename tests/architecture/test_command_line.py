"""The command line is an interface: its table of commands and the options of ``run`` are frozen."""

from __future__ import annotations

from importlib import import_module

import click
import pytest

from llmb import cli

#: Whoever adds or drops an option changes this list on purpose, and the documentation with it.
RUN_OPTIONS = frozenset(
    {
        "--workload",
        "--within",
        "--recipe",
        "--mode",
        "--plugin",
        "-O",
        "--plugin-option",
        "--device",
        "--precision",
        "--batch-size",
        "--micro-batch-size",
        "--accumulate",
        "--mixed-precision",
        "--executor",
        "--compile-mode",
        "--dynamic",
        "--sac-freq",
        "--nproc",
        "--scaling",
        "--strong",
        "--dp-replicate",
        "--dp-shard",
        "--zero",
        "--tp",
        "--sequence-parallel",
        "--loss-parallel",
        "--pp",
        "--schedule",
        "--rank-timeout",
        "--scope",
        "--prompt-length",
        "--new-tokens",
        "--data",
        "--tokenizer",
        "--weights",
        "--prompt",
        "--seed",
        "--nonce",
        "--constant-rate",
        "--seed-commitment",
        "--timestamp",
        "--config",
        "--tag",
        "--warmup-steps",
        "--timed-steps",
        "--repeats",
        "--output-dir",
        "--audit",
        "--preset",
        "--sequence-length",
        "--hidden-size",
        "--intermediate-size",
        "--num-hidden-layers",
        "--num-attention-heads",
        "--profile",
        "--json",
        "--quiet",
        "-q",
    }
)


def command(name: str) -> click.Command:
    return import_module(f"llmb.cli.{cli.COMMANDS[name][0]}").command


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_the_table_of_commands_says_what_each_command_says_of_itself(name: str) -> None:
    assert command(name).name == name
    assert command(name).get_short_help_str(limit=200) == cli.COMMANDS[name][1]
    assert command(name).short_help == cli.COMMANDS[name][1]


def test_every_command_of_the_table_is_found_and_no_other() -> None:
    context = click.Context(cli.llmb)
    assert cli.llmb.list_commands(context) == list(cli.COMMANDS)
    assert all(cli.llmb.get_command(context, name) for name in cli.COMMANDS)
    assert cli.llmb.get_command(context, "fly") is None


def test_the_options_of_run_are_the_frozen_ones() -> None:
    options = {word for option in command("run").params for word in option.opts}
    assert options == RUN_OPTIONS
    negated = {word for option in command("run").params for word in option.secondary_opts}
    assert negated == {"--no-mixed-precision", "--static"}


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_option_of_a_command_has_a_help_text_or_a_default_that_shows(name: str) -> None:
    for option in command(name).params:
        if isinstance(option, click.Option):
            assert option.help or option.show_default, option.opts


def test_the_default_workload_and_steps_of_run_are_the_official_ones() -> None:
    from llmb import workloads
    from llmb.config import OFFICIAL_TIMED_STEPS, OFFICIAL_WORKLOAD

    # Parsed, as what click calls the default of an option that has none is its versions' own.
    defaults = command("run").make_context("run", []).params
    assert defaults["workload"] == OFFICIAL_WORKLOAD
    mode = workloads.mode_of(workloads.find(OFFICIAL_WORKLOAD, {}), None)
    assert defaults["mode"] is None
    assert defaults["timed_steps"] is None, "as many as an official run of the mode has"
    assert mode.official_steps == OFFICIAL_TIMED_STEPS
