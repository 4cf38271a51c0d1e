"""Trains one small model in FP64 on the ranks it is started as, in every mode, and alone.

Started once by each rank: ``parity.py RANK WORLD_SIZE PORT OUTPUT``. Rank 0 leaves, by mode, how
far losses, the worst gradient of the first step and the worst parameter after the third are from
those of one process: the largest of |x - alone| / |alone| over all tensors.
"""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from llmb.config import (
    FP32,
    SPLITS_BACKWARD,
    Executor,
    Mode,
    Parallelism,
    RankAddress,
    RunConfig,
    Schedule,
)
from llmb.observe.canonical import Canonical, Origin
from llmb.observe.places import choose
from llmb.observe.shard_places import read
from llmb.parallel.layout import Layout
from llmb.parallel.ranks import Ranks
from llmb.parallel.shards import is_elsewhere, local, nothing_of
from llmb.processes.modes import executors
from llmb.processes.modes.checkpointing import checkpoint_blocks
from llmb.reference.data import Batch, make_batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.qwen3_shape import Qwen3Shape, TiedQwen3Shape
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape, Shape
from llmb.reference.train_loop import Step, train_loop

LLAMA = LlamaShape(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=8,
    sequence_length=32,
)
#: Heads of 16 where hidden size / heads is 8; two query heads share a key-value head.
QWEN3 = Qwen3Shape(256, 64, 128, 4, 8, 32, num_key_value_heads=4, head_dim=16)
STEPS, SEQUENCES = 3, 8
SCHEDULES = get_args(Schedule)


@dataclass(frozen=True)
class Case:
    """One way to share the work of a step."""

    mesh: dict[str, Any] = field(default_factory=dict)
    shape: Shape = LLAMA
    accumulate: int = 1
    #: The largest norm of all gradients; below theirs, so that it tells.
    clip: float | None = None
    #: Which blocks compute their activations again.
    again: str | None = None
    executor: Executor = "eager"


def _cases(world_size: int) -> dict[str, Case]:
    half = world_size // 2
    gpt2 = Gpt2Shape(256, 64, 128, 4, 8, 32)
    bert = BertShape(256, 64, 128, 4, 8, 32, 32, dropout=0.0)
    found = {
        "DDP": Case({"dp_replicate": world_size}),
        "FSDP, stage 3": Case({"dp_shard": world_size}),
        "FSDP, stage 2": Case({"dp_shard": world_size, "reshard_after_forward": False}),
        "HSDP": Case({"dp_replicate": half, "dp_shard": 2}),
        "TP": Case({"tp": world_size}),
        "TP, loss parallel": Case({"tp": world_size, "loss_parallel": True}),
        "TP, sequence parallel": Case({"tp": world_size, "sequence_parallel": True}),
        "TP, both": Case({"tp": world_size, "sequence_parallel": True, "loss_parallel": True}),
        "TP, both, clipped": Case(
            {"tp": world_size, "sequence_parallel": True, "loss_parallel": True}, clip=0.1
        ),
        "FSDP x TP": Case({"dp_shard": half, "tp": 2}),
        "FSDP x TP, both": Case(
            {"dp_shard": half, "tp": 2, "sequence_parallel": True, "loss_parallel": True}
        ),
        "replicas x TP": Case({"dp_replicate": half, "tp": 2}),
        "DDP, gpt2": Case({"dp_replicate": world_size}, gpt2),
        "DDP, bert": Case({"dp_replicate": world_size}, bert),
        "TP, bert": Case({"tp": world_size}, bert),
        "FSDP x TP, bert": Case({"dp_shard": half, "tp": 2}, bert),
        "TP, gpt2": Case({"tp": world_size}, gpt2),
        "TP, both, gpt2": Case(
            {"tp": world_size, "sequence_parallel": True, "loss_parallel": True}, gpt2
        ),
        "FSDP x TP, both, gpt2": Case(
            {"dp_shard": half, "tp": 2, "sequence_parallel": True, "loss_parallel": True}, gpt2
        ),
        "FSDP, gpt2": Case({"dp_shard": world_size}, gpt2),
        "FSDP, bert": Case({"dp_shard": world_size}, bert),
    }
    found |= _qwen3(world_size)
    found |= _pipelines(world_size)
    if world_size <= SEQUENCES // 2:
        found |= {
            "DDP, two parts": Case({"dp_replicate": world_size}, accumulate=2),
            "FSDP, two parts": Case({"dp_shard": world_size}, accumulate=2),
        }
        if find_spec("thunder") is not None:
            found |= _thunder(world_size)
    if world_size >= 8:
        found["HSDP x TP"] = Case({"dp_replicate": 2, "dp_shard": 2, "tp": 2})
    return found


