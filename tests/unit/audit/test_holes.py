"""What no rule sees is told in order, by rules that exist, and with the tests that show it."""

from __future__ import annotations

from llmb.audit.holes import HOLES
from llmb.audit.rules import RULES
from tests.architecture import rules_page
from tests.cheats.corpus import CHEATS


def test_the_largest_gain_comes_first_and_none_is_below_an_honest_run() -> None:
    gains = [hole.gain for hole in HOLES]
    told = [gain for gain in gains if gain is not None]
    assert told == sorted(told, reverse=True)
    assert min(told) > 1
    assert gains[len(told) :] == [None] * (len(gains) - len(told))


def test_every_hole_names_rules_that_exist_and_fits_a_row() -> None:
    known = {rule.id for rule in RULES}
    for hole in HOLES:
        assert known >= {*hole.rules}, hole
        assert not any("|" in text for text in (hole.saved, hole.where, hole.passes)), hole


def test_every_cheat_that_passes_is_told_with_its_gain() -> None:
    told = {cheat for hole in HOLES for cheat in hole.cheats}
    passing = {cheat.plugin for cheat in CHEATS if cheat.unseen}
    assert told == passing, "name it in llmb/audit/holes.py, or take it out"


def test_a_line_of_a_hole_begins_with_the_gain() -> None:
    (hole,) = (hole for hole in HOLES if "right_logits_by_memory" in hole.cheats)
    assert hole.told().startswith("1.87 times the tokens/s (from bytes): words of an INT8 copy")
    assert HOLES[-1].told().startswith("no gain: ")


def test_a_cheat_that_nobody_has_built_is_not_said_to_pass() -> None:
    (alike,) = (hole for hole in HOLES if hole.gain == 31)
    assert alike.told().endswith("; passes: not built")


def test_the_page_shows_a_hole_of_each_kind() -> None:
    page = rules_page.known(HOLES)
    assert "| 1.87 | bytes | generate | words of an INT8 copy" in page
    assert "| none |  | train | nothing" in page
