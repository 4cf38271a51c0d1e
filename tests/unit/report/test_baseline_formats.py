"""Decisions for CI: no text of a record is markup, and the XML is what readers of JUnit take."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from llmb.history.baseline import decide
from llmb.report.baseline_formats import inert_code, junit, markdown
from tests.unit.builders_history import line, lines, noisy

STEADY = lines(noisy(10, deviation=0.005))
HOSTILE = (
    "a|b\n# c <img src=x onerror=alert(1)> [l](javascript:x) ![i](http://x) `q` @octocat #1 "
    "https://evil.example www.evil.example **bold** ]]> &lt; \x1b[2J \u202e \x00 \ufffe"
)
#: Every text of a line that a record's author can choose.
TEXTS = (
    *("run", "workload", "mode", "settings", "precision", "effective_precision", "plugin"),
    *("plugin_version", "device", "cpu", "branch", "rules_version", "llmb_version", "torch"),
)


def decided(rate=900.0, **changes):
    return decide(line(50, rate, **changes), "main", STEADY)


@pytest.fixture(scope="module")
def hostile():
    changes = dict.fromkeys(TEXTS, HOSTILE[:250])
    base = [one.model_copy(update=changes) for one in STEADY]
    found = [decide(line(50, 900.0, **changes), HOSTILE, base)]
    found += [decide(line(50, 900.0, **changes, work="1" * 16), HOSTILE, base)]
    found += [decide(line(50, 900.0, **{**changes, "device": "x"}), HOSTILE, base)]
    return found


def test_a_summary_says_what_was_decided_in_a_table_and_a_sentence() -> None:
    text = markdown([decided()])
    (row,) = re.findall(r"^\| <code>.*$", text, re.MULTILINE)
    assert row.endswith("| CONSISTENT | 🔴 regression |")
    assert "900" in row
    assert "regression&#58; tokens&#47;s &#45;" in text


def test_no_hostile_text_becomes_markup_in_a_summary(hostile) -> None:
    text = markdown(hostile)
    shown = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    tags = set(re.findall(r"</?([a-zA-Z0-9]+)", shown))
    allowed = {"h3", "table", "thead", "tbody", "tr", "th", "td", "code", "ul", "li", "p"}
    assert tags <= allowed
    assert len(re.findall("<tr", shown)) == 1 + len(hostile)
    assert not re.search(r"@octocat|https?://|www\.|\x1b|\u202e|\x00", text)
    assert len(set(re.findall("<td", shown))) == 1


def test_every_sign_that_could_act_is_an_entity() -> None:
    assert inert_code("a|`b`<c>@d") == "<code>a&#124;&#96;b&#96;&#60;c&#62;&#64;d</code>"


#: Element -> attributes that must be there, and further ones that may be (the XML schema of Ant's
#: JUnit task, as Jenkins and GitLab read it).
JUNIT = {
    "testsuites": (set(), set()),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped"}, set()),
    "testcase": ({"classname", "name", "time"}, set()),
    "failure": ({"message", "type"}, set()),
    "skipped": ({"message"}, set()),
    "system-out": (set(), set()),
}


def test_junit_is_well_formed_and_counts_what_it_holds(hostile) -> None:
    root = ElementTree.fromstring(junit(hostile).encode())
    for element in root.iter():
        needed, more = JUNIT[element.tag]
        assert needed <= set(element.attrib) <= needed | more, element.tag
    suite = root.find("testsuite")
    for count, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        assert int(suite.get(count)) == len(suite.findall(f".//{tag}"))
    assert [case.find("failure") is not None for case in suite] == [True, False, False]


def test_an_undecided_run_is_skipped_or_fails_as_asked() -> None:
    undecided = decided(work="1" * 16)
    assert "<skipped" in junit([undecided])
    assert "<failure" in junit([undecided], {"not decided"})
    assert "<failure" not in junit([decided(1000.0)])
