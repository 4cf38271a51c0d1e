"""What can be judged again, and which part is meant."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.audit.one_part import PASSES
from llmb.audit.rule import PartFinding
from llmb.config import FP16, Mode, Parallelism, Precision
from llmb.errors import UsageError
from llmb.reproduction import one_part
from tests import builders

NAMES = one_part.parameters(builders.make_record())
UP = "model.layers.3.mlp.up_proj.weight"


def finding(part: str) -> PartFinding:
    return PartFinding(part, "gradient", "4 bits", "7 bits", "6 bits", kept=False, badness=2.0)


@pytest.mark.parametrize("wanted", [UP, UP[:-7], UP[6:], "layers.3.mlp.up_proj"])
def test_a_part_is_named_in_full_or_as_short_as_it_can_be_told(wanted: str) -> None:
    assert one_part.resolve(wanted, NAMES) == UP


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("layers.3.mlp.up_prj", "nearest: layers.3.mlp.up_proj"),
        ("up_proj", "name one"),
        ("", "no such part"),
    ],
)
def test_another_name_is_refused_with_the_nearest_ones(wanted: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        one_part.resolve(wanted, NAMES)


def test_the_accused_part_is_the_worst_by_its_canonical_name() -> None:
    found = [finding(f"wrapped.{UP}"), finding("lm_head.weight")]
    assert one_part.accused(found, NAMES) == UP


@pytest.mark.parametrize(
    ("found", "said"),
    [([], "accuses no part"), ([finding("model.layers.3.mlp.gate_up")], "form of its own")],
)
def test_where_no_part_is_accused_the_user_names_one(found: list[PartFinding], said: str) -> None:
    with pytest.raises(UsageError, match=f"{said}.*--part"):
        one_part.accused(found, NAMES)


def test_a_rule_about_the_whole_run_is_refused_and_the_others_are_named() -> None:
    with pytest.raises(UsageError, match=", ".join(PASSES)):
        one_part.check(builders.make_record(), "T1")


@pytest.mark.parametrize(
    ("rule", "changes", "said"),
    [
        ("E1", {"mode": Mode.FORWARD}, "mode forward"),
        ("E1", {"parallelism": Parallelism(dp_replicate=2)}, "2 ranks"),
        ("E2", {"precision": Precision(name="ACME5", bits=5, dtype="bfloat16")}, "format"),
        ("L1", {"precision": FP16}, "no part of a step can be compared"),
    ],
)
def test_what_has_no_parts_is_refused_before_anything_is_done(
    rule: str, changes: dict[str, Any], said: str
) -> None:
    record = builders.make_record()
    config = record.config.model_copy(update=changes)
    with pytest.raises(UsageError, match=said):
        one_part.check(record.model_copy(update={"config": config}), rule)
