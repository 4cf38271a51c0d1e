"""The steps of a worker's stream, repeated by an honest run with the pristine model (rule L1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from llmb import clock, workloads
from llmb.config import RunConfig, is_cpu
from llmb.observe.first_model import first_model
from llmb.observe.passes import Samples
from llmb.observe.rerun import how, in_more_parts
from llmb.observe.step_batches import StepBatches
from llmb.observe.wide_products import as_computed
from llmb.processes.loss_scale import new_scaler
from llmb.processes.modes.checkpointing import checkpoint_blocks
from llmb.records.audited import AuditedStep, LedgerEvidence
from llmb.reference.data import Batch
from llmb.reference.formats import emulate
from llmb.reference.optimizer import build_optimizer
from llmb.reference.train_loop import Step, train_loop
from llmb.wire.messages import StreamToReplay


class Overseer(Protocol):
    """The object that is called in the pause of each replayed step, after the backward pass."""

    def pause(self, step: int, row: Tensor, model: nn.Module, loss: Tensor) -> None:
        """Look at ``step``: at ``row``, sampled from the gradients, and at the ``loss``."""
        ...


@dataclass(frozen=True)
class StreamReplay:
    """Replays steps with the worker's seeds, learning rates, format and kernel of the optimizer."""

    config: RunConfig
    stream: StreamToReplay
    #: ``[steps, elements]``: the indices of the sampled gradient elements of each step, counted
    #: through all parameters. -1 is padding of the worker's row: the replayed row has zero there.
    where: Tensor
    #: The parameters that the sampled elements belong to, and the moments that follow in turn.
    ledger: LedgerEvidence
    #: An audited step of the worker, with the optimizer's kernel (``foreach``, ``fused``).
    kernel: AuditedStep
    overseer: Overseer
    #: Runs the recorded work of a lazy device; None for other devices.
    finish: Callable[[], None] | None = None

    def rows(self) -> Tensor:
        """Return the ledger's samples of the replayed steps, float32 on the host.

        The shape is ``[steps, elements]``: gradients at ``where``, then elements of a moment at
        every second index.

        Raises:
            RuntimeError: the device has too little memory.
        """
        config = self.config
        return in_more_parts(self._rows, config, config.global_batch_size, config.parts_of_all)

    def _rows(self, parts: int) -> Tensor:
        workload, config = workloads.of(self.config), self.config
        model = self._model()
        model.train(not workload.drops)  # without masks a step has the mean gradient (rule L1)
        scaler = None
        if config.precision.scales_loss:
            scaler = new_scaler(config.device, times=parts / config.accumulate)
        optimizer = build_optimizer(
            model.parameters(),
            workload.recipe.optimizer,
            foreach=self.kernel.foreach,
            fused=self.kernel.fused,
            capturable=self.kernel.capturable,
        )
        batches, found = StepBatches(config, workload.shape), list[Tensor]()
        sizes = {name: p.numel() for name, p in model.named_parameters()}
        halves, finish = every_second(self.ledger), self.finish or _nothing

        def pause(step: Step, loss: Tensor) -> bool:
            finish()
            where = self.where[step.index].long()
            gradients = Samples(where, sizes)
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    gradients.add(name, parameter.grad)
            parts = [gradients.values]
            if turns := self.ledger.moments:
                moment = turns[step.index % len(turns)]
                moments = Samples(where[halves], sizes)
                for name, parameter in model.named_parameters():
                    if (state := optimizer.state.get(parameter)) is not None:
                        moments.add(name, state[moment])
                parts.append(moments.values)
            row = torch.cat(parts)
            self.overseer.pause(step.index, row, model, loss)
            found.append(row)
            for group in optimizer.param_groups:
                group["lr"] = self.stream.rates[step.index]
            return False

        def make(seed: int) -> Sequence[Batch]:
            return batches.make(seed).to(config.device).split(parts)

        on_cpu = is_cpu(config.device)
        until_ns = clock.worked_ns(on_cpu=on_cpu) + int(self.stream.seconds * 1e9)
        with self._as_computed():
            for done in train_loop(
                model,
                optimizer,
                self._steps(),
                make,
                pause,
                context=self._forward,
                clip_grad_norm=workload.recipe.clip_grad_norm,
                clipped=finish,
                scaler=scaler,
            ):
                finish()
                if (
                    done.step.index + 1 >= self.stream.least
                    and clock.worked_ns(on_cpu=on_cpu) > until_ns
                ):
                    break
        return torch.stack(found)

    def _steps(self) -> Iterator[Step]:
        count = min(len(self.where), len(self.stream.token_seeds))
        for index, seed in enumerate(self.stream.token_seeds[:count]):
            yield Step(index, seed, fence=False)

    def _model(self) -> nn.Module:
        config, workload = self.config, workloads.of(self.config)
        model = first_model(config, workload)
        emulated = how(config.precision, config.device).emulated
        if emulated is not None:
            model = emulate(model, emulated)
        if config.sac_freq is not None:
            checkpoint_blocks(model, workload.shape, config.sac_freq)
        return model

    def _as_computed(self) -> AbstractContextManager[object]:
        numerics = how(self.config.precision, self.config.device)
        return as_computed(self.config, numerics.dtype, numerics.device)

    def _forward(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass: autocast if weights are stored in a wider format.

        Without autocast on a device (a plugin narrows in its own way), all is computed in the type
        of the weights: as near to the run as two honest runs are to each other.
        """
        precision = self.config.precision
        if precision.stored_dtype == precision.dtype:
            return nullcontext()
        kind = torch.device(self.config.device).type
        try:
            return torch.autocast(kind, getattr(torch, precision.dtype))
        except (RuntimeError, AssertionError):
            return nullcontext()


def _nothing() -> None:
    return None


def every_second(ledger: LedgerEvidence) -> Tensor:
    """Return the columns of the gradient elements that moments are sampled at, int64."""
    columns, first = [], 0
    for segment in ledger.segments:
        columns.append(torch.arange(first, first + segment.elements, 2))
        first += segment.elements
    return torch.cat(columns)
