"""Names that judges write out, since they import no torch, are those of whoever leaves evidence."""

from __future__ import annotations

import pytest

from llmb.audit import equivalence, precision, replay
from llmb.observe import passes, probes, step_sampler
from llmb.observe.passes import bare
from llmb.reference.qwen3_shape import Qwen3Shape, TiedQwen3Shape
from llmb.reference.shapes import BertShape, Gpt2Shape
from tests.unit.builders_audit import SMALL


def test_judges_know_the_probes_the_passes_and_the_optimizers_numbers_by_their_names() -> None:
    assert precision.PROBES == probes.PROBES
    assert equivalence.LOSS == passes.LOSS
    assert replay._KINDS == step_sampler.KINDS
    assert (passes.LIVE, passes.STEP) == ("live", "step")


SHAPES = [SMALL, Gpt2Shape(), BertShape(), Qwen3Shape(), TiedQwen3Shape()]


@pytest.mark.parametrize("shape", SHAPES, ids=["llama", "gpt2", "bert", "qwen3", "qwen3-tied"])
def test_the_parts_of_a_branch_that_are_forward_are_those_it_writes_through(shape) -> None:
    parts = probes.parts(shape)
    shown = {f"{probe}/{n}" for probe in probes.PROBES for n, _ in bare(shape).named_parameters()}
    shown |= {f"branches/out/{name}" for name in parts.out}
    written = {key for key in shown if key.endswith(parts.out)}
    assert len(written) == 3 * len(parts.out)
    bits = precision.Bits(dict.fromkeys(shown, 8.0))
    assert {key for key in shown if bits._is_forward(key)} == {*written, f"head/{parts.head}"}
