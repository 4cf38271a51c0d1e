"""The calibrator that is started before its turn."""

from __future__ import annotations

import io
from typing import IO, Any

import pytest

from llmb.errors import RunFailedError
from llmb.supervision.standby import Standby


class Started:
    """The processes that were started, in order."""

    def __init__(self) -> None:
        self.all: list[FakeChild] = []

    def __call__(self, module: str, variables: dict[str, str], log: IO[bytes]) -> Any:
        self.all.append(FakeChild(variables, log))
        return self.all[-1]


class FakeChild:
    def __init__(self, variables: dict[str, str], log: IO[bytes]) -> None:
        self.variables, self.log = dict(variables), log
        self.ended = 0
        self.fails = False

    def begin(self) -> None:
        if self.fails:
            raise RunFailedError("it did not start")
        self.log.write(b"at work\n")

    def end(self) -> None:
        self.log.write(b"ended\n")
        self.ended += 1


@pytest.fixture
def started() -> Started:
    return Started()


def test_the_calibrator_that_waits_is_the_one_that_is_given(started: Started) -> None:
    log = io.BytesIO()
    with Standby(started) as standby:
        standby.prepare({"A": "1"})
        standby.prepare({"A": "1"})
        assert len(started.all) == 1
        with standby.calibrator({"A": "1"}, log) as child:
            assert child is started.all[0]
            assert started.all[0].ended == 0
        assert started.all[0].ended == 1
        with standby.calibrator({"A": "1"}, log) as child:
            assert child is started.all[1], "each is asked once"
    assert [one.ended for one in started.all] == [1, 1]
    assert log.getvalue() == 2 * b"at work\nended\n"


def test_one_that_waits_with_other_variables_is_ended_and_never_asked(started: Started) -> None:
    with Standby(started) as standby:
        standby.prepare({})
        with standby.calibrator({"ACME": "1"}, io.BytesIO()) as child:
            waited, given = started.all
            assert child is given
            assert (waited.ended, given.variables) == (1, {"ACME": "1"})
        assert given.ended == 1


def test_one_that_was_never_needed_is_ended(started: Started) -> None:
    with Standby(started) as standby:
        standby.prepare({})
    assert [one.ended for one in started.all] == [1]


@pytest.mark.parametrize("waits", [True, False])
def test_one_that_does_not_start_is_ended_and_its_output_kept(
    started: Started, *, waits: bool
) -> None:
    def failing(module: str, variables: dict[str, str], log: IO[bytes]) -> Any:
        child = started(module, variables, log)
        child.fails = True
        return child

    log = io.BytesIO()
    with Standby(failing) as standby:
        if waits:
            standby.prepare({})
        with pytest.raises(RunFailedError, match="did not start"), standby.calibrator({}, log):
            pass
    assert (started.all[0].ended, log.getvalue()) == (1, b"ended\n")
