"""The HTML page: whole in one file, the same every time, and dead to a stranger's words."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from llmb.report import ranking
from llmb.report.board import board
from llmb.report.columns import row_id
from llmb.report.page import page
from tests.unit.builders_board import HOSTILE, believing, judged, put, record

#: Attributes that make a browser fetch something or run something.
ACTIVE = {"src", "srcset", "data", "action", "formaction", "poster", "style", "ping", "background"}


class Parsed(HTMLParser):
    """Every element with its attributes, and the text of style, script and the rest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self._open = [], {"script": [], "style": []}, None
        self.words = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in self.texts:
            self._open = tag
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self._open = None if tag == self._open else self._open

    def handle_data(self, data):
        if self._open:
            self.texts[self._open][-1] += data
        else:
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def everywhere(data):
    """Put hostile words wherever a record takes words."""
    data["plugin"]["name"] = data["config"]["plugin"] = HOSTILE
    data["plugin"]["version"] = data["plugin"]["distribution"] = HOSTILE
    data["system"]["devices"][0]["description"] = HOSTILE
    data["system"]["drivers"] = {HOSTILE: HOSTILE}
    data["system"]["env"] = {"OMP_NUM_THREADS": HOSTILE}
    data["system"]["os"] = data["created_utc"] = HOSTILE
    data["warnings"] = [HOSTILE, "\u2028</ScRiPt ><svg onload=alert(3)>", "<!--<script>"]
    data["waivers"] = [HOSTILE]
    data["audit"]["limits"] = [HOSTILE]
    data["audit"]["findings"][0]["message"] = HOSTILE
    data["audit"]["findings"][0]["measured"] = HOSTILE
    data["result"]["mfu"]["peak_source"] = HOSTILE
    data["plugin"]["closed_components"] = [
        {
            "name": HOSTILE,
            "version": HOSTILE,
            "sha256": HOSTILE,
            "bytes": 1,
            "where_to_get": "javascript:alert(4)",
            "licence": HOSTILE,
        }
    ]


@pytest.fixture
def shown(tmp_path):
    put(tmp_path, record(1, faster=2.0))
    put(tmp_path, record(2, verdict="FLAGGED"))
    texts = {"log.txt": HOSTILE, "model.diff": f"--- a\n+++ b\n+{HOSTILE}\n"}
    put(tmp_path, record(3, faster=0.5, change=everywhere), "M&m's", "<b>box", **texts)
    place = put(tmp_path, record(4), "</table><script>alert(5)<", "x")
    (place / HOSTILE.replace("/", "_")).write_text("x")
    found = board(believing([tmp_path]))
    return page(found, {row.bundle_id: f"llmb run -O x={HOSTILE}" for row in found.rows})


def test_there_is_one_script_one_style_and_nothing_to_fetch(shown):
    parsed = Parsed(shown)
    scripts = [attributes for attributes in parsed.all("script") if "type" not in attributes]
    assert len(scripts) == len(parsed.all("style")) == 1
    assert parsed.all("link") == parsed.all("img") == parsed.all("iframe") == []
    for tag, attributes in parsed.elements:
        assert not ACTIVE & attributes.keys(), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert attributes.get("href", "#").startswith("#")


