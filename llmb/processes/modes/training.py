"""Mode train: forward, backward and optimizer step, and the samples for the audit afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from safetensors.torch import save
from torch import Tensor
from torch.amp import GradScaler

from llmb.config import AuditMode
from llmb.errors import RunFailedError
from llmb.observe import one_part, pairs_layout, probes
from llmb.observe.exactness import Exactness
from llmb.observe.examination import Examination, places
from llmb.observe.gradient_ledger import GradientLedger
from llmb.observe.one_part import PartKeeper
from llmb.observe.optimizer import OptimizerBaseline
from llmb.observe.passes import LIVE
from llmb.observe.step_sampler import StepSampler
from llmb.parallel.together import glances_of_all, of_all
from llmb.plugin.backend import is_lazy
from llmb.plugin.optimizer import optimizer_of
from llmb.processes import loss_scale
from llmb.processes.evidence_writer import EvidenceWriter
from llmb.processes.modes import Show, executors
from llmb.processes.modes.checkpointing import checkpoint_blocks
from llmb.processes.modes.stage import Stage
from llmb.processes.step_stream import Batches, FencePayload, Last, StepStream
from llmb.processes.tamper_baseline import TamperBaseline
from llmb.records import audited, draws, evidence
from llmb.records.places import of_judged, ranges_of
from llmb.records.precision_recipe import PairSeen, PairsEvidence
from llmb.reference.data import Batch
from llmb.reference.models import blocks_of
from llmb.reference.train_loop import Step, StepDone, train_loop

#: Class of ``torch._dynamo.exc``, a module that only runs with a compiler need.
_COMPILED_TOO_OFTEN = "FailOnRecompileLimitHit"


def _of_losses(steps: Iterator[StepDone]) -> Iterator[StepDone]:
    """Yield the steps of a train loop.

    Raises:
        RunFailedError: the model returned another object than its loss, or torch compiled the step
            anew too often.
    """
    try:
        yield from steps
    except AttributeError as error:
        if error.name != "backward" or isinstance(error.obj, Tensor):
            raise
        raise RunFailedError(
            f"the model returned a {type(error.obj).__name__}: with labels a model must return its "
            "loss, a tensor with a single element"
        ) from error
    except Exception as error:
        if type(error).__name__ != _COMPILED_TOO_OFTEN:
            raise
        raise RunFailedError(
            "torch.compile compiled the model anew in too many steps: a Python value that changes, "
            "such as a counter in a module, takes part in forward; keep the value out of forward, "
            "or use --executor eager"
        ) from error


class Training:
    """The training of one worker."""

    phase = "training"
    sampler_class: type = StepSampler
    ledger_class: type = GradientLedger

    def __init__(self, stage: Stage) -> None:
        """Build the optimizer over the model of ``stage``, and the program of the model."""
        self._stage, config = stage, stage.config
        if config.sac_freq is not None:
            checkpoint_blocks(stage.model, stage.shape, config.sac_freq)
        by_blocks = config.executor == "inductor" and config.parallelism.dp_shard > 1
        if by_blocks:
            executors.compile_each(blocks_of(stage.model, stage.shape), config)
        if stage.layout is not None:
            stage.layout.spread(stage.model, stage.shape)
            pipeline = stage.layout.pipeline
            stage.canonical.follow(stage.model, pipeline.share if pipeline else None)
        constants = stage.workload.recipe.optimizer
        self.optimizer = optimizer_of(stage.model.parameters(), constants, stage.plugin, config)
        by_ranks = config.executor == "thunder" and stage.layout is not None
        self.program = (
            stage.model if by_blocks or by_ranks else executors.program(stage.model, config)
        )
        if stage.workload.drops:
            executors.draw_as_eager()
        if stage.layout is not None:
            self.program = stage.layout.program(self.program)
        self._exactness: Exactness | None = None
        self._paused = 0  # number of the step whose pause began last
        self._lazy = is_lazy(stage.backend)
        settle = self._end_program if self._lazy else None
        self.sampler: StepSampler = StepSampler(
            stage.model,
            self.optimizer,
            lazy=self._lazy,
            total=stage.total,
            settle=settle,
            gradients=config.audit is not AuditMode.OFF and not stage.every_step,
            elements=of_judged(config.precision.bits),
        )
        self.ledger: GradientLedger | None = None
        if config.audit is not AuditMode.OFF:
            join = stage.total if stage.ranks is not None else None
            self.ledger = GradientLedger(stage.model, self.optimizer, join, settle=settle)
        replica = stage.layout.mesh.replica if stage.layout else 0
        self._batches = Batches(config, stage.shape, stage.backend, replica)
        self._scaler: GradScaler | None = None
        if config.mixed_precision and config.precision.dtype == "float16":
            self._scaler = self._new_scaler(config.device)

    def _end_program(self) -> None:
        """End the program of a recording device in a pause.

        The backend's code could register a kernel for the reading that follows, or give a gradient
        attributes, so all is compared and checked again.
        """
        self._stage.backend.step_end()
        if self._exactness is not None:
            self._exactness.compare(self._paused)
            self._exactness.see(self._paused)

    def _new_scaler(self, device: str) -> GradScaler:
        if self._stage.layout is None:
            return loss_scale.new_scaler(device)
        from llmb.parallel.scaler import SharedGradScaler

        return loss_scale.new_scaler(device, SharedGradScaler)

    def steps(self, stream: StepStream, show: Show) -> Iterator[StepDone]:
        """Train as the workload's original does, and yield after each step."""
        shown = False
        most, layout = self._stage.workload.recipe.clip_grad_norm, self._stage.layout
        pipeline = layout.pipeline if layout else None

        def cut() -> None:
            # A lazy device's program ends here, and the device computes on. A program with the
            # optimizer inside would not round gradients, and gradients would not be underway when
            # the worker learns the sampled indices.
            if self._lazy:
                self._end_program()

        def clipped() -> None:
            cut()
            self.sampler.clipped()

        self._exactness = exactness = stream.exactness

        def pause(step: Step, loss: Tensor) -> bool:
            nonlocal shown
            self._paused = step.index
            if exactness is not None:
                exactness.compare(step.index, reads=False)
            if layout is not None:
                layout.add_up(self._stage.model)
            if not shown:
                trained = self._stage.model.parameters()
                show([loss, *(p.grad for p in trained if p.grad is not None)])
                shown = True
            cut()
            if stream.pause(step, loss):
                return True
            # The loop knows the gradients of this rank's stages alone.
            if pipeline is not None and most is not None:
                pipeline.clip_grad_norm(self._stage.model, most)
                clipped()
            return False

        if exactness is not None:
            exactness.watch(self.optimizer)
        steps = train_loop(
            self.program,
            self.optimizer,
            stream,
            self._batches.make,
            pause,
            context=self._forward,
            clip_grad_norm=most if pipeline is None else None,
            clipped=clipped,
            scaler=self._scaler,
        )
        for done in _of_losses(steps):
            if exactness is not None:
                exactness.see(done.step.index)
            self.sampler.after()
            yield done

    def _forward(self) -> AbstractContextManager[object]:
        """Return the context of the next micro-batch's forward pass."""
        layout, around = self._stage.layout, self._stage.autocast()
        return around if layout is None else layout.part(around)

    def told(self) -> FencePayload:
        """Return the number of programs made by an executor with a counter of programs."""
        return FencePayload(executors.compilations(self.program))

    def write(self, writer: EvidenceWriter, baseline: OptimizerBaseline, steps: int) -> None:
        """Write down the state of the optimizer after ``steps`` steps."""
        skipped = self._skipped()
        seen = baseline.observe(self.optimizer, self._stage.model, steps - skipped)
        seen = seen.model_copy(update={"skipped": skipped})
        writer.write(evidence.OPTIMIZER, of_all(self._stage.ranks, seen))

    def _skipped(self) -> int:
        """Return the number of steps skipped because scaled gradients had overflowed."""
        if self._scaler is None:
            return 0
        return round(math.log2(loss_scale.FIRST / self._scaler.get_scale()))

    def whole_step(self) -> None:
        """Do the latest step again, including the optimizer step."""
        self._untimed_pass(self._batches.latest)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _untimed_pass(self, batches: Sequence[Batch]) -> Tensor:
        """Go forward and backward as a step does, from no gradients; return the loss.

        If the run scales the loss, the loss is scaled here, too. In float16 small gradients would
        underflow without scaling, and the gradients of the scaled honest run would not.
        """
        stage, scale = self._stage, 1.0 if self._scaler is None else self._scaler.get_scale()
        stage.model.zero_grad(set_to_none=True)
        stage.backend.step_begin()
        total = torch.zeros(())
        for part in batches:
            with stage.autocast():
                loss = self.program(part.ids, labels=part.labels, **part.extra)
            loss = loss / len(batches)
            (loss * scale).backward()
            total = total.to(loss.device) + loss.detach()
        if scale != 1.0:
            for parameter in stage.model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= scale  # a power of two: no rounding
        stage.backend.step_end()
        return total

    def be_audited(
        self, writer: EvidenceWriter, stream: StepStream, before: TamperBaseline | None
    ) -> None:
        """Write the files for honest and reference run: weights, gradients, steps, probes.

        The order matters: first the last step's gradients, last the work that destroys the weights.
        """
        last, canonical, sampler = stream.last, self._stage.canonical, self.sampler
        if last is None or not self._batches.latest:
            return
        writer.phase("being audited: the last step")
        if self._stage.layout is not None:
            self._stage.layout.settle()
        sampler.read()
        # With dynamic shapes, the length of the last step: the probes go into the same memory.
        length = self._batches.latest[-1].ids.shape[1]
        keeper, seen = self._keeper()
        examination = Examination(
            canonical, replace(self._stage.shape, sequence_length=length), last.seed, keeper
        )
        glances = self._last_step(last, examination)
        if keeper is not None and LIVE in keeper.part.passes:
            # The gradients come from the step itself; a repeated step shows the values inside.
            with examination.watching(LIVE, self._stage.model):
                self._untimed_pass(self._batches.latest)
        writer.phase("being audited: weights")
        writer.weights(audited.LIVE_WEIGHTS, canonical)
        writer.write(audited.STEPS, of_all(self._stage.ranks, stream.evidence()))
        if before is not None and before.types is not None:
            writer.phase("being audited: types of operands")
            again = partial(self._untimed_pass, self._batches.latest)
            writer.write(evidence.TYPES, of_all(self._stage.ranks, before.types.step(again)))
        self._probe(writer, examination, last)
        if keeper is None:
            self._measure_recipe(writer, examination)
        where = {
            f"{index}/where": _narrowest(places(canonical, self._stage.sizes, stored))
            for index, stored in sampler.gradients_seen()
        }
        holder = self._write_ledger(writer)
        if keeper is not None and seen is not None:
            self._write_part(writer, keeper, seen.model_copy(update={"stored": holder}))
        steps = sampler.tensors() | where | _on_host(glances)
        steps |= glances_of_all(self._stage.ranks, steps)
        writer.write_bytes(audited.STEP_VALUES, save(steps))

    def _write_ledger(self, writer: EvidenceWriter) -> str | None:
        """Write the samples of every step, and the indices in the canonical model.

        Returns the stored parameter that holds the part of a repeated judgement, if any.
        """
        ledger = self.ledger
        if ledger is None or not len(rows := ledger.rows()):
            return None
        read = ledger.read_places()
        where = places(self._stage.canonical, self._stage.sizes, read)
        each = torch.split(where, [len(indices) for *_, indices in read])
        holder = self._holder({name: one for (name, *_), one in zip(read, each, strict=True)})
        count = draws.steps_compared(ledger.rates, self._stage.workload.recipe.optimizer)
        kept = {audited.ROWS: rows, audited.WHERE: _narrowest(ledger.in_steps(where))}
        kept = {name: values[:count].contiguous() for name, values in kept.items()}
        writer.write(audited.LEDGER, ledger.evidence())
        writer.write_bytes(audited.LEDGER_VALUES, save(kept))
        return holder

    def _holder(self, where: Mapping[str, Tensor]) -> str | None:
        """Return the stored parameter with elements of the part of a repeated judgement.

        ``where`` maps stored parameters to indices of elements in the canonical model.
        """
        if self._stage.only is None:
            return None
        own = ranges_of(self._stage.sizes)[self._stage.only.parameter]
        inside = (n for n, x in where.items() if ((x >= own.start) & (x < own.stop)).any())
        return next(inside, None)

    def _keeper(self) -> tuple[PartKeeper | None, audited.PartSeen | None]:
        """Return the keeper and the location of the part of a repeated judgement, or None."""
        stage = self._stage
        if stage.only is None:
            return None, None
        seen = one_part.find(stage.only, stage.model, stage.canonical)
        return PartKeeper(stage.only, audited.MEASURED, seen.module), seen

    def _write_part(
        self, writer: EvidenceWriter, keeper: PartKeeper, seen: audited.PartSeen
    ) -> None:
        """Write the kept tensors of the part, and the reason for missing tensors."""
        if seen.why is None and not any(k.endswith(audited.OUTPUT) for k in keeper.tensors):
            why = f"nothing calls module {seen.module} where Python could see it: it is compiled, "
            why += "or another module computes with its weight"
            seen = seen.model_copy(update={"why": why})
        writer.kept_part(keeper, seen)

    def _last_step(self, last: Last, examination: Examination) -> dict[str, Tensor]:
        """Take the step's gradients; for a model with dropout, the gradients of another pass."""
        stage = self._stage
        glances = self.sampler.glance_again(last.step, "before")
        drawn = getattr(stage.shape, "dropout", 0.0) > 0
        if not drawn:
            examination.live(stage.mean(last.loss))
        glances |= self.sampler.glance_again(last.step, "after")
        if drawn:  # dropout stays off, so anybody can compute the same
            stage.model.eval()
            examination.live(stage.mean(self._untimed_pass(self._batches.latest)))
        return glances

    def _probe(self, writer: EvidenceWriter, examination: Examination, last: Last) -> None:
        stage, canonical = self._stage, self._stage.canonical
        failure = None
        if canonical.missing:
            missing = canonical.missing
            failure = f"{len(missing)} parameters were not found: {missing[0]}, ..."
        batch, dtype = self._batches.latest[-1], stage.config.precision.dtype
        only = self._stage.only
        wanted = [p for p in probes.PROBES if only is None or p in only.passes]
        for name in () if failure else wanted:
            writer.phase(f"being audited: probe {name}")
            examination.probe(
                name,
                stage.model,
                self.program,
                stage.backend,
                dtype,
                batch,
                stage.autocast(),
            )
        writer.write_bytes(audited.GRADIENTS, save(examination.tensors))
        probed = audited.ProbedEvidence(
            seed=last.seed,
            last_step=last.step.index,
            token_seed=last.step.seed,
            passes=tuple(examination.passes),
            missing=tuple(examination.missing),
            failure=failure,
        )
        writer.write(audited.PROBED, probed)

    def _measure_recipe(self, writer: EvidenceWriter, examination: Examination) -> None:
        """Write the measured precision of each product, and the types of the state."""
        stage, canonical = self._stage, self._stage.canonical
        types = {
            "weights": _types_of(stage.model.parameters()),
            "gradients": _types_of(p.grad for p in stage.model.parameters()),
            "moments": _types_of(
                value
                for state in self.optimizer.state.values()
                for name, value in state.items()
                if name != "step"
            ),
        }
        obstacle = (
            "parameters were not found" if canonical.missing else pairs_layout.obstacle(stage.shape)
        )
        seen: tuple[PairSeen, ...] = ()
        if obstacle is None:
            writer.phase("being audited: the recipe of precision")
            seen = examination.pairs(
                stage.model,
                self.program,
                stage.backend,
                stage.config.precision.dtype,
                self._batches.latest[-1],
                stage.autocast(),
            )
        writer.write(evidence.PAIRS, PairsEvidence(seen=seen, obstacle=obstacle, **types))


def _types_of(tensors: Iterable[object]) -> tuple[str, ...]:
    """Return torch's names of the types of ``tensors``, each once; None is left out."""
    types = {str(one.dtype) for one in tensors if isinstance(one, Tensor)}
    return tuple(sorted(name.removeprefix("torch.") for name in types))


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors`` in the form of evidence: float32 on the host."""
    return {name: tensor.to("cpu").float() for name, tensor in tensors.items()}


def _narrowest(places: Tensor) -> Tensor:
    """Return indices as int32 if possible: indices are a third of the evidence."""
    largest = torch.iinfo(torch.int32).max
    return places.to(torch.int32) if places.numel() and places.max() <= largest else places
