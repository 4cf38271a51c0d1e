"""The worker's side of the stream of steps: incoming orders, pauses, batches, fences."""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from llmb import clock
from llmb.config import RunConfig
from llmb.errors import RunFailedError
from llmb.observe import compilations
from llmb.observe.exactness import Exactness
from llmb.observe.ledger import StepLedger
from llmb.observe.step_batches import StepBatches
from llmb.observe.weights import FenceSamples
from llmb.plugin.backend import Backend, memory_of
from llmb.plugin.manager import Plugin
from llmb.records import audited
from llmb.records.run_record import COMPILATIONS_COUNTED
from llmb.reference.data import Batch
from llmb.reference.shapes import Shape
from llmb.reference.train_loop import Step, StepDone
from llmb.wire.channel import Channel
from llmb.wire.messages import (
    AuditRequest,
    Fence,
    KeepWeights,
    Message,
    Paused,
    Proceed,
    Readings,
    Sampled,
    ShownStep,
    StepDraw,
    StepOrder,
    Stopped,
)


@dataclass(frozen=True)
class FencePayload:
    """Values of a fence besides clocks and counters."""

    #: ``{"compilations": n}`` from an executor with a counter of its own, such as thunder.
    compilations: Mapping[str, float] = field(default_factory=dict)
    #: True: the scalar that is read back is a training loss.
    is_loss: bool = True
    #: Nanoseconds of the step's prefill, in mode generate.
    prefill_ns: int | None = None


class Observer(Protocol):
    """The part of a worker that looks at steps in the pauses."""

    def next(self) -> None:
        """Look once more, in the step after an audited step."""
        ...

    def glance(self) -> str:
        """Take a blind sample, before the worker learns whether the step is audited.

        Returns:
            The sha256 of the sample; ``""`` without a sample, or while a device computes it.
        """
        ...

    def glanced(self) -> str:
        """Take the blind sample of the step again, and return the sha256 likewise."""
        ...

    def before(self, step: Step, seed: int) -> None:
        """Look at ``step``; ``seed`` decides the sampled elements."""
        ...

    def read(self) -> tuple[int, ...]:
        """Bring the samples to the host; return the numbers of the sampled steps."""
        ...

    def steps(self) -> tuple[audited.AuditedStep, ...]:
        """Return the facts of the audited steps."""
        ...


@dataclass(frozen=True)
class WeightsKeeper:
    """Shows a judged step, and writes its weights while the clock of the run stands still."""

    #: Samples the step by a seed, and returns the digest of the sampled gradients.
    show: Callable[[Step, int], str]
    #: Waits for the device.
    finish: Callable[[], None]
    #: Writes the weights of the step with a number.
    write: Callable[[int], None]


