"""The leaderboard as its readers meet it: with mouse or keyboard, on a phone, in the dark."""

from __future__ import annotations

import re

import pytest

from tests.page.reading import CONTRAST

PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "has_touch": True}


def systems(page, group=0):
    """Return the names of the systems shown in a group, from top to bottom."""
    links = page.locator("section.group").nth(group).locator("tbody tr:not([hidden]) th a")
    return links.all_text_contents()


def open_bundle(page, name):
    """Follow the link to a bundle; the page answers a changed address in its own time."""
    page.get_by_role("link", name=name).click()
    page.locator("#bundle h1").wait_for(state="visible")


def choose(page, name, value):
    page.locator(f"#filters [name={name}]").select_option(value)


def test_every_ranked_bundle_is_there_and_nothing_is_loaded_or_said(watch, leaderboard):
    watched = watch(leaderboard)
    assert systems(watched.page) == ["cluster"]
    assert systems(watched.page, 1) == ["box-8x", "rack", "desk", "box-1x"]
    assert "5 of 5 ranked bundles" in watched.page.locator("#count").inner_text()
    apart = watched.page.locator("#not-ranked").inner_text()
    assert "broken" in apart
    assert "INVALID: W1 failed" in apart
    assert "Delta/damaged" in watched.page.locator("#refused").inner_text()
    watched.shoot("ranking-light")
    watched.well_behaved()


def test_a_click_on_a_title_sorts_and_another_turns_it_round(watch, leaderboard):
    page = watch(leaderboard).page
    title = page.locator("section.group").nth(1).get_by_role("columnheader", name="Per device")
    title.get_by_role("button").click()
    assert title.get_attribute("aria-sort") == "descending"
    assert systems(page, 1) == ["desk", "box-1x", "rack", "box-8x"]
    title.get_by_role("button").click()
    assert title.get_attribute("aria-sort") == "ascending"
    assert systems(page, 1) == ["box-8x", "rack", "box-1x", "desk"]
    assert page.locator("[aria-sort]").count() == 2, "one title of each of two tables"
    page.get_by_role("button", name="Reset").click()
    # A form's fields are as they were before the page is told of it.
    page.locator("#count:not(:has-text('ascending'))").wait_for()
    assert systems(page, 1) == ["box-8x", "rack", "desk", "box-1x"]


@pytest.mark.parametrize("descending", [True, False])
def test_what_was_not_measured_is_last_whichever_way_it_is_sorted(watch, leaderboard, descending):
    page = watch(leaderboard).page
    button = page.locator("section.group").nth(1).get_by_role("button", name="Tokens/J")
    button.click()
    if not descending:
        button.click()
    assert set(systems(page, 1)[:2]) == {"box-8x", "box-1x"}


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("workload", "llama-1.4b", {"box-8x", "box-1x", "rack", "desk", "cluster"}),
        ("mode", "train", {"box-8x", "box-1x", "rack", "desk", "cluster"}),
        ("precision", "FP32", {"cluster"}),
        ("plugin", "beta", {"rack", "desk"}),
        ("verdict", "FLAGGED", {"rack"}),
        ("openness", "strict", {"box-8x", "box-1x", "rack", "desk", "cluster"}),
        ("devices", "8", {"box-8x", "cluster"}),
    ],
)
def test_a_filter_leaves_what_fits_and_hides_empty_groups(watch, leaderboard, name, value, left):
    page = watch(leaderboard).page
    choose(page, name, value)
    shown = page.locator("section.group tbody tr:not([hidden]) th a").all_text_contents()
    assert set(shown) == left
    assert f"{len(left)} of 5" in page.locator("#count").inner_text()
    for section in page.locator("section.group:not([hidden])").all():
        assert section.locator("tbody tr:not([hidden])").count() > 0


def test_filters_and_words_add_up_and_none_left_is_said(watch, leaderboard):
    page = watch(leaderboard).page
    choose(page, "plugin", "acme")
    page.get_by_label("Search").fill("BOX acme")
    assert systems(page, 1) == ["box-8x", "box-1x"]
    assert page.locator("section.group:not([hidden])").count() == 1
    page.get_by_label("Search").fill("nobody")
    assert page.get_by_text("No ranked bundle is like that.").is_visible()


def test_charts_follow_the_filter_and_say_what_was_not_measured(watch, leaderboard):
    page = watch(leaderboard).page
    charts = page.locator("section.group").nth(1).locator("figure")
    assert charts.nth(0).locator("rect").count() == 4
    assert charts.nth(1).locator("rect").count() == 2, "two of four measured their energy"
    choose(page, "plugin", "beta")
    assert charts.nth(0).locator("rect").count() == 2
    assert charts.nth(0).locator("rect.marked").count() == 2, "FLAGGED and UNVERIFIED show"
    assert "No bundle shown here has measured its energy." in charts.nth(1).inner_text()


