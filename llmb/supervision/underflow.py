"""The limit on a step's tokens in FP16 without a loss scale.

The loss is the mean over a step's tokens: the gradient of each token is divided by the number of
tokens. float16 has no positive number below 2^-24: with more tokens, more of a gradient is rounded
to zero. Gradient accumulation does not help, because each micro-batch's loss is divided by the
number of micro-batches. Example: with 16,384 tokens, a token's gradient is divided by 2^14.
"""

from __future__ import annotations

from llmb.config import Mode, RunConfig
from llmb.workloads import Workload

#: With up to 16,384 tokens, an honest step's gradients are at most 0.125 from the reference: half
#: of the audit's limit for an honest error (docs/measuring.md, "FP16 without a loss scale").
MOST_TOKENS = 16_384


def most_sequences(config: RunConfig, workload: Workload) -> int | None:
    """Return the largest batch size of a device with at most ``MOST_TOKENS`` tokens a step.

    The tokens of all ranks count. The result is 0 if one sequence per replica exceeds the limit.
    The result is None without a risk of underflow: for a format such as BF16, with a scaled loss
    (``--mixed-precision``), or in a mode without training.
    """
    if not config.precision.underflows or config.mode is not Mode.TRAIN:
        return None
    return MOST_TOKENS // (workload.shape.sequence_length * config.parallelism.replicas)


def warnings(config: RunConfig, workload: Workload) -> tuple[str, ...]:
    """Return a line for a run with a batch size above ``most_sequences``, else an empty tuple."""
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
    """Return a line with the upper end of a batch-size search; None without an upper end."""
    most = most_sequences(config, workload)
    if most is None:
        return None
    return (
        f"FP16 without a loss scale: no batch size above {max(most, config.accumulate)} is tried "
        f"({MOST_TOKENS:,} tokens a step); --mixed-precision scales the loss"
    )
