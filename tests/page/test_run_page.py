"""The page of a run in a real Chromium: on a phone, in the dark, by keyboard, and attacked."""

from __future__ import annotations

import pytest

from llmb.report.run_page import run_page
from tests.page.reading import WIDE, readable
from tests.unit.builders_page import HOSTILE, cheating, hostile

PHONE = {"viewport": {"width": 400, "height": 800}}


@pytest.fixture(scope="module")
def run_report(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "report.html"
    path.write_text(run_page(cheating(), "llmb run --workload llama-1.4b"), encoding="utf-8")
    return path


def test_every_part_can_be_read_in_every_look_and_nothing_is_loaded(watch, run_report):
    watched = watch(run_report)
    watched.page.locator("details").evaluate_all("all => all.forEach(e => { e.open = true; })")
    readable(watched, "run")


def test_shapes_lie_where_the_record_says(watch, run_report):
    page = watch(run_report).page
    assert page.locator("#timeline rect.step-audited").count() == 4
    window = page.locator("#timeline rect.window").first.bounding_box()
    step = page.locator("#timeline rect.step-audited").first.bounding_box()
    assert window["x"] < step["x"] < step["x"] + step["width"] < window["x"] + window["width"]
    title = page.locator("#timeline rect.step-audited title").first.text_content()
    assert title.startswith("step 10, ")
    assert page.locator("#steps polyline").first.bounding_box()["width"] > 300
    scale = page.locator("#rule-P1 svg").first
    broken, limit, honest = (
        scale.locator(name).bounding_box()["x"]
        for name in (".mark-broken", ".mark-limit", ".mark-honest")
    )
    assert broken < limit < honest
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert page.locator("article.rule").count() == len(cheating().audit.findings)


def test_the_keyboard_reaches_links_tables_and_details_in_order(watch, run_report):
    page = watch(run_report).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the result"
    seen = []
    for _ in range(120):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "() => { const e = document.activeElement, s = getComputedStyle(e);"
                " return [e.tagName, e.getAttribute('aria-label') || e.textContent.trim(),"
                " s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2]; }"
            )
        )
        if seen[-1][1] == "Command":
            break
    assert all(outlined for *_, outlined in seen)
    names = [name for _, name, _ in seen]
    expected = ["Timeline", "P1", "Rates of the matrix products", "Words of the audit", "Command"]
    assert [name for name in dict.fromkeys(names) if name in expected] == expected
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == "What no audit can see"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")


def test_a_phone_shows_labels_in_full_and_scrolls_a_wide_table_in_its_own_box(watch, run_report):
    page = watch(run_report, **PHONE).page
    outside = """all => all.filter(text => {
      const [own, box] = [text, text.closest('figure')].map(e => e.getBoundingClientRect());
      return own.left < box.left || own.right > box.right || own.height < 10;
    }).map(text => text.textContent)"""
    assert page.locator("figure svg text").count() > 10
    assert page.locator("figure svg text").evaluate_all(outside) == []
    box = page.get_by_role("region", name="Rates of the matrix products")
    box.focus()
    assert box.evaluate("e => e.scrollWidth - e.clientWidth") > 0
    page.keyboard.press("ArrowRight")
    page.wait_for_function("e => e.scrollLeft > 0", arg=box.element_handle())


def test_hostile_words_do_nothing(watch, tmp_path):
    """Each of the words alone is held to be text by the unit tests; here all of them together."""
    path = tmp_path / "report.html"
    path.write_text(run_page(hostile(" ".join(HOSTILE)), " ".join(HOSTILE)), encoding="utf-8")
    watched = watch(path, **PHONE)
    page = watched.page
    page.locator("summary").evaluate_all("all => all.forEach(e => e.click())")
    page.mouse.move(200, 300)
    assert page.evaluate("window.hacked") is None
    shown = page.locator("body").evaluate("body => body.textContent").replace("\n", "")
    assert [character for character in shown if not character.isprintable()] == []
    assert page.locator("script, img, iframe, object, link, form, input, audio").count() == 0
    assert page.evaluate(WIDE) == 0
    watched.well_behaved()
