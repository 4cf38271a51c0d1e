"""Results, comparisons and verified bundles, from files on a disk."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import llmb
from llmb.errors import BundleRefusedError, RequirementError, UnavailableError, UsageError
from llmb.records.canonical import pretty_bytes
from llmb.records.run_record import RunRecord
from tests import builders, committed, needs
from tests.unit.builders_page import HOSTILE, hostile
from tests.unit.report.test_run_page import ALLOWED, Elements

#: llama-1.4b on four cores, and on two.
FAST, SLOW = committed.OF_0_1_0, next(iter(committed.bundles()), Path())


def record_file(folder: Path, record: RunRecord) -> Path:
    (folder / "record.json").write_bytes(pretty_bytes(record))
    return folder / "record.json"


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zips") / "fast.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(one for one in FAST.rglob("*") if one.is_file()):
            archive.write(file, file.relative_to(FAST))
    return path


# -- llmb.load --------------------------------------------------------------------------------


def test_a_run_is_the_same_from_a_folder_a_zip_and_a_record(zipped: Path) -> None:
    folder, zip_, record = map(llmb.load, (FAST, str(zipped), FAST / "record.json"))
    assert folder.record == zip_.record == record.record
    assert (folder.run_dir, zip_.run_dir, record.run_dir) == (FAST, None, None)
    assert folder.steps == zip_.steps
    assert {step.loss for step in record.steps} == {None}


def test_a_result_has_the_figures_of_its_record() -> None:
    result, data = llmb.load(FAST), json.loads((FAST / "record.json").read_bytes())
    figures = data["result"]
    assert result.run_id == data["run_id"]
    assert result.tokens_per_second == figures["tokens_per_second"]
    assert result.interval == tuple(figures["ci95"])
    assert result.ceiling_share == figures["fraction_of_ceiling"]
    assert result.peak_memory_bytes == figures["peak_memory_bytes"]
    assert (result.verdict, result.is_official) == ("CONSISTENT", True)
    assert len(result.findings) == len(result.audit.findings) == len(data["audit"]["findings"])


def test_the_steps_are_those_of_the_window_with_losses_at_fences() -> None:
    result = llmb.load(FAST)
    timing = result.record.timing
    first, last = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
    assert [step.step for step in result.steps] == [*range(first, last)]
    seconds = [step.seconds for step in result.steps]
    assert sum(filter(None, seconds)) == pytest.approx(
        (timing.stop_ns - timing.start_ns) / 1e9, rel=0.01
    )
    assert result.steps[-1].loss == timing.loss_last
    read = [step.step + 1 for step in result.steps if step.loss is not None]
    assert read == [count for count in timing.fence_steps if first < count <= last]
    audited = [step.step for step in result.steps if step.audited]
    assert audited == [step for step in timing.audited_steps if first <= step < last]


def test_a_drawn_learning_rate_is_that_of_the_step() -> None:
    from llmb.records.draws import Draws

    bundle = committed.bundles("llama-45m")[0]
    result = llmb.load(bundle)
    timing = result.record.timing
    drawn = Draws(timing.nonce or "", result.record.workload.optimizer, ledger=True)
    assert [step.learning_rate for step in result.steps] == [
        drawn.rate(step.step) for step in result.steps
    ]


@pytest.mark.parametrize("path", ["nothing", "."])
def test_where_no_run_is_the_error_is_the_commands(path: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as found:
        llmb.load(tmp_path / path)
    assert found.value.exit_code == 2


def test_a_run_is_loaded_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for n in (1, 2):
        shutil.copytree(FAST, tmp_path / f"runs/2026112{n}T000000Z-llama-1.4b-BF16-cpu")
    assert llmb.load("latest").path.name == "20261122T000000Z-llama-1.4b-BF16-cpu"
    assert llmb.compare("latest~1", "20261122").reasons[0].endswith("(one run twice)")
    with pytest.raises(UsageError, match="neither a path nor a run"):
        llmb.load("oldest")


def test_a_result_is_one_readable_line(tmp_path: Path) -> None:
    assert repr(llmb.load(FAST)) == (
        "<llmb run: llama-1.4b train BF16, 127.34 tokens/s, 95 % interval 125.8 to 128.9, "
        f"official, CONSISTENT, {FAST}>"
    )


def test_the_page_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    run = shutil.copytree(FAST, tmp_path / "run")
    with pytest.raises(UsageError, match="no run directory"):
        llmb.load(run).report()
    (run / "MANIFEST.json").unlink()
    result = llmb.load(run)
    assert result.report() == run / "report.html"
    assert result.report(tmp_path / "a.html").read_text() == result.html
    assert (result.command or "").startswith("llmb run --workload llama-1.4b")


# -- llmb.compare -----------------------------------------------------------------------------


def test_a_comparison_has_ratio_interval_and_outcome() -> None:
    found = llmb.compare(FAST, llmb.load(SLOW))
    low, high = found.interval or (0, 0)
    assert found.ratio == pytest.approx(llmb.load(SLOW).tokens_per_second / 127.34, rel=1e-4)
    assert low < (found.ratio or 0) < high < 1
    assert (found.comparable, found.reasons, found.outcome) == (True, (), "worse")
    assert found.ratios["peak_memory_bytes"].ratio < 1
    assert f"{found.ratio:.4g} times the base's tokens/s" in repr(found)


def test_different_work_has_no_ratio_and_says_why() -> None:
    (other,) = committed.bundles("gpt2-125m")
    found = llmb.compare(FAST, other)
    assert (found.comparable, found.ratio, found.interval) == (False, None, None)
    assert found.reasons[0].startswith("workload: llama-1.4b against gpt2-125m")
    assert "workload: llama-1.4b" in repr(found)


def test_conditions_are_those_of_the_command() -> None:
    found = llmb.compare(FAST, SLOW)
    ratio = found.ratio or 0
    found.require(f"tokens_per_second>={0.9 * ratio:.3f}*base", "verdict==CONSISTENT")
    with pytest.raises(RequirementError, match="1 of 2 conditions not met: ") as error:
        found.require(f"tokens_per_second>={1.1 * ratio:.3f}*base", "verdict==CONSISTENT")
    assert error.value.exit_code == 7
    with pytest.raises(UsageError):
        found.require("speed>1")


def test_a_condition_on_runs_that_are_not_compared_is_not_met() -> None:
    (other,) = committed.bundles("gpt2-125m")
    with pytest.raises(RequirementError):
        llmb.compare(FAST, other).require("tokens_per_second>=0.1*base")


def test_a_record_edited_by_hand_is_not_compared(tmp_path: Path) -> None:
    data = json.loads((FAST / "record.json").read_bytes())
    data["result"]["tokens_per_second"] *= 2
    (tmp_path / "record.json").write_text(json.dumps(data))
    with pytest.raises(BundleRefusedError, match="its stamps give"):
        llmb.compare(tmp_path / "record.json", SLOW)


# -- llmb.verify ------------------------------------------------------------------------------


def test_a_good_bundle_is_ok_and_has_its_result() -> None:
    found = llmb.verify(FAST)
    assert (found.ok, found.problems) == (True, ())
    assert found.result is not None
    assert found.result.tokens_per_second == llmb.load(FAST).tokens_per_second
    assert len(found.checks) > 10
    assert repr(found).startswith("<llmb bundle: OK, 15 checks, ")


def test_a_damaged_bundle_is_not_ok_and_says_why(tmp_path: Path) -> None:
    bundle = shutil.copytree(FAST, tmp_path / "bundle")
    (bundle / "log.txt").write_text("another")
    found = llmb.verify(bundle)
    assert (found.ok, found.result, found.bundle_id) == (False, None, None)
    assert found.problems == (
        "readable: 'log.txt' is not the file the manifest lists (digest or size)",
    )
    assert "REFUSED" in repr(found)


def test_a_number_that_does_not_follow_is_a_failed_check(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["result"]["tokens_per_second"] *= 1.01

    record = builders.edited(builders.make_record(), edit)
    found = llmb.verify(builders.write(tmp_path / "bundle", builders.bundle_files(record)))
    assert not found.ok
    assert found.result is not None
    assert any("tokens_per_second" in problem for problem in found.problems)


def test_no_bundle_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        llmb.verify(tmp_path / "nothing.zip")


# -- strangers' words -------------------------------------------------------------------------

#: Elements of a piece of HTML in a notebook.
OF_CARDS = ALLOWED | {"style", "progress"}


@pytest.mark.parametrize("words", HOSTILE)
def test_no_word_of_a_record_becomes_markup_or_moves_a_cursor(words: str, tmp_path: Path) -> None:
    result = llmb.load(record_file(tmp_path, hostile(words)))
    elements = Elements(result._repr_html_())
    assert {tag for tag, _ in elements.found} <= OF_CARDS
    names = {name for _, found in elements.found for name in found}
    usual = Elements(llmb.load(FAST)._repr_html_())
    assert names <= {name for _, found in usual.found for name in found}
    assert repr(result).isprintable()
    assert [c for c in elements.text.replace("\n", "") if not c.isprintable()] == []


@pytest.mark.parametrize("words", HOSTILE)
def test_no_word_of_a_check_becomes_markup(words: str) -> None:
    from llmb.report.card import bundle_card, progress_card
    from llmb.submission.verify import VerifyCheck

    checks = [VerifyCheck(words, ok=False, message=words)]
    page = bundle_card(checks, ok=False) + progress_card(words, 1, 2, [words])
    assert {tag for tag, _ in Elements(page).found} <= OF_CARDS


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["timing"].update(step_ns=[]),
        lambda data: data["timing"]["repeats"][0].update(step_ns=[10**19] * 60),
        lambda data: data["timing"].update(fence_ns=[], fence_steps=[]),
        lambda data: data["audit"].update(findings=[]),
        lambda data: data["result"].update(ci95=None, step_time_s=None, tokens_per_second=1e308),
    ],
)
def test_absurd_numbers_are_shown_or_refused_in_one_line(change: Any, tmp_path: Path) -> None:
    path = record_file(tmp_path, builders.edited(builders.make_record(repeats=1), change))
    result = llmb.load(path)
    assert "tokens/s" in repr(result)
    assert "tokens/s" in result._repr_html_()
    with suppress(BundleRefusedError):
        assert isinstance(result.steps, tuple)


def test_styles_of_a_card_act_inside_of_the_card_alone() -> None:
    page = llmb.load(FAST)._repr_html_()
    style = page.partition("<style>")[2].partition("</style>")[0]
    selectors = [
        one.strip() for rule in style.split("}")[:-1] for one in rule.split("{")[0].split(",")
    ]
    assert all(selector.startswith(".llmb-card") for selector in selectors)
    assert "http" not in page.replace("http://www.w3.org", "")


# -- pandas -----------------------------------------------------------------------------------


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnavailableError, match=r"pip install 'llmb\[pandas\]'"):
        llmb.load(FAST).to_pandas()


def test_a_table_of_steps_has_a_row_per_timed_step() -> None:
    needs.package("pandas")
    frame = llmb.load(FAST).to_pandas()
    assert [*frame.columns] == [
        *("repeat", "step", "seconds", "tokens", "loss", "learning_rate", "audited"),
    ]
    assert len(frame) == 50
    assert frame["loss"].count() == 5


def test_a_table_of_a_comparison_has_a_row_per_run() -> None:
    needs.package("pandas")
    frame = llmb.compare(FAST, SLOW).to_pandas()
    assert [*frame.index] == [str(FAST), str(SLOW)]
    assert frame.loc[str(FAST), "tokens_per_second"] == pytest.approx(127.34, rel=1e-4)