def _qwen3(world_size: int) -> dict[str, Case]:
    """Return what shares Qwen3, whose queries and keys are normed; and its tied head."""
    half, tied = world_size // 2, TiedQwen3Shape(**vars(QWEN3))
    stages = {"pp": min(4, world_size), "dp_shard": max(1, world_size // 4)}
    both = {"sequence_parallel": True, "loss_parallel": True}
    found = {
        "DDP, qwen3": Case({"dp_replicate": world_size}, tied),
        "FSDP, qwen3": Case({"dp_shard": world_size}, tied),
        "TP, qwen3": Case({"tp": world_size}, QWEN3),
        "TP, both, qwen3": Case({"tp": world_size, **both}, QWEN3),
        "TP, both, qwen3, tied, clipped": Case({"tp": world_size, **both}, tied, clip=0.1),
        "PP, qwen3": Case(stages, QWEN3, 4),
    }
    if world_size >= 4:
        found["FSDP x TP, qwen3, tied"] = Case({"dp_shard": half, "tp": 2}, tied)
        found["PP x TP, both, qwen3"] = Case({"pp": 2, "tp": half, **both}, QWEN3, 2)
    return found


def _thunder(world_size: int) -> dict[str, Case]:
    """Return what thunder's own DDP and FSDP share; 250 words need padding in the shards."""
    shape = replace(LLAMA, vocab_size=250, num_hidden_layers=1)
    by_thunder = partial(Case, shape=shape, executor="thunder", accumulate=2)
    shard = {"dp_shard": world_size}
    return {
        "DDP, thunder": by_thunder({"dp_replicate": world_size}),
        "FSDP, thunder, stage 3": by_thunder(shard),
        "FSDP, thunder, stage 2": by_thunder(
            {**shard, "reshard_after_forward": False}, accumulate=1, clip=0.1
        ),
    }


def _pipelines(world_size: int) -> dict[str, Case]:
    """Return every schedule alone, and with what else can share a stage."""
    half = world_size // 2
    alone = {
        schedule: Case({"pp": 4, "schedule": schedule}, accumulate=8) for schedule in SCHEDULES
    }
    both: dict[str, Any] = {"tp": 2, "sequence_parallel": True, "loss_parallel": True}
    kept: dict[str, Any] = {"dp_shard": half, "reshard_after_forward": False}
    found = {
        "PP x FSDP, stage 3": Case({"pp": 2, "dp_shard": half}, accumulate=2),
        "PP x FSDP, stage 2": Case({"pp": 2, **kept, "schedule": "Interleaved1F1B"}, accumulate=2),
        "PP x FSDP, ZBV": Case({"pp": 2, **kept, "schedule": "ZBVZeroBubble"}, accumulate=2),
        "PP x replicas": Case({"pp": 2, "dp_replicate": half, "schedule": "GPipe"}, accumulate=2),
    }
    if world_size == 4:
        found |= {f"PP, {name}": case for name, case in alone.items()}
        found["PP x TP, both"] = Case({"pp": 2, **both}, accumulate=4)
        found["PP x TP, both, DualPipeV"] = Case(
            {"pp": 2, **both, "schedule": "DualPipeV"}, accumulate=4
        )
        found["PP, clipped"] = Case({"pp": 4}, accumulate=4, clip=0.1)
        found["PP x FSDP, clipped"] = Case({"pp": 2, "dp_shard": 2}, accumulate=2, clip=0.1)
        found["PP x TP, clipped"] = Case({"pp": 2, "tp": 2}, accumulate=2, clip=0.1)
        found["PP, activations again"] = Case({"pp": 4}, accumulate=4, again="1/2")
        found["PP x TP, one micro-batch"] = Case({"pp": 2, "tp": 2, "schedule": "LoopedBFS"})
    if world_size == 8:
        for schedule in SCHEDULES:
            split = {"reshard_after_forward": schedule not in SPLITS_BACKWARD}
            found[f"PP x FSDP x TP, both, {schedule}"] = Case(
                {"pp": 2, "dp_shard": 2, **both, **split, "schedule": schedule}, accumulate=4
            )
    return found


def case_names(world_size: int) -> list[str]:
    """Return the names of the modes that are compared with so many ranks, in order."""
    return list(_cases(world_size))


@dataclass
class Trained:
    """What is compared: the first step's loss and gradients, the parameters after the last."""

    #: Of all elements of the model, those that this rank holds.
    share: float = 1.0
    #: Sampled elements that are not those of the whole parameter.
    missampled: int = 0

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)


def trained(case: Case, ranks: Ranks | None) -> Trained:
    """Return what comes of three steps of ``case``, by ``ranks`` or by one process."""
    mesh = Parallelism(**case.mesh) if ranks else Parallelism()
    config = RunConfig(
        workload="llama-1.4b",
        mode=Mode.TRAIN,
        plugin="cpu",
        plugin_options={},
        device="cpu",
        precision=FP32.model_copy(update={"dtype": "float64", "bits": 64}),
        batch_size=SEQUENCES // mesh.replicas,
        accumulate=case.accumulate,
        seed=5,
        warmup_steps=1,
        timed_steps=1,
        repeats=1,
        parallelism=mesh,
        executor=case.executor,
    )
    executors.prepare(config)
    model = build(case.shape, 5, torch.float64)
    canonical = Canonical(Origin(model), model, None)
    if case.again is not None:
        checkpoint_blocks(model, case.shape, case.again)
    layout = Layout(config) if ranks else None
    program: Any = model
    pipeline = None
    if layout is None:
        program = executors.program(model, config)
    else:
        layout.spread(model, case.shape)
        pipeline = layout.pipeline
        canonical.follow(model, pipeline.share if pipeline else None)
        program = layout.program(model)
    # One kernel for all: torch's choice would differ between plain and spread tensors.
    optimizer = build_optimizer(model.parameters(), foreach=True)
    held = sum(local(p).numel() for p in model.parameters() if not is_elsewhere(p))
    found = Trained(share=held / sum(p.numel() for p in model.parameters()))

    def batches(seed: int) -> list[Batch]:
        batch = make_batch(seed, SEQUENCES, case.shape)
        if layout is None:
            return batch.split(config.parts)
        return batch.split(mesh.replicas)[layout.mesh.replica].split(config.parts)

    def pause(step: Step, loss: Tensor) -> bool:
        if layout is not None:
            layout.add_up(model)
        found.losses.append(float(ranks.mean(loss, torch.float64) if ranks else loss))
        if step.index == 0:
            for name in canonical.names:
                gradient = canonical.gradient(name)
                assert gradient is not None, name
                found.gradients[name] = gradient.clone()
        if pipeline is not None and case.clip is not None:
            pipeline.clip_grad_norm(model, case.clip)
        return False

    steps = [Step(index, 100 + index, fence=False) for index in range(STEPS)]
    more: dict[str, Any] = {"clip_grad_norm": None if pipeline else case.clip}
    if layout is not None:
        more["context"] = lambda: layout.part(_Nothing())
    for _ in train_loop(program, optimizer, steps, batches, pause, **more):
        pass
    if layout is not None and layout.is_sharded:
        found.missampled = missampled(model, canonical, ranks)
    found.parameters = {name: value.clone() for name, value in canonical.values()}
    return found


def missampled(model: nn.Module, canonical: Canonical, ranks: Ranks) -> int:
    """Return how many elements, read where they lie, differ from those of the gathered whole."""
    wrong = 0
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        places = choose(3, "state", name, value.numel(), 50)
        if is_elsewhere(value):
            value = nothing_of(value, torch.device("cpu"))
        shown = ranks.total(read(places, value))
        wrong += int((shown != places.read(canonical.value(name))).sum())
    return wrong


@functools.cache
def by_one(shape: Shape, parts: int, clip: float | None, executor: Executor) -> Trained:
    """Return what one process makes of the same steps, each in so many parts."""
    return trained(Case(shape=shape, accumulate=parts, clip=clip, executor=executor), None)


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def _counts(name: str) -> bool:
    """Tell whether ``name`` is trained by more than rounding.

    The softmax of attention does not see what is added to all keys: the gradient of that is zero
    but for rounding, of which AdamW makes whole steps.
    """
    return not name.endswith("attention.self.key.bias")


def far(found: dict[str, Tensor], alone: dict[str, Tensor]) -> float:
    """Return the largest relative distance of a tensor from the one of its name."""
    assert found.keys() == alone.keys()
    return max(float((found[n] - alone[n]).norm() / alone[n].norm()) for n in alone if _counts(n))


def main(rank: int, world_size: int, port: int, output: Path) -> None:
    """Compare every mode, and leave what was found."""
    torch.set_num_threads(1)
    place = RankAddress(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        host="127.0.0.1",
        port=port,
    )
    found = {}
    with Ranks(place, "gloo", 0, 120.0, sys.exit) as ranks:
        compare_all(ranks, found, output)


def compare_all(ranks: Ranks, found: dict[str, dict[str, float]], output: Path) -> None:
    """Put into ``found`` how far each mode is from one process; rank 0 writes it to ``output``."""
    world_size = ranks.place.world_size
    for name, case in _cases(world_size).items():
        parts = case.accumulate * Parallelism(**case.mesh).replicas
        ours = trained(case, ranks)
        alone = by_one(case.shape, parts, case.clip, case.executor)
        pairs = zip(ours.losses, alone.losses, strict=True)
        losses = [abs(a - b) / abs(b) for a, b in pairs]
        found[name] = {
            "loss": max(losses),
            "gradient": far(ours.gradients, alone.gradients),
            "parameter": far(ours.parameters, alone.parameters),
            "share": ours.share,
            "missampled": ours.missampled,
        }
        if ranks.place.leads:
            output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
