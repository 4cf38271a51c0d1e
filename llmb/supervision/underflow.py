"""How many tokens a step may have in FP16 where nothing scales the loss.

The loss is the mean over a step's tokens, so the gradient of each token is divided by their number,
and float16 has no number below 2^-24: the more tokens, the more of a gradient is rounded away.
Accumulated parts do not help, because each part's loss is divided by the number of parts.
"""

from __future__ import annotations

from llmb.config import FP16, Mode, RunConfig
from llmb.workloads import Workload

#: Up to here an honest step's gradients are at most 0.125 from the reference, half of what the
#: audit takes an honest error to be at most (docs/measuring.md, "FP16 without a loss scale").
MOST_TOKENS = 16_384


def most_sequences(config: RunConfig, workload: Workload) -> int | None:
    """Return the largest batch size of a device with at most ``MOST_TOKENS`` tokens a step.

    The step's tokens are those of all ranks. 0 where one sequence has more. None where nothing
    underflows: another format, a scaled loss (``--mixed-precision``), or nothing is trained.
    """
    plain = config.precision.dtype == FP16.dtype and not config.precision.master_weights
    if not plain or config.mode is not Mode.TRAIN:
        return None
    return MOST_TOKENS // (workload.shape.sequence_length * config.parallelism.replicas)


def warnings(config: RunConfig, workload: Workload) -> tuple[str, ...]:
    """Return a line for a run whose batch size is above ``most_sequences``, none for any other."""
    most = most_sequences(config, workload)
    if most is None or config.batch_size <= most:
        return ()
    tokens = workload.tokens_per_step(config.global_batch_size)
    smaller = f"--batch-size {most} or less, or " if most else ""
    return (
        f"{tokens:,} tokens a step in FP16 without a loss scale: above {MOST_TOKENS:,} much of the "
        f"gradients underflows and the audit may not be able to judge them; use {smaller}"
        "--mixed-precision, which scales the loss",
    )


def cap(config: RunConfig, workload: Workload) -> str | None:
    """Return a line that says where a search for the batch size ends, None where it need not."""
    most = most_sequences(config, workload)
    if most is None:
        return None
    return (
        f"FP16 without a loss scale: no batch size above {max(most, config.accumulate)} is tried "
        f"({MOST_TOKENS:,} tokens a step); --mixed-precision scales the loss"
    )
