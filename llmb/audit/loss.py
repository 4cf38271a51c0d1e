"""Rule K2: the loss is finite and lies where random tokens put it, near ln(vocabulary)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmb.audit.physics import shape_of
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import RepeatTiming, WorkloadFacts
from llmb.reference.shapes import LlamaShape
from llmb.workloads.arithmetic import causal_flops_per_token, flops_per_token

#: Rounding near 10 is 0.03 in BF16, and a device that sums in BF16 was seen 0.13 off.
_ROUNDING = 0.25
_SIGMAS = 5.0


def judge(repeats: Sequence[RepeatTiming], workload: WorkloadFacts) -> Finding:
    """Return K2 from the losses read back at START and STOP of every repeat.

    Tokens are uniformly random, so no model that does not see its answer gets below ln V. Weights
    of N(0, s) after a norm to unit mean square make logits of variance v = s^2 * hidden: the
    initial loss is ln V + v / 2, and training at 1e-5 can only bring it down. The mean over n
    predictions scatters by sqrt(v / n).
    """
    shape = shape_of(workload)
    predictions = 0
    if shape is not None:
        sequences = workload.tokens_per_step // shape.sequence_length
        predictions = sequences * (shape.sequence_length - 1)
    if shape is None or predictions < 1 or not repeats:
        return _finding(Status.NOT_OBSERVED, "the record's shapes give no loss to expect")
    losses = [loss for timing in repeats for loss in (timing.loss_first, timing.loss_last)]
    variance = shape.initializer_range**2 * shape.hidden_size
    low = math.log(shape.vocab_size)
    high = low + variance / 2
    margin = _ROUNDING + _SIGMAS * math.sqrt(variance / predictions)
    odd = [loss for loss in losses if not low - margin <= loss <= high + margin]
    status = Status.FLAG if odd else Status.PASS
    return _finding(
        status,
        f"a loss of {odd[0]:.4f} on random tokens" if odd else "finite and near ln(vocabulary)",
        measured=f"{min(losses):.4f} to {max(losses):.4f} at START and STOP; {_work(shape)}",
        honest=f"{low:.4f} to {high:.4f}",
        limit=f"{margin:.2f} beyond",
    )


def _work(shape: LlamaShape) -> str:
    causal, square = causal_flops_per_token(shape), flops_per_token(shape)
    return f"{causal:.4g} FLOPs a token (causal attention; {square:.4g} with the full square)"


def _finding(
    status: Status,
    message: str,
    measured: str | None = None,
    honest: str | None = None,
    limit: str | None = None,
) -> Finding:
    return Finding(
        id="K2",
        level=Level.FLAG,
        status=status,
        observer="worker",
        measured=measured,
        honest=honest,
        limit=limit,
        basis="fixed",
        message=message,
    )