@contextmanager
def without_finalizers() -> Iterator[None]:
    """Keep Python's collector off: a finalizer of the plugin's garbage could run in between.

    Between the supervisor's answer and the reading of the gradients, nothing but llmb's own code
    may know that a step is judged. While an honest run repeats steps, a finalizer could find the
    samples in the frames below, and write the worker's samples there.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


# See ``StepSampler``: slots prevent replacing a method on the object alone.
@dataclass(slots=True, eq=False)
class StepStream:
    """The steps of the run in the order of arrival, until a step is requested as the last."""

    _channel: Channel
    #: Looks at the audited steps.
    sampler: Observer
    #: Samples every step, if steps can be repeated.
    ledger: StepLedger | None = None
    #: Compares the types of the objects that each step is made of, if the run is audited.
    exactness: Exactness | None = None
    #: Number of completed steps, and of steps that waited for the arrival of an order.
    done: int = 0
    starved: int = 0
    #: Host time of all pauses together, and of the longest pause, in nanoseconds.
    pause_ns: int = 0
    longest_pause_ns: int = 0
    #: Writes the weights of judged steps; None where no step is judged.
    keeper: WeightsKeeper | None = None
    #: Time in which the clock of the run stood still, and CPU time of the process in this time.
    stopped_ns: int = 0
    stopped_cpu_s: float = 0.0
    #: The step of the pause in which the stream ended, the loss, and the seed of the audit after.
    last: Last | None = None
    _orders: deque[StepOrder] = field(default_factory=deque)
    #: After a fence, the next order comes once the fence is stamped: waiting is not starving.
    _waits: bool = True

    def __iter__(self) -> Iterator[Step]:
        """Yield each step; asking for the next step reports the previous step as done."""
        while True:
            while not self._orders:
                self.starved += not self._waits
                self._take(self._channel.receive())
            order = self._orders.popleft()
            self._waits = order.fence
            yield Step(order.index, order.seed, order.fence)
            self.done += 1

    def pause(self, step: Step, loss: Tensor, *results: Tensor) -> bool:
        """Ask whether ``step`` is audited, the same way in every step; True ends the stream.

        The supervisor first names the elements to read (``StepDraw``), and answers only after they
        are read: this process cannot know the answer earlier. ``loss`` holds the logits in modes
        without training. ``results`` holds further results of the step.
        """
        begin = clock.now_ns()
        if self.exactness is not None:
            self.exactness.see(step.index, loss, *results)
        # In this order a lazy device compiles the same programs after an audited step.
        glanced = self.sampler.glance()
        self.sampler.next()
        commitment, stopped_ns = self.commitment(), self.stopped_ns
        with without_finalizers():
            if self.exactness is not None:
                # Before this comparison code of the plugin may have run, and after it none does.
                self.exactness.compare(step.index)
            self._channel.send(Paused(index=step.index, commitment=commitment, glanced=glanced))
            message = self._channel.receive()
            # `type` and not `isinstance`, which would ask the metaclass.
            while not (
                type(message) is Proceed
                or type(message) is AuditRequest
                or type(message) is KeepWeights
            ):
                if type(message) is StepDraw:
                    self._read(step, message)
                else:
                    self._take(message)
                message = self._channel.receive()
            if type(message) is KeepWeights:
                self._show(step, message)
        if type(message) is KeepWeights:
            self._stop(step.index)
        if type(message) is AuditRequest:
            if message.last:
                self.last = Last(step, loss, message.seed)
                return True
            self.sampler.before(step, message.seed)
        took = clock.now_ns() - begin - (self.stopped_ns - stopped_ns)
        self.pause_ns += took
        self.longest_pause_ns = max(took, self.longest_pause_ns)
        return False

    def now_ns(self) -> int:
        """Return the time on the clock of the run, which stands still while weights are written."""
        return clock.now_ns() - self.stopped_ns

    def cpu_s(self) -> float:
        """Return the CPU seconds of this process, without the time in which the clock stood."""
        return clock.cpu_s() - self.stopped_cpu_s

    def _read(self, step: Step, draw: StepDraw) -> None:
        """Read the elements of ``draw``, and commit to them before the answer arrives."""
        if self.ledger is None:
            raise RunFailedError(f"nothing can read the gradients of step {step.index}")
        self.ledger.take(draw.places, draw.rate)
        commitment = self.ledger.committed_at_once()
        self._channel.send(Sampled(index=step.index, commitment=commitment))

    def _show(self, step: Step, order: KeepWeights) -> None:
        """Send the digests of the gradients of a judged step, which nobody can change any more."""
        digest = glanced = ""
        if order.seed is not None:
            digest = self._known_keeper(step.index).show(step, order.seed)
            glanced = self.sampler.glanced()
        self._channel.send(
            ShownStep(
                index=step.index, commitment=self.commitment(), digest=digest, glanced=glanced
            )
        )

    def _known_keeper(self, step: int) -> WeightsKeeper:
        if self.keeper is None:
            raise RunFailedError(f"nothing can write the weights of step {step}")
        return self.keeper

    def _stop(self, step: int) -> None:
        """Stop the clock, and write the weights of ``step``, which the reference run recomputes.

        The digest of the gradients has left the process: what waits for the device may be code of
        the plugin's. After that code everything is compared again. The supervisor stops its own
        clock when the message arrives.
        """
        keeper = self._known_keeper(step)
        keeper.finish()
        if self.exactness is not None:
            self.exactness.compare(step)
        begin_s = clock.cpu_s()
        self._channel.send(Stopped(index=step))
        keeper.write(step)
        while not isinstance(message := self._channel.receive(), Proceed):
            self._take(message)
        self.stopped_cpu_s += clock.cpu_s() - begin_s
        self.stopped_ns += message.stopped_ns

    def commitment(self) -> str:
        """Return the digest of the latest step's sampled gradients, ``""`` without a ledger."""
        return self.ledger.commitment() if self.ledger is not None else ""

    def evidence(self) -> audited.StepsEvidence:
        """Return the facts of the audited steps, and the time that the pauses took."""
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
    """The step of the pause in which the stream ended: with gradients, without an update."""

    step: Step
    loss: Tensor
    seed: int


