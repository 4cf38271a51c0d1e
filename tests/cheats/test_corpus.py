"""The corpus is whole: every group of the catalogue, and every plugin in the table."""

from __future__ import annotations

from llmb.audit.rules import RULES
from llmb.records.finding import Level
from tests.cheats import lies_page, runner, table
from tests.cheats.corpus import (
    BUNDLE,
    CHEATS,
    GROUPS,
    QUICK,
    QUICK_TWINS,
    RECORD,
    TWINS,
    WITHOUT_AN_ACT,
)
from tests.cheats.forgeries import FORGERIES


def test_every_group_of_the_catalogue_has_its_acts():
    groups = [act.group for act in (*CHEATS, *FORGERIES)]
    assert {*groups} == {*GROUPS}
    assert len({cheat.plugin for cheat in CHEATS}) >= 44
    assert len({twin.plugin for twin in TWINS}) >= 14


def test_every_rule_has_an_act_that_it_catches_or_a_reason_why_not():
    caught = {rule for cheat in CHEATS if not cheat.unseen for rule in cheat.rules}
    rules = {rule.id for rule in RULES if rule.level is not Level.NOTE}
    assert rules - caught == {*WITHOUT_AN_ACT}, (
        "add tests/cheats/plugins/<act>.py and its line in tests/cheats/corpus.py, or say in "
        "WITHOUT_AN_ACT there why no act breaks the rule by itself"
    )


def test_every_plugin_is_in_the_table_and_says_what_it_does():
    there = {path.stem for path in runner.PLUGINS.glob("*.py")} - {"kit"}
    assert there == {cheat.plugin for cheat in CHEATS} | {twin.plugin for twin in TWINS}
    assert all(runner.act(plugin).endswith(".") for plugin in there)


def test_the_readme_is_the_table_as_it_is():
    assert table.README.read_text() == table.text(), "python -m tests.cheats.table"


def test_the_page_of_lies_is_the_one_that_the_forgeries_make():
    assert lies_page.PAGE.read_text() == lies_page.text(), "python -m tests.cheats.lies_page"


def test_a_newcomer_sees_an_act_of_every_group_and_an_honest_run_like_it():
    assert {*QUICK} | {RECORD, BUNDLE} == {*GROUPS}
    acts = {(cheat.plugin, cheat.group) for cheat in CHEATS if not cheat.unseen}
    assert {(act, group) for group, (act, _) in QUICK.items()} <= acts
    assert {*QUICK_TWINS} <= {twin for _, twin in QUICK.values()}
    assert {twin for _, twin in QUICK.values()} <= {twin.plugin for twin in TWINS}
