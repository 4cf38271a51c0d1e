"""What is seen of an audited step, between its gradients and its optimizer step.

A request comes, or does not come, in the pause every step makes; until then such a step is like any
other. Only copies are enqueued here: nothing waits for the device before the next fence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from llmb.observe.places import GRADIENTS, STATES, VECTOR, SampledIndices, choose
from llmb.observe.shards import is_elsewhere, local, nothing_of, read_places
from llmb.records.audited import AuditedStep, Segment
from llmb.records.places import fewer
from llmb.reference.train_loop import Step

_MOMENTS = ("exp_avg", "exp_avg_sq")
#: Gradients, and elements of each, that are read in every pause before the answer is there. A lazy
#: device would compile each choice of gradients: there a few elements of all are read.
_GLANCED, _GLANCED_ELEMENTS, _GLANCED_BY_ALL = 16, 64, 8
#: What is read of the optimizer's side, before its step and after.
KINDS = ("value", *_MOMENTS)


@dataclass
class _Seen:
    step: Step
    seed: int
    #: The parameters that are shown, and which elements of each, by ``gradient`` and ``state``.
    shown: list[tuple[str, nn.Parameter]]
    places: dict[str, list[SampledIndices]]
    #: AdamW's step counter, wherever it lies; None in the very first step.
    counter: Tensor | None
    without_gradient: tuple[str, ...]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def _alone(tensor: Tensor) -> Tensor:
    return tensor


class _Glance:
    """Some elements of some gradients, as they were when nobody knew whether they would count."""

    def __init__(self, chosen: list[tuple[str, nn.Parameter]], seed: int, *, lazy: bool) -> None:
        self._chosen, self._seed, self._lazy = chosen, seed, lazy
        self._count = _GLANCED_BY_ALL if lazy else _GLANCED_ELEMENTS
        self.asked: Tensor | None = None

    def read(self) -> Tensor:
        with torch.no_grad():  # of what is spread over ranks, this one's part
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


class StepSampler:
    """Looks at audited steps: some elements of each, and all weights of the latest.

    Where the gradients of every step are compared (rule L1), only the optimizer is looked at.
    """

    # No method can be replaced on an object with slots; on the class rule N1 sees it.
    __slots__ = (
        "_apart",
        "_copy",
        "_draw",
        "_ended",
        "_glanced",
        "_gradients",
        "_keeps",
        "_lazy",
        "_open",
        "_optimizer",
        "_own",
        "_parameters",
        "_seen",
        "_states",
        "_total",
    )

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        lazy: bool = False,
        total: Callable[[Tensor], Tensor] = _alone,
        copies: bool = True,
    ) -> None:
        """Prepare to look; with ``copies`` set the memory for one copy of the weights aside.

        Every worker of such a run does, so that none knows whether it is looked at. Without, the
        gradients are not looked at: neither in audited steps, nor in each pause.
        ``lazy``: the device compiles what a step does, so what is done may not depend on a draw.
        ``total`` adds up what all ranks show, where parameters are spread over them.
        """
        self._lazy, self._total, self._keeps = lazy, total, copies
        self._parameters = list(model.named_parameters())
        #: Those of which this rank has anything; the rest are in other stages of a pipeline.
        self._own = [p for _, p in self._parameters if not is_elsewhere(p)]
        self._apart = len(self._own) < len(self._parameters)
        #: Elements of each that are read: of its gradient, and for the replay.
        self._gradients = fewer(GRADIENTS, len(self._parameters))
        self._states = max(VECTOR, fewer(STATES, len(self._parameters)))
        # Zeros and not empty: the pages are there before the first step, not in an audited one.
        with torch.no_grad():
            self._copy = [torch.zeros_like(local(p)) for p in self._own] if copies else []
        self._optimizer = optimizer
        self._seen: list[_Seen] = []
        #: An audited step awaits its optimizer step, or the step after it.
        self._open = self._ended = False
        # Of the system: what is glanced at cannot be known beforehand, nor followed from a seed.
        self._draw = random.SystemRandom()
        self._glanced: _Glance | None = None

    def glance(self) -> None:
        """Read some elements of some gradients, before it is known whether the step is looked at.

        Whoever puts the gradients right when somebody looks comes too late for these.
        """
        if not self._keeps:
            return
        there = [(n, p) for n, p in self._parameters if p.grad is not None and p.numel()]
        chosen = there if self._lazy else self._draw.sample(there, min(_GLANCED, len(there)))
        glance = _Glance(chosen, self._draw.getrandbits(63), lazy=self._lazy)
        glance.asked = glance.read()
        self._glanced = glance

    def glance_again(self, step: Step, when: str) -> dict[str, Tensor]:
        """Return what was glanced at in ``step``, then and now, before or after all is read."""
        glance = self._glanced
        if glance is None:
            return {}
        assert glance.asked is not None
        return {f"{step.index}/asked": glance.asked, f"{step.index}/asked {when}": glance.read()}

    def before(self, step: Step, seed: int) -> None:
        """Look at ``step``, whose gradients are there; ``seed`` says which elements."""
        shown, state = self._shown(), self._optimizer.state
        places = {
            what: [self._places(seed, what, name, p) for name, p in shown]
            for what in ("gradient", "state")
        }
        # Not read yet: some kernels keep it on the device, and nothing here waits for that.
        counter = next((s["step"].clone() for s in state.values() if "step" in s), None)
        without = tuple(
            name
            for name, p in self._parameters
            if p.requires_grad and p.grad is None and p.numel() and not is_elsewhere(p)
        )
        seen = _Seen(step, seed, shown, places, counter, without)
        glances = self.glance_again(step, "before")
        with torch.no_grad():
            gradients = _gradients(seen)
            if self._keeps:
                torch._foreach_copy_(self._copy, [local(p) for p in self._own])
                seen.tensors["gradient"] = self._gather(seen, "gradient", gradients)
            seen.tensors["replay/gradient"] = self._gather(seen, "state", gradients)
            seen.tensors |= self._optimizer_side(seen, "before")
        glances |= self.glance_again(step, "after")
        seen.tensors |= {key.partition("/")[2]: value for key, value in glances.items()}
        self._seen.append(seen)
        self._open = True

    def next(self) -> None:
        """Look once more in the step after an audited one: nothing changed in between."""
        if self._ended:
            with torch.no_grad():
                seen = self._seen[-1]
                seen.tensors |= self._optimizer_side(seen, "next")
            self._ended = False

    def clipped(self) -> None:
        """Look at the gradients of an audited step again, once they have been clipped."""
        if self._open:
            seen = self._seen[-1]
            seen.tensors["replay/unclipped"] = seen.tensors["replay/gradient"]
            with torch.no_grad():
                seen.tensors["replay/gradient"] = self._gather(seen, "state", _gradients(seen))

    def after(self) -> None:
        """Look again where the optimizer has just made an audited step."""
        if self._open:
            with torch.no_grad():
                self._seen[-1].tensors |= self._optimizer_side(self._seen[-1], "after")
            self._open, self._ended = False, True

    def read(self) -> tuple[int, ...]:
        """Bring what was seen to the host, once the device is done; return the steps' numbers."""
        for seen in self._seen:
            seen.tensors = {k: t.to("cpu").float() for k, t in seen.tensors.items()}
        return tuple(seen.step.index for seen in self._seen)

    def steps(self) -> tuple[AuditedStep, ...]:
        """Return what there is to know of the audited steps besides their numbers."""
        last = len(self._seen) - 1
        groups = self._optimizer.param_groups
        return tuple(
            AuditedStep(
                index=seen.step.index,
                token_seed=seen.step.seed,
                seed=seen.seed,
                weights_kept=self._keeps and number == last,
                steps_before=None if seen.counter is None else float(seen.counter),
                without_gradient=seen.without_gradient,
                foreach=groups[0]["foreach"],
                fused=groups[0]["fused"],
                capturable=bool(groups[0].get("capturable")),
                states=self._states,
                segments=_segments(seen),
            )
            for number, seen in enumerate(self._seen)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return what was read, by ``<step>/<what>``, float32: a collective call of all ranks.

        Gradients that nothing can be compared with, for want of that step's weights, are left out.
        """
        return {
            f"{seen.step.index}/{what}": tensor if what.startswith("asked") else self._total(tensor)
            for seen in self._seen
            for what, tensor in seen.tensors.items()
            if what != "gradient" or seen is self._seen[-1]
        }

    def gradients_seen(self) -> Iterator[tuple[int, list[tuple[str, nn.Parameter, Tensor]]]]:
        """Yield the latest audited step's number, and which elements of its gradients were read."""
        for seen in self._seen[-1:] if self._keeps else ():
            yield (
                seen.step.index,
                [
                    (name, p, places.indices())
                    for (name, p), places in zip(seen.shown, seen.places["gradient"], strict=True)
                ],
            )

    def swap(self) -> None:
        """Exchange the weights of the latest audited step with the present ones."""
        with torch.no_grad():
            for parameter, copy in zip(self._own, self._copy, strict=True):
                part = local(parameter.detach())
                present = part.clone()
                part.copy_(copy)
                copy.copy_(present)

    def release(self) -> None:
        """Give the memory of the copy back."""
        self._copy.clear()

    def _shown(self) -> list[tuple[str, nn.Parameter]]:
        # Of another rank's stage it is not known whether it has a gradient: all show all then,
        # zeros where there is none, and ``without_gradient`` says of which.
        return [
            (name, p)
            for name, p in self._parameters
            if p.requires_grad and (p.grad is not None or self._apart) and p.numel()
        ]

    def _places(self, seed: int, what: str, name: str, parameter: nn.Parameter) -> SampledIndices:
        """Return which elements of ``parameter`` are read, of its gradient or for the replay.

        Kernels treat what their vectors leave over differently, which a replayed sample cannot
        tell: unless it holds the whole parameter, it holds none of that.
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
        """Return the value of ``parameter`` or a moment of it, None where there is none here."""
        if is_elsewhere(parameter):
            return None
        if kind == "value":
            return parameter
        state: dict[str, Tensor] = self._optimizer.state.get(parameter, {})
        return state.get(kind)

    def _gather(self, seen: _Seen, what: str, values: Iterable[Tensor | None]) -> Tensor:
        """Return the elements ``what`` of ``values``, zeros for each that is not on this rank."""
        wanted = [
            (places, nothing_of(p, local(self._own[0]).device) if value is None else value)
            for (_, p), places, value in zip(seen.shown, seen.places[what], values, strict=True)
        ]
        parts = read_places(wanted, lazy=self._lazy)
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
