"""Tensor parallelism as torch's ``parallelize_module`` does it: ranks share each matrix.

Each block communicates four times a step (GPT-2's more: see ``slice_gpt2``): one sum after
attention and one after the feed-forward network, forward and backward. The plan that shards each
projection alone sums the gradient of each projection's input by itself, five times a block
(docs/adr/0024).
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
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape, Shape


class _Everywhere(ParallelStyle):
    """Every rank has all of the module's parameters, and computes the same with them."""

    def __init__(self, use_local_output: bool = True) -> None:
        self._out = _out if use_local_output else None

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, None, _in, self._out)  # type: ignore[arg-type]


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


def slice_gpt2(model: nn.Module, shape: Gpt2Shape, mesh: DeviceMesh, how: Parallelism) -> None:
    """Give each rank of ``mesh`` its heads, its part of the feed-forward networks and of the words.

    One matrix makes queries, keys and values, one below the other: what a rank's part of it makes
    is not of its heads. All gather what the whole makes, then each takes its heads; on the way back
    the gradients of all three are gathered (docs/adr/0028).
    """
    among: Any = Shard(1) if how.sequence_parallel else Replicate()
    local = not how.sequence_parallel
    norm = SequenceParallel() if how.sequence_parallel else _Everywhere()
    whole = Replicate()
    gathered = PrepareModuleInput(input_layouts=(among,), desired_input_layouts=(whole,))
    block: dict[str, ParallelStyle] = {
        "ln_1": norm,
        "attn": gathered,
        "attn.c_attn": ColwiseParallel(output_layouts=whole),
        "attn.core_attention": PrepareModuleInput(
            input_layouts=(whole,) * 3,
            desired_input_layouts=(Shard(1),) * 3,
            use_local_output=True,
        ),
        "attn.c_proj": RowwiseParallel(output_layouts=among, use_local_output=local),
        "ln_2": norm,
        "mlp": gathered,
        "mlp.c_fc": ColwiseParallel(),
        "mlp.c_proj": RowwiseParallel(output_layouts=among, use_local_output=local),
    }
    for each in blocks_of(model, shape):
        parallelize_module(each, mesh, block)
    kept = Shard(-1) if how.loss_parallel else whole
    ends: dict[str, ParallelStyle] = {
        "transformer.wte": RowwiseParallel(
            input_layouts=whole, output_layouts=among, use_local_output=local
        ),
        "transformer.wpe": _Everywhere(local),
        "transformer.ln_f": norm,
        # Its matrix is that of the words.
        "lm_head": PrepareModuleInputOutput(
            input_layouts=(among, Shard(0)),
            desired_input_layouts=(whole, Shard(0)),
            output_layouts=Shard(-1),
            desired_output_layouts=kept,
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
    elif isinstance(shape, Gpt2Shape):
        slice_gpt2(model, shape, mesh, how)
    else:
        slice_llama(model, shape, mesh, how)
    if how.loss_parallel:
        # For good: the backward pass of a sliced loss needs it as well, wherever that is called.
        loss_parallel().__enter__()
