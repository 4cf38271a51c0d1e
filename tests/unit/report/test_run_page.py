"""The page of a run: what it says, that nothing of a record becomes markup, and how large it is."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from llmb.errors import BundleRefusedError
from llmb.records.run_record import RunRecord
from llmb.report.run_page import rules_of, run_page
from tests import builders
from tests.unit.builders_page import HOSTILE, cheating, hostile, interconnect

_ALLOWED = (
    "html head meta title style body a header h1 p small br nav main section div span dl dt dd "
    "figure figcaption svg rect line polyline circle text ul li h2 h3 h4 b i table thead tbody tr "
    "th td article details summary code pre footer"
)
ALLOWED = {*_ALLOWED.split()}


class Elements(HTMLParser):
    """Every element of a page with its attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return cheating()


@pytest.fixture(scope="module")
def page(record: RunRecord) -> str:
    return run_page(record, "llmb run --workload llama-1.4b")


def test_the_page_has_headline_interval_verdict_class_and_command(
    page: str, record: RunRecord
) -> None:
    text = " ".join(Elements(page).text.split())
    low, high = record.result.ci95 or (0, 0)
    for words in (
        f"{record.result.tokens_per_second:,.0f} tokens/s",
        f"95 % interval {low:,.0f} to {high:,.0f}",
        "INVALID a blocking rule failed official",
        "llmb run --workload llama-1.4b",
        "MFU",
        "20.00 GB of 34.36 GB (58%)",
        "Warnings (declared)",
        "Environment (declared)",
    ):
        assert words in text


def test_a_broken_rule_is_at_the_top_and_links_to_its_scales(page: str) -> None:
    elements = Elements(page)
    links = [found["href"] for tag, found in elements.found if tag == "a"]
    ids = {found.get("id") for _, found in elements.found}
    assert "#rule-P1" in links
    assert {link.removeprefix("#") for link in links if link} <= ids
    assert "measured 4.271 bits" in " ".join(elements.text.split())
    assert 'class="mark-broken"' in page


def test_findings_are_told_by_status_the_worst_first(record: RunRecord) -> None:
    titles = [title for title, _ in rules_of(record)]
    assert titles[0] == "Failed"
    assert titles.index("Failed") < titles.index("Passed")
    assert sum(len(rules) for _, rules in rules_of(record)) == len(record.audit.findings)
    (failed,) = rules_of(record)[0][1]
    assert failed.finding.id == "P1"
    assert failed.causes, "an honest reader is told the likely causes"


def test_ids_are_unique(page: str) -> None:
    ids = [found["id"] for _, found in Elements(page).found if "id" in found]
    assert len(ids) == len(set(ids))


def test_nothing_is_loaded_and_no_script_may_run(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy.group(1)
    assert "script-src &#39;none&#39;" in policy.group(1)
    for tag, found in Elements(page).found:
        assert tag in ALLOWED
        assert not {"src", "style", "srcset", "action", "onclick"} & found.keys()
        assert (found.get("href") or "#").startswith("#")


@pytest.mark.parametrize("words", HOSTILE)
def test_no_word_of_a_record_becomes_markup_or_moves_text(words: str, page: str) -> None:
    attacked = run_page(hostile(words), words)
    elements = Elements(attacked)
    assert {tag for tag, _ in elements.found} <= ALLOWED
    names = {name for _, found in elements.found for name in found}
    assert names <= {name for _, found in Elements(page).found for name in found}
    shown = elements.text.replace("\n", "")
    assert [c for c in shown if not c.isprintable()] == []
    for _, found in elements.found:
        assert all(value is None or value.isprintable() for value in found.values())


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["timing"].update(step_ns=[]),
        lambda data: data["timing"].update(fence_ns=[], fence_steps=[], repeats=[]),
        lambda data: data["timing"].update(start_ns=5, stop_ns=5),
        lambda data: data.update(ceilings=None, precision_recipe=None),
        lambda data: data["topology"].update(ranks=[]),
        lambda data: data["audit"].update(findings=[]),
        lambda data: data["result"].update(ci95=None, step_time_s=None, mfu=None, energy=None),
    ],
)
def test_what_a_record_lacks_is_not_measured_and_the_rest_is_shown(change: Any) -> None:
    page = run_page(builders.edited(builders.make_record(repeats=1), change), None)
    assert "tokens/s" in page
    assert "</html>" in page


def test_each_rank_has_its_memory_its_time_alone_and_the_mesh_is_named() -> None:
    def edit(data: dict[str, Any]) -> None:
        data["config"]["parallelism"] |= {"dp_shard": 2, "tp": 2}
        data["topology"] |= {"world_size": 4, "nodes": 2}
        (first,) = data["topology"]["ranks"]
        data["topology"]["ranks"] = [
            {**first, "rank": n, "alone_s": 0.1 + n / 100, "peak_memory_bytes": (n + 1) * 10**9}
            for n in range(4)
        ]

    page = run_page(builders.edited(builders.make_record(repeats=1), edit), None)
    text = " ".join(Elements(page).text.split())
    assert "Ranks 4 on 2 hosts dp_shard 2, tp 2" in text
    assert "rank 3, fast:0 4.00 GB of 34.36 GB (12%); a step without communication: 130 ms" in text
    assert "Per device" in text


def test_the_links_between_ranks_are_shown_with_each_size_and_each_kind_of_host_once() -> None:
    def edit(data: dict[str, Any]) -> None:
        data["interconnect"] = interconnect()

    page = run_page(builders.edited(builders.make_record(repeats=1), edit), None)
    text = " ".join(Elements(page).text.split())
    assert "nccl, all-reduce 150 GB/s bus at 256 MiB; measured in the plugin's process" in text
    assert "Ranks: 4 on 2 hosts: 0-1; 2-3." in text
    assert "all-gather 1 MiB 10.5 us 10.5 us to 21 us 100 GB/s 150 GB/s" in text
    assert text.count("2 x 10de:2330 class 0302, PCIe 5.0 x16 (now 1.0 x16), NUMA node 1") == 1
    assert "1 pair NV18 (nvidia-smi topo -m)" in text
    assert "infiniband 400 Gb/s" in text


def test_numbers_of_no_run_are_refused_in_one_line() -> None:
    def edit(data: dict[str, Any]) -> None:
        data["timing"]["stop_ns"] = 10**400

    with pytest.raises(BundleRefusedError, match="no page can be made"):
        run_page(builders.edited(builders.make_record(repeats=1), edit), None)


def test_the_largest_page_is_below_a_megabyte() -> None:
    def edit(data: dict[str, Any]) -> None:
        timing = data["timing"]
        timing["repeats"] = timing["repeats"] * 20
        data["audit"]["findings"] *= 20
        for finding in data["audit"]["findings"]:
            finding["message"] = "x" * 100_000
        data["warnings"] = ["y" * 10_000] * 1000
        data["system"]["env"] = {f"V{n}": "z" * 10_000 for n in range(1000)}

    page = run_page(builders.edited(builders.make_record(repeats=3, timed_steps=900), edit), "x")
    assert len(page.encode()) < 1_000_000
