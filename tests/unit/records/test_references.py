"""Which references compute the same: what the table says, and nothing that it does not say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmb.records import references
from llmb.records.provenance import provenance, same_computation
from llmb.records.references import Confirmed, Reference, ReferenceTable
from tests import builders

RECORD = builders.make_record(repeats=1)
#: llama: code A became B and then C without another number; gpt2 changed for good.
TABLE = ReferenceTable(
    (
        Reference("1.0", "a" * 64, {"llama": "A", "gpt2": "X"}),
        Reference("1.1", "b" * 64, {"llama": "B", "gpt2": "X"}),
        Reference("1.2", "c" * 64, {"llama": "C", "gpt2": "Y", "bert": "Z"}),
        Reference("1.3", "c" * 64, {"llama": "C", "gpt2": "Y", "bert": "Z"}),
    ),
    (Confirmed("llama", "A", "B", "moved"), Confirmed("llama", "B", "C", "renamed")),
)
#: A digest that is in no table.
STRANGE = "0" * 64


def digest(letter: str) -> str:
    return letter * 64


@pytest.mark.parametrize(
    ("family", "one", "other", "reasons"),
    [
        ("llama", "a", "a", ()),
        ("llama", "a", "b", ("moved",)),
        ("llama", "a", "c", ("moved", "renamed")),
        ("gpt2", "a", "b", ()),
        ("gpt2", "b", "c", None),
        ("bert", "a", "c", None),
        ("bert", "c", "c", ()),
        ("mamba", "a", "c", None),
        ("llama", "a", "0", None),
        ("llama", "0", "0", ()),
    ],
)
def test_a_family_is_the_same_where_its_code_is_or_each_change_was_confirmed(
    family: str, one: str, other: str, reasons: tuple[str, ...] | None
) -> None:
    assert TABLE.reasons(family, digest(one), digest(other)) == reasons
    assert TABLE.reasons(family, digest(other), digest(one)) == reasons


def test_a_line_of_one_family_says_nothing_of_another_with_the_same_code() -> None:
    rows = (
        Reference("1", digest("a"), {"llama": "A", "llama-ungated": "A"}),
        Reference("2", digest("b"), {"llama": "B", "llama-ungated": "B"}),
    )
    table = ReferenceTable(rows, (Confirmed("llama", "A", "B", "moved"),))
    assert table.reasons("llama", digest("a"), digest("b")) == ("moved",)
    assert table.reasons("llama-ungated", digest("a"), digest("b")) is None


def test_the_newest_version_of_a_digest_is_found_and_every_version_of_it_is_known() -> None:
    found = TABLE.find(digest("c"))
    assert found is not None
    assert found.version == "1.3"
    assert TABLE.find(STRANGE) is None
    known = [TABLE.has(version, digest("c")) for version in ("1.1", "1.2", "1.3")]
    assert known == [False, True, True]


def test_a_table_with_a_field_too_many_is_not_read() -> None:
    row = {"version": "1", "digest": digest("a"), "families": {}, "more": 1}
    with pytest.raises(TypeError, match="more"):
        references.parse(json.dumps({"references": [row], "confirmed": []}))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "table", lambda: TABLE)


def made(digest: str, version: str = "1.0", **workload: Any) -> Any:
    facts = RECORD.workload.model_copy(update=workload)
    changes = {"reference_digest": digest, "llmb_version": version, "workload": facts}
    return RECORD.model_copy(update=changes)


@pytest.mark.usefixtures("table")
def test_one_line_says_who_made_a_record_and_whether_it_can_be_run_here() -> None:
    same = provenance(made(digest("a")), digest("c"))
    assert same.is_same
    assert str(same) == (
        "made by llmb 1.0 (reference aaaaaaaaaaaa); the llama computation is the same in "
        f"llmb {builders.__version__} (cccccccccccc)"
    )
    other = provenance(made(digest("a"), family="gpt2"), digest("c"))
    assert not other.is_same
    assert "the gpt2 computation is not the same in llmb" in str(other)
    twin = provenance(made(digest("c"), "1.2"), digest("c"))
    assert str(twin) == (
        "made by llmb 1.2 (reference cccccccccccc); "
        f"llmb {builders.__version__} has the same reference"
    )
    own = provenance(made(digest("c"), builders.__version__), digest("c"))
    assert str(own).endswith("(reference cccccccccccc), as here")


@pytest.mark.usefixtures("table")
def test_two_records_compute_the_same_in_one_family_alone() -> None:
    assert same_computation(made(digest("a")), made(digest("c")))
    assert not same_computation(made(digest("a")), made(STRANGE))
    gpt2 = made(digest("a"), family="gpt2")
    assert same_computation(gpt2, made(digest("b"), family="gpt2"))
    assert not same_computation(gpt2, made(digest("a"))), "two families are no one computation"
