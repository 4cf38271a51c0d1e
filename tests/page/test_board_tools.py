"""The leaderboard's address, links to rows, comparisons of chosen rows, and downloads."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from urllib.parse import quote

import pytest

from llmb.comparison.comparability import differences
from llmb.comparison.ratio import ratio_of
from llmb.comparison.stored import stored_figures
from llmb.report import ranking
from llmb.report.board import board
from llmb.report.columns import row_id
from tests.page.conftest import written
from tests.page.reading import CONTRAST, LOOKS, WIDE
from tests.unit.builders_board import HOSTILE, believing, put, record


def ids(page, group=0):
    """Return the ids of the rows shown in a group, from top to bottom."""
    rows = page.locator("section.group").nth(group).locator("tbody tr")
    return rows.evaluate_all("rows => rows.map(row => row.dataset.id)")


def go(page, fragment):
    page.evaluate("to => { location.hash = to; }", fragment)


def settled(page, pattern):
    page.wait_for_function(
        "p => new RegExp(p).test(document.querySelector('main:not([hidden])').innerText)",
        arg=pattern,
    )


def test_filters_and_order_are_in_the_address_and_back_and_reload_follow_it(watch, leaderboard):
    watched = watch(leaderboard)
    page = watched.page
    page.locator("#filters [name=plugin]").select_option("acme")
    page.locator("#filters [name=sort]").select_option("each")
    assert page.url.endswith("#plugin=acme&sort=-each")
    before = ids(page, 1)
    page.reload()
    assert ids(page, 1) == before
    assert page.locator("#filters [name=plugin]").input_value() == "acme"
    page.go_back()
    settled(page, "3 of 5 ranked bundles, by rank")
    page.go_back()
    settled(page, "5 of 5 ranked bundles, by rank")
    watched.well_behaved()


def test_typed_words_are_one_entry_and_a_bundle_leads_back_to_the_same_ranking(watch, leaderboard):
    page = watch(leaderboard).page
    entries = page.evaluate("history.length")
    page.get_by_label("Search").press_sequentially("box-8x", delay=5)
    page.wait_for_function("() => location.hash === '#search=box-8x'")
    assert page.evaluate("history.length") == entries + 1
    page.get_by_role("link", name="box-8x").click()
    page.locator("#bundle h1").wait_for(state="visible")
    page.get_by_role("link", name="All bundles").click()
    settled(page, "1 of 5 ranked bundles")
    assert page.get_by_label("Search").input_value() == "box-8x"


@pytest.mark.parametrize(
    "address",
    [
        f"?verdict={quote(HOSTILE)}#verdict={quote(HOSTILE)}",
        "#workload=__proto__&sort=constructor&chosen=constructor,../../x&x=%E0%A4%A",
        "#sort=--tps&search=" + "x" * 5000,
        "#compare=javascript:alert(1),<img src=x onerror=alert(2)>",
        "#row-0123456789abcdef0123",
        "#javascript:alert(1)",
    ],
)
def test_a_hostile_address_does_nothing_and_is_told(watch, leaderboard, address):
    watched = watch(leaderboard)
    page = watched.page
    page.goto("about:blank")
    page.goto(watched.url + address)
    assert "5 of 5 ranked bundles, by rank" in page.inner_text("#count")
    assert page.locator("#ignored").is_visible()
    assert page.locator("img, iframe, #ignored *").count() == 0
    watched.requests.clear()  # the page itself, by the address with a query
    watched.well_behaved()


def test_a_hostile_search_in_the_address_is_text_in_the_field(watch, leaderboard):
    watched = watch(leaderboard)
    go(watched.page, f"search={quote(HOSTILE)}")
    settled(watched.page, "0 of 5")
    assert watched.page.get_by_label("Search").input_value() == HOSTILE
    watched.well_behaved()


def test_a_link_to_a_row_shows_and_marks_it_wherever_it_stands(watch, many):
    page = watch(many).page
    sought = page.evaluate("Array.from(rowsOf.values())[0][222].dataset.id")
    assert sought not in ids(page)
    go(page, f"row-{sought}{'0' * 48}")  # the whole digest leads there, too
    row = page.locator(f"#row-{sought}")
    row.wait_for(state="visible")
    assert "is-sought" in row.get_attribute("class")
    assert row.evaluate("row => document.activeElement === row")
    top = row.evaluate("row => row.getBoundingClientRect().top")
    assert 0 <= top < 900
    go(page, "board")
    page.wait_for_function("() => !document.querySelector('.is-sought')")


def test_a_link_shows_a_row_that_a_filter_or_its_level_hides_and_one_without_a_rank(watch, levels):
    page = watch(levels).page
    hidden = page.evaluate(
        "Array.from(factsOf).find(([, data]) => data.system === 'box-8x')[0].dataset.id"
    )
    page.locator("#filters [name=plugin]").select_option("beta")
    for sought in (hidden, page.locator("#not-ranked tbody tr").get_attribute("data-id")):
        go(page, f"row-{sought}")
        page.locator(f"#row-{sought}.is-sought").wait_for(state="visible")
        assert page.locator(".is-sought").count() == 1


def test_a_mark_leads_to_its_rule_and_the_filters_stay(watch, leaderboard):
    page = watch(leaderboard).page
    page.locator("#filters [name=verdict]").select_option("UNVERIFIED")
    page.locator("section.group:not([hidden])").get_by_role("link", name="W1").click()
    page.locator("#rule-W1.is-sought").wait_for(state="visible")
    assert "1 of 5" in page.inner_text("#count")
    page.go_back()
    settled(page, "1 of 5")
    assert "INVALID" in page.locator("#not-ranked").inner_text()


def test_chosen_rows_are_compared_and_the_address_holds_the_comparison(watch, leaderboard):
    watched = watch(leaderboard)
    page = watched.page
    for name in ("box-8x", "box-1x", "broken"):
        page.get_by_label(f"Choose {name} for").check()
    assert "3 rows chosen" in page.locator("#chosen").inner_text()
    page.reload()
    assert page.get_by_label("Choose box-1x for").is_checked()
    page.get_by_role("link", name="Compare", exact=True).click()
    settled(page, "Comparison of 3 rows")
    page.reload()
    cards = page.locator(".compared").all_inner_texts()
    assert re.search(r"worse .*fewer tokens a second", cards[0])
    assert "0.250 (0.2" in cards[0]
    assert "no ratio is given" in cards[1]
    assert "verdict: CONSISTENT against INVALID" in cards[1]
    page.get_by_role("link", name="Make this row the base").first.click()
    settled(page, r"4\.000 \(3\.")
    watched.well_behaved()


def test_at_most_eight_rows_are_chosen_and_an_address_with_more_compares_eight(watch, many):
    page = watch(many).page
    nine = ids(page)[:9]
    for sought in nine:
        page.locator(f"#row-{sought} .choose input").click()
    assert page.locator(".choose input:checked").count() == 8
    assert "8 rows chosen, the most" in page.locator("#chosen").inner_text()
    go(page, f"compare={','.join(nine)}")
    settled(page, "Comparison of 8 rows")
    go(page, f"compare={nine[0]},{nine[0]}")
    settled(page, "230 of 230")


@pytest.mark.parametrize("where", ["ranking", "comparison"])
def test_a_comparison_and_chosen_rows_are_readable_on_a_phone_and_in_the_dark(
    watch, leaderboard, where
):
    watched = watch(leaderboard)
    page = watched.page
    every = ",".join(ids(page, 1) + ids(page))
    go(page, f"chosen={every}" if where == "ranking" else f"compare={every}")
    settled(page, "by rank" if where == "ranking" else "Comparison of 5 rows")
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(WIDE) == 0
        assert page.evaluate(CONTRAST) == []
        watched.shoot(f"board-{where}-{width}-{scheme}")
    watched.well_behaved()


def varied():
    """Yield records that differ in every way that a comparison knows."""
    changes = (
        lambda data: None,
        lambda data: data["config"].update(seed=9, executor="inductor"),
        lambda data: data["workload"].update(name="gpt2-1.5b"),
        lambda data: data["workload"].update(mode="forward"),
        lambda data: data["workload"]["shapes"].update(hidden_size=64),
        lambda data: data.update(rules_version="2"),
        lambda data: data.update(rules_version="1"),
        lambda data: data.update({"class": "debug"}),
        lambda data: data.update({"class": "debug", "waivers": ["--steps 5"]}),
        lambda data: data["config"].update(dynamic=True),
        lambda data: data["system"]["drivers"].update({"__proto__": "1", "constructor": "2"}),
        lambda data: data["result"].update(ci95=None),
        lambda data: data["result"].update(energy=None),
        lambda data: data.update(reference_digest="0" * 64),
        lambda data: data["plugin"].update(name=HOSTILE, options={HOSTILE: "1"}),
    )
    for number, change in enumerate(changes):
        yield record(number, 1 + number / 7, change=change)
    for number, verdict in enumerate(("FLAGGED", "UNVERIFIED", "INVALID")):
        yield record(50 + number, verdict=verdict)
    yield record(60, effective=None)
    yield record(61, effective=None)
    yield record(62, effective="FP32", devices=8)


def test_the_page_compares_rows_as_llmb_does(watch, tmp_path):
    folder = tmp_path / "submissions"
    for number, one in enumerate(varied()):
        put(folder, one, "acme", f"box-{number}")
    records = {row_id(row): row.entry.record for row in board(believing([folder])).rows}
    first, *others = sorted(records, key=lambda name: records[name].run_id)
    assert len(others) == 20
    watched = watch(written(folder))
    # Each beside the plain run, and beside its like, such as debug and debug.
    pairs = [(first, other) for other in others] + [(other, first) for other in others]
    pairs += list(pairwise(others))
    told = watched.page.evaluate(
        """pairs => pairs.map(([base, other]) => [
          differencesOf(base, other).map(one => [one.item, one.weight, one.reason]),
          Object.fromEntries(comparisons().titles.map(([n]) => [n, ratioOf(base, other, n)])),
        ])""",
        pairs,
    )
    for (base, other), (found, ratios) in zip(pairs, told, strict=True):
        expected = differences(records[base], records[other])
        assert {tuple(one) for one in found} == {
            (one.item, one.weight.value, one.reason) for one in expected
        }
        a, b = stored_figures(records[base]), stored_figures(records[other])
        for name, got in ratios.items():
            if got is None:
                assert name not in a or name not in b
                continue
            right = ratio_of(a[name], b[name])
            assert (got["ratio"], got["outcome"]) == (pytest.approx(right.ratio), right.outcome)
            assert (got["interval"] is None) == (right.interval is None)
            assert got["interval"] is None or got["interval"] == pytest.approx(
                list(right.interval), rel=1e-4
            )
    watched.well_behaved()


def downloaded(page, name):
    with page.expect_download() as saved:
        page.get_by_role("button", name=name).click()
    return saved.value.path().read_text(encoding="utf-8"), saved.value.suggested_filename


def test_a_download_has_the_rows_that_are_shown_in_their_order(watch, leaderboard):
    page = watch(leaderboard).page
    whole = board(believing([leaderboard.parent / "submissions"]))
    page.locator("#filters [name=plugin]").select_option("acme")
    text, name = downloaded(page, "Download as CSV")
    assert name == "leaderboard.csv"
    lines = ranking.comma_separated(whole).splitlines(keepends=True)
    kept = [line for line in lines[:6] if "cluster" in line or "box-" in line]
    assert text == "".join([lines[0], *kept])
    text, _ = downloaded(page, "Download as JSON")
    groups = ranking.as_data(whole)["groups"]
    expected = [[row for row in one["rows"] if row["plugin"] == "acme"] for one in groups]
    assert [one["rows"] for one in json.loads(text)["groups"]] == expected


def test_hostile_words_stay_words_in_comparisons_figures_and_downloads(watch, hostile):
    watched = watch(hostile)
    page = watched.page
    every = page.evaluate("Object.keys(comparisons().rows)")
    before = page.evaluate("document.querySelectorAll('script').length")
    go(page, f"compare={','.join(every[:8])}")
    settled(page, "Comparison of 8 rows")
    page.locator("#bundle summary").evaluate_all("all => all.forEach(e => e.click())")
    assert page.locator("#bundle :is(img, iframe, script, style, link, object)").count() == 0
    titles = page.locator(".drawing title").all_text_contents()
    assert any("<img src=x" in title for title in titles)
    page.go_back()
    page.locator("#board").wait_for(state="visible")
    text, _ = downloaded(page, "Download as CSV")
    assert text.isprintable() or all(c.isprintable() or c == "\n" for c in text)
    assert downloaded(page, "Download as JSON")[0].isascii()
    assert page.evaluate("document.querySelectorAll('script').length") == before
    watched.requests = [one for one in watched.requests if not one.startswith("blob:")]
    watched.well_behaved()
