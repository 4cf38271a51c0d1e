"""README and the pages behind its doors: commands, figures of records, links."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from llmb import cli
from llmb.audit.rules import RULES
from llmb.cli import show
from llmb.cli.run_name import RunName
from llmb.workloads import WORKLOADS
from tests import committed
from tests.cheats import corpus
from tests.pages import ROOT, llmb_words

README = ROOT / "README.md"
NAMES = ("tutorial", "procurement", "vendors", "workloads", "usage", "output", "map")
PAGES = (README, *(ROOT / "docs" / f"{name}.md" for name in NAMES))
#: A README is read on one screen and a bit.
MOST_LINES = 130


EVERY = sorted({tuple(words) for page in PAGES for words in llmb_words(page)})


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_of_the_pages_is_read_by_llmb(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No run is here, and any word may be the name of a run.
    monkeypatch.setattr(RunName, "convert", lambda _, value, *__: Path(value))
    invoked = []
    monkeypatch.setattr(click.Command, "invoke", lambda _, ctx: invoked.append(ctx.info_name))
    done = CliRunner().invoke(cli.llmb, list(words), standalone_mode=False)
    assert done.exception is None, done.exception
    assert words[0] in invoked


def test_the_pages_have_commands_and_the_readme_names_the_demo_first() -> None:
    assert len(EVERY) > 40
    assert next(llmb_words(README)) == ["demo"]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= MOST_LINES


def test_the_three_numbers_of_the_readme_are_counted() -> None:
    unseen = sum(cheat.unseen is not None for cheat in corpus.CHEATS)
    (line,) = (line for line in README.read_text().splitlines() if "audit rules" in line)
    assert re.findall(r"\d+", line) == [str(len(n)) for n in (WORKLOADS, RULES, corpus.CHEATS)]
    assert f"{unseen} of them are [known to pass]" in README.read_text()


ROWS = re.findall(
    r"^\| \[([\w.-]+)\]\((submissions/\S+)/\w+\.\w+\) \| .* \| (\w+) \| ([\d.]+) \| "
    r"([\d.]+) to ([\d.]+) \| ([\d.]+)% \| (\w+) \|$",
    README.read_text(),
    re.MULTILINE,
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1].rpartition("/")[2])
def test_a_row_of_results_is_the_record_of_its_bundle(row: tuple[str, ...]) -> None:
    workload, path, precision, rate, low, high, share, verdict = row
    record = json.loads((ROOT / path / "record.json").read_bytes())
    result = record["result"]
    assert record["workload"]["name"] == workload
    assert (record["precision"]["effective"], record["class"]) == (precision, "official")
    measured = (result["tokens_per_second"], *result["ci95"])
    assert (rate, low, high) == tuple(f"{value:.4g}" for value in measured)
    assert float(share) == round(100 * result["fraction_of_ceiling"], 1)
    assert record["audit"]["verdict"] == verdict


def test_the_results_are_of_more_than_one_workload_and_of_every_repetition() -> None:
    assert len({workload for workload, *_ in ROWS}) > 3
    flagship = {str(ROOT / path) for workload, path, *_ in ROWS if workload == "llama-1.4b"}
    assert flagship >= {*map(str, committed.bundles())}


def test_the_picture_of_the_readme_is_the_present_output_of_a_committed_run() -> None:
    svg = (ROOT / "docs" / "run.svg").read_text()
    texts = "".join(re.findall(r"<text[^>]*>(.*?)</text>", svg))
    drawn = re.sub(r"\s", "", html.unescape(texts))
    bundle = next(path for _, path, *_ in ROWS)
    runner = CliRunner(env={"COLUMNS": "84"})  # as benchmarks/picture.py
    output = runner.invoke(show.command, [str(ROOT / bundle)]).output
    title = f"$ llmb show {bundle.rpartition('/')[2]}"
    assert drawn == "llmb" + re.sub(r"\s", "", title + output)
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "").replace(
        "https://www.textualize.io", ""
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue  # the weekly job of the site follows external links
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings]


#: Words of a reader's own in README's examples -> committed bundles.
SLOWER, FASTER = map(str, committed.slower_and_faster())
OWN = {"RUN_DIR": FASTER, "BUNDLE": FASTER, "BASE": SLOWER, "RUN": FASTER}
#: The readme's other commands make whole runs: tests/e2e/test_demo.py, test_run.py, test_doctor.py.
READ = [words for words in llmb_words(README) if OWN.keys() & {*words}]


@pytest.mark.parametrize("words", READ, ids=lambda words: words[0])
def test_an_example_of_the_readme_that_reads_runs_ends_well(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(cli.llmb, [OWN.get(word, word) for word in words])
    assert done.exit_code == 0, done.output


def test_the_readme_has_an_example_of_each_reading_command() -> None:
    assert [words[0] for words in READ] == ["audit", "compare", "verify"]
