"""Sample a step without training: some logits, and the tokens drawn from the logits."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from llmb.records.audited import LOGITS, AuditedStep, Segment
from llmb.reference.train_loop import Step

#: Sampled positions of a sequence, and sampled words of the vocabulary at each position.
_POSITIONS, _WORDS = 64, 1024
_GLANCED = 64


@dataclass(frozen=True)
class Output:
    """Logits ``[B, P, vocab]``; in mode generate also the tokens drawn from them, ``[B, P]``."""

    logits: Tensor
    tokens: Tensor | None = None
    #: Seed of the noise of the tokens (``llmb.observe.noise``).
    noise: int | None = None


@dataclass(frozen=True)
class Look:
    """Indices of the sampled logits: a sequence, some positions, some words."""

    row: int
    positions: Tensor
    words: Tensor

    @classmethod
    def of(cls, seed: int, name: str, rows: int, positions: int, vocab: int) -> Look:
        """Return the choice derived from ``seed`` for the pass ``name``."""
        digest = hashlib.sha256(f"logits:{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
        where = torch.randperm(positions, generator=generator)[:_POSITIONS].sort().values
        words = torch.randperm(vocab, generator=generator)[:_WORDS].sort().values
        row = int(torch.randint(rows, (1,), generator=generator))
        return cls(row, where, words)

    def read(self, logits: Tensor) -> Tensor:
        """Return the sampled elements of ``logits`` ``[B, P, vocab]``, flat."""
        return self.of_row(logits[self.row])

    def of_row(self, logits: Tensor) -> Tensor:
        """Return the sampled elements of the sequence's ``logits`` ``[P, vocab]``, flat."""
        where, words = self.positions.to(logits.device), self.words.to(logits.device)
        return logits.detach().index_select(0, where).index_select(1, words).flatten()


@dataclass
class _SeenLogits:
    step: Step
    seed: int
    dtype: str
    tensors: dict[str, Tensor] = field(default_factory=dict)


# See ``StepSampler``: with slots no method can be replaced on the object alone.
@dataclass(slots=True, eq=False)
class OutputWitness:
    """Samples audited steps of the modes forward and generate."""

    _draw: random.SystemRandom = field(default_factory=random.SystemRandom)
    _output: Output | None = None
    _glanced: tuple[tuple[Tensor, ...], Tensor] | None = None
    _seen: list[_SeenLogits] = field(default_factory=list)

    def show(self, output: Output) -> None:
        """Take the output of the step that is now in its pause."""
        self._output = output

    @property
    def output(self) -> Output:
        """The output of the latest step."""
        assert self._output is not None
        return self._output

    def next(self) -> None:
        """Do nothing: without training, a step leaves no state for the next step to change."""

    def glance(self) -> str:
        """Read random logits (chosen by the system) before the step is known to be audited.

        No call is judged: nobody needs a digest of the logits.
        """
        logits = self.output.logits
        where = tuple(
            torch.tensor([self._draw.randrange(size) for _ in range(_GLANCED)]).to(logits.device)
            for size in logits.shape
        )
        self._glanced = (where, logits[where].detach().clone())
        return ""

    def glanced(self) -> str:
        """Return no digest, as ``glance``."""
        return ""

    def glance_again(self, step: Step) -> dict[str, Tensor]:
        """Return the blind sample of ``step``, then and now."""
        assert self._glanced is not None
        where, then = self._glanced
        now = self.output.logits[where].detach().clone()
        return {f"{step.index}/asked": then, f"{step.index}/asked again": now}

    def before(self, step: Step, seed: int) -> None:
        """Sample ``step``, after the output is computed; ``seed`` determines the logits."""
        tensors = {k.partition("/")[2]: t for k, t in self.glance_again(step).items()}
        seen = _SeenLogits(step, seed, str(self.output.logits.dtype).removeprefix("torch."))
        seen.tensors = tensors | look(self.output, seed, "step")
        self._seen.append(seen)

    def read(self) -> tuple[int, ...]:
        """Copy all samples to the host, once the device is done; return the step numbers."""
        for seen in self._seen:
            seen.tensors = {k: t.to("cpu").float() for k, t in seen.tensors.items()}
        return tuple(seen.step.index for seen in self._seen)

    def steps(self) -> tuple[AuditedStep, ...]:
        """Return a record of each audited step: seeds, dtype and number of logits."""
        last = len(self._seen) - 1
        return tuple(
            AuditedStep(
                index=seen.step.index,
                token_seed=seen.step.seed,
                seed=seen.seed,
                weights_kept=number == last,
                steps_before=None,
                foreach=None,
                fused=None,
                capturable=False,
                segments=(
                    Segment(
                        name=LOGITS,
                        dtype=seen.dtype,
                        gradients=seen.tensors[LOGITS].numel(),
                        states=0,
                    ),
                ),
            )
            for number, seen in enumerate(self._seen)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all samples as float32, named such as ``12/logits``."""
        return {f"{s.step.index}/{what}": t for s in self._seen for what, t in s.tensors.items()}


def look(output: Output, seed: int, name: str) -> dict[str, Tensor]:
    """Return logits of ``output`` chosen by ``seed``, and the tokens of the same sequence."""
    rows, positions, vocab = output.logits.shape
    chosen = Look.of(seed, name, rows, positions, vocab)
    found = {LOGITS: chosen.read(output.logits)}
    if output.tokens is not None:
        found["tokens"] = output.tokens[chosen.row].detach().clone()
    return found
