"""Simulate one rank of a job: the real layout code, one micro-batch, one optimizer step.

The ledger counts torch's calls on this rank: operations on the local tensors of DTensors, input
bytes of collectives, live storages. No value is computed.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from llmb.config import BF16, Mode, Parallelism, RunConfig, RunRequest
from llmb.errors import UsageError
from llmb.parallel import checks
from llmb.parallel.layout import Layout
from llmb.parallel.mesh import DIMENSIONS
from llmb.parallel.pipeline import parts_of
from llmb.parallel.shards import is_elsewhere, local
from llmb.processes.modes.checkpointing import checkpoint_blocks
from llmb.reference.data import make_batch
from llmb.reference.loss import causal_loss
from llmb.reference.models import model_of, replace_parameter
from llmb.reference.optimizer import build_optimizer
from llmb.simulation import private
from llmb.simulation.ledger import (
    ACTIVATIONS,
    COLLECTIVES,
    GRADIENTS,
    OPTIMIZER,
    WEIGHTS,
    Ledger,
    Traffic,
)
from llmb.workloads import Workload
from llmb.workloads.memory import in_flight

_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Simulated:
    """Memory, FLOPs and collectives of one rank: in BF16, or with float32 weights (mixed)."""

    rank: int
    world_size: int
    #: Numbers of the rank's pipeline stages, such as ``(0, 4)``; empty without a pipeline.
    stages: tuple[int, ...]
    parameters: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    #: Bytes that the forward pass of one micro-batch keeps for the backward pass.
    activations_bytes: int
    #: Largest number of micro-batches in flight.
    in_flight: int
    #: FLOPs of one micro-batch, forward and backward, on local tensors.
    flops: int
    #: Live bytes at the peak, by role. The peak of one micro-batch and the optimizer step, plus the
    #: activations of all further micro-batches in flight; with ``whole_step`` the schedule's peak.
    peak: dict[str, int] = field(default_factory=dict)
    collectives: tuple[Traffic, ...] = ()
    #: With ``whole_step``: largest activations, and FLOPs, of a step by torch's schedule.
    schedule_activations_bytes: int | None = None
    schedule_flops: int | None = None

    @property
    def peak_bytes(self) -> int:
        """Live bytes at the peak, all roles together."""
        return sum(self.peak.values())


def simulate(
    workload: Workload,
    how: Parallelism,
    rank: int,
    *,
    micro_batch: int = 1,
    micro_batches: int = 1,
    sac_freq: str | None = None,
    whole_step: bool = False,
    mixed_precision: bool = False,
) -> Simulated:
    """Return memory, FLOPs and collectives of ``rank``; no other rank runs.

    ``micro_batch`` is in sequences. In a pipeline, each stage of the rank runs one micro-batch;
    with ``whole_step``, torch's schedule then runs all ``micro_batches`` through the stages.
    With ``mixed_precision``, weights are float32 and products run under autocast; shards are
    gathered in BF16, and gradients are summed in float32 (FSDP2's ``MixedPrecisionPolicy``).

    Raises:
        UsageError: the layout does not fit the model, or the schedule is unknown. Example: ``tp=3``
            with 32 heads.
        UnavailableError: this torch has no fake process group or no fake tensors.
    """
    if Mode.TRAIN not in workload.modes:
        raise UsageError(f"workload {workload.name!r} is not trained: it has no training step")
    if whole_step and how.pp == 1:
        raise UsageError("--whole-step runs a pipeline's schedule: give --pp 2 or more")
    shape = workload.shape
    accumulate = micro_batches if how.pp > 1 else 1
    checks.check(
        RunRequest(
            workload=workload.name,
            batch_size=micro_batch * accumulate,
            accumulate=accumulate,
            parallelism=how,
            sac_freq=sac_freq,
            mixed_precision=mixed_precision,
        ),
        Mode.TRAIN,
        shape,
    )
    with _pretending(rank, how.world_size):
        config = RunConfig(
            workload=workload.name,
            mode=Mode.TRAIN,
            plugin="cpu",
            plugin_options={},
            device="cpu",
            precision=BF16,
            mixed_precision=mixed_precision,
            # Of a step's micro-batches an early one and the last differ: ranks sum after the last.
            batch_size=micro_batch * (early := 2 if how.pp == 1 and micro_batches > 1 else 1),
            accumulate=early,
            seed=1,
            warmup_steps=1,
            timed_steps=1,
            repeats=1,
            parallelism=how,
            sac_freq=sac_freq,
        )
        return _simulated(workload, config, rank, micro_batches, whole_step)


@contextmanager
def _pretending(rank: int, world_size: int) -> Iterator[None]:
    """Act as one rank of ``world_size`` in one process."""
    with private.fake_ranks(rank, world_size), warnings.catch_warnings():
        # FSDP2 warns: its root module returns a view. No code here changes the view.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
        gc.freeze()  # keeps gc.collect() in begin() fast: older objects are skipped
        try:
            yield
        finally:
            gc.unfreeze()


def _simulated(
    workload: Workload, config: RunConfig, rank: int, micro_batches: int, whole_step: bool
) -> Simulated:
    how, job = config.parallelism, _SimulatedRank(workload, config)
    ledger = job.ledger
    with (
        private.fake_tensors(),
        private.resizing(ledger.resized),
        private.trying(ledger.pause),
        ledger,
    ):
        job.make()
        # A first round, not counted: DTensor tries each operation once on full tensors.
        for _ in range(config.accumulate):
            job.micro_batch()
        job.step()
        stages = tuple(job.layout.pipeline.stages) if job.layout.pipeline else ()
        several = in_flight(how, stages, micro_batches)
        job.optimizer.zero_grad(set_to_none=True)
        job.begin()
        if micro_batches > several:  # earlier micro-batches leave gradients
            job.micro_batch()
            ledger.restart()
        job.micro_batch()
        job.step()
        one, held, messages = ledger.found(), job.bytes(), job.messages()
        if whole_step:
            job.optimizer.zero_grad(set_to_none=True)
            job.begin()
            job.schedule(micro_batches)
    step = ledger.found() if whole_step else None
    peak = step.peak if step else dict(one.peak)
    if not step:
        peak[ACTIVATIONS] += (several - 1) * one.activations
        # torch has a buffer for each message that a rank receives in a step.
        peak[COLLECTIVES] += micro_batches * sum(message.bytes for message in messages)
    return Simulated(
        rank=rank,
        world_size=how.world_size,
        stages=stages,
        parameters=sum(local(p).numel() for p in job.ours),
        weights_bytes=held[WEIGHTS],
        gradients_bytes=held[GRADIENTS],
        optimizer_bytes=held[OPTIMIZER],
        activations_bytes=one.activations,
        in_flight=several,
        flops=one.flops,
        peak=peak,
        collectives=(*messages, *one.collectives),
        schedule_activations_bytes=step.activations if step else None,
        schedule_flops=step.flops if step else None,
    )


class _SimulatedRank:
    """The sharded model of a rank and its optimizer, on tensors without memory."""

    optimizer: Optimizer

    def __init__(self, workload: Workload, config: RunConfig) -> None:
        """Build the device mesh, and the model on the meta device."""
        self._workload, self._shape, self._config = workload, workload.shape, config
        self._micro_batch = config.batch_size // config.accumulate
        self._dtype = torch.float32 if config.mixed_precision else _DTYPE
        self.layout = Layout(config)
        with torch.device("meta"):
            self._model = model_of(self._shape).to(self._dtype)
        if config.sac_freq is not None:
            checkpoint_blocks(self._model, self._shape, config.sac_freq)
        self._program: Callable[..., Any] = self._model
        #: Parameters on this rank, full or sharded.
        self.ours: list[nn.Parameter] = []
        mesh = self.layout.mesh
        groups = {str(mesh.part(name).get_group().group_name): name for name in DIMENSIONS}
        self.ledger = Ledger(self._known, groups)

    def make(self) -> None:
        """Create fake parameters for the rank, shard the model, and build the optimizer."""
        how, layout = self._config.parallelism, self.layout
        self._materialise(layout.mesh.place("pp"))
        policy = None
        if self._config.mixed_precision:
            policy = MixedPrecisionPolicy(param_dtype=_DTYPE, reduce_dtype=torch.float32)
        shards = how.dp_shard > 1 or (how.dp_replicate > 1 and how.tp * how.pp > 1)
        with private.real_tensors() if shards else nullcontext():
            layout.spread(self._model, self._shape, policy)
        self.ours = [p for p in self._model.parameters() if not is_elsewhere(local(p))]
        constants = self._workload.recipe.optimizer
        # Fused, as in a run on a device with a fused kernel: the kernel needs no extra memory.
        self.optimizer = build_optimizer(self.ours, constants, foreach=False, fused=True)
        self.begin()

    def _materialise(self, place: int) -> None:
        """Create fake parameters for pipeline rank ``place``; the rest stays on the meta device."""
        how = self._config.parallelism
        others: tuple[str, ...] = ()
        if how.pp > 1:
            parts = parts_of(self._model, how)
            others = tuple(f"{path}." for path, at in parts.items() if how.rank_of(at) != place)
        for name, parameter in list(self._model.named_parameters()):
            if not (others and name.startswith(others)):
                made = torch.empty(parameter.shape, dtype=self._dtype)
                replace_parameter(self._model, name, made)

    def begin(self) -> None:
        """Restart the ledger, with a new DDP wrapper: DDP changes buckets after a step."""
        if self._config.parallelism.world_size > 1 and not self.layout.is_sharded:
            self._program = self._model
            gc.collect()  # the old DDP wrapper is a reference cycle
            group = self.layout.mesh.part("dp_replicate").get_group()
            self._program = private.replica(lambda: self.layout.program(self._model), group)
        self.ledger.restart()

    def _known(self) -> Iterator[tuple[str, Tensor]]:
        """Yield weights, gradients and optimizer states, each with its role."""
        for parameter in self.ours:
            yield WEIGHTS, parameter.detach()
            if parameter.grad is not None:
                yield GRADIENTS, parameter.grad
        pipeline = self.layout.pipeline
        for root in pipeline.stages.values() if pipeline else (self._model,):
            yield from ((GRADIENTS, value) for value in private.whole_gradients(root))
        for state in self.optimizer.state.values() if self.ours else ():
            yield from ((OPTIMIZER, value) for value in state.values() if isinstance(value, Tensor))

    def bytes(self) -> Counter[str]:
        """Return the local bytes of weights, gradients and moments, by role."""
        found: Counter[str] = Counter()
        for role, tensor in self._known():
            if tensor.dim():  # skip the optimizer's step counter, a scalar
                found[role] += local(tensor).nbytes
        return found

    def micro_batch(self) -> None:
        """Run one micro-batch forward and backward through the rank's stages, or the model."""
        batch = make_batch(1, self._micro_batch, self._shape)
        pipeline, last = self.layout.pipeline, self._config.parallelism.stages - 1
        if pipeline is None:
            with self.layout.part(self._autocast()):
                loss = self._program(batch.ids, labels=batch.labels, **batch.extra)
            loss.backward()
            return
        for number, stage in pipeline.stages.items():
            private.hold_gradients(stage)
            output = stage(self._state() if number else batch.ids)
            result = causal_loss(output, batch.labels) if number == last else output
            result.backward(None if number == last else torch.empty_like(output))

    def step(self) -> None:
        """Run one optimizer step, as in a run; a pipeline's replicas sum gradients before."""
        for stage in self.layout.pipeline.stages.values() if self.layout.pipeline else ():
            private.sum_gradients(stage)
        self.layout.add_up(self._model)
        self.optimizer.step()

    def _autocast(self) -> AbstractContextManager[object]:
        mixed = self._config.mixed_precision
        return torch.autocast("cpu", _DTYPE) if mixed else nullcontext()

    def _state(self) -> Tensor:
        """Return an example state between stages, ``[micro-batch, sequence, hidden]`` in BF16."""
        how, shape = self._config.parallelism, self._shape
        length = shape.sequence_length // (how.tp if how.sequence_parallel else 1)
        state = torch.empty(self._micro_batch, length, shape.hidden_size, dtype=_DTYPE)
        if how.sequence_parallel:
            with private.real_tensors():
                slices = self.layout.mesh.part("tp")
            state = DTensor.from_local(state, slices, [Shard(1)], run_check=False)
        return state.requires_grad_()

    def messages(self) -> tuple[Traffic, ...]:
        """Return the sends of one micro-batch: states to the next rank, gradients back."""
        how, pipeline = self._config.parallelism, self.layout.pipeline
        beside = [
            n for stage in (pipeline.stages if pipeline else ()) for n in (stage - 1, stage + 1)
        ]
        place = self.layout.mesh.place("pp")
        count = sum(0 <= n < how.stages and how.rank_of(n) != place for n in beside)
        size = local(self._state()).nbytes
        return (Traffic("send", "pp", count, count * size),) if count else ()

    def schedule(self, micro_batches: int) -> None:
        """Run all micro-batches through the rank's stages by torch's schedule."""
        how, pipeline, shape = self._config.parallelism, self.layout.pipeline, self._shape
        assert pipeline is not None, "simulate refuses others"
        size = self._micro_batch
        batch = make_batch(1, size * micro_batches, shape)
        ids = batch.ids[:size]
        state, last = self._state(), how.stages - 1

        def handed_on(number: int) -> Tensor:
            if number < last:
                return state
            return torch.empty(*ids.shape, shape.vocab_size, dtype=_DTYPE)  # logits, not sent on

        states = {
            number: (state if number else ids, handed_on(number)) for number in pipeline.stages
        }
        schedule = private.schedule_alone(
            how.schedule,
            pipeline.stages,
            how.stages,
            micro_batches,
            states,
            group=self.layout.mesh.part("pp").get_group(),
            loss=lambda output, labels: causal_loss(output, labels) / micro_batches,
        )
        schedule.step(batch.ids, target=batch.labels, losses=[], return_outputs=False)