def test_the_page_of_a_bundle_shows_trace_memory_findings_diff_and_command(watch, leaderboard):
    watched = watch(leaderboard)
    page = watched.page
    open_bundle(page, "box-8x")
    bundle = page.locator("#bundle")
    assert bundle.locator("svg circle").count() == 50
    assert "GB" in bundle.locator("figure").nth(1).inner_text()
    assert bundle.locator("pre .add").all_inner_texts() == ["+++ model after", "+Fused()"]
    assert bundle.locator("pre.command").inner_text().startswith("llmb run ")
    assert bundle.locator(".findings tbody tr").count() > 15
    assert "95 % interval" in bundle.inner_text()
    watched.shoot("bundle-light")
    watched.well_behaved()


def test_the_page_of_a_bundle_says_whose_it_is_and_back_leads_to_the_ranking(watch, leaderboard):
    watched = watch(leaderboard)
    page = watched.page
    open_bundle(page, "box-8x")
    bundle = page.locator("#bundle")
    assert bundle.locator("h1").inner_text() == "box-8x: llama-1.4b train BF16"
    assert "box-8x" in page.title()
    page.go_back()
    page.locator("#board").wait_for(state="visible")
    assert not bundle.is_visible()
    watched.well_behaved()


def test_an_address_with_a_bundle_opens_its_page_and_a_wrong_one_the_ranking(watch, leaderboard):
    page = watch(leaderboard).page
    address = page.get_by_role("link", name="rack").get_attribute("href")
    page.goto(page.url.partition("#")[0] + address)
    page.reload()
    assert page.locator("#bundle h1").inner_text().startswith("rack")
    page.evaluate("location.hash = '#b-0123456789abcdef'")
    page.locator("#board").wait_for(state="visible")


def outlined(page):
    return page.evaluate(
        "() => { const s = getComputedStyle(document.activeElement);"
        " return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2; }"
    )


def test_everything_can_be_done_with_the_keyboard_alone(watch, leaderboard):
    page = watch(leaderboard).page
    focused = "() => document.activeElement.textContent.trim()"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Skip to the ranking"
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "() => document.activeElement.name || document.activeElement.textContent.trim()"
            )
        )
        assert outlined(page), f"{seen[-1]} shows no focus"
        if seen[-1] == "Per device":
            break
    filters = [
        "search",
        "workload",
        "mode",
        "precision",
        "plugin",
        "verdict",
        "openness",
        "devices",
    ]
    assert [name for name in seen if name in filters] == filters, "in the order they are seen"
    page.keyboard.press("Enter")
    assert page.locator("[aria-sort=descending]").count() == 2
    while page.evaluate(focused) != "cluster":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    # The page answers a changed address, which the browser tells it in its own time.
    page.locator("h1:focus").wait_for()
    page.keyboard.press("Escape")
    page.locator("#board").wait_for(state="visible")
    page.locator("a:focus", has_text=re.compile("^cluster$")).wait_for()  # back where they were


def test_every_field_has_a_name_and_every_table_titles(watch, leaderboard):
    page = watch(leaderboard).page
    unnamed = "els => els.filter(e => !e.labels.length || !e.labels[0].textContent.trim()).length"
    assert page.locator("#filters input, #filters select").evaluate_all(unnamed) == 0
    assert page.locator("thead th:not([scope=col])").count() == 0
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("main:visible").count() == 1


@pytest.mark.parametrize("where", ["ranking", "bundle"])
def test_a_phone_shows_everything_without_scrolling_sideways(watch, leaderboard, where):
    watched = watch(leaderboard, **PHONE)
    page = watched.page
    if where == "bundle":
        open_bundle(page, "box-8x")
    else:
        assert page.locator("section.group tbody tr td.tps").count() == 5
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0
    watched.shoot(f"{where}-phone")


