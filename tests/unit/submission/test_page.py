"""The page in a bundle is the record's, word for word, and nothing a stranger writes acts in it."""

from __future__ import annotations

import json
import re

import pytest

from llmb.records.bundle import from_files
from llmb.submission import page
from llmb.submission.verify import verify_bundle
from tests import builders
from tests.builders import with_manifest
from tests.unit.builders_reproduction import ORIGINAL_ID, pair

HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "a link": "[free](javascript:alert(1)) https://evil.example www.evil.example @everyone #1",
    "an image": "![x](https://evil.example/pixel.png)",
    "one backtick": "a`b",
    "backticks": "``` `` `<b>` ````",
    "a backtick first": "`a",
    "a backtick last": "a`",
    "a new line": "a\n# INVALID\n\n    code",
    "a table": "a | b | c",
    "an escape": "\x1b[2J\x1b]0;owned\x07",
    "bidi": "a\u202egnp.exe",
    "invisible": "a\u200b\u2060b\ufeff",
    "an entity": "&lt;b&gt; &#60;",
    "a backslash": "\\`a\\`",
    "spaces": "  a  ",
    "nothing": "",
    "much": "a" * 5000,
}


@pytest.fixture(scope="module")
def record():
    return builders.make_record(repeats=2)


def outside_of_code(text):
    """Return what of a line of Markdown is not in a code span (CommonMark 0.31, section 6.1)."""
    left, place = "", 0
    while place < len(text):
        ticks = re.match("`+", text[place:])
        if ticks is None:
            left, place = left + text[place], place + 1
            continue
        fence = ticks.group()
        close = re.search(f"(?<!`){fence}(?!`)", text[place + len(fence) :])
        assert close, f"an open code span: {text!r}"
        place += len(fence) + close.end()
    return left


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_text_stays_within_one_code_span_of_one_line(attack):
    shown = page.code(HOSTILE[attack])
    assert shown.isprintable()
    assert len(shown) < 350
    left = outside_of_code(f"before {shown} after")
    assert left == ("before (empty) after" if not HOSTILE[attack] else "before  after")


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_text_anywhere_in_a_record_changes_nothing_but_its_own_code_span(record, attack):
    text = HOSTILE[attack]

    def poison(item, key=""):
        if isinstance(item, dict):
            return {name: poison(part, name) for name, part in item.items()}
        if isinstance(item, list):
            return [poison(part, key) for part in item]
        free = {"name", "description", "model", "os", "python", "torch", "message", "version"}
        return text if isinstance(item, str) and key in free else item

    def edit(data):
        for part in ("system", "plugin", "result", "audit"):
            data[part] = poison(data[part])
        data["warnings"] = [text]
        data["plugin"]["closed_components"] = [
            dict.fromkeys(("name", "version", "sha256", "where_to_get", "licence"), text)
            | {"bytes": 1}
        ]

    lines = page.page_bytes(builders.edited(record, edit)).decode().split("\n")
    for line in lines[1:]:
        if not line.startswith("```") and "llmb " not in line[:5]:
            assert not set(outside_of_code(line)) & set("<>[]|\\&@"), line
    plain = page.page_bytes(record).decode().split("\n")
    headings = [line for line in lines if line.startswith("#")]
    assert headings == [line for line in plain if line.startswith("#")]


def test_the_page_says_what_a_reader_wants_to_know(record):
    text = page.page_bytes(record).decode()
    result = record.result
    for words in (
        f"{result.tokens_per_second:,.2f} tokens/s",
        f"95 % interval {result.ci95[0]:,.2f} to {result.ci95[1]:,.2f}",
        "**UNVERIFIED** (a blocking rule could not be observed), official, strict.",
        f"- step: {result.step_time_s.median:.4g} s median",
        "`W1` (block) not observed",
        "`Fast [1]`",
        "option `compile`: `max autotune`",
        "closed components: 0",
        "llmb verify .",
        "llmb reproduce .",
    ):
        assert words in text


def test_the_page_of_a_record_is_the_same_every_time(record):
    again = type(record).model_validate_json(builders.pretty_bytes(record))
    assert page.page_bytes(again) == page.page_bytes(record)
    assert page.fault(page.page_bytes(record), record) is None


def test_the_page_of_a_repetition_says_what_it_repeats_and_how_far_the_two_are_apart():
    original, again = pair(rate=1020.0)
    text = page.page_bytes(again.record).decode()
    for words in (
        f"- bundle `{ORIGINAL_ID}`, run `{original.record.run_id}`",
        "- that has 1,000.00 tokens/s, 95 % interval 990.00 to 1,010.00",
        "- this run differs by +2.00 %",
    ):
        assert words in text
    assert "repeats" not in page.page_bytes(original.record).decode()


def test_a_page_of_an_earlier_version_is_still_checked_and_still_good(record):
    newest = page.page_bytes(record)
    assert newest.startswith(b"<!-- llmb.page/3 -->")
    section = b"## Measured precision\nNot measured.\n\n"
    assert section in newest  # otherwise the page of a run that repeats none is as it was
    first = newest.replace(b"page/3", b"page/1").replace(section, b"")
    assert page.fault(first, record) is None
    assert page.fault(first + b"more", record) is not None


def test_a_bundle_without_a_page_is_as_good_as_before(record):
    files = builders.run_files(record)
    assert verify_bundle(from_files(with_manifest(files))).ok
    assert verify_bundle(
        from_files(with_manifest(files | {"README.md": page.page_bytes(record)}))
    ).ok


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw + b"\nInvalid? No!\n",
        lambda raw: raw.replace(b"UNVERIFIED", b"CONSISTENT"),
        lambda raw: raw.replace(b"page/3", b"page/0"),
        lambda raw: raw.replace(b"page/3", b"page/99"),
        lambda raw: raw.replace(b"\n", b"\r\n"),
        lambda raw: b"",
        lambda raw: b"\xff\xfe",
    ],
)
def test_a_page_that_is_not_the_records_fails_the_check_of_files(record, change):
    changed = change(page.page_bytes(record))
    bundle = from_files(with_manifest(builders.run_files(record) | {"README.md": changed}))
    failed = [check for check in verify_bundle(bundle).checks if not check.ok]
    assert [check.name for check in failed] == ["files"]
    assert "README.md" in failed[0].message


def test_a_page_in_a_run_directory_is_not_taken_for_a_file_of_the_run(record):
    from llmb.submission import layout

    assert not layout.is_known("README.md")
    assert layout.faults([*builders.run_files(record), "README.md"], record) == []
    assert json.loads(builders.run_files(record)["record.json"])
