"""Every forbidden act ends as it must, and no honest one is accused: real runs at tiny shapes."""

from __future__ import annotations

import pytest

from tests import needs
from tests.cheats import runner
from tests.cheats.corpus import (
    CHEATS,
    FAILED,
    INVALID,
    QUICK,
    QUICK_TWINS,
    REFUSED,
    TWINS,
    Cheat,
    Twin,
)

#: The exit code of a run that leaves no record.
_WITHOUT_RECORD = {REFUSED: 3, FAILED: 4}


def _quick(case: Cheat | Twin) -> list[pytest.MarkDecorator]:
    chosen = {*QUICK_TWINS, *(act for act, _ in QUICK.values())}
    return [pytest.mark.quick] if case.plugin in chosen and case.precision == "BF16" else []


def _case(cheat):
    marks = _quick(cheat)
    if cheat.unseen:
        marks.append(pytest.mark.xfail(reason=cheat.unseen, strict=not cheat.at_the_border))
    return pytest.param(cheat, id=f"{cheat.plugin}-{cheat.precision}", marks=marks)


@pytest.mark.parametrize("cheat", [_case(cheat) for cheat in CHEATS])
def test_a_forbidden_act_is_caught_by_the_rules_that_are_there_for_it(tmp_path, cheat: Cheat):
    if cheat.plugin == "clock_preloaded":
        needs.compiler("c")  # makes the library that it preloads
    native = "K1" in cheat.rules  # ceilings are measured of native formats only
    ended = runner.run(tmp_path, cheat.plugin, cheat.precision, *cheat.flags, native=native)
    if cheat.outcome in _WITHOUT_RECORD:
        assert ended.code == _WITHOUT_RECORD[cheat.outcome], ended.stderr
        return
    assert ended.finished, ended.stderr
    audit = ended.record["audit"]
    caught = {f["id"] for f in audit["findings"] if f["status"] in ("fail", "flag")}
    assert caught >= set(cheat.rules), caught
    assert audit["verdict"] == cheat.outcome
    assert ended.code == (5 if cheat.outcome == INVALID else 0)


def _twin(twin):
    return pytest.param(twin, id=f"{twin.plugin}-{twin.precision}", marks=_quick(twin))


@pytest.mark.parametrize("twin", [_twin(twin) for twin in TWINS])
def test_an_honest_transform_is_accused_of_nothing(tmp_path, twin: Twin):
    if twin.needs is not None:
        needs.package(twin.needs)
    ended = runner.run(tmp_path, twin.plugin, twin.precision, *twin.flags)
    assert ended.finished, ended.stderr
    audit = ended.record["audit"]
    accused = [
        f"{f['id']}: {f['message']}" for f in audit["findings"] if f["status"] in ("fail", "flag")
    ]
    assert not accused
    assert audit["verdict"] == "CONSISTENT", [
        f for f in audit["findings"] if f["status"] == "not_observed"
    ]
    assert ended.record["precision"]["effective"] == twin.precision
    assert ended.code == 0
