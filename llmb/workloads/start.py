"""The weights a model starts from: a checkpoint's, or random ones with a sharp softmax."""

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

#: Standard deviation of the logits of the first step, nearly. With gains of 1 it is 0.4 for
#: llama-45m and 1.1 for llama-1.4b: a softmax so flat that a plugin could expand it and make no
#: logits (docs/adr/0048).
_DEVIATION = 2.3
#: A constant learning rate up to which a sharp start keeps honest runs together.
_GENTLE = 1e-4


def starts_sharp(config: RunConfig, optimizer: Optimizer, parameters: int, dropout: float) -> bool:
    """Tell whether the first step's softmax is sharp, in a model of so many ``parameters``.

    So it is in trainings whose learning rate is drawn, and in those whose own is no larger. At the
    constant rates of other workloads honest runs would drift apart sooner. A device that records
    its steps is taken for one that does not.
    """
    own = config.weights is not None or config.constant_rate
    if config.mode is not Mode.TRAIN or own or not draws.varies(optimizer):
        return False
    why_constant = draws.why_no_ledger(
        config.mode.value,
        config.precision,
        mesh=config.parallelism,
        state=draws.state_bytes(parameters, config.precision, optimizer),
        dropout=dropout,
        records_steps=False,
    )
    return why_constant is None or optimizer.lr <= _GENTLE


def start_gain(shape: Shape) -> float:
    """Return the gains of the last norm where a training starts sharp: a whole number.

    Normalised states times a head of N(0, range) make logits of deviation range * sqrt(hidden).
    Example: 14 at width 64, 6 at width 400, 2 at width 3,200.
    """
    plain = shape.initializer_range * math.sqrt(shape.hidden_size)
    return float(max(1, round(_DEVIATION / plain)))


def values_of(config: RunConfig, workload: Workload) -> Callable[[str, Sequence[int]], Any] | None:
    """Return a function from name and size to first weights; None: ``initial_value`` makes them.

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
    from llmb.reference.models import initial_value  # takes torch, which light rooms do without

    gain, norm = start_gain(shape), family_of(shape).last_norm

    def value(name: str, size: Any) -> Any:
        if name != norm:
            return initial_value(name, size, config.seed, shape)
        # Signs are random: where the head is the embedding, a state would resemble its own token.
        row: Any = (1, *size)
        return initial_value(name, row, config.seed, shape)[0].sign() * gain

    return value
