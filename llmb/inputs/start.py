"""The initial weights of a model: a checkpoint's, or random weights with a sharp softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmb.config import Mode, RunConfig
from llmb.errors import RunFailedError
from llmb.families import family_of
from llmb.inputs.checkpoint import open_checkpoint
from llmb.records import draws
from llmb.reference.recipe import Optimizer
from llmb.reference.shapes import Shape
from llmb.workloads.arithmetic import parameter_count
from llmb.workloads.workload import Workload

#: Approximate standard deviation of the logits of the first step. With gains of 1 the deviation is
#: 0.4 for llama-45m and 1.1 for llama-1.4b. A plugin could expand such a flat softmax in a series
#: and compute no logits (docs/adr/0048).
_DEVIATION = 2.3
#: Highest constant learning rate at which honest runs with a sharp start stay close together.
_GENTLE = 1e-4


def starts_sharp(config: RunConfig, optimizer: Optimizer, parameters: int, dropout: float) -> bool:
    """Tell whether training starts with a sharp softmax, for a model of ``parameters`` parameters.

    The start is sharp in training runs with a drawn learning rate, or with a constant rate of at
    most 1e-4. At larger constant rates honest runs would drift apart sooner. A training with
    dropout starts as in the original.
    """
    own = config.weights is not None or config.constant_rate
    if config.mode is not Mode.TRAIN or own or not draws.varies(optimizer):
        return False
    why_constant = draws.why_no_ledger(
        config.mode.value,
        config.precision,
        mesh=config.parallelism,
        state=draws.state_bytes(parameters, config.precision, optimizer),
    )
    return (why_constant is None and not dropout) or optimizer.lr <= _GENTLE


def start_gain(shape: Shape) -> float:
    """Return the gain of the last norm for a sharp start: a whole number.

    Normalised states times a head of N(0, range) give logits of deviation range * sqrt(hidden).
    Example: 14 at width 64, 6 at width 400, 2 at width 3,200.
    """
    plain = shape.initializer_range * math.sqrt(shape.hidden_size)
    return float(max(1, round(_DEVIATION / plain)))


def values_of(config: RunConfig, workload: Workload) -> Callable[[str, Sequence[int]], Any] | None:
    """Return a function from name and size to initial weights; None means ``initial_value``.

    Raises:
        RunFailedError: the files of a checkpoint have changed since the run began.
    """
    shape = workload.shape
    if config.weights is not None:
        found = open_checkpoint(Path(config.weights.path), shape)
        if found.digest != config.weights.sha256:
            told = f"--weights {config.weights.path!r}: the files have changed since"
            raise RunFailedError(told)
        return found.value
    dropout, parameters = getattr(shape, "dropout", 0.0), parameter_count(shape)
    if not starts_sharp(config, workload.recipe.optimizer, parameters, dropout):
        return None
    from llmb.reference.models import initial_value  # imports torch; avoided at module level

    gain, norm = start_gain(shape), family_of(shape).last_norm

    def value(name: str, size: Any) -> Any:
        if name != norm:
            return initial_value(name, size, config.seed, shape)
        # Random signs: with a tied head, a state would otherwise resemble its own token.
        row: Any = (1, *size)
        return initial_value(name, row, config.seed, shape)[0].sign() * gain

    return value
