"""What any rank did is in what is said of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from llmb.audit import optimizer
from llmb.config import Frozen
from llmb.parallel.together import _HOW, glances_of_all, of_all
from llmb.records.audited import AuditedStep, StepsEvidence
from llmb.records.evidence import (
    NamespaceEvidence,
    OperatorTypes,
    OptimizerEvidence,
    ParameterGroup,
    Presence,
    SettingsEvidence,
    Stranger,
    SurroundingsEvidence,
    TypesEvidence,
)
from llmb.records.finding import Status
from llmb.reference.recipe import OFFICIAL_OPTIMIZER

GROUP = ParameterGroup(
    parameters=2,
    lr=OFFICIAL_OPTIMIZER.lr,
    betas=OFFICIAL_OPTIMIZER.betas,
    eps=OFFICIAL_OPTIMIZER.eps,
    weight_decay=OFFICIAL_OPTIMIZER.weight_decay,
    maximize=False,
    foreach=None,
    fused=None,
)
HONEST = OptimizerEvidence(
    class_name="torch.optim.adamw.AdamW",
    class_is_torchs=True,
    step_is_torchs=True,
    instance_overrides=(),
    step_hooks=0,
    trainable=2,
    missing=(),
    repeated=(),
    groups=(GROUP,),
    steps_expected=9,
    steps_min=9,
    steps_max=9,
)


class Ranks:
    """Ranks of which each has said ``every`` already."""

    def __init__(self, every: Sequence[Any]) -> None:
        self._every = every

    def gather(self, value: object) -> list[Any]:
        return [one.model_dump(mode="json") for one in self._every]


def together(*every: Any) -> Any:
    return of_all(Ranks(every), every[-1])  # type: ignore[arg-type]


class Seen(Frozen):
    """Evidence of a kind that is not in this repository."""

    names: tuple[str, ...]
    count: int


def test_of_evidence_that_is_new_each_rank_adds_to_the_tuples_and_rank_0_says_the_rest() -> None:
    every = Seen(names=("a", "b"), count=1), Seen(names=("b", "c"), count=2)
    assert of_all(Ranks(every), every[0]) == Seen(names=("a", "b", "c"), count=1)  # type: ignore[arg-type]


def test_alone_a_rank_speaks_for_itself() -> None:
    assert of_all(None, HONEST) is HONEST


@pytest.mark.parametrize(
    "odd",
    [
        {"class_is_torchs": False, "class_name": "vendor.Adam"},
        {"step_is_torchs": False},
        {"instance_overrides": ("step",)},
        {"step_hooks": 1},
        {"missing": ("lm_head.weight",)},
        {"repeated": ("lm_head.weight",)},
        {"groups": (GROUP.model_copy(update={"lr": 1.0}),)},
        {"steps_min": 8},
        {"steps_min": None},
        {"steps_max": 10},
    ],
    ids=str,
)
def test_an_optimizer_that_is_odd_on_one_rank_is_odd(odd: dict[str, Any]) -> None:
    other = HONEST.model_copy(update=odd)
    for every in ((HONEST, other), (other, HONEST)):
        finding = optimizer.finding(together(*every), OFFICIAL_OPTIMIZER, "optimizer.json")
        assert finding.status is Status.FAIL, finding.message


def test_optimizers_that_are_all_honest_are_honest() -> None:
    assert together(HONEST, HONEST) == HONEST


def types(*kinds: tuple[str, int], **more: Any) -> TypesEvidence:
    executed = tuple(
        OperatorTypes(
            kind="product", operator=name, operands=("float32",), results=("float32",), calls=calls
        )
        for name, calls in kinds
    )
    return TypesEvidence(
        **{
            "executed": executed,
            "compiled": (),
            "compiled_frames": 0,
            "unread_frames": 0,
            **more,
        }
    )


def test_operators_of_every_stage_are_seen_with_the_calls_of_all() -> None:
    first, second = types(("aten::mm", 3)), types(("aten::mm", 2), ("aten::bmm", 1))
    second = second.model_copy(update={"obstacle": "it failed", "omitted": 4})
    found = together(first, second)
    assert {kind.operator: kind.calls for kind in found.executed} == {"aten::mm": 5, "aten::bmm": 1}
    assert (found.obstacle, found.omitted) == ("it failed", 4)


def test_settings_that_one_rank_alone_has_or_changes_are_said() -> None:
    first = SettingsEvidence(before={"a": "1", "rank": "0"}, after={"a": "1", "rank": "0"})
    second = SettingsEvidence(
        before={"a": "1", "rank": "1", "own": "x"}, after={"a": "2", "rank": "1", "own": "x"}
    )
    found = together(first, second)
    assert found.before == {"a": "1", "rank": "0", "own": "x"}
    assert found.after == {"a": "2", "rank": "0", "own": "x"}


def test_parameters_without_a_gradient_are_named_by_the_ranks_that_have_them() -> None:
    def steps(*without: str) -> StepsEvidence:
        step = AuditedStep(
            index=4,
            token_seed=1,
            seed=2,
            weights_kept=True,
            steps_before=4.0,
            without_gradient=without,
            foreach=None,
            fused=None,
            capturable=False,
            segments=(),
        )
        return StepsEvidence(steps=(step,), pause_ns=1, longest_pause_ns=1)

    found = together(steps("a"), steps("a", "b"), steps())
    assert found.steps[0].without_gradient == ("a", "b")


class Glancers:
    """Ranks of which each has found ``every`` changed already, but for rank 0, which asks."""

    def __init__(self, *every: dict[str, torch.Tensor]) -> None:
        self._every = every

    def gather(self, value: object) -> list[Any]:
        return [value, *self._every]


def glance(step: int, then: float, later: float) -> dict[str, torch.Tensor]:
    times = (
        (f"{step}/asked", then),
        (f"{step}/asked before", then),
        (f"{step}/asked after", later),
    )
    return {key: torch.tensor([value]) for key, value in times}


def test_a_gradient_that_another_rank_put_right_takes_the_place_of_rank_0s() -> None:
    mine = glance(3, 1.0, 1.0) | glance(5, 2.0, 2.0)
    assert glances_of_all(None, mine) == {}
    assert glances_of_all(Glancers({}, {}), mine) == {}  # type: ignore[arg-type]
    theirs = glance(5, 7.0, 8.0)
    assert glances_of_all(Glancers({}, theirs), mine) == theirs  # type: ignore[arg-type]
    own = mine | glance(3, 1.0, 4.0)
    assert glances_of_all(Glancers(theirs), own).keys() == own.keys()  # type: ignore[arg-type]


def test_what_surrounds_any_rank_is_said_of_all() -> None:
    alone = SurroundingsEvidence(
        found=(), preloaded=(), frozen_objects=(0, 0), collecting=(True, True), native_threads=None
    )
    odd = Presence(kind="library", name="/opt/acme/libfast.so", origin="unknown")
    beside = alone.model_copy(update={"found": (odd,), "preloaded": (odd,)})
    found = together(alone, beside)
    assert (found.found, found.preloaded) == ((odd,), (odd,))
    off = alone.model_copy(update={"collecting": (True, False)})
    assert together(alone, off).collecting == (True, False)
    more = alone.model_copy(update={"frozen_objects": (3, 9), "native_threads": (4, 6)})
    found = together(alone, more, alone.model_copy(update={"native_threads": (8, 9)}))
    assert (found.frozen_objects, found.native_threads) == ((3, 9), (4, 6))


def test_a_stranger_on_any_rank_is_a_stranger_of_the_run() -> None:
    none = NamespaceEvidence(
        callables=1, operators=1, replaced=(), device_kernels=0, libraries=(), strangers=()
    )
    stranger = Stranger(
        what="gradient", type="acme.Lazy", origin="plugin", distribution=None, first_step=3, looks=2
    )
    assert together(none, none.model_copy(update={"strangers": (stranger,)})).strangers == (
        stranger,
    )


@pytest.mark.parametrize("kind", [kind for kind, (names, _) in _HOW.items() if names])
def test_each_list_of_an_evidence_is_merged_over_the_ranks(kind: type[Frozen]) -> None:
    merged, _ = _HOW[kind]
    lists = {n for n, f in kind.model_fields.items() if str(f.annotation).endswith(", ...]")}
    assert lists == {*merged}
