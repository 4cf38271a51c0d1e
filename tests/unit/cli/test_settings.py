"""Defaults from llmb.toml and variables: the command line wins, and files gain no power."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from llmb import cli
from llmb.cli import run, settings, settings_file
from llmb.config import OFFICIAL_WORKLOAD, RunRequest
from llmb.errors import UsageError

Parse = Callable[..., click.Context]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def parse() -> Parse:
    """Return the context of ``llmb run WORDS`` in the current folder."""

    def parsed(*words: str) -> click.Context:
        with click.Context(cli.llmb, auto_envvar_prefix="LLMB") as root:
            settings.load(root, "run", run.command)
            return run.command.make_context("run", list(words), parent=root)

    return parsed


def asked(ctx: click.Context) -> RunRequest:
    flags = dict(ctx.params)
    run._within_s(ctx, flags)
    return run.request_of(ctx, flags)


def written(text: str, name: str = "llmb.toml") -> Path:
    Path(name).write_text(text)
    return Path(name)


def test_the_command_line_beats_a_variable_and_a_variable_beats_the_file(
    parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    written('[run]\nprecision = "FP32"\nrepeats = 2\nplugin-option = ["a=1", "b=2"]\n')
    monkeypatch.setenv("LLMB_RUN_REPEATS", "3")
    request = asked(parse())
    assert (request.precision, request.repeats) == ("FP32", 3)
    assert request.plugin_options == {"a": "1", "b": "2"}
    request = asked(parse("--precision", "BF16", "--repeats", "4", "-O", "c=3"))
    assert (request.precision, request.repeats) == ("BF16", 4)
    assert request.plugin_options == {"c": "3"}


def test_settings_of_a_file_make_the_request_of_the_same_words(parse: Parse) -> None:
    words = ("--precision", "FP32", "--device", "cpu", "--batch-size", "4", "--timed-steps", "60")
    typed = asked(parse(*words))
    written('[run]\nprecision = "FP32"\ndevice = "cpu"\nbatch-size = 4\ntimed-steps = 60\n')
    assert asked(parse()) == typed


def test_a_preset_or_a_time_limit_of_the_command_line_beats_single_options_of_the_file(
    parse: Parse,
) -> None:
    written('[run]\nbatch-size = 64\nworkload = "llama-45m"\n')
    assert asked(parse()).batch_size == 64
    request = asked(parse("--preset", "debug"))
    assert (request.batch_size, request.workload) == (2, "llama-45m")
    assert asked(parse("--preset", "debug", "--batch-size", "3")).batch_size == 3
    assert asked(parse("--within", "5m")).workload == OFFICIAL_WORKLOAD
    written('[run]\nwithin = "5m"\n')
    ctx = parse("--workload", "llama-45m")
    assert run._within_s(ctx, ctx.params) is None
    ctx = parse()
    assert run._within_s(ctx, ctx.params) == 300


def test_a_recipe_of_the_command_line_beats_the_file(parse: Parse) -> None:
    from llmb.cli import recipe

    written("[run]\ntp = 1\naccumulate = 7\n")
    ctx = parse("--recipe", "nanotron-llama2-7b")
    flags = dict(ctx.params)
    recipe.apply(ctx, flags)
    assert (flags["tp"], flags["accumulate"]) != (1, 7)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "[run]\n\nprezision = 'BF16'\n",
            "llmb.toml:3: prezision is no option of llmb run; did",
        ),
        ("[run]\nbatch_size = 1\n", "llmb.toml:2: batch_size is no option"),
        ("precision = 'BF16'\n", "llmb.toml:1: precision stands outside of a table"),
        ("[rnu]\n", "llmb.toml:1: [rnu] is no command; did you mean run?"),
        ("[verify]\nsigners = 'x'\n", "llmb.toml:1: [verify] is refused"),
        ("run = 1\n", "llmb.toml:1: run is no table"),
        ("[run]\nrepeats = 1.5\n", "llmb.toml:2: repeats = 1.5: '1.5' is not a valid integer"),
        ("[run]\nrepeats = 0\n", "llmb.toml:2: repeats = 0: "),
        ("[run]\nrepeats = [\n1,\n2]\n", "llmb.toml:4: repeats: one value is needed"),
        ("[run]\nprecision = true\n", "write text or a number"),
        ("[run]\nquiet = 1\n", "write true or false"),
        ("[run]\nplugin-option = {a = 1}\n", "write text or a number"),
        ("[run]\nnonce = 'x'\n", "nonce is refused: give it on the command line"),
        ("[run]\ntimestamp = 'http://x'\n", "timestamp is refused"),
        ("[run]\nseed-commitment = 'x'\n", "seed-commitment is refused"),
        ("[run]\ndata = '/etc/passwd'\n", "data is refused in a file that llmb finds itself"),
        ("[run]\noutput-dir = '/tmp'\n", "names a folder beside the file or below"),
        ("[run]\noutput-dir = '../x'\n", "names a folder beside the file or below"),
        ("[run]\noutput-dir = 'out'\n", "names a folder beside the file or below"),
        ("[run\n", "no valid TOML"),
        ("[run]\na = " + "[" * 5000, "no valid TOML"),
        ("[run]\nx = '\ud800'\n", "no valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(parse: Parse, text: str, part: str) -> None:
    Path("out").symlink_to("/")
    Path("llmb.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UsageError) as refused:
        parse()
    assert part in str(refused.value)


def test_no_file_sets_an_option_for_a_file_to_write(parse: Parse) -> None:
    from llmb.cli.compare import command

    found = settings_file.named(written("[compare]\nhtml = 'x.html'\n"))
    with pytest.raises(UsageError, match="html is refused"):
        settings.defaults(found, "compare", command)


def test_the_nearest_file_up_to_the_root_of_the_repository_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = tmp_path / "repository" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "llmb.toml").write_text("[run]\nrepeats = 1\n")
    monkeypatch.chdir(inner)
    assert settings_file.discovered() is None
    (tmp_path / "repository" / ".git").mkdir()
    assert settings_file.discovered() is None
    (tmp_path / "repository" / "pyproject.toml").write_text("[tool.llmb.run]\noutput-dir = 'r'\n")
    found = settings_file.discovered()
    assert found is not None
    assert found.place("run", "output-dir") == "../pyproject.toml:2"
    assert settings.runs_folder(None) == Path("../r")
    (inner / "pyproject.toml").write_text("[tool.ruff]\n")
    assert settings_file.discovered() == found
    (inner / "llmb.toml").write_text("[run]\n")
    assert str(getattr(settings_file.discovered(), "path", None)) == "llmb.toml"


def test_a_file_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    written("[run]\n")
    monkeypatch.setattr(settings_file, "_trusted", lambda: (Path().stat().st_uid + 1,))
    with pytest.raises(UsageError, match="belongs to another user"):
        settings_file.discovered()


def test_an_unknown_variable_of_the_command_is_refused(
    parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMB_LOAD_PLUGINS", "")
    monkeypatch.setenv("LLMB_RUN_PREZISION", "FP32")
    with pytest.raises(UsageError, match="did you mean LLMB_RUN_PRECISION"):
        parse()


def test_isolated_reads_neither_file_nor_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    written("[list]\nlast = 'wrong'\n")
    monkeypatch.setenv("LLMB_LIST_JSON", "wrong")
    runner = CliRunner()
    assert isinstance(runner.invoke(cli.llmb, ["list"]).exception, UsageError)
    assert runner.invoke(cli.llmb, ["--isolated", "list"]).exit_code == 0


def test_ranks_get_every_setting_as_a_word_and_no_file(
    parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    written('[run]\nprecision = "FP32"\nbatch-size = 8\nquiet = true\nmixed-precision = false\n')
    Path("mine.toml").write_text(Path("llmb.toml").read_text())
    typed = ["--config", "mine.toml", "--repeats=2"]
    ctx = parse(*typed)
    found = settings.words_of_ranks(ctx, settings.given_elsewhere(ctx), ctx.params, typed)
    Path("mine.toml").unlink()
    assert found[:2] == ["--isolated", "run"]
    assert "--no-mixed-precision" in found
    with click.Context(cli.llmb) as root:
        rank = run.command.make_context("run", found[2:], parent=root)
    assert asked(rank) == asked(ctx)
    assert rank.params["quiet"]


def test_config_replaces_the_found_file(parse: Parse) -> None:
    written('[run]\nprecision = "FP32"\nrepeats = 2\noutput-dir = "results"\n')
    written('[run]\nprecision = "BF16"\ndata = "text:x"\n', "mine.toml")
    ctx = parse("--config", "mine.toml")
    assert (ctx.params["precision"], ctx.params["repeats"]) == ("BF16", 1)
    assert (ctx.params["data"], ctx.params["output_dir"]) == ("text:x", Path("results"))


def test_config_show_names_the_source_of_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    written('[run]\nprecision = "FP32"\n\n[list]\nlast = 3\n')
    monkeypatch.setenv("LLMB_RUN_REPEATS", "5")
    runner = CliRunner()
    done = runner.invoke(cli.llmb, ["config", "show", "--json"], catch_exceptions=False)
    commands = json.loads(done.stdout)["commands"]
    assert commands["run"] == [
        {"option": "precision", "value": "FP32", "source": "llmb.toml:2"},
        {"option": "repeats", "value": 5, "source": "LLMB_RUN_REPEATS"},
    ]
    assert commands["list"] == [{"option": "last", "value": 3, "source": "llmb.toml:5"}]
    text = runner.invoke(cli.llmb, ["config", "show", "run"]).stdout
    assert "--batch-size" in text
    with pytest.raises(UsageError, match="did you mean run"):
        runner.invoke(cli.llmb, ["config", "show", "rnu"], catch_exceptions=False)


def test_no_variable_of_an_option_is_a_variable_with_another_meaning() -> None:
    taken = {"LLMB_LOAD_PLUGINS", "LLMB_SOCKET", "LLMB_NONCE", "LLMB_DESCRIPTOR", "LLMB_LAST_LINE"}
    begins = {f"LLMB_{name.upper().replace('-', '_')}_" for name in cli.COMMANDS}
    assert not [name for name in taken for begin in begins if name.startswith(begin)]
    assert "LLMB_ISOLATED" not in taken | set(os.environ)
