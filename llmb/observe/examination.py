"""What a worker does once its stream has ended: sketch the last gradients, then run the probes.

It computes with the model as it was trained, on tokens it could not know, and judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from llmb.observe import pairs, pairs_seen, probes
from llmb.observe.canonical import Canonical
from llmb.observe.one_part import PartKeeper
from llmb.observe.passes import LIVE, Sketches, copies_of
from llmb.observe.sketch import side_for
from llmb.plugin.backend import Backend
from llmb.records.precision_recipe import PairSeen
from llmb.reference.data import Batch
from llmb.reference.shapes import Shape

_DIGITS = 256  # whole numbers up to here are exact in every format a weight is stored in


@dataclass(slots=True)
class Examination:
    """Collects the sketches of every pass of one worker."""

    _canonical: Canonical
    _shape: Shape
    #: Tokens and signs follow from it.
    _seed: int
    #: Keeps one part whole, where a single judgement is repeated.
    _keeper: PartKeeper | None = None
    _saved: dict[str, Tensor] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    passes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def live(self, loss: Tensor) -> None:
        """Take the gradients of the step in whose pause the stream ended."""
        self._take(LIVE, loss)

    def probe(
        self,
        name: str,
        model: nn.Module,
        program: Callable[..., Any],
        backend: Backend,
        dtype: str,
        batch: Batch,
        context: AbstractContextManager[object] | None = None,
    ) -> None:
        """Run one probe through ``program``, which is how ``model`` is called.

        Its tokens overwrite those of ``batch``, in the same memory every time. All its sequences
        are the same, and the loss is their mean: in float16 it is their sum, so that gradients
        underflow no sooner than those of one sequence do.
        """
        for parameter in model.parameters():
            parameter.grad = None
        self.edit(name, dtype)
        batch.fill(probes.batch(self._seed, name, self._shape))
        with self.watching(name, model):
            loss, copies = self._pass(program, backend, dtype, batch, context)
        self._take(name, loss, copies)

    def watching(self, name: str, model: nn.Module) -> AbstractContextManager[object]:
        """Return the context of pass ``name``: in it the one part is looked at, if there is one."""
        if self._keeper is None:
            return nullcontext()
        return self._keeper.watching(model, name, self._shape.sequence_length)

    def _pass(
        self,
        program: Callable[..., Any],
        backend: Backend,
        dtype: str,
        batch: Batch,
        context: AbstractContextManager[object] | None,
    ) -> tuple[Tensor, int]:
        """Go forward and backward; return the loss, and by what it was multiplied."""
        backend.step_begin()
        with context or nullcontext():
            loss = program(batch.ids, labels=batch.labels, **batch.extra)
        copies = copies_of(batch, dtype)
        (loss * copies if copies > 1 else loss).backward()  # the model's own, whatever it is
        backend.step_end()
        backend.synchronize()
        return loss, copies

    def pairs(
        self,
        model: nn.Module,
        program: Callable[..., Any],
        backend: Backend,
        dtype: str,
        batch: Batch,
        context: AbstractContextManager[object] | None = None,
    ) -> tuple[PairSeen, ...]:
        """Run the probe ``pairs`` as ``probe`` runs the others, and return what it shows.

        All weights are overwritten, and stay so. The shape has no ``pairs_layout.obstacle``.
        """
        made = pairs.Pairs(self._shape, self._seed, dtype)
        for parameter in model.parameters():
            parameter.grad = None
        for name in self._canonical.names:
            self._canonical.write(name, made.weight(name, self._canonical.value(name)))
        self._saved = {}
        batch.fill(made.batch())
        self._pass(program, backend, dtype, batch, context)
        return tuple(pairs_seen.seen(self._shape, self._canonical.gradient))

    def edit(self, name: str, dtype: str) -> None:
        """Write the weights of probe ``name``, from those that were trained."""
        for target, value in self._saved.items():
            self._canonical.write(target, value)
        edits = probes.edits(name, self._shape, dtype)
        # Out-projections are not kept: every probe makes them from zero, or from the live weights.
        parts = probes.parts(self._shape)
        made = {*parts.out, *parts.biases}
        # In the order of the edits, the same on all ranks: each value is gathered from them.
        kept = [target for target in edits if target not in made]
        self._saved = {target: self._canonical.value(target).clone() for target in kept}
        for target, edit in edits.items():
            self._canonical.write(target, edit(self._canonical.value(target)))

    def _take(self, name: str, loss: Tensor, copies: int = 1) -> None:
        side = side_for(len(self._canonical.names))
        sketches = Sketches(name, self._seed, self._shape, side)
        sketches.loss(loss)
        for parameter in self._canonical.names:
            gradient = self._canonical.gradient(parameter)
            if gradient is None:
                self.missing.append(f"{name}/{parameter}")
                continue
            gradient = gradient.float() / copies if copies > 1 else gradient
            sketches.add(parameter, gradient)
            if self._keeper is not None and parameter == self._keeper.part.parameter:
                self._keeper.gradient(name, gradient)
        self.tensors |= sketches.tensors
        self.passes.append(name)


def places(
    canonical: Canonical,
    sizes: Mapping[str, int],
    stored: Sequence[tuple[str, nn.Parameter, Tensor]],
) -> Tensor:
    """Return where elements of stored parameters lie in the canonical model, int64.

    ``stored`` holds name, parameter and the elements' numbers; ``sizes`` the canonical parameters'
    element counts, in order. Counted through all of them; -1 is padding. Where a map says how
    parameters are stored, every canonical element is written its own number, a digit at a time, and
    found again where it went: the model's weights are lost.
    """
    if not stored:
        return torch.zeros(0, dtype=torch.int64)
    first, total = {}, 0
    for name, size in sizes.items():
        first[name] = total
        total += size
    if canonical.mapped:
        return _found_again(canonical, sizes, first, total, stored)
    return torch.cat([_plain(canonical.by_stored.get(n), first, i) for n, _, i in stored])


def _plain(name: str | None, first: Mapping[str, int], indices: Tensor) -> Tensor:
    if name is None or name not in first:
        return torch.full_like(indices, -1)
    return indices + first[name]


def _found_again(
    canonical: Canonical,
    sizes: Mapping[str, int],
    first: Mapping[str, int],
    total: int,
    stored: Sequence[tuple[str, nn.Parameter, Tensor]],
) -> Tensor:
    with torch.no_grad():
        for _, parameter, _ in stored:
            parameter.zero_()
    found = torch.full((sum(len(indices) for *_, indices in stored),), -1)
    for power in range(max(1, math.ceil(math.log(total + 1, _DIGITS)))):
        weight = _DIGITS**power
        for name in canonical.names:
            if name not in first:
                continue
            shape = canonical.value(name).shape
            # From one on: what stays zero in every digit is padding.
            number = torch.arange(first[name] + 1, first[name] + sizes[name] + 1)
            canonical.write(name, (number // weight % _DIGITS).float().view(shape))
        digits = [p.detach().flatten()[i.to(p.device)].to("cpu") for _, p, i in stored]
        found += torch.cat(digits).round().long() * weight
    return found
