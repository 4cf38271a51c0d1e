"""Two bundles of a tree are two runs; of two that share something, the newcomer is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from llmb.records.bundle import from_files
from llmb.submission.clashes import Content, Placed, clashes, content_of
from llmb.submission.history import Arrival
from tests import builders
from tests.builders import with_manifest


def placed(path, run="1", nonces=(), bundle=None, **evidence):
    content = Content(run_id=run, nonces=nonces, evidence=evidence)
    return Placed(path, Path("/tree", path), bundle or path, content)


def found(members, **positions):
    """Return who is refused and why; ``positions`` say when the bundle of a path came."""

    def arrival(place):
        position = positions.get(place.name)
        return None if position is None else Arrival("/tree", position)

    return {place.name: reason for place, reason in clashes(members, arrival).items()}


def test_bundles_that_share_nothing_stay_and_no_history_is_asked_for():
    def arrival(place):
        raise AssertionError(place)

    apart = [placed("a", "1", ("n1",), x="d1"), placed("b", "2", ("n2",), x="d2")]
    assert clashes(apart, arrival) == {}


SHARED = [
    ({"run": "1"}, "run id"),
    ({"nonces": ("n", "m")}, "nonce"),
    ({"x": "digest"}, "x"),
]


@pytest.mark.parametrize(("shared", "words"), SHARED)
def test_of_two_that_share_something_the_newcomer_is_refused(shared, words):
    pair = [
        placed("thief", **{"run": "2", **shared}),
        placed("owner", **{"run": "3", **shared}),
    ]
    assert found(pair, thief=2, owner=1) == {"thief": f"its {words} is that of 'owner'"}
    assert found(pair[::-1], thief=2, owner=1) == {"thief": f"its {words} is that of 'owner'"}
    assert found(pair, owner=1) == {"thief": f"its {words} is that of 'owner'"}


@pytest.mark.parametrize("positions", [{}, {"a": 1, "b": 1}])
def test_where_nothing_decides_none_stays_and_each_message_names_the_other(positions):
    refused = found([placed("a"), placed("b")], **positions)
    nobody = ", and no history tells which was there first"
    assert refused == {
        "a": f"its run id is that of 'b'{nobody}",
        "b": f"its run id is that of 'a'{nobody}",
    }


def test_repositories_are_not_compared():
    whose = {"a": Arrival("/one", 1), "b": Arrival("/two", 2)}
    refused = clashes([placed("a"), placed("b")], lambda place: whose[place.name])
    assert len(refused) == 2


def test_of_many_copies_the_first_alone_stays():
    copies = [placed(name, run=name, x="digest") for name in "abcdefg"]
    assert found(copies, c=1, a=2, b=2) == dict.fromkeys("abdefg", "its x is that of 'c'")
    assert set(found(copies)) == set("abcdefg")


def test_evidence_is_compared_whatever_the_repeat_that_it_is_said_to_be_of():
    refused = found([placed("a", "1", x="digest"), placed("b", "2", y="digest")], a=1)
    assert refused == {"b": "its y is that of 'a'"}


def test_a_folder_and_the_zip_beside_it_are_one_and_a_zip_elsewhere_is_another():
    twins = [placed("a", bundle="id"), placed("a.zip", bundle="id")]
    assert found(twins) == {}
    assert set(found([*twins, placed("b.zip", bundle="id")], a=1)) == {"b.zip"}
    assert set(found([placed("a", bundle="one"), placed("a.zip", bundle="two")], a=1)) == {"a.zip"}


# -- what counts ----------------------------------------------------------------------------------


def arrays(start):
    data = struct.pack("<100f", *(start + n for n in range(100)))
    header = {"a": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


EVERY = ("gradients", "steps", "honest", "reference", "device-reference", "replay", "replayed")
EVERY += ("recomputed", "ledger", "fences")


def content(nonce, **more):
    def give(data):
        for one in (data["timing"], *data["timing"]["repeats"]):
            one["nonce"] = nonce

    record = builders.edited(builders.make_record(repeats=1), give)
    files = builders.run_files(record)
    files |= {f"evidence/repeat-0/{name}.safetensors": arrays(n) for n, name in enumerate(EVERY)}
    files |= {f"evidence/repeat-0/{name}": text for name, text in more.items()}
    return content_of(from_files(with_manifest(files)), record)


def counted(content):
    return {path.rpartition("/")[2].partition(".")[0] for path in content.evidence}


def test_what_follows_from_a_drawn_seed_counts_and_what_honest_runs_share_does_not():
    with_nonce = content("0" * 32, **{"probed.json": b'{"seed": 9223372036854775807}'})
    assert counted(with_nonce) == {*EVERY, "probed"} - {"fences"}
    assert with_nonce.nonces == ("0" * 32,)
    without = content(None)
    drawn = {"probed", "gradients", "steps", "honest", "reference", "device-reference"}
    assert counted(without) == drawn
    assert without.nonces == ()


def test_json_is_compared_by_value():
    one, same, other = (
        content(None, **{"probed.json": text}).evidence["evidence/repeat-0/probed.json"]
        for text in (b'{"a": 1, "b": [2]}', b'{"b":[2],\n"a":1}', b'{"a": 1, "b": [3]}')
    )
    assert one == same != other


def test_what_cannot_be_read_is_left_out():
    broken = content(None, **{"gradients.safetensors": b"junk", "probed.json": b"{"})
    assert counted(broken) == {"steps", "honest", "reference", "device-reference"}
