"""Modes forward and generate: a step is one call or one sample, without training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from safetensors.torch import save
from torch import Tensor

from llmb import clock
from llmb.config import AuditMode
from llmb.observe import outputs, probes
from llmb.observe.examination import Examination
from llmb.observe.noise import Filled, Noise, Race, new_seed
from llmb.observe.optimizer import OptimizerBaseline
from llmb.observe.output_ledger import OutputLedger
from llmb.observe.outputs import Output, OutputWitness
from llmb.observe.passes import LIVE
from llmb.observe.step_batches import StepBatches
from llmb.processes.evidence_writer import EvidenceWriter
from llmb.processes.modes import Show, executors
from llmb.processes.modes.stage import Stage
from llmb.processes.step_stream import Batches, FencePayload, Last, StepStream
from llmb.processes.tamper_baseline import TamperBaseline
from llmb.records import audited, draws, evidence
from llmb.reference.data import random_tokens
from llmb.reference.forward import forward_loop
from llmb.reference.generate import OneToken, generate_loop, make_desk
from llmb.reference.train_loop import Step, StepDone


class Inference(ABC):
    """The common part of both modes: the sampler, and the audit of the outputs."""

    phase = "running"
    sampler_class: type = OutputWitness
    ledger_class: type = OutputLedger

    def __init__(self, stage: Stage) -> None:
        """Switch the model of ``stage`` to inference."""
        self._stage = stage
        self.sampler = OutputWitness()
        audited = stage.config.audit is not AuditMode.OFF
        self.ledger = OutputLedger(self.sampler) if audited else None
        stage.model.eval()

    @abstractmethod
    def _pass(self, seed: int) -> Output:
        """Do a step's work on the tokens of ``seed``, in the same memory."""

    def write(self, writer: EvidenceWriter, baseline: OptimizerBaseline, steps: int) -> None:  # noqa: B027
        """Write nothing: these modes have no optimizer."""

    def be_audited(
        self, writer: EvidenceWriter, stream: StepStream, before: TamperBaseline | None
    ) -> None:
        """Write the files for honest and reference run: logits, weights, audited steps, probes."""
        stage, last = self._stage, stream.last
        if last is None:
            return
        writer.phase("being audited: the last step")
        self.sampler.read()
        glances = self.sampler.glance_again(last.step)
        found = self._look(LIVE, self.sampler.output, last.seed)
        writer.phase("being audited: weights")
        writer.weights(audited.LIVE_WEIGHTS, stage.canonical)
        if before is not None and before.types is not None:
            writer.phase("being audited: types of operands")
            again = partial(self._pass, last.step.seed)
            writer.write(evidence.TYPES, before.types.step(again))
        failure, missing = None, stage.canonical.missing
        if missing:
            failure = f"{len(missing)} parameters were not found: {missing[0]}, ..."
        examination = Examination(stage.canonical, stage.shape, last.seed)
        passes = [LIVE]
        for name in () if failure else probes.PROBES:
            writer.phase(f"being audited: probe {name}")
            examination.edit(name, stage.config.precision.dtype)
            seen = self._pass(probes.token_seed(last.seed, name))
            found |= self._look(name, seen, last.seed)
            passes.append(name)
        writer.write_bytes(audited.GRADIENTS, save(found))
        probed = audited.ProbedEvidence(
            seed=last.seed,
            last_step=last.step.index,
            token_seed=last.step.seed,
            passes=tuple(passes),
            missing=(),
            failure=failure,
        )
        writer.write(audited.PROBED, probed)
        writer.write(audited.STEPS, stream.evidence())
        seen_steps = {k: t.to("cpu").float() for k, t in (self.sampler.tensors() | glances).items()}
        writer.write_bytes(audited.STEP_VALUES, save(seen_steps))
        self._write_ledger(writer, last)

    def _write_ledger(self, writer: EvidenceWriter, last: Last) -> None:
        """Write the samples of the compared calls, in the order of the replay."""
        if self.ledger is None or not len(rows := self.ledger.rows()):
            return
        kept = list(draws.calls_compared(last.seed, len(rows)))
        writer.write(audited.LEDGER, self.ledger.evidence())
        writer.write_bytes(audited.LEDGER_VALUES, save({audited.ROWS: rows[kept]}))

    def _look(self, name: str, output: Output, seed: int) -> dict[str, Tensor]:
        self._stage.backend.synchronize()
        found = outputs.look(output, seed, name)
        return {f"{name}/{what}": tensor.to("cpu").float() for what, tensor in found.items()}


