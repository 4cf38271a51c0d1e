"""The timed steps of a run: seconds from the stamps, losses at fences, learning rates drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llmb.audit.bench import Bench, UnreadableError, facts_of
from llmb.audit.recomputed import FENCES
from llmb.errors import LlmbError
from llmb.records.run_record import RunRecord
from llmb.report.exports.rows import step_rows

#: Returns the bytes of a file of the run directory by path, None for a missing file.
Files = Callable[[str], bytes | None]
_LOSS = "loss"


@dataclass(frozen=True)
class TimedStep:
    """One step of the timed window."""

    #: Number of the process (``repeats``), counted from 0.
    repeat: int
    #: Number of the step in the process, counted from 0, untimed steps included.
    step: int
    #: None if Python runs ahead of the device (``step_clock`` "enqueue").
    seconds: float | None
    #: Tokens of all devices together.
    tokens: int | None
    #: Mean loss of the step's tokens in nats. Losses are read at fences, after each tenth step of a
    #: training. None for all other steps, and without the evidence.
    loss: float | None
    #: Learning rate of the step; None in modes without training.
    learning_rate: float | None
    #: Whether the audit read gradients and moments in a pause of the step.
    audited: bool


def timed_steps(record: RunRecord, files: Files) -> Iterator[TimedStep]:
    """Yield the timed steps of every repeat in order.

    Args:
        record: the run.
        files: gives the files of the run directory, for the losses.
    """
    losses: dict[tuple[int, int], float] = {}
    rates: dict[int, Callable[[int], float]] = {}
    for repeat in range(len(record.timing.repeats)):
        bench = Bench(files, facts_of(record, (), {}), repeat)
        losses |= {(repeat, step): loss for step, loss in _losses(bench)}
        if (drawn := _rate(record, bench)) is not None:
            rates[repeat] = drawn
    for row in step_rows(record):
        if not row["timed"]:
            continue
        number, step = row["repeat"], row["step"]
        seconds, tokens = row["step_time_s"], row["tokens"]
        assert isinstance(number, int)
        assert isinstance(step, int)
        yield TimedStep(
            repeat=number,
            step=step,
            seconds=seconds if isinstance(seconds, float) else None,
            tokens=tokens if isinstance(tokens, int) else None,
            loss=losses.get((number, step)),
            learning_rate=rates[number](step) if number in rates else None,
            audited=bool(row["audited"]),
        )


def _losses(bench: Bench) -> Iterator[tuple[int, float]]:
    """Yield number and loss of each last step before a fence."""
    try:
        read = bench.read(FENCES)
    except (LlmbError, UnreadableError):  # a stranger's file may hold anything
        return
    if read is not None and len(read.get(_LOSS, ())) >= len(bench.timing.fence_steps):
        for steps, loss in zip(bench.timing.fence_steps, read[_LOSS], strict=False):
            yield steps - 1, loss


def _rate(record: RunRecord, bench: Bench) -> Callable[[int], float] | None:
    """Return the learning rate as a function of the step; None in modes without training."""
    if record.workload.mode != "train":
        return None
    drawn = bench.drawn
    if drawn is None:
        return lambda _: record.workload.optimizer.lr
    return drawn.rate
