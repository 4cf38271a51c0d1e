"""The process that repeats a bundle's run from config, seed and nonce, without any plugin.

``llmb verify --recompute`` starts the process. The process leaves the weights for
``reference_run``, which then makes the probes and the pristine weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from llmb import clock, workloads
from llmb.errors import BundleRefusedError
from llmb.observe import weights_file
from llmb.observe.first_model import first_model
from llmb.observe.passes import bare
from llmb.observe.weights import FenceSamples
from llmb.observe.weights_file import checked_bytes
from llmb.plugin.builtin.host import keep_freed_memory
from llmb.plugin.kit.formats import set_float32_products
from llmb.processes.call_replay import CallReplay
from llmb.processes.evidence_writer import Announcer
from llmb.processes.stream_replay import StreamReplay
from llmb.records import audited
from llmb.records.places import ELEMENTS, fewer, plain_row
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import Done, EvidenceFile, Phase, ReplayOrder, Tick

#: Fraction of a model's elements that belongs to the parameters in the rows of a ledger, at least:
#: a few sampled elements of a single stored parameter that holds the whole model may miss a gain.
_SHOWN = 0.9


def answer(channel: Channel) -> None:
    """Answer one order."""
    make(channel, channel.expect(ReplayOrder))
    channel.send(Done())


def make(channel: Channel, order: ReplayOrder) -> None:
    """Make steps or calls of ``order``, and write the results and the weights at the end.

    Raises:
        BundleRefusedError: the elements that the bundle names are no sample of this model.
    """
    keep_freed_memory()  # every step allocates the same sizes again
    set_float32_products(order.config.precision)
    watch, found = _StepNotes(channel, order), dict[str, Tensor]()
    if order.stream is not None:
        places, kernel = _places(order), _kernel(order)
        config, stream = order.config, order.stream
        replay = StreamReplay(config, stream, places.where, places.ledger, kernel, watch)
        found[audited.ROWS] = replay.rows()
        found |= watch.tensors(samples=places.drawn)
    else:
        model = first_model(order.config, workloads.of(order.config))
        watch.keep(model)
        if order.fences:
            found[audited.SAMPLES] = _samples(order, model)
    if order.calls is not None:
        channel.send(Phase(name=f"{len(order.calls.calls)} calls"))
        read = load(_read(order, audited.LEDGER_VALUES))[audited.ROWS]
        read = read[: len(order.calls.calls)].float()

        def look(_: int) -> None:
            channel.send(Tick(index=watch.next(), ns=clock.now_ns()))

        found[audited.ROWS] = CallReplay(order.config, order.calls, read, look).rows()
    Announcer(channel, order.scratch_folder).write_bytes(audited.REPLAYED, save(found))


@dataclass(eq=False)
class _StepNotes:
    """Notes losses and samples of the weights, and keeps the weights of the last step."""

    _channel: Channel
    _order: ReplayOrder
    _losses: list[Tensor] = field(default_factory=list)
    _samples: FenceSamples | None = None
    _count: int = 0

    def next(self) -> int:
        """Return the number of earlier questions: 0, then 1, then 2."""
        self._count += 1
        return self._count - 1

    def pause(self, step: int, row: Tensor, model: nn.Module, loss: Tensor) -> None:
        """Look at ``step`` before the update; a replay that starts again begins with step 0."""
        if step == 0:
            self._losses.clear()
            self._samples = FenceSamples(model.parameters(), self._order.config.seed)
        assert self._samples is not None
        if step in self._order.fences:  # exactly ``step`` steps are done
            self._samples.read(self._losses[-1])
        self._losses.append(loss.detach().float().cpu())
        assert self._order.stream is not None
        if step == len(self._order.stream.token_seeds) - 1:
            self.keep(model)
        self._channel.send(Tick(index=step, ns=clock.now_ns()))

    def keep(self, model: nn.Module) -> None:
        """Write the weights of ``model`` for the passes that follow."""
        values = [(name, p.detach()) for name, p in model.named_parameters()]
        path = Path(self._order.scratch_folder) / audited.LIVE_WEIGHTS
        digest = weights_file.write(path, values)
        self._channel.send(EvidenceFile(name=path.name, sha256=digest, scratch=True))

    def tensors(self, *, samples: bool) -> dict[str, Tensor]:
        """Return the loss of each step, and samples of the weights ``[fences, samples]``.

        Samples are comparable only if parameters are stored as in the reference model.
        """
        found = {audited.LOSSES: torch.stack(self._losses)}
        if samples and self._order.fences and self._samples is not None:
            found[audited.SAMPLES] = self._samples.tensors()["parameters"]
        return found


def _samples(order: ReplayOrder, model: nn.Module) -> Tensor:
    """Return samples of the first weights, one row per fence: early fences move few weights."""
    samples = FenceSamples(model.parameters(), order.config.seed)
    for _ in order.fences:
        samples.read(torch.zeros(()))
    return samples.tensors()["parameters"]


def _kernel(order: ReplayOrder) -> audited.AuditedStep:
    return audited.AuditedStep(
        index=0,
        token_seed=0,
        seed=0,
        weights_kept=False,
        steps_before=None,
        foreach=order.foreach,
        fused=order.fused,
        capturable=False,  # an option of CUDA alone
        segments=(),
    )


@dataclass(frozen=True)
class _RowPlaces:
    """The parameters that the elements of a row belong to, and the indices of the elements."""

    ledger: audited.LedgerEvidence
    #: ``[steps, elements]``, counted through the whole model; -1 where the bundle has no row.
    where: Tensor
    #: True: indices follow from the nonce, because parameters are stored as in the reference.
    drawn: bool


def _places(order: ReplayOrder) -> _RowPlaces:
    """Return the sampled indices of the gradients.

    If a run stores parameters as the reference does, the indices follow from the nonce. A plugin
    that stores several parameters in one tensor, or in another order, states the index of each
    element. Such a statement is accepted if nearly all parameters are among the elements and no
    element occurs twice.

    Raises:
        BundleRefusedError: too many parameters are missing, or an element occurs twice.
    """
    assert order.stream is not None
    steps = len(order.stream.token_seeds)
    parameters = list(bare(workloads.of(order.config).shape).named_parameters())
    shapes = [p.shape for _, p in parameters]
    count = fewer(ELEMENTS, len(shapes))
    sizes = torch.tensor([shape.numel() for shape in shapes])
    usual = audited.LedgerEvidence(
        segments=tuple(
            audited.LedgerSegment(name=name, elements=min(count, p.numel()))
            for name, p in parameters
        ),
        moments=order.ledger.moments if order.ledger is not None else (),
    )

    if order.ledger is None:
        width = sum(segment.elements for segment in usual.segments)
        return _RowPlaces(usual, torch.full((steps, width), -1), drawn=True)
    # By name and number of elements: earlier runs do not tell the shapes.
    named = [[(one.name, one.elements) for one in it.segments] for it in (order.ledger, usual)]
    is_usual = named[0] == named[1]
    arrays = load(_read(order, audited.LEDGER_VALUES))
    own = torch.tensor([plain_row(seed, shapes) for seed in order.places])
    if audited.WHERE not in arrays:
        if not is_usual:
            raise BundleRefusedError("rows of steps come without their places")
        shown = min(steps, len(arrays[audited.ROWS]))
        rest = torch.full((steps - shown, own.shape[1]), -1)
        return _RowPlaces(usual, torch.cat((own[:shown], rest)), drawn=True)
    given = arrays[audited.WHERE].long()
    width = sum(segment.elements for segment in order.ledger.segments)
    if given.dim() != 2 or not len(given) or given.shape[1] != width:
        raise BundleRefusedError(f"rows of {width} elements have places {list(given.shape)}")
    given = given[:steps]
    drawn = is_usual and torch.equal(own[: len(given)], given)
    if not drawn:
        _check_places(given, sizes.cumsum(0))
    rest = torch.full((steps - len(given), width), -1)
    return _RowPlaces(order.ledger, torch.cat((given, rest)), drawn)


def _check_places(given: Tensor, ends: Tensor) -> None:
    """Check the indices that the bundle names against the whole model.

    Raises:
        BundleRefusedError: the indices leave parameters out, or name an element twice in a step.
    """
    if int(given.max()) >= int(ends[-1]) or int(given.min()) < -1:
        raise BundleRefusedError("rows of steps name elements that the model does not have")
    for number, row in enumerate(given):
        real = row[row >= 0]
        if len({*real.tolist()}) < len(real):
            raise BundleRefusedError(f"the row of step {number} names an element twice")
    met = sorted({*torch.bucketize(given[given >= 0], ends, right=True).tolist()})
    sizes = ends.diff(prepend=ends.new_zeros(1))
    if int(sizes[met].sum()) < _SHOWN * int(ends[-1]):
        raise BundleRefusedError(
            f"rows of steps show {len(met)} of the {len(ends)} parameters of the model"
        )


def _read(order: ReplayOrder, name: str) -> bytes:
    return checked_bytes(Path(order.evidence_folder) / name, order.digests[name])


if __name__ == "__main__":
    serve(answer)