def seed_masks(backend: Backend, seed: int) -> None:
    """Set the seed of the masks of dropout, on the host and on the device.

    If ``torch.manual_seed`` does not reach the generator of a device, the backend of the device has
    a method ``manual_seed(seed)``; other backends need no method.
    """
    torch.manual_seed(seed)
    own: Callable[[int], object] | None = getattr(backend, "manual_seed", None)
    if own is not None:
        own(seed)


class Batches:
    """Fresh tokens on the device: a rank's share of each step, split into micro-batches."""

    __slots__ = ("_backend", "_batches", "_config", "_replica", "_replicas", "latest")

    def __init__(self, config: RunConfig, shape: Shape, backend: Backend, replica: int = 0) -> None:
        """Make the batches of ``replica`` for ``config`` at ``shape``."""
        self._config, self._backend = config, backend
        self._replica, self._replicas = replica, config.parallelism.replicas
        self._batches = StepBatches(config, shape)
        #: The model's input in the latest step.
        self.latest: Sequence[Batch] = ()

    def make(self, seed: int) -> Sequence[Batch]:
        """Begin a step: return the micro-batches of the step, on the device.

        With dropout an honest run with the same seed draws the same masks.
        """
        self._backend.step_begin()
        whole = self._batches.make(seed)
        if self._replicas > 1:
            whole = whole.split(self._replicas)[self._replica]
        self.latest = whole.to(self._config.device).split(self._config.parts)
        if masks := self._batches.masks(seed):
            seed_masks(self._backend, masks[self._replica])
        return self.latest


def fence(
    done: StepDone,
    backend: Backend,
    samples: FenceSamples,
    stream: StepStream,
    told: FencePayload,
) -> Fence:
    """Wait for the device, read results back, and return the fence for the supervisor to stamp.

    No code of the plugin runs between the device's answer and the stamp: the plugin's readings come
    afterwards.

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
        cpu_s=stream.cpu_s(),
        starved_steps=stream.starved,
        audited_steps=stream.sampler.read(),
        pause_ns=stream.pause_ns,
        prefill_ns=told.prefill_ns,
        # The last field: the reads above take long on some devices, and longer after audited
        # steps. Rule T1 compares this stamp with the supervisor's stamp, which comes later still.
        worker_ns=stream.now_ns(),
    )


def readings(steps: int, plugin: Plugin, backend: Backend, told: FencePayload) -> Readings:
    """Return memory, energy and gauges of the device after the fence of ``steps`` steps.

    Rule N2 knows this function: llmb has asked for all that plugin code does in the function.
    """
    energy = backend.energy()
    return Readings(
        steps=steps,
        peak_memory_bytes=memory_of(backend).peak_bytes,
        energy_j=energy.joules if energy else None,
        energy_source=energy.source if energy else None,
        energy_scope=energy.scope if energy else None,
        telemetry=_telemetry(plugin, backend, told),
    )


def _telemetry(plugin: Plugin, backend: Backend, told: FencePayload) -> dict[str, float]:
    """Return the plugin's readings beside llmb's own count of compiled programs.

    The count appears twice: a plugin may replace ``compilations``, which only warns. Rule N2 reads
    the second.
    """
    own = {**compilations.torchs_own(), **told.compilations}
    readings = {**own, **plugin.telemetry(backend)}
    readings.pop(COMPILATIONS_COUNTED, None)
    if own:
        readings[COMPILATIONS_COUNTED] = own["compilations"]
    return readings
