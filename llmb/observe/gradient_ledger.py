"""Read elements of every gradient, and of a moment, in the pause of every step (rule L1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from llmb.observe import shard_places
from llmb.observe.ledger import StepLedger
from llmb.observe.places import SampledIndices, choose_each
from llmb.parallel.shards import is_elsewhere
from llmb.records.audited import MOMENTS, LedgerEvidence, LedgerSegment
from llmb.records.places import ELEMENTS, fewer


class GradientLedger(StepLedger):
    """Reads elements of all gradients and of a moment in each pause, and sets the learning rate.

    The moments are read in turn, as left by the previous optimizer step. An omitted update shows in
    ``exp_avg`` for about ten steps, in ``exp_avg_sq`` for the rest of the run.
    """

    # See ``StepSampler``: with slots no method can be replaced on the object alone.
    __slots__ = (
        *("_count", "_join", "_moments", "_optimizer", "_parameters", "_ranges"),
        *("_seeds", "_settle", "_shapes", "_zeros", "rates"),
    )

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        join: Callable[[Tensor, int], Tensor] | None = None,
        *,
        settle: Callable[[], object] | None = None,
    ) -> None:
        """Read the gradients of all trained parameters of ``model``, in stored form.

        Ranks that share a model read the elements of local shards, and zeros elsewhere: ``join``
        returns the sum of the rows of all ranks. Of replicas, ``join`` returns the row of one rank,
        which the seed of the elements determines. It is called with rows on the host.

        ``settle`` ends the program of a lazy device after each reading, so that the program of the
        reading is the same in each step; None for other devices.
        """
        super().__init__()
        self._join, self._settle = join, settle
        self._parameters = [
            (str.__str__(name), p)
            for name, p in model.named_parameters()
            if p.requires_grad and p.numel()
        ]
        self._shapes = [p.shape for _, p in self._parameters]
        #: What this rank has, and beside whom, by parameter number and placements. A gradient may
        #: have placements unlike the parameter's: torch keeps that of a sliced embedding full.
        self._ranges: dict[tuple[int, object], tuple[range | None, shard_places.Copies]] = {}
        here = [p for _, p in self._parameters if not is_elsewhere(p)]
        device = here[0].device if here else torch.device("cpu")
        kinds = {p.dtype for _, p in self._parameters}
        zeros = {kind: torch.zeros(ELEMENTS, dtype=kind, device=device) for kind in kinds}
        views = {kind: [one[:n] for n in range(ELEMENTS + 1)] for kind, one in zeros.items()}
        #: By parameter, zeros of the parameter's dtype: with 0 elements, 1 element, and up.
        self._zeros = [views[p.dtype] for _, p in self._parameters]
        self._count = fewer(ELEMENTS, len(self._parameters))
        self._optimizer = optimizer
        self._moments = MOMENTS if isinstance(optimizer, AdamW) else ()
        self._seeds: list[int] = []
        #: The learning rate of each step.
        self.rates: list[float] = []

    def take(self, places: int, rate: float) -> None:
        """Read the values at ``places``, and set the learning ``rate`` of the following step.

        Zeros stand for a parameter without a gradient, and for a parameter without moments yet.
        """
        chosen, parts = self._places(places), list[Tensor]()
        with torch.no_grad():
            parts += self._read_all(chosen, [p.grad for _, p in self._parameters], places)
            if self._moments:
                moment = self._moments[len(self._seeds) % len(self._moments)]
                state = self._optimizer.state
                kept = [state.get(p, {}).get(moment) for _, p in self._parameters]
                parts += self._read_all([one.every_other() for one in chosen], kept, places)
            if len({part.dtype for part in parts}) > 1:
                parts = [part.float() for part in parts]
            row = torch.cat(parts)
            if self._settle is not None:
                self._settle()
            self._send(row)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._seeds.append(places)
        self.rates.append(rate)

    def _joined(self, row: Tensor) -> Tensor:
        return row if self._join is None else self._join(row, self._seeds[len(self._rows)])

    def read_places(self) -> list[tuple[str, nn.Parameter, Tensor]]:
        """Return each stored parameter, and the element indices read in all steps."""
        every = [self._places(seed) for seed in self._seeds]
        return [
            (name, p, torch.cat([step[number].indices() for step in every]))
            for number, (name, p) in enumerate(self._parameters)
        ]

    def in_steps(self, places: Tensor) -> Tensor:
        """Return ``places``, the concatenated indices of ``read_places``, rearranged by step.

        The shape ``[steps, elements]`` is the shape of the gradients in ``rows``.
        """
        steps, first, parts = len(self._seeds), 0, []
        for count in self._counts():
            parts.append(places[first : first + steps * count].view(steps, count))
            first += steps * count
        return torch.cat(parts, 1)

    def evidence(self) -> LedgerEvidence:
        """Return names, shapes and sampled element counts of the parameters in a row."""
        return LedgerEvidence(
            segments=tuple(
                LedgerSegment(name=name, elements=count, shape=tuple(shape))
                for (name, _), shape, count in zip(
                    self._parameters, self._shapes, self._counts(), strict=True
                )
            ),
            moments=self._moments,
        )

    def _counts(self) -> list[int]:
        return [min(self._count, shape.numel()) for shape in self._shapes]

    def _places(self, seed: int) -> Sequence[SampledIndices]:
        return choose_each(seed, self._shapes, self._count)

    def _read_all(
        self, chosen: Sequence[SampledIndices], values: Sequence[Tensor | None], turn: int
    ) -> list[Tensor]:
        """Return elements of all ``values``, one tensor of each parameter; see ``_read``."""
        if self._settle is None:
            parts = list[Tensor]()
            for number, value in enumerate(values):
                parts += self._read(number, chosen[number], value, turn)
            return parts
        pairs = zip(chosen, values, strict=True)
        there = [(where, value) for where, value in pairs if value is not None]
        found = iter(shard_places.read_places(there, lazy=True, turn=turn))
        return [
            self._zeros[number][chosen[number].count] if value is None else next(found)
            for number, value in enumerate(values)
        ]

    def _read(
        self, number: int, where: SampledIndices, value: Tensor | None, turn: int
    ) -> Sequence[Tensor]:
        """Return elements of ``value``, a tensor of parameter ``number``, in pieces to be joined.

        Zeros if ``value`` is None, and if it is not the turn of this rank.
        """
        if value is None:
            return (self._zeros[number][where.count],)
        if self._join is None:
            return (where.read(value),)
        how = number, getattr(value, "placements", None)
        if how not in self._ranges:
            self._ranges[how] = shard_places.range_of(value), shard_places.copies_of(value)
        shown, copies = self._ranges[how]
        if not shard_places.shows(copies, turn):
            return (self._zeros[number][where.count],)
        if shown is None:
            return (shard_places.read(where, value, turn),)
        return shard_places.read_range(where, value, shown, self._zeros[number])
