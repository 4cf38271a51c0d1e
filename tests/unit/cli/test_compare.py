"""``llmb compare``: tables, JSON, and the exit codes that a contract's script looks at."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from llmb import cli
from llmb.cli import compare
from llmb.comparison import figures
from llmb.errors import BundleRefusedError, RequirementError, UsageError
from llmb.records.canonical import pretty_bytes
from tests.builders import edited
from tests.unit.builders_times import noise, of_workload, record_of
from tests.unit.comparison.test_compare import named, runs

HOSTILE = "evil\x1b[2J\u202e[link=x]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of run directories: base, faster, slower, other, invalid, hostile."""
    where = tmp_path_factory.mktemp("runs")
    invalid = record_of(noise(50, seed=1), edit=named("d", verdict="INVALID"))
    hostile = record_of(*[noise(50, seed=n) for n in range(3)], edit=named("e"))
    records = {
        "base": runs(0.1, name="a"),
        "faster": runs(0.08, seed=20, name="b"),
        "slower": runs(0.12, seed=40, name="c"),
        "other": of_workload("gpt2-125m"),
        "invalid": invalid,
        "hostile": edited(hostile, lambda data: data["plugin"].update(version=HOSTILE)),
    }
    for name, record in records.items():
        (where / name).mkdir()
        (where / name / "record.json").write_bytes(pretty_bytes(record))
    return where


@pytest.fixture(scope="module", autouse=True)
def figures_of_a_record_are_worked_out_once():
    run_of, known = figures.run_of, {}

    def once(record):
        key = pretty_bytes(record)
        if key not in known:
            known[key] = run_of(record)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "run_of", once)
        yield


def call(*words):
    return CliRunner().invoke(
        compare.command, [str(word) for word in words], catch_exceptions=False
    )


def exit_code(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["llmb", "compare", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0


def test_a_run_is_shown_beside_its_base_with_ratios_and_a_conclusion(folder) -> None:
    text = call(folder / "base", folder / "faster").stdout
    (line,) = (one for one in text.splitlines() if one.startswith("tokens_per_second [tokens/s]"))
    assert line.split()[-1] == "better"
    assert "more tokens a second: a difference is shown" in text
    assert "Mann-Whitney" in text
    assert "whether these processes differ, not whether others would" in text
    assert "not compared: " not in text


def test_json_has_everything_that_is_printed(folder) -> None:
    found = json.loads(call(folder / "base", folder / "faster", folder / "slower", "--json").stdout)
    assert found["base"]["figures"]["tokens_per_second"]["ci95"][0] > 0
    faster, slower = found["comparisons"]
    outcomes = [
        next(ratio["outcome"] for ratio in one["ratios"] if ratio["name"] == "tokens_per_second")
        for one in (faster, slower)
    ]
    assert outcomes == ["better", "worse"]
    assert faster["rank_test"]["p_value"] < 0.05
    assert faster["refused"] == []
    assert {one["weight"] for one in faster["differences"]} <= {"noted", "not comparable"}


def test_what_is_refused_ends_with_2_after_the_others_were_shown(folder, monkeypatch, capsys):
    words = (folder / "base", folder / "other", folder / "faster")
    assert exit_code(monkeypatch, *words) == 2
    out, err = capsys.readouterr()
    assert "refused: workload: llama-1.4b against gpt2-125m" in out
    assert "more tokens a second: a difference is shown" in out
    assert err.count("\n") == 1
    assert "is not compared: workload" in err
    assert exit_code(monkeypatch, folder / "base", folder / "invalid") == 2


def test_conditions_that_are_met_end_with_0_and_those_that_are_not_with_7(
    folder, monkeypatch, capsys
) -> None:
    pair = (folder / "base", folder / "slower")
    met = ("--require", "tokens_per_second>=0.7*base", "--require", "verdict==CONSISTENT")
    assert exit_code(monkeypatch, *pair, *met) == 0
    assert capsys.readouterr().out.count("\nmet: ") == 2
    missed = ("--require", "tokens_per_second>=0.95*base", "--require", "step_time_s<=1")
    assert exit_code(monkeypatch, *pair, *missed) == 7
    out, err = capsys.readouterr()
    assert "\nNOT MET: tokens_per_second>=0.95*base (tokens_per_second over base is 0.8" in out
    assert "\nmet: step_time_s<=1 (" in out
    assert err.startswith("llmb: 1 of 2 conditions not met: tokens_per_second>=0.95*base (")
    assert err.count("\n") == 1


def test_conditions_are_for_every_run_but_the_base(folder) -> None:
    with pytest.raises(RequirementError, match="1 of 2 conditions") as caught:
        call(
            folder / "base",
            folder / "faster",
            folder / "slower",
            "--require=tokens_per_second>=1*base",
        )
    assert "slower" in str(caught.value)
    assert "faster" not in str(caught.value)


def test_a_single_run_is_held_to_plain_conditions(folder, tmp_path) -> None:
    found = call(folder / "base", "--require", "verdict==CONSISTENT", "--json")
    assert json.loads(found.stdout)["requirements"][0]["met"] is True
    contract = tmp_path / "contract.toml"
    contract.write_text("require = ['verdict==CONSISTENT', 'tokens_per_second>=1e9']\n")
    with pytest.raises(RequirementError, match="1 of 2"):
        call(folder / "base", "--requirements", contract)


def test_an_invalid_run_misses_a_condition_on_its_verdict_rather_than_being_a_misuse(
    folder, monkeypatch, capsys
) -> None:
    pair = (folder / "base", folder / "invalid", "--require")
    assert exit_code(monkeypatch, *pair, "verdict==CONSISTENT") == 7
    assert exit_code(monkeypatch, *pair, "tokens_per_second>=base") == 2
    assert "not decided: tokens_per_second>=base" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["base"], "name a second run"),
        (["base", "--require", "speed>=1"], "there is no 'speed'"),
        (["base", "faster", "--require", "tokens_per_second>>1"], "NAME OPERATOR VALUE"),
        (["base", "--require", "tokens_per_second>=base"], "one run is given"),
        (["base", "nowhere"], "nowhere"),
        (["base", "faster", "--requirements", "nowhere.toml"], "cannot be read"),
        ([], "BASE"),
    ],
)
def test_misuse_ends_with_2_and_says_what_to_do(folder, monkeypatch, capsys, words, said) -> None:
    monkeypatch.chdir(folder)
    assert exit_code(monkeypatch, *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err


def test_a_forged_headline_ends_with_6(folder, tmp_path) -> None:
    forged = record_of(noise(50, seed=1), edit=lambda d: d["result"].update(tokens_per_second=9e9))
    (tmp_path / "record.json").write_bytes(pretty_bytes(forged))
    with pytest.raises(BundleRefusedError, match="its stamps give"):
        call(folder / "base", tmp_path)


def test_a_strangers_words_act_on_no_terminal(folder) -> None:
    for words in ((), ("--json",)):
        text = call(folder / "base", folder / "hostile", *words).stdout
        assert not {"\x1b", "\u202e"} & set(text)
    assert "[link=x]" in call(folder / "base", folder / "hostile").stdout


def test_conditions_do_not_need_the_runs_to_be_read_to_be_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match="NAME OPERATOR VALUE"):
        call(tmp_path / "nowhere", "--require", "?")


