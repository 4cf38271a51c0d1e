"""Node-hours of a planned training, from measured rates: the NeMo document's arithmetic.

``node_hours = nodes x steps x (target global batch / measured global batch) / iterations_per_second
/ 3600``. A rate in samples/s or tokens/s needs no measured global batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmb.errors import UsageError
from llmb.measure.step_figures import StepFigures
from llmb.measure.step_figures import node_hours as _node_hours
from llmb.projection.rounding import Range, printed

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_STEPS = re.compile(r"([1-9][0-9]{0,14})@([1-9][0-9]{0,8})")
_RATE = re.compile(rf"([1-9][0-9]{{0,8}}):({_NUMBER})(it/s@([1-9][0-9]{{0,8}})|samples/s|tokens/s)")


@dataclass(frozen=True)
class TrainingStage:
    """A number of steps at one sequence length. Example: 150,000 steps at 512 tokens."""

    steps: int
    length: int


@dataclass(frozen=True)
class Rate:
    """A measured rate at one sequence length, in sequences/s, with the user's text."""

    length: int
    samples_per_second: float
    range: Range
    text: str


@dataclass(frozen=True)
class Cost:
    """The cost of one stage in node-hours."""

    stage: TrainingStage
    rate: Rate
    iterations_per_second: float
    node_hours_per_100k_steps: float
    node_hours: float


@dataclass(frozen=True)
class NodeHoursPlan:
    """The cost of all stages in node-hours."""

    target_global_batch: int
    nodes: int
    costs: tuple[Cost, ...]
    warnings: tuple[str, ...]

    @property
    def node_hours(self) -> float:
        """Node-hours of all stages."""
        return sum(cost.node_hours for cost in self.costs)


def stages(text: str) -> tuple[TrainingStage, ...]:
    """Return the stages in ``text``, such as ``150000@512,50000@2048`` (steps at a length).

    Raises:
        UsageError: the text has another form.
    """
    found = []
    for part in text.split(","):
        match = _STEPS.fullmatch(part.strip())
        if match is None:
            raise UsageError(
                f"--steps {text}: write STEPS@LENGTH, several with commas, such as "
                "150000@512,50000@2048"
            )
        found.append(TrainingStage(steps=int(match[1]), length=int(match[2])))
    return tuple(found)


def rate(text: str) -> Rate:
    """Return the rate in ``text``: ``512:1.18it/s@1024``, ``512:1167samples/s``, ``.. tokens/s``.

    Raises:
        UsageError: the text has another form, or the rate is 0.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or not float(match[2]):
        raise UsageError(
            f"--rate {text}: write LENGTH:RATEit/s@GLOBAL_BATCH, LENGTH:RATEsamples/s or "
            "LENGTH:RATEtokens/s, such as 512:1.18it/s@1024"
        )
    length, factor = int(match[1]), 1.0
    if match[4]:
        factor = float(match[4])
    elif match[3] == "tokens/s":
        factor = 1 / length
    samples = float(match[2]) * factor
    return Rate(length, samples, printed(match[2]).times(factor), text.strip())


def measured_rate(step: StepFigures, length: int, text: str) -> Rate:
    """Return the rate of a measured step with sequences of ``length``; ``text`` names the run."""
    samples = step.sequences / step.seconds
    return Rate(length, samples, Range(samples, samples), text)


def plan(
    planned: Sequence[TrainingStage], rates: Sequence[Rate], target_global_batch: int, nodes: int
) -> NodeHoursPlan:
    """Return the cost of the planned stages on ``nodes`` nodes, the nodes of the measured rates.

    If several rates have the same length, the first rate is used. A warning names every rate that
    disagrees with the first by more than rounding.

    Raises:
        UsageError: a length has no rate.
    """
    costs = []
    for stage in planned:
        used = next((rate for rate in rates if rate.length == stage.length), None)
        if used is None:
            raise UsageError(
                f"no rate at sequence length {stage.length}: add --rate "
                f"{stage.length}:RATEit/s@GLOBAL_BATCH, or --from a run of that length"
            )
        iterations = used.samples_per_second / target_global_batch
        costs.append(
            Cost(
                stage,
                used,
                iterations,
                _node_hours(nodes, 100_000, 1, iterations),
                _node_hours(nodes, stage.steps, 1, iterations),
            )
        )
    return NodeHoursPlan(target_global_batch, nodes, tuple(costs), tuple(_warnings(planned, rates)))


def _warnings(planned: Sequence[TrainingStage], rates: Sequence[Rate]) -> Iterator[str]:
    lengths = {stage.length for stage in planned}
    first: dict[int, Rate] = {}
    for one in rates:
        used = first.setdefault(one.length, one)
        if one.length not in lengths:
            yield f"rate {one.text} is for no length of --steps"
        elif not used.range.overlaps(one.range):
            apart = abs(one.samples_per_second / used.samples_per_second - 1)
            yield (
                f"{used.text} is {used.samples_per_second:,.6g} samples/s and {one.text} is "
                f"{one.samples_per_second:,.6g}: {apart:.1%} apart, more than rounding; the first "
                "is used"
            )
