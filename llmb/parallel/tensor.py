"""Tensor parallelism as torch's ``parallelize_module`` does it: ranks share each matrix.

Each block communicates four times a step: one sum after attention and one after the feed-forward
network, forward and backward. The plan that shards each projection alone sums the gradient of each
projection's input by itself, five times a block (docs/adr/0024).
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
from llmb.reference.models import blocks_of
from llmb.reference.shapes import BertShape, LlamaShape, Shape


class _Everywhere(ParallelStyle):
    """Every rank has all of the module's parameters, and computes the same with them."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, None, _in, _out)  # type: ignore[arg-type]


def _in(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    return tuple(DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in inputs)


def _out(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
    return output.to_local()


def slice_llama(model: nn.Module, shape: LlamaShape, mesh: DeviceMesh, how: Parallelism) -> None:
    """Give each rank of ``mesh`` its heads, its part of the feed-forward networks and of the words.

    With ``sequence_parallel`` each has its part of the sequence where blocks meet, and norms work
    on that; with ``loss_parallel`` each keeps the logits of its words.
    """
    among: Any = Shard(1) if how.sequence_parallel else Replicate()
    local = not how.sequence_parallel
    norm = SequenceParallel() if how.sequence_parallel else _Everywhere()
    whole = Replicate()

    def gathered(others: int) -> PrepareModuleInput:
        nothing = (None,) * others
        return PrepareModuleInput(
            input_layouts=(among, *nothing), desired_input_layouts=(whole, *nothing)
        )

    block: dict[str, ParallelStyle] = {
        "input_layernorm": norm,
        "self_attn": gathered(2),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=among, use_local_output=local),
        "post_attention_layernorm": norm,
        "mlp": gathered(0),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=among, use_local_output=local),
    }
    if shape.gated:
        block["mlp.gate_proj"] = ColwiseParallel()
    for each in blocks_of(model, shape):
        parallelize_module(each, mesh, block)
    ends: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(
            input_layouts=whole, output_layouts=among, use_local_output=local
        ),
        "model.norm": norm,
        "lm_head": ColwiseParallel(
            input_layouts=among,
            output_layouts=Shard(-1) if how.loss_parallel else whole,
            use_local_output=not how.loss_parallel,
        ),
    }
    parallelize_module(model, mesh, ends)


def slice_bert(model: nn.Module, shape: BertShape, mesh: DeviceMesh) -> None:
    """Give each rank of ``mesh`` its heads, its part of the feed-forward networks and of the words.

    What follows the encoder is small but for the words, and computed by every rank.
    """
    whole, everywhere = Replicate(), _Everywhere()
    gathered = PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,))
    layer: dict[str, ParallelStyle] = {
        "attention.ln": everywhere,
        "attention.self": gathered,
        "attention.self.query": ColwiseParallel(),
        "attention.self.key": ColwiseParallel(),
        "attention.self.value": ColwiseParallel(),
        "attention.output.dense": RowwiseParallel(),
        "ln": everywhere,
        "intermediate": gathered,
        "intermediate.dense": ColwiseParallel(),
        "output.dense": RowwiseParallel(),
    }
    for each in blocks_of(model, shape):
        parallelize_module(each, mesh, layer)
    # The matrix of the decoder is that of the words; its bias is no module's own.
    predictions: Any = model.get_submodule("cls.predictions")
    predictions.bias = nn.Parameter(distribute_tensor(predictions.bias, mesh, [Shard(0)]))
    ends: dict[str, ParallelStyle] = {
        "bert.embeddings.word_embeddings": RowwiseParallel(input_layouts=whole),
        "bert.embeddings.position_embeddings": everywhere,
        "bert.embeddings.token_type_embeddings": everywhere,
        "bert.encoder.ln": everywhere,
        "bert.pooler.dense": everywhere,
        "cls.predictions.transform.dense": everywhere,
        "cls.predictions.transform.LayerNorm": everywhere,
        "cls.predictions.decoder": PrepareModuleInputOutput(
            input_layouts=(whole, Shard(0), Shard(0)),
            desired_input_layouts=(whole, Shard(0), Shard(0)),
            output_layouts=Shard(-1),
            desired_output_layouts=whole,
        ),
        "cls.seq_relationship": everywhere,
    }
    parallelize_module(model, mesh, ends)


def slice_model(model: nn.Module, shape: Shape, mesh: DeviceMesh, how: Parallelism) -> None:
    """Slice ``model`` over the ranks of ``mesh``, in place; its parameters become DTensors."""
    if isinstance(shape, BertShape):
        slice_bert(model, shape, mesh)
    else:
        assert isinstance(shape, LlamaShape), "checks.py refuses other families"
        slice_llama(model, shape, mesh, how)
    if how.loss_parallel:
        # For good: the backward pass of a sliced loss needs it as well, wherever that is called.
        loss_parallel().__enter__()