class Forward(Inference):
    """One forward pass over a batch, as for inference."""

    def __init__(self, stage: Stage) -> None:
        """Prepare the program of the model."""
        super().__init__(stage)
        self._program = executors.program(stage.model, stage.config)
        self._batches = Batches(stage.config, stage.shape, stage.backend)

    def told(self) -> FencePayload:
        """Return the number of programs made by an executor with a counter of programs."""
        return FencePayload(executors.compilations(self._program), is_loss=False)

    def steps(self, stream: StepStream, show: Show) -> Iterator[StepDone]:
        """Call the model once a step, and yield after each."""
        exactness = stream.exactness

        def pause(step: Step, logits: Tensor) -> bool:
            if exactness is not None:
                exactness.compare(step.index, reads=False)
            self.sampler.show(Output(logits))
            return stream.pause(step, logits)

        for done in forward_loop(self._program, stream, self._batches.make, pause):
            if done.step.index == 0:
                show([done.logits])
            yield StepDone(done.step, _told_of(done.logits))

    def whole_step(self) -> None:
        """Call the model on the latest tokens again."""
        with torch.inference_mode():
            self._program(self._batches.latest[0].ids)

    def _pass(self, seed: int) -> Output:
        backend, ids = self._stage.backend, self._batches.latest[0].ids
        ids.copy_(random_tokens(seed, len(ids), ids.shape[1], self._stage.shape.vocab_size))
        backend.step_begin()
        with torch.inference_mode():
            logits = self._program(ids)
        backend.step_end()
        return Output(logits)


class Generation(Inference):
    """One sample: a prompt at once, then token after token."""

    def __init__(self, stage: Stage) -> None:
        """Prepare the memory, and the program for one token."""
        super().__init__(stage)
        config = stage.config
        assert config.prompt_length is not None
        assert config.new_tokens is not None
        self._length, size = config.prompt_length, config.batch_size
        dtype = getattr(torch, config.precision.dtype)
        self._desk = make_desk(
            stage.shape, size, self._length, config.new_tokens, dtype, config.device
        )
        self._noise = Noise((size, stage.shape.vocab_size), dtype, config.device)
        race = Race(self._noise.values)
        if config.executor == "inductor":  # otherwise no graph would be captured around the cache
            addresses = (*self._desk.cache.tensors(), self._desk.position, self._noise.values)
            for fixed in addresses:
                torch._dynamo.mark_static_address(fixed)
        if config.generate_scope == "step" and config.executor != "eager":
            self._compiled = executors.program(OneToken(stage.model, race), config)
            self._next = Filled(self._noise, self._compiled)
        else:
            self._compiled = executors.program(stage.model, config)
            self._next = Filled(self._noise, OneToken(self._compiled, race))
        self._batches = StepBatches(config, stage.shape)
        self._prompts: Callable[[int], Tensor] = self._batches.prompt
        self._latest = self._seed = self._begun_ns = self._prefill_ns = 0
        #: Seed of the next sample's noise, drawn in the pause before: no plugin code runs between
        #: the comparison of the pause and the draw.
        self._next_seed = new_seed()

    def told(self) -> FencePayload:
        """Return the time of the latest prefill, and the number of the executor's programs."""
        made = executors.compilations(self._compiled)
        return FencePayload(made, is_loss=False, prefill_ns=self._prefill_ns)

    def steps(self, stream: StepStream, show: Show) -> Iterator[StepDone]:
        """Generate one sample a step, and yield after each."""
        exactness = stream.exactness

        def pause(step: Step, tokens: Tensor, logits: Tensor) -> bool:
            if exactness is not None:
                exactness.compare(step.index, reads=False)
            self._next_seed = new_seed()
            self.sampler.show(Output(logits.transpose(0, 1), tokens, self._seed))
            strange, self._next.strange = self._next.strange, []
            return stream.pause(step, logits, tokens, *strange)

        for done in self._samples(stream, pause):
            if done.step.index == 0:
                show([self._desk.logits])
            yield done

    def _samples(
        self, steps: Iterable[Step], pause: Callable[[Step, Tensor, Tensor], bool]
    ) -> Iterator[StepDone]:
        for done in generate_loop(
            self._next,
            self._desk,
            steps,
            self._prompt,
            pause,
            prefilled=self._prefilled,
            token_end=self._stage.backend.step_end,
        ):
            yield StepDone(done.step, _told_of(self._desk.logits))

    def whole_step(self) -> None:
        """Generate a sample from another prompt."""
        self._pass(self._latest)

    def _pass(self, seed: int) -> Output:
        self._prompts = self._random_prompt
        taken: list[Tensor] = []

        def take(step: Step, tokens: Tensor, logits: Tensor) -> bool:
            taken.append(tokens)
            self._next_seed = new_seed()
            return True

        list(self._samples([Step(0, seed, fence=False)], take))
        return Output(self._desk.logits.transpose(0, 1), taken[0], self._seed)

    def _prompt(self, seed: int) -> Tensor:
        """Begin a step: return the prompt, on the device."""
        self._latest = seed
        self._stage.backend.step_begin()
        self._begun_ns = clock.now_ns()
        self._seed = self._next_seed
        self._noise.begin(self._seed)
        return self._prompts(seed).to(self._stage.config.device)

    def _random_prompt(self, seed: int) -> Tensor:
        size, vocab = self._stage.config.batch_size, self._stage.shape.vocab_size
        return random_tokens(seed, size, self._length, vocab)

    def _prefilled(self) -> None:
        """Wait for the first token: the time since the start of the step is the prefill time."""
        self._stage.backend.synchronize()
        self._prefill_ns = clock.now_ns() - self._begun_ns


def _told_of(logits: Tensor) -> Tensor:
    """Return the scalar that a fence reads back: the mean of the last logits."""
    return logits[-1, -1].float().mean()
