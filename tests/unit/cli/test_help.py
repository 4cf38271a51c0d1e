"""Help: commands by purpose, a short help of ``llmb run``, and the full help in groups."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from llmb import cli
from llmb.cli import run, sweep


def shown(*words: str) -> str:
    done = CliRunner().invoke(cli.llmb, list(words), prog_name="llmb", terminal_width=80)
    assert done.exit_code == 0
    return done.output


def test_the_help_of_llmb_groups_every_command_by_purpose_and_fits_80_columns() -> None:
    text = shown("--help")
    titles = [line.removesuffix(":") for line in text.splitlines() if line.endswith(":")]
    assert titles == ["Options", "Measure", "Check", "Submit", "Compare", "Plan", "Extend"]
    assert all(f"\n  {name} " in text for name in cli.COMMANDS)
    assert max(map(len, text.splitlines())) <= 80


def test_the_help_of_run_fits_45_lines_has_twelve_options_and_names_the_other_groups() -> None:
    text = shown("run", "--help")
    assert len(text.splitlines()) <= 45
    assert max(map(len, text.splitlines())) <= 80
    usual = [option for option in run.command.params if not getattr(option, "group", "")]
    assert len(usual) == 12
    assert all(option.opts[0] in text for option in usual)
    assert "Data and weights, Ranks, Seeds and time" in text
    assert "llmb run --preset debug" in text.splitlines()[-4]


def test_the_full_help_of_run_has_every_option_below_the_title_of_its_group() -> None:
    text = shown("run", "--help-all")
    for option in run.command.params:
        assert f"{option.opts[0]}" in text
    places = [text.index(words) for words in ("\nRanks:", "--dp-shard", "\nSeeds and time stamps:")]
    assert places == sorted(places)


@pytest.mark.parametrize("option", run.command.params, ids=lambda option: option.name)
def test_every_option_of_run_says_its_default(option: click.Option) -> None:
    assert option.help is not None
    assert "[default: " in option.help


def test_a_sweep_shows_its_own_options_and_those_of_run_that_are_used_most() -> None:
    text = shown("sweep", "--help")
    assert "--max-batch-size" in text
    assert "--repeats" in text
    assert "--dp-shard" not in text
    assert "--tokenizer" in shown("sweep", "--help-all")
    assert "--nproc" not in [name for param in sweep.command.params for name in param.opts]