def test_html_writes_a_page_of_every_run_and_the_tables_are_printed_all_the_same(
    folder, tmp_path
) -> None:
    file = tmp_path / "compared.html"
    words = (folder / "base", folder / "faster", folder / "slower")
    condition = ("--require", "tokens_per_second>=0.7*base")
    done = call(*words, *condition, "--html", file)
    assert f"page: {file}" in done.stdout
    assert "a difference is shown" in done.stdout
    page = file.read_text(encoding="utf-8")
    assert "more tokens a second: a difference is shown" in page
    assert "fewer tokens a second: a difference is shown" in page
    assert page.count("✓ met") == 2
    assert page.count('class="ratio-better"') > 0 < page.count('class="ratio-worse"')


def test_html_with_json_prints_json_alone(folder, tmp_path) -> None:
    words = (folder / "base", folder / "faster", "--html", tmp_path / "page.html", "--json")
    assert json.loads(call(*words).stdout)["schema"] == "llmb.compare/1"


def test_html_shows_what_is_refused_and_no_word_becomes_markup(folder, tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    evil = "<script>alert(1)<script>\u202e"
    (tmp_path / evil).symlink_to(folder / "hostile")
    monkeypatch.chdir(tmp_path)
    words = (folder / "base", folder / "other", evil, "--html", file)
    assert exit_code(monkeypatch, *words) == 2
    page = file.read_text(encoding="utf-8")
    assert "refused: workload" in page
    assert "&lt;script&gt;alert(1)&lt;script&gt;" in page
    assert [part for part in ("<script", "\u202e", "\x1b") if part in page] == []


@pytest.mark.parametrize("count", [1, 9])
def test_html_is_for_two_to_eight_runs(folder, tmp_path, monkeypatch, capsys, count) -> None:
    words = [folder / "base"] * count + ["--require", "tokens_per_second>=1"]
    assert exit_code(monkeypatch, *words, "--html", tmp_path / "page.html") == 2
    assert f"for 2 to 8 runs, not for {count}" in capsys.readouterr().err
