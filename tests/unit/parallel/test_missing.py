"""Who is missing follows from readings of signs, and from no clock."""

from __future__ import annotations

import pytest

from llmb.parallel.missing import SILENT, Inquiry, Sign, named, read

LATE = "Timed out waiting 8000ms for recv operation to complete"
CLOSED = "Connection closed by peer"


def inquiry(ranks=range(4)):
    return Inquiry(ranks, 8.0)


def looked(asked, signs, readings=SILENT + 2, first=0, still=()):
    """Show `readings` readings in which every rank but those in `still` gives new signs."""
    for at in range(first, first + readings):
        asked.look(
            [one._replace(beats=0 if r in still else at) for r, one in enumerate(signs)],
        )
    return asked


def test_a_sign_is_read_as_it_was_written():
    sign = Sign(12, LATE, "model.py:40, a\nb")
    assert read(sign.written().encode()) == sign
    assert len(read(Sign(1, "x" * 4000).written().encode()).symptom) == 300


def test_ranks_without_a_new_sign_are_gone_and_none_is_named_before():
    signs = [Sign(symptom=CLOSED), Sign(where="a.py:1, work"), Sign(), Sign()]
    asked = looked(inquiry(), signs, SILENT + 1, still=(1, 3))
    assert asked.gone(0, CLOSED) == asked.hanging(0, CLOSED) == ""
    looked(asked, signs, 1, first=SILENT + 1, still=(1, 3))
    assert asked.gone(0, CLOSED) == (
        "ranks 1, 3 ended while the others were at work, or cannot be reached "
        "(last seen in a.py:1, work; rank 0: Connection closed by peer)"
    )


def test_a_last_sign_that_was_under_way_when_the_alarm_came_keeps_nobody_alive():
    asked = inquiry()
    asked.look([Sign(3), Sign(3), Sign(3), Sign(3)])
    for at in range(4, 5 + SILENT):
        asked.look([Sign(at), Sign(4), Sign(at), Sign(at)])
    assert asked.gone(0, CLOSED).startswith("rank 1 ended")


def test_who_is_alive_and_has_no_error_hangs_and_is_not_called_dead():
    signs = [Sign(symptom=LATE), Sign(symptom=CLOSED), Sign(where="a.py:7, slow"), Sign(0, LATE)]
    asked = looked(inquiry(), signs)
    assert asked.gone(0, LATE) == ""
    assert asked.hanging(0, LATE) == "rank 2 did not come within 8 s: it hangs in a.py:7, slow"


def test_nobody_is_named_as_hanging_while_others_still_come():
    asked = inquiry(range(3))
    late = [Sign(symptom=LATE), Sign(), Sign(where="a.py:7, slow")]
    looked(asked, late, SILENT + 2)
    late[1] = Sign(symptom=LATE)
    looked(asked, late, 1, first=20)
    assert asked.hanging(0, LATE) == ""
    looked(asked, late, 4, first=21)
    assert asked.hanging(0, LATE).startswith("rank 2 did not come")


@pytest.mark.parametrize("others", [Sign(), Sign(symptom=CLOSED)])
def test_a_connection_that_breaks_between_living_ranks_is_nobodys_hanging(others):
    asked = looked(inquiry(range(2)), [Sign(symptom=CLOSED), others])
    assert asked.gone(0, CLOSED) == ""
    assert asked.hanging(0, CLOSED) == f"rank 0 could not communicate: {CLOSED}"


def test_of_many_ranks_the_first_are_named():
    assert named([7]) == "rank 7"
    assert named(range(1, 513)) == "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 504 more"
