"""Tensor parallelism as torch's ``parallelize_module`` does it: ranks share each matrix.

Each block communicates four times a step (GPT-2 blocks more: see ``llmb.families.gpt2``): a sum
after attention and a sum after the feed-forward network, forward and backward. A plan that shards
each projection alone sums the gradient of each projection's input separately, five times a block
(docs/adr/0024). The model family states how each module is shared, such as ``Slice.ROWS``.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from llmb.config import Parallelism
from llmb.errors import UsageError
from llmb.families import Slice, family_of
from llmb.reference.models import blocks_of
from llmb.reference.shapes import Shape


class _Everywhere(ParallelStyle):
    """Every rank has all parameters of the module and computes the same output."""

    def __init__(self, use_local_output: bool = True) -> None:
        self._out = _out if use_local_output else None

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, None, _in, self._out)  # type: ignore[arg-type]


def _in(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    return tuple(DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in inputs)


def _out(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
    return output.to_local()


def found_blocks(model: nn.Module, shape: Shape) -> list[nn.Module]:
    """Return the blocks of ``model``, in order.

    Raises:
        UsageError: the plugin's post-processing has left no blocks to find.
    """
    try:
        return list(blocks_of(model, shape))
    except AttributeError as error:
        raise UsageError(
            f"several ranks share the blocks of the model, and the post-processed model has no "
            f"{shape.blocks}: keep the blocks under this name, or run on one rank"
        ) from error


def slice_model(model: nn.Module, shape: Shape, mesh: DeviceMesh, how: Parallelism) -> None:
    """Slice ``model`` over the ranks of ``mesh``, in place; the parameters become DTensors.

    Each rank has a part of the attention heads, of the feed-forward networks and of the vocabulary.
    With ``sequence_parallel`` each rank has a part of the sequence between blocks, and norms work
    on this part. With ``loss_parallel`` each rank keeps the logits of its part of the vocabulary.
    Example: with ``--tp 2`` and 32 heads, each rank has 16 heads.
    """
    family, style = family_of(shape), _styles(how)
    inside = {name: style[one] for name, one in family.slices_of_block(shape).items()}
    for each in found_blocks(model, shape):
        parallelize_module(each, mesh, inside)
    modules = dict(family.other_slices)
    for name in [name for name, one in modules.items() if one is Slice.ELEMENTS]:
        del modules[name]
        owner, _, leaf = name.rpartition(".")
        value = distribute_tensor(model.get_parameter(name), mesh, [Shard(0)])
        setattr(model.get_submodule(owner), leaf, nn.Parameter(value))
    parallelize_module(model, mesh, {name: style[one] for name, one in modules.items()})
    if how.loss_parallel:
        # Never exited: the backward pass of a sliced loss needs the context too.
        loss_parallel().__enter__()


def _styles(how: Parallelism) -> dict[Slice, ParallelStyle]:
    """Return torch's ``ParallelStyle`` for each kind of slice."""
    among: Any = Shard(1) if how.sequence_parallel else Replicate()
    local, whole = not how.sequence_parallel, Replicate()
    kept = Shard(-1) if how.loss_parallel else whole

    def gathered(others: int) -> PrepareModuleInput:
        nothing = (None,) * others
        return PrepareModuleInput(
            input_layouts=(among, *nothing), desired_input_layouts=(whole, *nothing)
        )

    def tied(*parameters: Any) -> PrepareModuleInputOutput:
        return PrepareModuleInputOutput(
            input_layouts=(among, *parameters),
            desired_input_layouts=(whole, *parameters),
            output_layouts=Shard(-1),
            desired_output_layouts=kept,
            use_local_output=not how.loss_parallel,
        )

    return {
        Slice.NORM: SequenceParallel() if how.sequence_parallel else _Everywhere(),
        Slice.EVERYWHERE: _Everywhere(local),
        Slice.GATHERED: gathered(0),
        Slice.GATHERED_OF_3: gathered(2),
        Slice.COLUMNS: ColwiseParallel(),
        Slice.COLUMNS_GATHERED: ColwiseParallel(output_layouts=whole),
        Slice.HEADS: PrepareModuleInput(
            input_layouts=(whole,) * 3,
            desired_input_layouts=(Shard(1),) * 3,
            use_local_output=True,
        ),
        Slice.NORM_OF_HEADS: SequenceParallel(sequence_dim=2, use_local_output=True),
        Slice.ROWS: RowwiseParallel(output_layouts=among, use_local_output=local),
        Slice.WORDS: RowwiseParallel(
            input_layouts=whole, output_layouts=among, use_local_output=local
        ),
        Slice.HEAD: ColwiseParallel(
            input_layouts=among, output_layouts=kept, use_local_output=not how.loss_parallel
        ),
        Slice.TIED_HEAD: tied(Shard(0)),
        Slice.TIED_HEAD_AND_BIAS: tied(Shard(0), Shard(0)),
    }
