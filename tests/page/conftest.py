"""A real Chromium, and pages that note everything they must not do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmb.cli.leaderboard import commands
from llmb.records.recomputed_list import Recomputation
from llmb.report.board import board
from llmb.report.page import page
from tests import needs
from tests.unit.builders_board import HOSTILE, believing, judged, put, record

SYSTEMS = (
    # submitter, system, faster, devices, verdict, effective, plugin
    ("acme", "box-8x", 2.0, 8, "CONSISTENT", "BF16", "acme"),
    ("acme", "box-1x", 0.5, 1, "CONSISTENT", "BF16", "acme"),
    ("Beta Lab", "rack", 1.2, 4, "FLAGGED", "BF16", "beta"),
    ("Beta Lab", "desk", 1.19, 1, "UNVERIFIED", "BF16", "beta"),
    ("Gamma", "cluster", 1.5, 8, "CONSISTENT", "FP32", "acme"),
    ("Gamma", "broken", 9.0, 8, "INVALID", "BF16", "acme"),
)


@pytest.fixture(scope="session")
def chromium():
    sync = needs.module("playwright.sync_api")
    found = needs.chromium()
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


class Watched:
    """A page and what it did that it should not: requests, dialogs, messages, errors."""

    def __init__(self, browser, path, **context):
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, **context}
        )
        self.requests, self.dialogs, self.messages = [], [], []
        self.page = self.context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dismiss)
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("popup", lambda popup: self.requests.append(popup.url))
        self.url = path.as_uri()
        self.page.goto(self.url)

    def _dismiss(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def shoot(self, name):
        """Keep a picture where LLMB_SCREENSHOTS says."""
        folder = os.environ.get("LLMB_SCREENSHOTS")
        if folder:
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    def well_behaved(self):
        """Fail if the page loaded, said or asked anything."""
        assert [url for url in self.requests if url.partition("#")[0] != self.url] == []
        assert self.dialogs == []
        assert self.messages == []


@pytest.fixture
def watch(chromium):
    opened = []

    def open_(path, **context):
        opened.append(Watched(chromium, path, **context))
        return opened[-1]

    yield open_
    for one in opened:
        one.context.close()


def written(folder, name="board.html", recomputed=()):
    """Write the leaderboard of the bundles below ``folder`` and return its path.

    Systems named in ``recomputed`` were computed again by somebody else.
    """
    shelf = believing([folder])
    how = Recomputation(llmb_version="0.2.0", date="2026-11-27", steps=3, of_steps=50)
    again = {one.bundle_id: how for one in shelf.entries if one.system in recomputed}
    ranked = board(shelf, recomputed=again)
    path = folder.parent / name
    path.write_text(page(ranked, commands(ranked)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def leaderboard(tmp_path_factory):
    """Six systems in two groups, one of them INVALID, and a damaged bundle."""
    folder = tmp_path_factory.mktemp("page") / "submissions"

    def of(plugin, energy):
        def change(data):
            data["plugin"]["name"] = data["config"]["plugin"] = plugin
            if not energy:
                data["result"]["energy"] = None

        return change

    for number, system in enumerate(SYSTEMS):
        submitter, name, faster, devices, verdict, effective, plugin = system
        one = record(number, faster, verdict, effective, devices, of(plugin, submitter == "acme"))
        diff = "--- model before\n+++ model after\n@@ -1 +1 @@\n-Linear()\n+Fused()\n"
        put(folder, one, submitter, name, **{"model.diff": diff})
    (put(folder, record(9), "Delta", "damaged") / "log.txt").write_text("edited")
    return written(folder)


@pytest.fixture(scope="session")
def levels(leaderboard):
    """The same systems, one of which somebody else has computed again."""
    folder = leaderboard.parent / "submissions"
    return written(folder, "levels.html", recomputed=("rack",))


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    """230 systems in one group, each faster than the one before."""
    folder = tmp_path_factory.mktemp("many") / "submissions"
    for number in range(230):
        put(folder, record(number + 1, 1 + number / 100), "acme", f"box-{number}")
    return written(folder)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """Bundles whose every word tries something."""
    folder = tmp_path_factory.mktemp("hostile") / "submissions"
    attacks = (
        HOSTILE,
        "<svg/onload=alert(1)>",
        "{{7*7}}${alert(1)}",
        "javascript:alert(1)",
        "' autofocus onfocus=alert(1) x='",
        "</style><script>window.hacked=1</script>",
        "\u2028</script><!--<script>",
        "<a href=https://example.com/x>x</a><link rel=stylesheet href=https://example.com/x.css>",
    )

    def of(words):
        def change(data):
            plugin = data["plugin"]
            plugin["name"] = data["config"]["plugin"] = words
            plugin["version"] = plugin["distribution"] = words
            system = data["system"]
            system["devices"][0]["description"] = system["os"] = words
            system["drivers"] = {words: words}
            data["created_utc"] = words
            data["warnings"] = data["audit"]["limits"] = [words] * 2
            data["waivers"] = [words]
            data["result"]["mfu"]["peak_source"] = words
            data["precision"]["effective"] = words[:60]
            for finding in data["audit"]["findings"]:
                finding["message"] = finding["measured"] = finding["observer"] = words
            part = {"version": words, "sha256": words, "bytes": 1, "licence": words}
            plugin["closed_components"] = [{"name": words, "where_to_get": words, **part}]
            plugin["declared_patches"] = [{"target": words, "reason": words}]
            data["diff"]["model"]["modules_added"] = [words]
            data["diff"]["settings"] = [{"name": words, "before": None, "after": words}]

        return change

    for number, words in enumerate(attacks):
        one = record(number, 1 + number / 10, change=of(words))
        texts = {"log.txt": words, "model.diff": f"+{words}\n", "settings.diff": f"-{words}\n"}
        put(folder, one, words.replace("/", "|") or "x", words.replace("/", "|"), **texts)
    put(folder, record(90, change=lambda data: judged(data, "INVALID")))
    return written(folder)
