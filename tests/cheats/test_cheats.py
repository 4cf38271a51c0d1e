"""Every forbidden act ends as it must, and no honest one is accused: real runs at tiny shapes."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest

from tests.cheats import runner
from tests.cheats.corpus import CHEATS, INVALID, REFUSED, TWINS, Cheat, Twin

pytestmark = [pytest.mark.cheats, pytest.mark.slow]

#: For each rule and outcome the first act that it must catch, the first of each group, and every
#: tenth twin always run; the others as time allows.
SEEN = [cheat for cheat in reversed(CHEATS) if not cheat.unseen]
ALWAYS = (
    *{(cheat.outcome, cheat.rules[:1]): cheat for cheat in SEEN}.values(),
    *{cheat.group: cheat for cheat in SEEN}.values(),
    *TWINS[::10],
)


def _further(case: Cheat | Twin) -> list[pytest.MarkDecorator]:
    return [] if case in ALWAYS else [pytest.mark.further]


def _case(cheat):
    marks = _further(cheat)
    if cheat.unseen:
        marks.append(pytest.mark.xfail(reason=cheat.unseen, strict=not cheat.at_the_border))
    if cheat.plugin == "clock_preloaded" and shutil.which("cc") is None:
        marks.append(pytest.mark.skip(reason="no C compiler makes the library it preloads"))
    return pytest.param(cheat, id=f"{cheat.plugin}-{cheat.precision}", marks=marks)


@pytest.mark.parametrize("cheat", [_case(cheat) for cheat in CHEATS])
def test_a_forbidden_act_is_caught_by_the_rules_that_are_there_for_it(tmp_path, cheat: Cheat):
    native = "K1" in cheat.rules  # ceilings are measured of native formats only
    ended = runner.run(tmp_path, cheat.plugin, cheat.precision, *cheat.flags, native=native)
    if cheat.outcome == REFUSED:
        assert ended.code == 3, ended.stderr
        return
    assert ended.finished, ended.stderr
    audit = ended.record["audit"]
    caught = {f["id"] for f in audit["findings"] if f["status"] in ("fail", "flag")}
    assert caught >= set(cheat.rules), caught
    assert audit["verdict"] == cheat.outcome
    assert ended.code == (5 if cheat.outcome == INVALID else 0)


def _twin(twin):
    missing = twin.needs is not None and find_spec(twin.needs) is None
    skip = [pytest.mark.skip(reason=f"{twin.needs} is not installed")] if missing else []
    return pytest.param(twin, id=f"{twin.plugin}-{twin.precision}", marks=[*skip, *_further(twin)])


@pytest.mark.parametrize("twin", [_twin(twin) for twin in TWINS])
def test_an_honest_transform_is_accused_of_nothing(tmp_path, twin: Twin):
    ended = runner.run(tmp_path, twin.plugin, twin.precision, *twin.flags)
    assert ended.finished, ended.stderr
    audit = ended.record["audit"]
    accused = [f for f in audit["findings"] if f["status"] in ("fail", "flag")]
    assert not accused
    assert audit["verdict"] == "CONSISTENT", [
        f for f in audit["findings"] if f["status"] == "not_observed"
    ]
    assert ended.record["precision"]["effective"] == twin.precision
    assert ended.code == 0
