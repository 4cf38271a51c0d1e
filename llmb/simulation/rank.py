"""One rank of a job: its model as the real code lays it out, one micro-batch, one optimizer step.

What is counted is what torch is told to do on this rank: operations on the local tensors of
DTensors, collectives with what they are given, storages that autograd keeps. Nothing is computed.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from llmb.config import BF16, Mode, Parallelism, RunConfig, RunRequest
from llmb.errors import UsageError
from llmb.modes.checkpointing import checkpoint_blocks
from llmb.observe.collectives import Collectives
from llmb.observe.shards import is_elsewhere, local
from llmb.parallel import checks
from llmb.parallel.layout import Layout
from llmb.parallel.pipeline import parts_of
from llmb.reference.data import make_batch
from llmb.reference.loss import causal_loss
from llmb.reference.models import model_of, replace_parameter
from llmb.reference.optimizer import build_optimizer
from llmb.reference.shapes import Shape
from llmb.simulation import private
from llmb.workloads import Workload

_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in one micro-batch, forward and backward, and the step after it."""

    calls: int
    bytes: int


@dataclass(frozen=True)
class Simulated:
    """What one rank has and does. Bytes of BF16 weights, gradients and moments, as llmb trains."""

    rank: int
    world_size: int
    #: Of a pipeline, by their numbers; empty without one.
    stages: tuple[int, ...]
    parameters: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    #: Kept by autograd for the backward pass of one micro-batch.
    activations_bytes: int
    #: Micro-batches that are on their way at a time, at most.
    in_flight: int
    #: Of one micro-batch, forward and backward, of this rank's own tensors.
    flops: int
    collectives: dict[str, Traffic] = field(default_factory=dict)
    #: Of a whole step by the schedule itself: the most that was kept at a time, and the FLOPs.
    schedule_activations_bytes: int | None = None
    schedule_flops: int | None = None

    @property
    def peak_bytes(self) -> int:
        """Bytes at the peak: all that is kept, and every micro-batch that is on its way."""
        kept = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        if self.schedule_activations_bytes is not None:
            return kept + self.schedule_activations_bytes
        return kept + self.in_flight * self.activations_bytes


def simulate(
    workload: Workload,
    how: Parallelism,
    rank: int,
    *,
    micro_batch: int = 1,
    micro_batches: int = 1,
    sac_freq: str | None = None,
    whole_step: bool = False,
) -> Simulated:
    """Return what ``rank`` of a job has and does, without the others.

    ``micro_batch`` is in sequences. Of a pipeline's rank each of its stages takes one micro-batch;
    with ``whole_step`` torch's schedule then takes all ``micro_batches`` through them in its order.

    Raises:
        UsageError: the ranks cannot share the model so, or there is no such schedule.
        UnavailableError: this torch cannot pretend.
    """
    shape = workload.shape
    accumulate = micro_batches if how.pp > 1 else 1
    checks.check(
        RunRequest(
            workload=workload.name,
            batch_size=micro_batch * accumulate,
            accumulate=accumulate,
            parallelism=how,
            sac_freq=sac_freq,
        ),
        Mode.TRAIN,
        shape,
    )
    with private.fake_ranks(rank, how.world_size), warnings.catch_warnings():
        # That FSDP2's root returns a view, which nobody changes.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
        config = _config(workload, how, micro_batch, sac_freq)
        return _simulated(workload, config, rank, micro_batches, whole_step)


def _config(
    workload: Workload, how: Parallelism, micro_batch: int, sac_freq: str | None
) -> RunConfig:
    return RunConfig(
        workload=workload.name,
        mode=Mode.TRAIN,
        plugin="cpu",
        plugin_options={},
        device="cpu",
        precision=BF16,
        batch_size=micro_batch,
        seed=1,
        warmup_steps=1,
        timed_steps=1,
        repeats=1,
        parallelism=how,
        sac_freq=sac_freq,
    )


def _simulated(
    workload: Workload, config: RunConfig, rank: int, micro_batches: int, whole_step: bool
) -> Simulated:
    shape, how = workload.shape, config.parallelism
    layout = Layout(config)
    with torch.device("meta"):
        model = model_of(shape).to(_DTYPE)
    if config.sac_freq is not None:
        checkpoint_blocks(model, shape, config.sac_freq)
    ledger = Ledger()
    with private.fake_tensors():
        _materialise(model, how, layout.mesh.place("pp"))
        if how.dp_shard > 1 or (how.dp_replicate > 1 and how.tp * how.pp > 1):
            with private.real_tensors():
                layout.spread(model, shape)
        else:
            layout.spread(model, shape)
        ours = [p for p in model.parameters() if not is_elsewhere(local(p))]
        optimizer = build_optimizer(ours, workload.recipe.optimizer, foreach=False)
        # DTensor tries each of its operations once on whole tensors, which is not the rank's work.
        _micro_batch(model, shape, config, layout, ledger)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ledger.kept = ledger.most = 0
        with ledger:
            _micro_batch(model, shape, config, layout, ledger)
            optimizer.step()
        moments = sum(
            local(value).nbytes
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor) and value.dim()
        )
        gradients = sum(local(p.grad).nbytes for p in ours if p.grad is not None)
        step = _whole_step(model, shape, config, layout, micro_batches) if whole_step else None
    stages = tuple(layout.pipeline.stages) if layout.pipeline else ()
    return Simulated(
        rank=rank,
        world_size=how.world_size,
        stages=stages,
        parameters=sum(local(p).numel() for p in ours),
        weights_bytes=sum(local(p).nbytes for p in ours),
        gradients_bytes=gradients,
        optimizer_bytes=moments,
        activations_bytes=ledger.most,
        in_flight=_in_flight(how, stages, micro_batches),
        flops=ledger.flops,
        collectives={
            kind: Traffic(ledger.calls[kind], ledger.bytes[kind]) for kind in sorted(ledger.calls)
        },
        schedule_activations_bytes=step.most if step else None,
        schedule_flops=step.flops if step else None,
    )


