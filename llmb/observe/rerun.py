"""Rerun a worker's passes with the pristine model: honest on a device, or as the reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load
from torch import Tensor, nn

from llmb import workloads
from llmb.config import Precision, RunConfig
from llmb.errors import RunFailedError, is_out_of_memory
from llmb.families import family_of
from llmb.formats import PrecisionClass, narrower
from llmb.observe import probes
from llmb.observe.idle import Activity
from llmb.observe.one_part import PartKeeper
from llmb.observe.passes import (
    LIVE,
    MOST_SCALE,
    Numerics,
    Samples,
    Sketches,
    bare,
    copies_of,
    plain_pass,
    without_layers,
)
from llmb.observe.sketch import side_for
from llmb.observe.step_batches import StepBatches
from llmb.observe.weights_file import WeightsFile, checked_bytes
from llmb.observe.wide_products import as_computed
from llmb.records.audited import (
    LEDGER_VALUES,
    LIVE_WEIGHTS,
    STEP_VALUES,
    WHERE,
    WIDE_LOSS,
    RerunOrder,
    judged_pass,
    judged_weights,
    weights_of,
)
from llmb.records.seeds import derive
from llmb.reference.data import Batch
from llmb.reference.shapes import Shape

C = TypeVar("C", Sketches, Samples)
R = TypeVar("R")


@dataclass(frozen=True)
class RerunInputs:
    """The inputs of a worker's passes, and the folders of the worker's weights and evidence."""

    config: RunConfig
    shape: Shape
    #: Signs and the tokens of the probes are derived from the seed.
    seed: int
    token_seeds: Mapping[str, int]
    scratch: Path
    evidence: Path
    #: File name -> sha256, for every file that may be read.
    digests: Mapping[str, str]
    #: The judged steps (rule G1); ``every_step``: rule L1 has their sampled elements.
    judged: tuple[int, ...] = ()
    every_step: bool = False

    def read(self, name: str) -> bytes:
        """Return the evidence ``name``.

        Raises:
            RunFailedError: the file differs from the file the worker wrote.
        """
        return checked_bytes(self.evidence / name, self.digests[name])


def inputs_for(order: RerunOrder) -> RerunInputs:
    """Return the inputs that ``order`` names."""
    return RerunInputs(
        order.config,
        workloads.of(order.config).shape,
        order.seed,
        order.token_seeds,
        Path(order.scratch_folder),
        Path(order.evidence_folder),
        order.digests,
        order.judged,
        order.every_step,
    )


class Rerun:
    """Runs passes with the weights and tokens of the worker."""

    def __init__(
        self,
        inputs: RerunInputs,
        finish: Callable[[], None] | None = None,
        *,
        shared: bool = False,
        seeds: Callable[[int], object] = torch.manual_seed,
    ) -> None:
        """Open the weights of ``inputs``, and check that the bytes are the worker's.

        ``finish`` waits for a lazy device, and is None for other devices; ``seeds`` sets the seed
        of dropout (see ``plain_pass``). ``shared``: a vendor's code runs meanwhile, and could alter
        the files (see ``WeightsFile``).

        Raises:
            RunFailedError: the weights were altered, or are missing.
        """
        config, shape = inputs.config, inputs.shape
        self.inputs, self._config, self._shape = inputs, config, shape
        self._batches = StepBatches(config, shape)
        #: Shape of the probes, which replace the last step's tokens: the longest dynamic length.
        self._probed = shape
        lengths = self._batches.lengths(inputs.token_seeds[LIVE]) if config.dynamic else None
        if lengths is not None:
            self._probed = replace(shape, sequence_length=max(lengths))
        self._finish, self._seeds = finish, seeds
        #: Keeps a part of the model in full, to repeat a single judgement.
        self.keeper: PartKeeper | None = None
        self._stack = ExitStack()
        self._files = {
            name: self._stack.enter_context(
                WeightsFile(inputs.scratch / name, inputs.digests[name], shared=shared)
            )
            for name in weights_of(inputs.judged)
            if name in inputs.digests
        }
        #: Pass -> file, of the passes with other weights than the last.
        self._of_pass = {judged_pass(step): judged_weights(step) for step in inputs.judged}
        self.sizes = {name: p.numel() for name, p in bare(shape).named_parameters()}

    def __enter__(self) -> Rerun:
        """Return the opened passes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the weights."""
        self._stack.close()

    @property
    def live_file(self) -> WeightsFile:
        """The weights at the end of the stream.

        Raises:
            RunFailedError: the worker left no weights.
        """
        if LIVE_WEIGHTS not in self._files:
            raise RunFailedError("the worker left no weights")
        return self._files[LIVE_WEIGHTS]

    def live(self, name: str) -> Tensor | None:
        """Return a weight at the end of the stream, None if the worker left no value."""
        file = self._files.get(LIVE_WEIGHTS)
        return file.read(name) if file is not None and name in file.names else None

    def judged(self, name: str) -> Iterator[Tensor]:
        """Yield a weight of each judged step, in order."""
        for step in self.inputs.judged:
            yield self._files[judged_weights(step)].read(name)

    def sketches(self, name: str, numerics: Numerics, batch: int) -> dict[str, Tensor]:
        """Return the sketches of pass ``name``, by ``<pass>/<parameter>``; see ``plain_pass``."""
        collect, loss = self._in_parts(
            name,
            batch,
            lambda: Sketches(
                name,
                self.inputs.seed,
                self._probed,
                side_for(len(self.sizes)),
                None if self.keeper is None else self.keeper.part.parameter,
            ),
            lambda collect, parts: self._run(name, numerics, batch, collect, parts),
        )
        if self.keeper is not None:
            self.keeper.gradient(name, collect.kept)
        collect.loss(torch.tensor(loss, dtype=torch.float32))
        return collect.tensors

    def places(self, passes: Collection[str]) -> dict[str, Tensor]:
        """Return the sampled gradient elements of those ``passes`` that have no sketches.

        Maps judged steps, such as ``step-7``, to indices of elements that the worker showed, int64.

        Raises:
            RunFailedError: a file differs from the file that the worker wrote.
        """
        judged = [step for step in self.inputs.judged if judged_pass(step) in passes]
        if not judged:
            return {}
        if self.inputs.every_step:
            rows = load(self.inputs.read(LEDGER_VALUES))[WHERE]
            return {judged_pass(step): rows[step].long() for step in judged}
        values = load(self.inputs.read(STEP_VALUES))
        return {judged_pass(step): values[f"{step}/where"].long() for step in judged}

    def samples(
        self, where: Tensor, numerics: Numerics, name: str, masks: Sequence[int] = ()
    ) -> Tensor:
        """Return the elements ``where`` of the gradients of pass ``name``, float32.

        With seeds of ``masks``, dropout is on (``plain_pass``).
        """
        return self._sampled(Samples(where, self.sizes), numerics, name, masks).values

    def samples_and_asleep(
        self, where: Tensor, numerics: Numerics, name: str
    ) -> tuple[Tensor, dict[str, float]]:
        """Return what ``samples`` does, and the share of each matrix's gradient that sleeps."""
        activity = Activity(self._shape.vocab_size)
        found = self._sampled(Samples(where, self.sizes, activity), numerics, name)
        return found.values, activity.asleep()

    def asleep_in_one(self, numerics: Numerics, name: str) -> dict[str, float]:
        """Return the share of each matrix's gradient that sleeps in one sequence of ``name``.

        The seed of the probes draws the sequence: the worker's steps are over when it learns the
        seed.
        """
        activity = Activity(self._shape.vocab_size)
        nothing = Samples(torch.empty(0, dtype=torch.int64), self.sizes, activity)
        drawn = derive(self.inputs.seed, "sequence", name) % self._config.global_batch_size
        self._run(name, numerics, 1, nothing, 1, only=drawn)
        return activity.asleep()

    def _sampled(
        self, begun: Samples, numerics: Numerics, name: str, masks: Sequence[int] = ()
    ) -> Samples:
        batch = self._config.global_batch_size
        return self._in_parts(
            name,
            batch,
            begun.again,
            lambda collect, parts: self._run(name, numerics, batch, collect, parts, masks),
        )[0]

    def dropped(self, name: str, where: Tensor, count: int, device: str) -> Tensor:
        """Return the elements ``where`` of pass ``name`` with dropout, ``[1 + count, elements]``.

        The first row has the masks that the worker's step has if dropout draws as in the reference.
        Each of the ``count`` other rows has masks of its own. In mixed precision the step runs
        under autocast, as the worker's does.
        """
        numerics = how(self._config.precision, device)
        narrow = autocast_of(self._config.precision, device)
        if narrow is not None:
            numerics = replace(numerics, dtype=torch.float32, wide_loss=True, autocast=narrow)
        alike = self._batches.masks(self.inputs.token_seeds[name])
        others = [[derive(self.inputs.seed, "masks", name, n)] for n in range(count)]
        rows = [self.samples(where, numerics, name, masks) for masks in (alike, *others)]
        return torch.stack(rows)

    def with_wide_loss(
        self, whose: str, passes: Mapping[str, int], places: Mapping[str, Tensor], device: str
    ) -> dict[str, Tensor]:
        """Return sketches of more passes, with the loss in float32.

        ``passes`` maps a pass name to the number of sequences. Keys begin with ``<whose> with its
        loss in float32/``; the passes of ``places`` have samples in place of sketches. In mixed
        precision all passes run under autocast. Empty for a run in float32, because the loss is
        float32 anyway.
        """
        numerics = replace(how(self._config.precision, device), wide_loss=True)
        if numerics.dtype.itemsize > torch.float16.itemsize:
            return {}
        narrow = autocast_of(self._config.precision, device)
        if narrow is not None:
            numerics = replace(numerics, dtype=torch.float32, autocast=narrow)
        found: dict[str, Tensor] = {}
        for name, batch in passes.items():
            found |= self.sketches(name, numerics, batch)
        for name, where in places.items():
            found[name] = self.samples(where, numerics, name)
        return {f"{whose}{WIDE_LOSS}/{key}": value for key, value in found.items()}

    def _in_parts(
        self, name: str, batch: int, make: Callable[[], C], run: Callable[[C, int], float]
    ) -> tuple[C, float]:
        """Return the collected values, and the loss."""
        # A step's gradients are the mean over the ranks' micro-batches: run the parts in turn.
        config, own = self._config, self._config.parts_of_all

        def once(parts: int) -> tuple[C, float]:
            collect = make()
            return collect, run(collect, parts)

        return in_more_parts(once, config, batch, 1 if name in probes.PROBES else own)

    def _run(
        self,
        name: str,
        numerics: Numerics,
        batch: int,
        collect: Sketches | Samples,
        parts: int,
        masks: Sequence[int] = (),
        only: int | None = None,
    ) -> float:
        shape = without_layers(self._shape) if name == probes.HEAD else self._shape
        file = self._files[self._of_pass.get(name, LIVE_WEIGHTS)]
        edits = (
            probes.edits(name, self._shape, self._config.precision.dtype)
            if name in probes.PROBES
            else {}
        )

        def weights(parameter: str) -> Tensor:
            value = file.read(parameter)
            return edits[parameter](value) if parameter in edits else value

        whole = self._batch(name, batch)
        if only is not None:
            whole = whole.split(len(whole.ids))[only]
        dtype, copies = numerics.dtype, 1
        if name in probes.PROBES:
            copies = copies_of(whole, str(dtype).removeprefix("torch."))
        elif self._config.mixed_precision and dtype is torch.float16:
            copies = loss_scale(whole)
        rounds = self._config.added_up > 1 and dtype.itemsize < torch.float32.itemsize
        # A probe is one micro-batch.
        sums = self._config.parallelism.replicas if rounds and name not in probes.PROBES else 0
        with as_computed(self._config, numerics.autocast or dtype, numerics.device):
            return plain_pass(
                weights,
                shape,
                whole,
                numerics,
                collect,
                parts=parts,
                sums=sums,
                copies=copies,
                finish=self._finish,
                watch=self._watch(name, whole),
                masks=masks,
                seeds=self._seeds,
            )

    def _watch(
        self, name: str, batch: Batch
    ) -> Callable[[nn.Module], AbstractContextManager[object]] | None:
        keeper = self.keeper
        if keeper is None:
            return None
        return lambda model: keeper.watching(model, name, batch.ids.shape[1])

    def _batch(self, name: str, size: int) -> Batch:
        if name in probes.PROBES:
            return probes.batch(self.inputs.seed, name, self._probed).repeat(size)
        return self._batches.make(self.inputs.token_seeds[name])


