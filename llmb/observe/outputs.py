"""What is seen of a step that trains nothing: some of its logits, and the tokens it has drawn."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from llmb.records.audited import LOGITS, AuditedStep, Segment
from llmb.reference.train_loop import Step

#: Positions of one sequence that are looked at, and words of the vocabulary at each.
_POSITIONS, _WORDS = 64, 1024
_GLANCED = 64


@dataclass(frozen=True)
class Output:
    """Logits ``[B, P, vocab]``, and in mode generate the tokens drawn from them, ``[B, P]``."""

    logits: Tensor
    tokens: Tensor | None = None


@dataclass(frozen=True)
class Look:
    """Which logits are looked at: one sequence, some positions, some words."""

    row: int
    positions: Tensor
    words: Tensor

    @classmethod
    def of(cls, seed: int, name: str, rows: int, positions: int, vocab: int) -> Look:
        """Return the choice that follows from ``seed`` for the pass ``name``."""
        digest = hashlib.sha256(f"logits:{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
        where = torch.randperm(positions, generator=generator)[:_POSITIONS].sort().values
        words = torch.randperm(vocab, generator=generator)[:_WORDS].sort().values
        row = int(torch.randint(rows, (1,), generator=generator))
        return cls(row, where, words)

    def read(self, logits: Tensor) -> Tensor:
        """Return those of ``logits`` ``[B, P, vocab]``, flat."""
        return self.of_row(logits[self.row])

    def of_row(self, logits: Tensor) -> Tensor:
        """Return those of the sequence's own ``logits`` ``[P, vocab]``, flat."""
        where, words = self.positions.to(logits.device), self.words.to(logits.device)
        return logits.detach().index_select(0, where).index_select(1, words).flatten()


@dataclass
class _SeenLogits:
    step: Step
    seed: int
    dtype: str
    tensors: dict[str, Tensor] = field(default_factory=dict)


# See ``StepSampler``: with slots nothing can be replaced on the object alone.
@dataclass(slots=True, eq=False)
class OutputWitness:
    """Looks at audited steps of the modes forward and generate."""

    _draw: random.SystemRandom = field(default_factory=random.SystemRandom)
    _output: Output | None = None
    _glanced: tuple[tuple[Tensor, ...], Tensor] | None = None
    _seen: list[_SeenLogits] = field(default_factory=list)

    def show(self, output: Output) -> None:
        """Take the output of the step whose pause has come."""
        self._output = output

    @property
    def output(self) -> Output:
        """The output of the latest step."""
        assert self._output is not None
        return self._output

    def next(self) -> None:
        """Look at nothing: a step leaves nothing that the next could change."""

    def glance(self) -> None:
        """Read some logits, drawn by the system, before it is known whether they count."""
        logits = self.output.logits
        where = tuple(
            torch.tensor([self._draw.randrange(size) for _ in range(_GLANCED)]).to(logits.device)
            for size in logits.shape
        )
        self._glanced = (where, logits[where].detach().clone())

    def glance_again(self, step: Step) -> dict[str, Tensor]:
        """Return what was glanced at in ``step``, then and now."""
        assert self._glanced is not None
        where, then = self._glanced
        now = self.output.logits[where].detach().clone()
        return {f"{step.index}/asked": then, f"{step.index}/asked again": now}

    def before(self, step: Step, seed: int) -> None:
        """Look at ``step``, whose output is there; ``seed`` says which logits."""
        tensors = {k.partition("/")[2]: t for k, t in self.glance_again(step).items()}
        seen = _SeenLogits(step, seed, str(self.output.logits.dtype).removeprefix("torch."))
        seen.tensors = tensors | look(self.output, seed, "step")
        self._seen.append(seen)

    def read(self) -> tuple[int, ...]:
        """Bring what was seen to the host, once the device is done; return the steps' numbers."""
        for seen in self._seen:
            seen.tensors = {k: t.to("cpu").float() for k, t in seen.tensors.items()}
        return tuple(seen.step.index for seen in self._seen)

    def steps(self) -> tuple[AuditedStep, ...]:
        """Return what there is to know of the audited steps besides their numbers."""
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
        """Return what was read, by ``<step>/<what>``, float32."""
        return {f"{s.step.index}/{what}": t for s in self._seen for what, t in s.tensors.items()}


def look(output: Output, seed: int, name: str) -> dict[str, Tensor]:
    """Return logits of ``output`` by the choice of ``seed``, and the tokens of that sequence."""
    rows, positions, vocab = output.logits.shape
    chosen = Look.of(seed, name, rows, positions, vocab)
    found = {LOGITS: chosen.read(output.logits)}
    if output.tokens is not None:
        found["tokens"] = output.tokens[chosen.row].detach().clone()
    return found
