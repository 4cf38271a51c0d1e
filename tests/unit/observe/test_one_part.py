"""One part of a model: what goes in, what comes out, the gradient, wherever the part is found."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.observe import one_part, probes
from llmb.observe.canonical import Canonical, Origin
from llmb.observe.one_part import PartKeeper
from llmb.observe.passes import Numerics, Sketches, plain_pass
from llmb.records.audited import GRADIENT, INPUT, IS_RIGHT, OUTPUT, OnePart
from llmb.reference.models import build
from tests.unit.builders_audit import SMALL

UP = OnePart(parameter="model.layers.1.mlp.up_proj.weight", passes=("branches",))
LENGTH = SMALL.sequence_length


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        out: Tensor = self.inner(ids, labels=labels)
        return out


def ids(sequences: int) -> Tensor:
    return torch.randint(SMALL.vocab_size, (sequences, LENGTH), generator=torch.manual_seed(1))


def kept(model: nn.Module, module: str | None, sequences: int = 1) -> Mapping[str, Tensor]:
    keeper, tokens = PartKeeper(UP, "measured", module), ids(sequences)
    with keeper.watching(model, "branches", LENGTH):
        model(tokens, labels=tokens)
    return keeper.tensors


@pytest.mark.parametrize("sequences", [1, 3])
def test_the_first_sequence_of_input_and_output_is_kept(sequences: int) -> None:
    found = kept(build(SMALL, 5, torch.float32), None, sequences)
    assert found[f"measured/branches/{INPUT}"].shape == (LENGTH, SMALL.hidden_size)
    weight = build(SMALL, 5, torch.float32).get_parameter(UP.parameter)
    right = F.linear(found[f"measured/branches/{INPUT}"], weight)
    assert torch.allclose(found[f"measured/branches/{OUTPUT}"], right, atol=1e-5)


def test_only_the_first_call_counts_and_no_hook_is_left() -> None:
    model, keeper = build(SMALL, 5, torch.float32), PartKeeper(UP, "measured")
    with keeper.watching(model, "branches", LENGTH):
        model(ids(1), labels=ids(1))
        first = dict(keeper.tensors)
        model(ids(1) * 0, labels=ids(1))
    assert all(torch.equal(first[key], value) for key, value in keeper.tensors.items())
    assert not model.get_submodule(UP.module)._forward_hooks


def test_a_pass_that_was_not_asked_for_leaves_nothing() -> None:
    model, keeper = build(SMALL, 5, torch.float32), PartKeeper(UP, "measured")
    with keeper.watching(model, "live", LENGTH):
        model(ids(1), labels=ids(1))
    assert keeper.tensors == {}


def test_a_wrapped_model_has_the_module_under_a_longer_name() -> None:
    model = build(SMALL, 5, torch.float32)
    origin, wrapped = Origin(model), Around(model)
    seen = one_part.find(UP, wrapped, Canonical(origin, wrapped, None))
    assert (seen.module, seen.why) == (f"inner.{UP.module}", None)
    assert f"measured/branches/{OUTPUT}" in kept(wrapped, seen.module)


def test_a_module_that_was_fused_into_another_is_missing_and_the_reason_names_it() -> None:
    model = build(SMALL, 5, torch.float32)
    origin = Origin(model)
    mlp = model.get_submodule("model.layers.1.mlp")
    mlp.fused, mlp.up_proj = mlp.up_proj, None
    view: Any = SimpleNamespace(padding=())
    seen = one_part.find(UP, model, Canonical(origin, model, {UP.parameter: view}))
    assert seen.module is None
    assert seen.why == f"the post-processed model has no module {UP.module}"


def test_the_reference_shows_the_same_part_and_its_whole_gradient() -> None:
    model, keeper = build(SMALL, 5, torch.float32), PartKeeper(UP, IS_RIGHT)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    batch = probes.batch(3, "branches", SMALL)
    collect = Sketches("branches", 3, SMALL, keep=UP.parameter)
    plain_pass(
        weights.__getitem__,
        SMALL,
        batch,
        Numerics(torch.float32, "cpu"),
        collect,
        watch=lambda made: keeper.watching(made, "branches", LENGTH),
    )
    keeper.gradient("branches", collect.kept)
    model(batch.ids, labels=batch.labels).backward()
    right = model.get_parameter(UP.parameter).grad
    assert right is not None
    assert torch.allclose(keeper.tensors[f"{IS_RIGHT}/branches/{GRADIENT}"], right, atol=1e-6)
    assert {key.split("/")[2] for key in keeper.tensors} == {INPUT, OUTPUT, GRADIENT}
