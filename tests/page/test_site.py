"""The documentation site: built as a reader gets it, and looked at in a real Chromium."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.page.conftest import Watched

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("index", "cli", "api", "schemas", "glossary", "how-the-audit-works", "rules")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a site that was built; a broken link is an error there."""
    needs.package("sphinx")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*command, "-c", "docs", ".", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_of_docs_is_on_the_site(site: Path) -> None:
    sources = {path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("docs/**/*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.glob("docs/**/*.html")}
    assert built == sources


@pytest.mark.parametrize("width", [400, 1280])
def test_no_page_is_wider_than_the_screen_or_asks_the_network(chromium, site, width) -> None:
    wide, asked = [], []
    for name in PAGES:
        seen = Watched(
            chromium, site / f"docs/{name}.html", viewport={"width": width, "height": 900}
        )
        if seen.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(name)
        asked += [url for url in seen.requests if not url.startswith("file:")]
        seen.shoot(f"site-{name}-{width}")
        seen.context.close()
    assert (wide, asked) == ([], [])


def test_the_search_finds_a_rule_without_a_network(chromium, site) -> None:
    seen = Watched(chromium, site / "docs/index.html")
    seen.page.locator(".sidebar-search").fill("effective precision")
    seen.page.keyboard.press("Enter")
    # Results appear one after another; the summary counts the pages at the end.
    seen.page.locator("#search-results p.search-summary", has_text="finished").wait_for()
    found = seen.page.locator("ul.search li").all_inner_texts()
    seen.context.close()
    assert any("audit" in each for each in found), found


def test_the_options_of_a_command_are_on_the_site(site: Path) -> None:
    text = (site / "docs/cli.html").read_text()
    assert 'id="cmdoption-llmb-run-precision"' in text
    assert "UsageError" not in text
