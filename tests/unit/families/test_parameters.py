"""The closed forms of every family are what the models themselves say."""

from __future__ import annotations

import pytest
import torch

from llmb.families import FAMILIES, Slice, family_of
from llmb.reference.models import blocks_of, model_of
from llmb.workloads import WORKLOADS

SHAPES = {name: workload.shape for name, workload in WORKLOADS.items()}
ONE_OF_EACH = {workload.family: workload.shape for workload in WORKLOADS.values()}


@pytest.mark.parametrize("name", SHAPES)
def test_every_parameter_of_every_workload_is_named_with_its_size(name: str) -> None:
    shape = SHAPES[name]
    with torch.device("meta"):
        model = model_of(shape)
    expected = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert family_of(shape).parameter_sizes(shape) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_family_names_is_there(family: str) -> None:
    shape, one = ONE_OF_EACH[family], FAMILIES[family]
    with torch.device("meta"):
        model = model_of(shape)
    parameters = {name for name, _ in model.named_parameters()}
    kinds = one.matrices.keys() - (set() if one.is_gated(shape) else {"gate"})
    assert {one.matrices[kind].format(0) for kind in kinds} <= parameters
    assert one.last_norm in parameters
    parts = one.probe_parts(shape)
    assert {*parts.out, *parts.biases, *parts.embeddings, parts.head} <= parameters
    assert {*parts.gains, *parts.offsets} <= parameters
    assert parts.centred is one.centred
    assert parts.tied is one.tied


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_share_modules_that_are_there_and_leave_no_parameter_out(family: str) -> None:
    shape, one = ONE_OF_EACH[family], FAMILIES[family]
    with torch.device("meta"):
        model = model_of(shape)
    block = next(iter(blocks_of(model, shape)))
    modules = {name for name, _ in block.named_modules()}
    inside = one.slices_of_block(shape)
    assert set(inside) <= modules
    owners = {name.rpartition(".")[0] for name, _ in block.named_parameters()}
    assert owners <= set(inside)
    outside = {n for n, _ in model.named_modules()} | {n for n, _ in model.named_parameters()}
    assert set(one.other_slices) <= outside
    elements = {name for name, how in one.other_slices.items() if how is Slice.ELEMENTS}
    assert elements <= {name for name, _ in model.named_parameters()}
