"""Examine a worker after its stream ends: sketch the last gradients, then run the probes.

The probes use the trained model and tokens that the worker could not know. Nothing is judged here.
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
from llmb.records.places import ranges_of
from llmb.records.precision_recipe import PairSeen
from llmb.reference.data import Batch
from llmb.reference.shapes import Shape

_DIGITS = 256  # whole numbers up to 256 are exact in every format a weight is stored in


@dataclass(slots=True)
class Examination:
    """Collects the sketches of every pass of a worker."""

    _canonical: Canonical
    _shape: Shape
    #: Tokens and signs are derived from the seed.
    _seed: int
    #: Keeps a part of the model in full, to repeat a single judgement.
    _keeper: PartKeeper | None = None
    _saved: dict[str, Tensor] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    passes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def live(self, loss: Tensor) -> None:
        """Take the gradients of the step during which the stream ended (in the step's pause)."""
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
        """Run a probe through ``program``, the callable that runs ``model``.

        The probe's tokens overwrite the tokens of ``batch``, in the same memory every time. All
        sequences are equal. In float16 the loss has a factor (``copies_of``), so that gradients do
        not underflow.
        """
        for parameter in model.parameters():
            parameter.grad = None
        self.edit(name, dtype)
        batch.fill(probes.batch(self._seed, name, self._shape))
        with self.watching(name, model):
            copies = copies_of(batch, dtype)
            loss = self._pass(program, backend, batch, context, copies)
        self._take(name, loss, copies)

    def watching(self, name: str, model: nn.Module) -> AbstractContextManager[object]:
        """Return the context of pass ``name``, in which the kept part, if any, is observed."""
        if self._keeper is None:
            return nullcontext()
        return self._keeper.watching(model, name, self._shape.sequence_length)

    def _pass(
        self,
        program: Callable[..., Any],
        backend: Backend,
        batch: Batch,
        context: AbstractContextManager[object] | None,
        copies: int,
    ) -> Tensor:
        """Run forward, and backward with the loss times ``copies``; return the loss."""
        backend.step_begin()
        with context or nullcontext():
            loss: Tensor = program(batch.ids, labels=batch.labels, **batch.extra)
        # The ``backward`` of the model's loss.
        (loss * copies if copies > 1 else loss).backward()  # type: ignore[no-untyped-call]
        backend.step_end()
        backend.synchronize()
        return loss

    def pairs(
        self,
        model: nn.Module,
        program: Callable[..., Any],
        backend: Backend,
        dtype: str,
        batch: Batch,
        context: AbstractContextManager[object] | None = None,
    ) -> tuple[PairSeen, ...]:
        """Run the probe ``pairs`` as ``probe`` runs other probes, and return the pairs seen.

        All weights are overwritten, and stay overwritten. The shape has no
        ``pairs_layout.obstacle``.
        """
        made = pairs.Pairs(self._shape, self._seed, dtype)
        for parameter in model.parameters():
            parameter.grad = None
        for name in self._canonical.names:
            self._canonical.write(name, made.weight(name, self._canonical.value(name)))
        self._saved = {}
        batch.fill(made.batch())
        # In float16 the sum over equal sequences: as exact as the gradient of a single sequence.
        copies = len(batch.ids) if dtype == "float16" else 1
        self._pass(program, backend, batch, context, copies)
        return tuple(pairs_seen.seen(self._shape, self._canonical.gradient))

    def edit(self, name: str, dtype: str) -> None:
        """Write the weights of probe ``name``, derived from the trained weights."""
        for target, value in self._saved.items():
            self._canonical.write(target, value)
        edits = probes.edits(name, self._shape, dtype)
        # Out-projections are not kept: every probe makes them from zero, or from the live weights.
        parts = probes.parts(self._shape)
        made = {*parts.out, *parts.biases}
        # In the order of the edits, equal on all ranks: reading a value is a collective call.
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
    """Return the positions of elements of stored parameters in the canonical model, int64.

    ``stored`` holds name, parameter and element indices; ``sizes`` holds the element counts of the
    canonical parameters, in order. A position counts through all canonical parameters; -1 is
    padding. Example: element 3 of the second parameter, after a first of 100 elements, is 103.
    Where a map defines how parameters are stored, the number of every canonical element is written
    into the model, a digit (base 256) at a time, and read back from the stored parameters: the
    model's weights are lost.
    """
    if not stored:
        return torch.zeros(0, dtype=torch.int64)
    ranges = ranges_of(sizes)
    if canonical.mapped:
        return _found_again(canonical, ranges, stored)
    return torch.cat([_plain(ranges.get(canonical.by_stored.get(n, "")), i) for n, _, i in stored])


def _plain(own: range | None, indices: Tensor) -> Tensor:
    return torch.full_like(indices, -1) if own is None else indices + own.start


def _found_again(
    canonical: Canonical,
    ranges: Mapping[str, range],
    stored: Sequence[tuple[str, nn.Parameter, Tensor]],
) -> Tensor:
    total = max((own.stop for own in ranges.values()), default=0)
    with torch.no_grad():
        for _, parameter, _ in stored:
            parameter.zero_()
    found = torch.full((sum(len(indices) for *_, indices in stored),), -1)
    for power in range(max(1, math.ceil(math.log(total + 1, _DIGITS)))):
        weight = _DIGITS**power
        for name in canonical.names:
            if name not in ranges:
                continue
            shape = canonical.value(name).shape
            # Numbers start at 1: an element with zero in every digit is padding.
            number = torch.arange(ranges[name].start + 1, ranges[name].stop + 1)
            canonical.write(name, (number // weight % _DIGITS).float().view(shape))
        digits = [p.detach().flatten()[i.to(p.device)].to("cpu") for _, p, i in stored]
        found += torch.cat(digits).round().long() * weight
    return found
