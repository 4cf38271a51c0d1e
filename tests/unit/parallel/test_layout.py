"""How a model is spread over ranks: what is gathered is given back, unless nothing is."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from llmb.config import Parallelism
from llmb.parallel import layout
from llmb.simulation.private import fake_ranks


@pytest.mark.parametrize(
    ("mesh", "again"),
    [
        (Parallelism(dp_shard=2), True),
        (Parallelism(dp_replicate=2, dp_shard=2), True),
        (Parallelism(dp_shard=2, reshard_after_forward=False), False),
        (Parallelism(dp_replicate=2, tp=2), False),  # nothing is gathered
    ],
)
def test_parameters_are_given_back_after_the_forward_pass_where_they_were_gathered(
    monkeypatch: pytest.MonkeyPatch, mesh: Parallelism, again: bool
) -> None:
    seen: list[bool] = []

    def shard(block: nn.Module, *, reshard_after_forward: bool, **_: Any) -> None:
        seen.append(reshard_after_forward)

    monkeypatch.setattr(layout, "fully_shard", shard)
    monkeypatch.setattr(layout, "slice_model", lambda *_: None)
    monkeypatch.setattr(layout, "found_blocks", lambda *_: (nn.Identity(),))
    monkeypatch.setattr(layout, "_of_shards", lambda model: None)
    ranks: Any = object.__new__(layout.Layout)
    ranks._parallelism, ranks.pipeline = mesh, None
    ranks._config = SimpleNamespace(executor="eager")
    ranks.mesh = SimpleNamespace(part=lambda *names: names)
    ranks.spread(nn.Identity(), SimpleNamespace())
    assert seen == [again, again]


def bare(mesh: Parallelism | None = None, **changes: Any) -> Any:
    """Return a layout of ``mesh`` without any rank but this one."""
    ranks: Any = object.__new__(layout.Layout)
    ranks._parallelism, ranks._parts, ranks._roots = mesh or Parallelism(), 0, ()
    ranks._config = SimpleNamespace(executor="eager", **{"parts": 1, **changes})
    return ranks


@pytest.mark.parametrize(
    ("mesh", "sharded"),
    [
        (Parallelism(), False),
        (Parallelism(dp_replicate=4), False),
        (Parallelism(dp_shard=2), True),
        (Parallelism(tp=2), True),
        (Parallelism(pp=2), True),
    ],
)
def test_only_replicas_have_the_whole_model_each(mesh: Parallelism, sharded: bool) -> None:
    assert bare(mesh).is_sharded is sharded


def test_a_model_that_keeps_gradients_from_the_other_ranks_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    replicated: Any = SimpleNamespace(parameters_to_ignore={"weight", "scale"}, module=model)
    assert layout._left_out(replicated) == ["weight"]
    model.weight.requires_grad_(False)
    assert layout._left_out(replicated) == []


def test_no_hook_of_a_plugin_shares_gradients() -> None:
    with fake_ranks(0, 2):
        ranks = bare(Parallelism(dp_replicate=2))
        group = SimpleNamespace(get_group=lambda: dist.group.WORLD)
        ranks.pipeline = ranks._jitted = None
        ranks.mesh, ranks._device = SimpleNamespace(part=lambda _: group), torch.device("cpu")
        replicated = ranks.program(nn.Linear(2, 2))
        with pytest.raises(RuntimeError, match="once"):
            replicated.register_comm_hook(None, default_hooks.allreduce_hook)


def test_ranks_speak_of_gradients_after_the_last_part_of_each_step_alone() -> None:
    said: list[bool] = []
    ranks = bare(parts=3)

    def silent(last: bool) -> Any:
        said.append(last)
        return nullcontext()

    ranks._silent = silent
    for _ in range(6):
        with ranks.part(nullcontext()):
            pass
    assert said == [False, False, True] * 2


def test_replicas_do_not_speak_before_the_last_part() -> None:
    silence = nullcontext()
    silent = layout._of_replicas(SimpleNamespace(no_sync=lambda: silence))  # type: ignore[arg-type]
    assert silent(False) is silence
    assert silent(True) is not silence


def test_passes_beside_the_steps_are_silent_and_are_no_part_of_one() -> None:
    said: list[bool] = []
    ranks = bare(parts=2)
    ranks._silent = lambda last: said.append(last) or nullcontext()
    with ranks.silence():
        pass
    assert (said, ranks._parts) == ([False], 0)


class Slice:
    """A gradient of which each rank has a summand, or the whole."""

    def __init__(self, partial: bool) -> None:
        self.placements = (SimpleNamespace(is_partial=lambda: partial),)

    def redistribute(self, placements: Any) -> tuple[str, Any]:
        return "summed", placements


@pytest.mark.parametrize(("tp", "summed"), [(2, True), (1, False)])
def test_summands_of_slices_are_added_up_and_whole_gradients_left_alone(
    tp: int, summed: bool
) -> None:
    whole, parts = (
        SimpleNamespace(grad=Slice(partial), placements="as stored") for partial in (False, True)
    )
    before = whole.grad
    model: Any = SimpleNamespace(parameters=lambda: (whole, parts, SimpleNamespace(grad=None)))
    bare(Parallelism(tp=tp)).add_up(model)
    assert whole.grad is before
    assert (parts.grad == ("summed", "as stored")) is summed
