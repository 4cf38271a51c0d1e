"""Names that judges write out, since they import no torch, are those of whoever leaves evidence."""

from __future__ import annotations

from llmb.audit import equivalence, precision, replay
from llmb.observe import passes, probes, retake, witness
from tests.unit.builders_audit import SMALL


def test_judges_know_the_probes_the_passes_and_the_optimizers_numbers_by_their_names() -> None:
    assert precision.PROBES == probes.PROBES
    assert equivalence.LOSS == passes.LOSS
    assert replay._KINDS == witness.KINDS
    assert (passes.LIVE, passes.STEP) == ("live", "step")


def test_every_class_that_a_border_is_measured_for_has_a_floor() -> None:
    borders = {name for narrower in retake.BORDERS.values() for name in narrower}
    assert borders | set(retake.BORDERS) <= set(precision.FLOORS)


def test_the_parts_of_a_branch_that_are_forward_are_those_it_writes_through() -> None:
    names = [f"branches/{name}" for name in probes.out_projections(SMALL)]
    outs = [f"branches/out/{name}" for name in probes.out_projections(SMALL)]
    assert all(precision._is_forward(name) for name in (*names, *outs, f"head/{probes.OUT}"))
    assert not precision._is_forward(f"branches/{probes.OUT}")
    assert not precision._is_forward("branches/model.layers.0.mlp.up_proj.weight")