@pytest.mark.parametrize("where", ["ranking", "bundle"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(watch, leaderboard, scheme, where):
    watched = watch(leaderboard, color_scheme=scheme)
    if where == "bundle":
        open_bundle(watched.page, "rack")
    paper = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
    levels = [int(level) for level in re.findall(r"\d+", paper)]
    assert (sum(levels) > 600) == (scheme == "light")
    assert watched.page.evaluate(CONTRAST) == []
    watched.shoot(f"{where}-{scheme}")


def test_without_a_script_the_ranking_can_be_read(watch, leaderboard):
    watched = watch(leaderboard, java_script_enabled=False)
    page = watched.page
    assert systems(page, 1) == ["box-8x", "rack", "desk", "box-1x"]
    assert not page.locator("#filters").is_visible()
    assert "Without JavaScript" in page.locator("noscript").text_content()
    watched.shoot("ranking-without-script")


def test_printed_there_are_no_controls_and_every_row(watch, leaderboard):
    watched = watch(leaderboard)
    watched.page.emulate_media(media="print")
    assert not watched.page.locator("#filters").is_visible()
    assert systems(watched.page, 1) == ["box-8x", "rack", "desk", "box-1x"]
    watched.shoot("ranking-print")


def test_hostile_words_do_nothing_anywhere(watch, hostile):
    watched = watch(hostile)
    page = watched.page
    before = page.evaluate("document.querySelectorAll('script').length")
    links = page.locator("#board a[href^='#b-']").evaluate_all("els => els.map(e => e.hash)")
    assert len(links) == 9
    for link in links:
        page.evaluate("hash => { location.hash = hash; }", link)
        page.locator("#bundle h1").wait_for(state="visible")
        page.locator("#bundle summary").evaluate_all("els => els.forEach(e => e.click())")
        strange = "img, iframe, script, style, link, object, form, a:not([href='#board'])"
        assert page.locator(f"#bundle :is({strange})").count() == 0
        page.keyboard.press("Escape")
        page.locator("#board").wait_for(state="visible")
    page.get_by_label("Search").fill("<svg/onload=alert(1)>")
    for name in ("precision", "plugin"):
        for value in page.locator(f"[name={name}] option").evaluate_all(
            "els => els.map(e => e.value)"
        ):
            choose(page, name, value)
    assert page.evaluate("document.querySelectorAll('script').length") == before
    assert page.evaluate("window.hacked") is None
    watched.shoot("hostile")
    watched.well_behaved()


def test_the_policy_stops_what_escaping_would_not(watch, leaderboard, tmp_path):
    """The second wall alone: the same page with a script, a style and a picture put into it."""
    attack = (
        "<script>window.hacked = 1</script><p id=x style='color: red' onclick='hacked = 2'>x</p>"
    )
    attack += "<img src=https://example.com/x.png><style>#x { display: none }</style>"
    broken = tmp_path / "broken.html"
    text = leaderboard.read_text(encoding="utf-8")
    broken.write_text(text.replace('<main id="board"', attack + '<main id="board"', 1), "utf-8")
    watched = watch(broken)
    watched.page.locator("#x").click()
    assert watched.page.evaluate("window.hacked") is None
    assert watched.page.evaluate("getComputedStyle(x).color") != "rgb(255, 0, 0)"
    assert len(watched.messages) >= 4, "each was refused and said so"
    assert watched.page.locator("#filters").is_visible(), "the page's own script runs"


def test_where_somebody_has_computed_again_self_reported_rows_are_hidden_and_counted(watch, levels):
    watched = watch(levels)
    page = watched.page
    assert systems(page) == ["cluster"], "nothing better is there: it is shown"
    assert systems(page, 1) == ["rack"]
    assert "2 of 5 ranked bundles, by rank; 3 self-reported hidden" in page.inner_text("#count")
    page.get_by_role("button", name="Show 3 more").click()
    assert systems(page, 1) == ["rack", "box-8x", "desk", "box-1x"]
    assert "5 of 5 ranked bundles, by rank" in page.inner_text("#count")
    assert not page.locator("#all-levels").is_visible()
    watched.well_behaved()


def test_a_row_says_how_it_came_to_its_level_and_a_level_can_be_chosen(watch, levels):
    page = watch(levels).page
    row = page.locator("section.group").nth(1).locator("tbody tr").first
    # Not inner_text: the browser leaves out the layout of groups below the window.
    assert "recomputed: 3 of 50 steps, 2026-11-27, llmb 0.2.0" in row.text_content()
    choose(page, "trust", "self-reported")
    assert systems(page, 1) == ["box-8x", "desk", "box-1x"]
    page.get_by_role("button", name="Reset").click()
    page.locator("#all-levels").wait_for()
    assert systems(page, 1) == ["rack"]


def test_where_nobody_has_nothing_is_hidden(watch, leaderboard):
    page = watch(leaderboard).page
    assert not page.locator("#all-levels").is_visible()
    assert page.locator("#filters [name=trust]").input_value() == ""


def test_many_rows_are_drawn_in_parts(watch, many):
    page = watch(many).page
    more = page.locator("button.more")
    assert systems(page) == [f"box-{n}" for n in range(229, 129, -1)]
    assert "230 of 230" in page.inner_text("#count")
    assert more.inner_text() == "Show 100 more of 130"
    more.click()
    assert len(systems(page)) == 200
    assert more.inner_text() == "Show 30 more of 30"
    more.click()
    assert len(systems(page)) == 230
    assert not more.is_visible()


def test_many_rows_are_searched_sorted_and_opened_as_one(watch, many):
    watched = watch(many)
    page = watched.page
    page.get_by_label("Search").fill("box-7")
    assert systems(page) == [*(f"box-{n}" for n in range(79, 69, -1)), "box-7"]
    page.get_by_label("Search").fill("")
    choose(page, "sort", "system")
    assert systems(page)[:3] == ["box-0", "box-1", "box-2"]
    open_bundle(page, "box-99")
    assert "box-99" in page.inner_text("#bundle h1")
    assert page.locator("#bundle svg circle").count() == 50
    watched.well_behaved()


def test_without_scripts_a_long_page_shows_the_best_and_says_so(watch, many):
    page = watch(many, java_script_enabled=False).page
    assert len(systems(page)) == 100
    assert "of each group the best 100" in page.locator("noscript").inner_text()
