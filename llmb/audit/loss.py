"""Rule K2: the loss is finite and near ln(vocabulary), as random tokens imply."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence

from llmb.audit.bench import Bench
from llmb.audit.physics import shape_of
from llmb.audit.rule import TRAINING, Rule
from llmb.families import family_of
from llmb.inputs.start import start_gain
from llmb.records import draws
from llmb.records.finding import JUDGED_SINCE, Finding, Level, Status
from llmb.records.run_record import RepeatTiming, WorkloadFacts
from llmb.reference.shapes import Shape
from llmb.workloads.arithmetic import causal_flops_per_token, flops_per_token

K2 = Rule(
    "K2",
    Level.FLAG,
    "the loss is finite and starts near ln(vocabulary)",
    measured="the losses read back at both ends of every window",
    limit="ln(vocabulary), plus the share of initial weights, sample and learning rate (weights in "
    "FP16: any larger number)",
    cannot_see="a different model with an equally large loss: E1 compares the model",
    modes=TRAINING,
    per_run=True,
    causes=(
        "a loss that is summed instead of averaged, or scaled and not divided again",
        "a learning rate or format (FP16 without a loss scale) at which the model diverges",
    ),
)
RULES = (K2,)
#: Rounding near 10 is 0.03 in BF16, and a device that sums in BF16 was 0.13 off.
_ROUNDING = 0.25
_SIGMAS = 5.0
#: A learning rate too small for any step to raise the loss by much, and the rise allowed at larger
#: learning rates; with dropout an honest run of nemo-bert-base rose by 4.2 in 11 steps.
_GENTLE, _RISE, _RISE_WITH_DROPOUT = 1e-4, 3.0, 6.0


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield K2."""
    facts = bench.facts
    far = facts.precision.stored_dtype == "float16"
    drops = bench.drops and int(facts.rules_version) >= JUDGED_SINCE
    rise = _RISE_WITH_DROPOUT if drops else _RISE
    yield finding(facts.repeats, facts.workload, sharp=facts.sharp_start, far=far, rise=rise)


def finding(
    repeats: Sequence[RepeatTiming],
    workload: WorkloadFacts,
    *,
    sharp: bool = False,
    far: bool = False,
    rise: float = _RISE,
) -> Finding:
    """Return K2 from the losses read back at START and STOP of every repeat.

    ``sharp``: the gain of the last norm was larger than 1 at first, which makes logits larger too.
    ``far``: weights are stored in FP16, where squares of gradients underflow and AdamW moves
    weights by any distance: the loss may rise to any finite number. ``rise``: what steps at larger
    rates than 1e-4 may add.

    Tokens are uniformly random: a model that does not see the answer cannot get below ln V. Weights
    of N(0, s) after a norm to unit mean square make logits of variance v = s^2 * hidden. The
    initial loss is ln V + v / 2. Training at a learning rate of 1e-5 can only lower the loss; at
    the larger rates of other workloads the first steps may raise the loss. The mean over n
    predictions scatters by sqrt(v / n). The order of two sentences, which is random as well, begins
    at ln 2.

    Example: V = 50,257 gives ln V = 10.82.
    """
    shape = shape_of(workload)
    predictions = 0
    if shape is not None:
        predictions = family_of(shape).targets(shape, workload.tokens_per_step)
    if shape is None or predictions < 1 or not repeats:
        return K2.finding(Status.NOT_OBSERVED, "the record's shapes give no loss to expect")
    read = [loss for timing in repeats for loss in (timing.loss_first, timing.loss_last)]
    losses = [loss for loss in read if loss is not None]
    if len(losses) < len(read):
        return K2.finding(Status.NOT_OBSERVED, "a loss was not read back")
    if workload.tokens != "random":
        finite = all(map(math.isfinite, losses))
        told = "finite: the tokens are not random" if finite else "not finite"
        return K2.finding(Status.PASS if finite else Status.FLAG, told)
    gain = start_gain(shape) if sharp else 1.0
    variance = (gain * shape.initializer_range) ** 2 * shape.hidden_size
    low = math.log(shape.vocab_size)
    high = low + variance / 2 + family_of(shape).other_loss
    drawn = draws.varies(workload.optimizer) and any(timing.commitments for timing in repeats)
    if workload.optimizer.lr > _GENTLE or drawn:
        high += rise
    margin = _ROUNDING + _SIGMAS * math.sqrt(variance / predictions)
    if far:
        high = sys.float_info.max
    odd = [loss for loss in losses if not low - margin <= loss <= high + margin]
    status = Status.FLAG if odd else Status.PASS
    return K2.finding(
        status,
        f"a loss of {odd[0]:.4f} on random tokens" if odd else "finite and near ln(vocabulary)",
        measured=f"{min(losses):.4f} to {max(losses):.4f} at START and STOP; {_work(shape)}",
        honest=f"{low:.4f} or more" if far else f"{low:.4f} to {high:.4f}",
        limit=f"{margin:.2f} beyond",
    )


def _work(shape: Shape) -> str:
    causal, square = causal_flops_per_token(shape), flops_per_token(shape)
    return f"{causal:.4g} FLOPs a token (causal attention; {square:.4g} with the full square)"
