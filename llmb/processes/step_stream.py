"""The worker's side of the stream of steps: steps as they come, pauses, batches, fences."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from llmb.config import RunConfig
from llmb.errors import RunFailedError
from llmb.measure import clock
from llmb.observe import compilations
from llmb.observe.exactness import Exactness
from llmb.observe.ledger import StepLedger
from llmb.observe.step_batches import StepBatches
from llmb.observe.weights import FenceSamples
from llmb.plugin.backend import Backend, memory_of
from llmb.plugin.manager import Plugin
from llmb.records import audited
from llmb.reference.data import Batch
from llmb.reference.shapes import Shape
from llmb.reference.train_loop import Step, StepDone
from llmb.wire.channel import Channel
from llmb.wire.messages import (
    AuditRequest,
    Fence,
    Message,
    Paused,
    Proceed,
    Readings,
    StepOrder,
)


@dataclass(frozen=True)
class FencePayload:
    """What a fence tells besides clocks and counters."""

    #: ``{"compilations": n}`` of an executor that counts for itself.
    compilations: Mapping[str, float] = field(default_factory=dict)
    #: The scalar that is read back is a training loss.
    is_loss: bool = True
    #: What the step's prefill took, in mode generate.
    prefill_ns: int | None = None


class Observer(Protocol):
    """What looks at steps in their pauses."""

    def next(self) -> None:
        """Look once more in the step after an audited one."""
        ...

    def glance(self) -> None:
        """Read something before it is known whether the step is looked at."""
        ...

    def before(self, step: Step, seed: int) -> None:
        """Look at ``step``; ``seed`` says which elements."""
        ...

    def read(self) -> tuple[int, ...]:
        """Bring what was seen to the host; return the steps' numbers."""
        ...

    def steps(self) -> tuple[audited.AuditedStep, ...]:
        """Return what there is to know of the audited steps."""
        ...


# See ``StepSampler``: with slots nothing can be replaced on the object alone.
@dataclass(slots=True, eq=False)
class StepStream:
    """The steps of the run in the order they were sent, until one is asked for as the last."""

    _channel: Channel
    #: Looks at the steps that are asked for.
    sampler: Observer
    #: Reads something of every step, where steps can be repeated.
    ledger: StepLedger | None = None
    #: Compares the types of what each step is made of, where the run is audited.
    exactness: Exactness | None = None
    #: Steps completed, and steps that had to wait for their order to arrive.
    done: int = 0
    starved: int = 0
    #: Host time that all pauses took so far, and the longest.
    pause_ns: int = 0
    longest_pause_ns: int = 0
    #: The step in whose pause the stream ended, its loss, and the seed of what follows.
    last: Last | None = None
    _orders: deque[StepOrder] = field(default_factory=deque)
    #: The next step's order comes once the fence before it was stamped: that is no starving.
    _waits: bool = True

    def __iter__(self) -> Iterator[Step]:
        """Yield each step; asking for the next one says that the last is done."""
        while True:
            while not self._orders:
                self.starved += not self._waits
                self._take(self._channel.receive())
            order = self._orders.popleft()
            self._waits = order.fence
            yield Step(order.index, order.seed, order.fence)
            self.done += 1

    def pause(self, step: Step, loss: Tensor, *results: Tensor) -> bool:
        """Ask whether ``step`` is looked at, the same way in every step; True ends the stream.

        The answer is not in this process before its gradients are, for nobody has given it yet; and
        of the gradients something is read before the answer comes. ``loss`` are the logits where
        nothing is trained, and ``results`` what there is besides.
        """
        begin = clock.now_ns()
        if self.exactness is not None:
            self.exactness.look(step.index, loss, *results)
        self.sampler.next()
        self.sampler.glance()
        self._channel.send(Paused(index=step.index, commitment=self.commitment()))
        while not isinstance(message := self._channel.receive(), (Proceed, AuditRequest)):
            self._take(message)
        if self.ledger is not None and message.draw is not None:
            self.ledger.take(message.draw.places, message.draw.rate)
        if isinstance(message, AuditRequest):
            if message.last:
                self.last = Last(step, loss, message.seed)
                return True
            self.sampler.before(step, message.seed)
        took = clock.now_ns() - begin
        self.pause_ns += took
        self.longest_pause_ns = max(took, self.longest_pause_ns)
        return False

    def commitment(self) -> str:
        """Return the digest of what was read of the latest step's gradients, ``""`` of none."""
        return self.ledger.commitment() if self.ledger is not None else ""

    def evidence(self) -> audited.StepsEvidence:
        """Return what there is to know of the audited steps, and what the pauses cost."""
        return audited.StepsEvidence(
            steps=self.sampler.steps(),
            pause_ns=self.pause_ns,
            longest_pause_ns=self.longest_pause_ns,
        )

    def _take(self, message: Message | None) -> None:
        if isinstance(message, StepOrder):
            self._orders.append(message)