def _materialise(model: nn.Module, how: Parallelism, place: int) -> None:
    """Give this rank's parameters fake memory; those of other stages stay meta tensors."""
    others: tuple[str, ...] = ()
    if how.pp > 1:
        parts = parts_of(model, how)
        others = tuple(f"{path}." for path, stage in parts.items() if how.rank_of(stage) != place)
    for name, parameter in list(model.named_parameters()):
        if not (others and name.startswith(others)):
            replace_parameter(model, name, torch.empty(parameter.shape, dtype=_DTYPE))


def _micro_batch(
    model: nn.Module, shape: Shape, config: RunConfig, layout: Layout, ledger: Ledger
) -> None:
    """Take one micro-batch forward and backward through what this rank has."""
    batch = make_batch(1, config.batch_size, shape)
    if layout.pipeline is None:
        program = layout.program(model) if config.parallelism.world_size > 1 else model
        with ledger.keeping(model):
            loss = program(batch.ids, labels=batch.labels, **batch.extra)
        loss.backward()
        return
    last = config.parallelism.stages - 1
    for number, stage in layout.pipeline.stages.items():
        given = _state(config, shape) if number else batch.ids
        with ledger.keeping(model):
            output = stage(given)
            loss = causal_loss(output, batch.labels) if number == last else output.sum()
        loss.backward()


def _state(config: RunConfig, shape: Shape) -> Tensor:
    """Return what a stage hands to the next one of a micro-batch."""
    length = shape.sequence_length
    if config.parallelism.sequence_parallel:
        length //= config.parallelism.tp
    size = (config.batch_size, length, shape.hidden_size)
    return torch.empty(size, dtype=_DTYPE, requires_grad=True)


def _whole_step(
    model: nn.Module, shape: Shape, config: RunConfig, layout: Layout, micro_batches: int
) -> Ledger:
    """Take all micro-batches through this rank's stages as the schedule does.

    Raises:
        UsageError: there is no schedule, or what stages hand over is spread itself.
    """
    how, pipeline = config.parallelism, layout.pipeline
    if pipeline is None:
        raise UsageError("--whole-step runs a pipeline's schedule: give --pp 2 or more")
    if how.sequence_parallel or how.loss_parallel:
        raise UsageError("--whole-step runs without --sequence-parallel and --loss-parallel")
    model.zero_grad(set_to_none=True)
    batch = make_batch(1, config.batch_size * micro_batches, shape)
    ids = batch.ids[: config.batch_size]
    logits = torch.empty(*ids.shape, shape.vocab_size, dtype=_DTYPE, requires_grad=True)
    state, last = _state(config, shape), how.stages - 1
    states = {
        number: (state if number else ids, logits if number == last else state)
        for number in pipeline.stages
    }
    schedule = private.schedule_alone(
        *(how.schedule, pipeline.stages, how.stages, micro_batches, states),
        group=layout.mesh.part("pp").get_group(),
        loss=lambda output, labels: causal_loss(output, labels) / micro_batches,
    )
    ledger = Ledger()
    with ledger, ledger.keeping(model):
        schedule.step(batch.ids, target=batch.labels, losses=[], return_outputs=False)
    return ledger


def _in_flight(how: Parallelism, stages: tuple[int, ...], micro_batches: int) -> int:
    """Return how many micro-batches a rank has on their way: 1F1B lets in one a stage to come.

    GPipe and looped schedules let in all of them. Of schedules with two stages a rank these are
    micro-batches of both together, at most.
    """
    if not stages:
        return 1
    if how.schedule in ("GPipe", "LoopedBFS"):
        return micro_batches
    return min(micro_batches, how.stages - min(stages))


class Ledger(Collectives):  # type: ignore[no-untyped-call]
    """Counts FLOPs and collectives of local tensors, and what autograd keeps of them."""

    def __init__(self) -> None:
        """Start from zero."""
        super().__init__()
        self._formulas = private.flop_formulas()
        self.flops = 0
        #: Bytes of all storages kept at present, and at most, beside parameters.
        self.kept = self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count ``func`` where it is called on tensors of this rank alone."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # comes back as what this rank does of it
        found = super().__torch_dispatch__(func, types, args, kwargs)
        formula = self._formulas.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=found)
        return found

    def keeping(self, model: nn.Module) -> Any:
        """Return a context of forward passes, of which is counted what they keep and for how long.

        ``kept`` goes down when autograd gives something back, which it does on the way back.
        """
        own = {_storage(p)._cdata for p in model.parameters()}
        users: Counter[int] = Counter()

        def pack(value: Tensor) -> _Kept:
            storage = _storage(value)
            key, size = storage._cdata, storage.nbytes()
            found = _Kept(value)
            if key not in own:
                users[key] += 1
                if users[key] == 1:
                    self.kept += size
                    self.most = max(self.most, self.kept)
                weakref.finalize(found, give_back, key, size)
            return found

        def give_back(key: int, size: int) -> None:
            users[key] -= 1
            if not users[key]:
                self.kept -= size

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda found: found.value)


class _Kept:
    """A tensor that autograd keeps: gone when autograd lets it go."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def _storage(value: Tensor) -> Any:
    return local(value).untyped_storage()