def in_more_parts(run: Callable[[int], R], config: RunConfig, batch: int, parts: int) -> R:
    """Return the result of ``run`` with a batch in ``parts`` equal parts, or in more.

    An honest model may need more memory than the vendor's model. On lack of memory, ``batch``
    sequences are split into the next larger number of equal parts: each part into as many. Example:
    8 sequences in 1, 2, 4, then 8 parts. The split is fixed where the loss of each part is a mean
    over a different number of tokens.

    Raises:
        RuntimeError: the device has too little memory for every number of parts.
    """
    fixed = not family_of(workloads.of(config).shape).causal or config.dynamic
    while True:
        try:
            return run(parts)
        except RuntimeError as error:
            more = [n for n in range(2 * parts, batch + 1, parts) if batch % n == 0]
            if not is_out_of_memory(error) or not more or fixed:
                raise
            parts = more[0]


def how(precision: Precision, device: str) -> Numerics:
    """Return the numerics of an honest run in ``precision``."""
    known = precision.judged_as
    dtype: torch.dtype = getattr(torch, precision.dtype)
    return Numerics(dtype, device, None if known is None else known.format)


def autocast_of(precision: Precision, device: str) -> torch.dtype | None:
    """Return the autocast dtype of products over float32 weights; None without autocast.

    None for FP16: honest FP16 passes are in float16 throughout, with a scaled loss
    (``loss_scale``). None also for a device without autocast: a plugin then narrows by other means.
    """
    if not precision.master_weights or how(precision, device) != Numerics(torch.bfloat16, device):
        return None
    try:
        torch.autocast(torch.device(device).type, torch.bfloat16)
    except (RuntimeError, AssertionError):
        return None
    return torch.bfloat16


def loss_scale(batch: Batch) -> int:
    """Return the loss scale of an honest float16 step, for a run with a loss scale.

    The scale is the number of tokens of ``batch``, rounded down to a power of two: then the
    gradient of each token underflows no sooner than the gradient of a summed loss. Example: 4,096
    for 24 sequences of 256. At most 2^15: 2^16 is beyond float16.
    """
    return 1 << min(MOST_SCALE, batch.ids.numel().bit_length() - 1)


def borders(precision: Precision) -> tuple[PrecisionClass, ...]:
    """Return the narrower classes that a run in ``precision`` is compared with, widest first."""
    known = precision.judged_as
    return () if known is None else narrower(known)


def how_border(border: PrecisionClass, device: str) -> Numerics:
    """Return the numerics of the honest run at the border of a class."""
    return Numerics(getattr(torch, border.dtype or "bfloat16"), device, border.format)


def wide(precision: Precision, device: str) -> Numerics:
    """Return the numerics of the reference: float32; float64 for a run in float32."""
    return Numerics(torch.float64 if precision.dtype == "float32" else torch.float32, device)