@dataclass(frozen=True)
class Last:
    """The step in whose pause the stream ended: its gradients are there, its update is not made."""

    step: Step
    loss: Tensor
    seed: int


class Batches:
    """Fresh tokens on the device: a rank's part of each step, in the batches it accumulates."""

    __slots__ = ("_backend", "_batches", "_config", "_replica", "_replicas", "latest")

    def __init__(self, config: RunConfig, shape: Shape, backend: Backend, replica: int = 0) -> None:
        """Make batches for ``config`` at ``shape``, of them the part of ``replica``."""
        self._config, self._backend = config, backend
        self._replica, self._replicas = replica, config.parallelism.replicas
        self._batches = StepBatches(config, shape)
        #: What the model was given in the latest step.
        self.latest: Sequence[Batch] = ()

    def make(self, seed: int) -> Sequence[Batch]:
        """Begin a step: return what it is made of, on the device."""
        self._backend.step_begin()
        whole = self._batches.make(seed)
        if self._replicas > 1:
            whole = whole.split(self._replicas)[self._replica]
        self.latest = whole.to(self._config.device).split(self._config.parts)
        return self.latest


def fence(
    done: StepDone,
    backend: Backend,
    samples: FenceSamples,
    stream: StepStream,
    told: FencePayload,
) -> Fence:
    """Wait for the device, read results back, and return what the supervisor stamps.

    Nothing of the plugin runs between the device's answer and the stamp: its readings come after.

    Raises:
        RunFailedError: the loss is not a finite number.
    """
    backend.synchronize()
    value, bits = samples.read(done.loss)
    what = "loss" if told.is_loss else "mean of the logits"
    if not math.isfinite(value):
        raise RunFailedError(
            f"the {what} is {value} after {done.step.index + 1} steps: the model has become "
            "non-finite; try another --precision, and check what the plugin does to the model"
        )
    return Fence(
        steps=done.step.index + 1,
        loss=value if told.is_loss else None,
        bits=bits,
        cpu_s=clock.cpu_s(),
        starved_steps=stream.starved,
        audited_steps=stream.sampler.read(),
        pause_ns=stream.pause_ns,
        prefill_ns=told.prefill_ns,
        # The last: what is read above takes long on some devices, and longer after audited steps.
        # The supervisor's stamp, which rule T1 holds against this one, comes after all of it.
        worker_ns=clock.now_ns(),
    )


def readings(steps: int, plugin: Plugin, backend: Backend, told: FencePayload) -> Readings:
    """Return what the device's memory, energy and gauges are after the fence of ``steps`` steps.

    Rule N2 knows this function: what plugin code does in it, llmb has asked for.
    """
    energy = backend.energy()
    return Readings(
        steps=steps,
        peak_memory_bytes=memory_of(backend).peak_bytes,
        energy_j=energy.joules if energy else None,
        energy_source=energy.source if energy else None,
        energy_scope=energy.scope if energy else None,
        telemetry={
            **compilations.torchs_own(),
            **told.compilations,
            **plugin.telemetry(backend),
        },
    )
