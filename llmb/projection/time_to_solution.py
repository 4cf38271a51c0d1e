"""The ALCF 1T document's model of the step time (equation 30 of the report), and its gaps.

``t = alpha b L (36 s d^2 + 6 s^2 d) / (PP TP) + beta 4 b L s d / PP``
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmb.errors import UsageError
from llmb.reference.shapes import Shape
from llmb.workloads.conventions import alcf_macs

#: Notes for the reader of a result.
NOTES = (
    "the document calls alpha FLOP/s per GPU: the first term is a time only if alpha is seconds a "
    "multiply-add, 2 / (achieved FLOP/s)",
    "the document calls beta the all-reduce bandwidth: the second term is a time only if beta is "
    "seconds an element, bytes a value / (all-reduce bandwidth)",
    "b is the batch of one replica: the formula has no data parallelism",
    "not in the formula: the pipeline's bubble, a recomputed forward pass, a third matrix of the "
    "feed-forward, the head, the optimizer, traffic between replicas and stages",
)
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([TGPM])(FLOP/s|B/s)")
_FACTORS = {"M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
#: Largest alpha and beta: every device of the document does more than a million multiply-adds or
#: elements per second.
_MOST_SECONDS = 1e-6


@dataclass(frozen=True)
class MeasuredStep:
    """Both terms of the formula in seconds, and the counts per device."""

    compute_s: float
    communication_s: float
    macs_per_device: float
    elements_per_device: float

    @property
    def total_s(self) -> float:
        """The document's t."""
        return self.compute_s + self.communication_s


def step_time(
    shape: Shape, sequences: float, tp: int, pp: int, alpha: float, beta: float
) -> MeasuredStep:
    """Return the time of a step of one replica with ``sequences``.

    ``alpha`` is in seconds per multiply-add, ``beta`` in seconds per all-reduced element.
    """
    tokens, layers = sequences * shape.sequence_length, shape.num_hidden_layers
    macs = tokens * alcf_macs(shape) / (pp * tp)
    elements = 4 * tokens * layers * shape.hidden_size / pp
    return MeasuredStep(alpha * macs, beta * elements, macs, elements)


def alpha_of(text: str) -> float:
    """Return seconds per multiply-add, from seconds or achieved FLOP/s. Example: ``169TFLOP/s``.

    Raises:
        UsageError: the text has neither form, or is 0.
    """
    rate = _rate(text, "FLOP/s")
    if rate is not None:
        return 2 / rate
    seconds = _seconds("--alpha", text, "a multiply-add", "169TFLOP/s")
    if not seconds:
        raise UsageError("--alpha 0: a multiply-add takes some time")
    return seconds


def beta_of(text: str, bytes_per_value: int) -> float:
    """Return seconds per element, from seconds or all-reduce bandwidth. Example: ``44.4GB/s``.

    Raises:
        UsageError: the text has neither form.
    """
    rate = _rate(text, "B/s")
    if rate is None:
        return _seconds("--beta", text, "an all-reduced element", "44.4GB/s")
    return bytes_per_value / rate


def _rate(text: str, unit: str) -> float | None:
    match = _RATE.fullmatch(text)
    if match is None or match[3] != unit:
        return None
    return float(match[1]) * _FACTORS[match[2]] or None


def _seconds(option: str, text: str, what: str, example: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _MOST_SECONDS:
        raise UsageError(
            f"{option} {text}: give the seconds of {what}, at most {_MOST_SECONDS:g}, or a rate "
            f"such as {example}"
        )
    return value