def test_the_policy_allows_exactly_this_script_and_this_style(shown):
    parsed = Parsed(shown)
    (policy,) = [a["content"] for a in parsed.all("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none'; ")
    kinds = [attributes.get("type") for attributes in parsed.all("script")]
    own = [text for text, kind in zip(parsed.texts["script"], kinds, strict=True) if kind is None]
    for text, directive in ((own[0], "script-src"), (parsed.texts["style"][0], "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def data_blocks(parsed):
    """Return attributes and text of every data block: all scripts but the last."""
    return list(zip(parsed.all("script"), parsed.texts["script"], strict=True))[:-1]


def whole(item, shared):
    """Return ``item`` with the texts that several bundles share in their places."""
    if isinstance(item, str):
        return shared[int(item[1:])] if item.startswith("\ue000") else item
    if isinstance(item, dict):
        return {key: whole(part, shared) for key, part in item.items()}
    return [whole(part, shared) for part in item] if isinstance(item, list) else item


def test_hostile_words_are_text_and_stay_what_they_are(shown):
    parsed = Parsed(shown)
    assert any(HOSTILE in word for word in parsed.words)
    blocks = {a["id"]: json.loads(text) for a, text in data_blocks(parsed)}
    shared = blocks["shared"]
    data = [whole(one, shared) for name, one in blocks.items() if name.startswith("data-")]
    assert len(data) == 3
    assert len(shared) == len(set(shared)) > 0, "what several bundles say is there once"
    worst = next(one for one in data if HOSTILE in one["log"])
    assert worst["command"] == f"llmb run -O x={HOSTILE}"
    assert worst["closed"][0]["where"] == "javascript:alert(4)"
    assert any(HOSTILE in diff["text"] for diff in worst["diffs"])


def test_no_data_block_can_end_or_change_its_script(shown):
    for text in Parsed(shown).texts["script"][:-1]:
        assert not {"<", ">", "&", "\u2028", "\u2029"} & set(text)


def test_no_hidden_character_comes_through(shown):
    assert shown.isascii() or all(c.isprintable() or c == "\n" for c in shown)


def test_rows_are_in_the_page_without_a_script(shown):
    parsed = Parsed(shown)
    rows = [a for a in parsed.all("tr") if "data-id" in a]
    assert [row["data-rank"] for row in rows] == ["1", "2", "3"]
    assert rows[2]["data-system"] == "<b>box"
    assert rows[1]["data-name"] == "FLAGGED"
    assert not any("hidden" in row for row in rows)


def test_the_flagged_row_is_marked_and_a_consistent_one_is_plain(shown):
    marks = [a for a in Parsed(shown).all("span") if a.get("class", "").startswith("verdict")]
    assert marks[0] == {"class": "verdict consistent"}
    assert marks[1]["class"] == "verdict flagged"
    assert "a human should look" in marks[1]["title"]


def test_refused_bundles_are_told_without_their_figures(shown):
    text = " ".join(Parsed(shown).words)
    assert "None of their figures is shown." in text
    assert "holds one of" in text


def test_the_page_is_the_same_every_time(tmp_path):
    put(tmp_path, record(1))
    first, second = (page(board(believing([tmp_path])), {}) for _ in range(2))
    assert first == second
    assert str(tmp_path) not in first


def test_an_endless_diff_is_cut_and_says_so(tmp_path):
    put(tmp_path, record(1), **{"model.diff": "+x\n" * 200_000})
    text = page(board(believing([tmp_path])), {})
    assert len(text) < 200_000
    assert "characters more in the bundle" in text


def test_a_run_is_found_by_its_lowest_measured_format_and_by_that_of_its_largest_share(tmp_path):
    def measured(data):
        shares = [{"format": "FP8", "flops_share": 0.94}, {"format": "BF16", "flops_share": 0.06}]
        data["precision_recipe"] = {
            "rows": [],
            "shares": shares,
            "lowest": "FP8",
            "largest": "FP8",
            "state": [],
        }

    put(tmp_path, record(change=measured))
    shown = Parsed(page(board(believing([tmp_path])), {}))
    (row,) = [attributes for attributes in shown.all("tr") if "data-lowest" in attributes]
    assert (row["data-lowest"], row["data-largest"]) == ("FP8", "FP8")
    assert row["data-measured"] == "94 % FP8, 6 % BF16"
    assert {"lowest", "largest"} <= {one.get("name") for one in shown.all("select")}


def test_every_link_of_the_page_leads_to_a_place_in_the_page(shown):
    parsed = Parsed(shown)
    places = {attributes["id"] for _, attributes in parsed.elements if "id" in attributes}
    links = [a.get("href", "") for a in parsed.all("a")]
    own = [link[1:] for link in links if re.match(r"#(row|why|rule)-", link)]
    assert len(own) > 3
    assert set(own) <= places


def test_every_reason_for_no_rank_is_named_with_its_rule(tmp_path):
    def all_at_once(data):
        judged(data, "INVALID")
        data["class"], data["rules_version"], data["waivers"] = "debug", "1", ["--steps 5"]

    put(tmp_path, record(1, change=all_at_once))
    put(tmp_path, record(2, verdict="UNVERIFIED"))
    parsed = Parsed(page(board(believing([tmp_path])), {}))
    words = " ".join(" ".join(parsed.words).split())
    for reason in ("INVALID : W1 failed", "debug: --steps 5", "rules 1: today's are"):
        assert reason in words
    assert "not observed : W1" in words
    explained = {a.get("id") for a in parsed.all("tr")}
    assert {"why-INVALID", "why-debug", "why-superseded", "why-UNVERIFIED", "rule-W1"} <= explained


def test_a_download_has_the_lines_of_the_csv_with_formulas_made_inert(tmp_path):
    def formula(data):
        data["plugin"]["version"] = "=HYPERLINK(1);+2"

    put(tmp_path, record(1, change=formula), "=cmd", "@box")
    put(tmp_path, record(2, faster=2.0))
    found = board(believing([tmp_path]))
    parsed = Parsed(page(found, {}))
    (lines,) = [json.loads(text) for a, text in data_blocks(parsed) if a["id"] == "lines"]
    ranked = [row_id(row) for _, rows in found.groups for row in rows]
    made = lines["title"] + "".join(lines["rows"][name][0] for name in ranked)
    assert ranking.comma_separated(found).startswith(made)
    assert ",'=HYPERLINK(1);'+2," in made
    named = [dict(zip(lines["fields"], lines["rows"][name][1:], strict=True)) for name in ranked]
    assert named == ranking.as_data(found)["groups"][0]["rows"]
