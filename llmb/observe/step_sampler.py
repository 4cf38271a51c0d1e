"""Sample an audited or judged step between the gradients and the optimizer step.

An audit request arrives, or does not arrive, in the pause of every step; until then an audited step
is like any other step. Only copies are enqueued here: nothing waits for the device before the next
fence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from llmb.observe.host_bytes import sha256_of
from llmb.observe.places import GRADIENTS, STATES, VECTOR, SampledIndices, choose
from llmb.observe.shard_places import read_places
from llmb.parallel.shards import is_elsewhere, local, nothing_of
from llmb.records.audited import AuditedStep, Segment
from llmb.records.places import fewer
from llmb.reference.train_loop import Step

_MOMENTS = ("exp_avg", "exp_avg_sq")
#: Sample sizes (gradients, elements of each) read in every pause before the worker learns whether
#: the step is audited. A lazy device would compile each choice of gradients: there 8 elements of
#: all gradients are read.
_GLANCED, _GLANCED_ELEMENTS, _GLANCED_BY_ALL = 16, 64, 8
#: Values of the optimizer sampled before an optimizer step and after.
KINDS = ("value", *_MOMENTS)


@dataclass
class _Seen:
    step: Step
    seed: int
    #: The sampled parameters, and the sampled indices for ``gradient`` and for ``state``.
    shown: list[tuple[str, nn.Parameter]]
    places: dict[str, list[SampledIndices]]
    #: AdamW's step counter, on any device; None in the very first step.
    counter: Tensor | None
    without_gradient: tuple[str, ...]
    #: The weights of the step are written to a file, so the gradients are compared.
    is_judged: bool
    tensors: dict[str, Tensor] = field(default_factory=dict)


def _alone(tensor: Tensor, turn: int) -> Tensor:
    return tensor


def _nothing() -> None:
    return None


class _Glance:
    """Some elements of some gradients, read before the worker knew whether the step is audited."""

    def __init__(self, chosen: list[tuple[str, nn.Parameter]], seed: int, *, lazy: bool) -> None:
        self._chosen, self._seed, self._lazy = chosen, seed, lazy
        self._count = _GLANCED_BY_ALL if lazy else _GLANCED_ELEMENTS
        self.asked: Tensor | None = None

    def read(self) -> Tensor:
        with torch.no_grad():  # of a sharded gradient, only this rank's shard
            there = [
                (name, local(p.grad.detach())) for name, p in self._chosen if p.grad is not None
            ]
            wanted = [
                (choose(self._seed, "glance", name, part.numel(), self._count), part)
                for name, part in there
                if part.numel()
            ]
            parts = [part.float() for part in read_places(wanted, lazy=self._lazy)]
        return torch.cat(parts) if parts else torch.zeros(0)


def _digest(sample: Tensor) -> str:
    """Return the sha256 of ``sample``; ``""`` while a device computes the sample."""
    return sha256_of(sample) if sample.device.type == "cpu" else ""


class StepSampler:
    """Samples audited and judged steps: some elements of each parameter.

    Where the gradients of every step are compared (rule L1), only the optimizer is sampled.
    """

    # Slots: no method can be replaced on the object; rule N1 sees a replacement on the class.
    __slots__ = (
        "_apart",
        "_compares",
        "_draw",
        "_ended",
        "_glanced",
        "_gradients",
        "_lazy",
        "_open",
        "_optimizer",
        "_own",
        "_parameters",
        "_seen",
        "_settle",
        "_states",
        "_total",
    )

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        lazy: bool = False,
        total: Callable[[Tensor, int], Tensor] = _alone,
        settle: Callable[[], object] | None = None,
        gradients: bool = True,
        elements: int = GRADIENTS,
    ) -> None:
        """Prepare to sample.

        Without ``gradients``, gradients are sampled neither in audited steps nor in the pauses.
        ``elements``: of each gradient of a judged step.
        ``lazy``: the device compiles the operations of a step, and the operations may not depend on
        a random draw. ``total`` sums the samples over all ranks, for sharded parameters, and
        of replicas takes those of the rank whose turn it is, by the seed of the elements.
        ``settle`` ends the program of a lazy device, before and after a sample: of an audited step
        in the warm-up and of a judged step the device then compiles the same programs.
        """
        self._lazy, self._total, self._compares = lazy, total, gradients
        self._settle = settle or _nothing
        # A subclass of `str` would learn when its value is used.
        self._parameters = [(str.__str__(name), p) for name, p in model.named_parameters()]
        #: Parameters with a shard on this rank; the rest are in other stages of a pipeline.
        self._own = [p for _, p in self._parameters if not is_elsewhere(p)]
        self._apart = len(self._own) < len(self._parameters)
        #: Number of elements sampled per tensor: of gradients, and for the optimizer replay.
        self._gradients = fewer(elements, len(self._parameters))
        self._states = max(VECTOR, fewer(STATES, len(self._parameters)))
        self._optimizer = optimizer
        self._seen: list[_Seen] = []
        #: Open: awaits the optimizer step. Ended: awaits the following step.
        self._open = self._ended = False
        # Drawn by the system: a blind sample can neither be predicted nor derived from a seed.
        self._draw = random.SystemRandom()
        self._glanced: _Glance | None = None

    def glance(self) -> str:
        """Read some gradient elements before the worker knows whether the step is audited.

        A cheat that corrects the gradients on an audit request comes too late for the elements.

        Returns:
            The sha256 of the elements; ``""`` without gradients, or while a device computes them.
        """
        if not self._compares:
            return ""
        there = [(n, p) for n, p in self._parameters if p.grad is not None and p.numel()]
        chosen = there if self._lazy else self._draw.sample(there, min(_GLANCED, len(there)))
        glance = _Glance(chosen, self._draw.getrandbits(63), lazy=self._lazy)
        glance.asked = glance.read()
        self._glanced = glance
        return _digest(glance.asked)

    def glance_again(self, step: Step, when: str) -> dict[str, Tensor]:
        """Return the blind sample of ``step``, then and now; ``when`` names the second reading."""
        glance = self._glanced
        if glance is None:
            return {}
        assert glance.asked is not None
        return {f"{step.index}/asked": glance.asked, f"{step.index}/asked {when}": glance.read()}

    def glanced(self) -> str:
        """Read the same elements again; return the sha256, as ``glance`` does."""
        glance = self._glanced
        return "" if glance is None else _digest(glance.read())

    def before(self, step: Step, seed: int) -> None:
        """Sample ``step``, after the gradients are computed; ``seed`` determines the elements."""
        self._sample(step, seed, is_judged=False)

    def show(self, step: Step, seed: int) -> str:
        """Sample the judged ``step`` likewise; return the sha256 of the sampled gradients.

        A collective call: the digest is over float32, after the sum over all ranks. The call waits
        for the device.
        """
        self._sample(step, seed, is_judged=True)
        tensors = self._seen[-1].tensors
        shown = tensors["gradient"] = self._total(tensors["gradient"].to("cpu").float(), seed)
        return sha256_of(shown)

    def _sample(self, step: Step, seed: int, *, is_judged: bool) -> None:
        self._settle()
        shown, state = self._shown(), self._optimizer.state
        places = {
            what: [self._places(seed, what, name, p) for name, p in shown]
            for what in ("gradient", "state")
        }
        # Not read yet: some kernels keep the counter on the device, and waiting is not allowed.
        counter = next((s["step"].clone() for s in state.values() if "step" in s), None)
        without = tuple(
            name
            for name, p in self._parameters
            if p.requires_grad and p.grad is None and p.numel() and not is_elsewhere(p)
        )
        seen = _Seen(step, seed, shown, places, counter, without, is_judged)
        glances = self.glance_again(step, "before")
        with torch.no_grad():
            gradients = _gradients(seen)
            if is_judged or (self._lazy and self._compares):
                seen.tensors["gradient"] = self._gather(seen, "gradient", gradients)
            seen.tensors["replay/gradient"] = self._gather(seen, "state", gradients)
            seen.tensors |= self._optimizer_side(seen, "before")
        glances |= self.glance_again(step, "after")
        seen.tensors |= {key.partition("/")[2]: value for key, value in glances.items()}
        self._settle()
        self._seen.append(seen)
        self._open = True

    def next(self) -> None:
        """Sample again in the step after an audited step: nothing may change in between."""
        if self._ended:
            self._settle()  # this step may be judged, too
            with torch.no_grad():
                seen = self._seen[-1]
                seen.tensors |= self._optimizer_side(seen, "next")
            self._settle()
            self._ended = False

    def clipped(self) -> None:
        """Sample the gradients of an audited step again, after clipping."""
        if self._open:
            seen = self._seen[-1]
            seen.tensors["replay/unclipped"] = seen.tensors["replay/gradient"]
            with torch.no_grad():
                seen.tensors["replay/gradient"] = self._gather(seen, "state", _gradients(seen))

    def after(self) -> None:
        """Sample again right after the optimizer step of an audited step."""
        if self._open:
            with torch.no_grad():
                self._seen[-1].tensors |= self._optimizer_side(self._seen[-1], "after")
            self._open, self._ended = False, True

    def read(self) -> tuple[int, ...]:
        """Copy all samples to the host, once the device is done; return the step numbers."""
        for seen in self._seen:
            seen.tensors = {k: t.to("cpu").float() for k, t in seen.tensors.items()}
        return tuple(seen.step.index for seen in self._seen)

    def steps(self) -> tuple[AuditedStep, ...]:
        """Return a record of each audited step: seeds, counter, optimizer settings, segments."""
        groups = self._optimizer.param_groups
        return tuple(
            AuditedStep(
                index=seen.step.index,
                token_seed=seen.step.seed,
                seed=seen.seed,
                weights_kept=seen.is_judged,
                steps_before=None if seen.counter is None else float(seen.counter),
                without_gradient=seen.without_gradient,
                foreach=groups[0]["foreach"],
                fused=groups[0]["fused"],
                capturable=bool(groups[0].get("capturable")),
                states=self._states,
                segments=_segments(seen),
            )
            for seen in self._seen
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all samples as float32, named such as ``12/gradient``: a collective call.

        All ranks must call. Gradients of steps that are not judged are left out: nothing can be
        compared with the gradients.
        """
        found = dict[str, Tensor]()
        for seen in self._seen:
            for what, tensor in seen.tensors.items():
                if what != "gradient":
                    own = tensor if what.startswith("asked") else self._total(tensor, seen.seed)
                    found[f"{seen.step.index}/{what}"] = own
                elif seen.is_judged:
                    found[f"{seen.step.index}/{what}"] = tensor
        return found

    def gradients_seen(self) -> Iterator[tuple[int, list[tuple[str, nn.Parameter, Tensor]]]]:
        """Yield each judged step's number, and the sampled indices of each gradient."""
        for seen in self._seen:
            if not seen.is_judged:
                continue
            yield (
                seen.step.index,
                [
                    (name, p, places.indices())
                    for (name, p), places in zip(seen.shown, seen.places["gradient"], strict=True)
                ],
            )

    def _shown(self) -> list[tuple[str, nn.Parameter]]:
        # A rank cannot know whether a parameter of another stage has a gradient: all ranks show all
        # parameters then, zeros for a missing gradient, and ``without_gradient`` names the missing.
        return [
            (name, p)
            for name, p in self._parameters
            if p.requires_grad and (p.grad is not None or self._apart) and p.numel()
        ]

    def _places(self, seed: int, what: str, name: str, parameter: nn.Parameter) -> SampledIndices:
        """Return the sampled indices of ``parameter``, for the gradient or for the replay.

        Kernels treat the remainder after full vectors differently, and a replayed sample cannot
        reproduce the remainder. Unless a replay sample holds the whole parameter, the sample leaves
        the remainder out. Example: of 8,003 elements, the last 3 (``VECTOR`` is 64).
        """
        size = parameter.numel()
        if what == "gradient":
            return choose(seed, what, name, size, self._gradients)
        whole = size if size <= self._states else size - size % VECTOR
        return choose(seed, what, name, whole, self._states)

    def _optimizer_side(self, seen: _Seen, when: str) -> dict[str, Tensor]:
        found = {}
        for kind in KINDS:
            values = [self._kept(p, kind) for _, p in seen.shown]
            missing = sum(value is None for value in values)
            if not missing or (self._apart and missing < len(values)):
                found[f"{when}/{kind}"] = self._gather(seen, "state", values)
        return found

    def _kept(self, parameter: nn.Parameter, kind: str) -> Tensor | None:
        """Return ``parameter`` or a moment of ``parameter``; None if absent on this rank."""
        if is_elsewhere(parameter):
            return None
        if kind == "value":
            return parameter
        state: dict[str, Tensor] = self._optimizer.state.get(parameter, {})
        return state.get(kind)

    def _gather(self, seen: _Seen, what: str, values: Iterable[Tensor | None]) -> Tensor:
        """Return the sampled elements of ``values``, zeros for each value not on this rank."""
        wanted = [
            (places, nothing_of(p, local(self._own[0]).device) if value is None else value)
            for (_, p), places, value in zip(seen.shown, seen.places[what], values, strict=True)
        ]
        parts = read_places(wanted, lazy=self._lazy, turn=seen.seed)
        if not parts:
            return torch.zeros(0)
        if len({part.dtype for part in parts}) > 1:
            parts = [part.float() for part in parts]
        return torch.cat(parts)


def _gradients(seen: _Seen) -> list[Tensor | None]:
    return [None if is_elsewhere(p) else p.grad for _, p in seen.shown]


def _segments(seen: _Seen) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            name=name,
            dtype=str(p.dtype).removeprefix("torch."),
            gradients=gradients.count,
            states=states.count,
        )
        for (name, p), gradients, states in zip(
            seen.shown, seen.places["gradient"], seen.places["state"], strict=True
        )
    )
