"""A model cut into stages is the model: the same modules, each in one stage, run one by one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from llmb.config import Parallelism, Schedule
from llmb.errors import UsageError
from llmb.reference.data import make_batch
from llmb.reference.llama import Llama
from llmb.reference.loss import causal_loss
from llmb.reference.models import build
from llmb.reference.shapes import LlamaShape

SHAPE = LlamaShape(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=5,
    num_attention_heads=2,
    num_key_value_heads=2,
    sequence_length=8,
)


def model() -> Llama:
    made = build(SHAPE, 3, torch.float64)
    assert isinstance(made, Llama)
    return made


def stages_of(whole: Llama, count: int) -> list[Llama]:
    from llmb.parallel.pipeline import parts_of, stage_of  # a second: not while collecting

    parts = parts_of(whole, Parallelism(pp=count))
    return [
        stage_of(whole, {path for path, its in parts.items() if its == stage})
        for stage in range(count)
    ]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_stages_one_after_the_other_are_the_whole_model(count: int) -> None:
    whole, batch = model(), make_batch(7, 2, SHAPE)
    alone = whole(batch.ids, labels=batch.labels)
    state = batch.ids
    for stage in stages_of(whole, count):
        state = stage(state)
    loss = causal_loss(state, batch.labels)
    assert torch.equal(loss, alone)
    loss.backward()
    through = {name: p.grad for name, p in whole.named_parameters()}
    whole.zero_grad(set_to_none=True)
    alone.backward()
    for name, parameter in whole.named_parameters():
        assert torch.equal(through[name], parameter.grad), name


@pytest.mark.parametrize("count", [2, 3, 5])
def test_every_parameter_is_in_one_stage_under_its_own_name(count: int) -> None:
    whole = model()
    found = [name for stage in stages_of(whole, count) for name, _ in stage.named_parameters()]
    assert sorted(found) == sorted(name for name, _ in whole.named_parameters())
    objects = dict(whole.named_parameters())
    for stage in stages_of(whole, count):
        assert stage.model.layers, "no stage is without a layer"
        assert all(objects[name] is p for name, p in stage.named_parameters())


def test_what_hangs_on_the_model_is_seen_in_each_stage_and_what_a_stage_gets_stays_its_own() -> (
    None
):
    whole, seen = model(), []

    def note(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        seen.append(type(module).__name__)

    whole.register_forward_pre_hook(note)
    first, second = stages_of(whole, 2)
    first.register_forward_pre_hook(lambda module, given: seen.append("first's own"))
    state = make_batch(7, 2, SHAPE).ids
    second(first(state))
    assert seen == ["Llama", "first's own", "Llama"]
    assert whole.model.embed_tokens is not None
    assert whole.lm_head is not None


def test_a_model_that_is_no_llama_any_more_is_not_cut() -> None:
    from llmb.parallel.pipeline import parts_of

    how = Parallelism(pp=2)
    with pytest.raises(UsageError, match="a Sequential that cannot be cut into stages"):
        parts_of(nn.Sequential(model()), how)
    bound = model()
    bound.forward = bound.forward  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="a Llama that cannot be cut into stages"):
        parts_of(bound, how)


@pytest.mark.parametrize("schedule", get_args(Schedule))
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_each_rank_has_as_many_stages_and_those_of_a_v_meet_on_the_last(
    schedule: Schedule, pp: int
) -> None:
    how = Parallelism(pp=pp, schedule=schedule)
    ranks = [how.rank_of(stage) for stage in range(how.stages)]
    assert {ranks.count(rank) for rank in range(pp)} == {how.stages // pp}
    assert ranks[:pp] == list(range(pp))
    if schedule in ("ZBVZeroBubble", "DualPipeV"):
        assert ranks[pp:] == list(reversed(range(pp)))


def test_without_a_pipeline_there_is_one_stage() -> None:
    assert Parallelism(schedule="DualPipeV").stages == 1


@pytest.fixture
def alone() -> Iterator[DeviceMesh]:
    """The mesh of a pipeline of one rank, in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("pp",))
    dist.destroy_process_group()


@pytest.mark.parametrize("parts", [1, 4])
def test_the_micro_batches_of_a_pipeline_are_one_batch(alone: DeviceMesh, parts: int) -> None:
    from llmb.parallel.pipeline import PipelineProgram

    one, other = model(), model()
    batch = make_batch(11, 4, SHAPE)
    cpu = torch.device("cpu")
    program = PipelineProgram({0: other}, Parallelism(), parts, cpu, alone, lambda *_: alone)
    loss = causal_loss(one(batch.ids), batch.labels)
    loss.backward()
    torch.testing.assert_close(program(batch.ids, batch.labels), loss)
    for mine, its in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(its.grad, mine.grad)


@pytest.mark.parametrize("most", [0.5, 100.0])
def test_gradients_of_all_stages_are_clipped_as_torch_clips_them_and_never_grow(
    alone: DeviceMesh, most: float
) -> None:
    from llmb.parallel.pipeline import Pipeline

    one, other = model(), model()
    for each in (one, other):
        for parameter in each.parameters():
            parameter.grad = torch.full_like(parameter, 0.01)
    nn.utils.clip_grad_norm_(one.parameters(), most)
    rank = SimpleNamespace(_device=torch.device("cpu"), _group=alone.get_group())
    Pipeline.clip_grad_norm(rank, other, most)  # type: ignore[arg-type]
    for mine, its in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(its.grad, mine.grad)
