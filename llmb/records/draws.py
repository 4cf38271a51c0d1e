"""What llmb draws for each step of a run, from a number that nobody knows before the run has begun.

The supervisor draws the nonce of each repeat, and the worker is told what follows from it in the
pause of the step. The record holds the nonce, so anybody can draw the same again.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from llmb.config import Parallelism, Precision
from llmb.records.seeds import Stamp, derive, nonce_at
from llmb.reference.recipe import Optimizer

#: Steps between two fences of a training, and steps that follow the window at most, by a draw; one
#: more where it ends on the parity of an audited one.
FENCE_EVERY, MOST_TAIL_STEPS = 10, 4
#: Hexadecimal digits of a nonce (``config.NONCE``): 128 bits.
DIGITS = 32
#: Learning rates of AdamW are drawn between the workload's own and this one. At larger ones honest
#: runs drift apart within a window; copies of weights that are a step late are 4 times as far off
#: as honest runs (docs/adr/0048).
LARGEST_RATE = 3e-4
#: From here on rates are drawn, also where the workload's own is larger (docs/adr/0059).
SMALLEST_RATE = 1e-5
#: A rate above ``LARGEST_RATE`` counts so many times: honest BF16 trainings of twelve layers part
#: after 7 steps at a constant 1e-3 (GPT-2), and after 4 at 6e-4 (BERT).
_TIMES_OF_FAST = 10.0
#: Sum of learning rates after which honest runs in 16 bits may have drifted too far apart to be
#: compared.
HORIZON = 2e-2
#: Steps whose gradients are kept: a bundle keeps its size (docs/adr/0023). An official window of 50
#: steps, and what comes before and after, are fewer where at most 14 steps are untimed.
MOST_STEPS = 80
#: Bits of the narrowest format in which honest runs stay together: in NVFP4 the head was 3 of its
#: lengths off after 20 steps.
LEAST_BITS = 8
#: Ranks whose steps one process replays: a node's.
MOST_RANKS = 8
#: Bytes of weights, gradients and moments together, of a model that ranks share and one process
#: replays. Example: llama-1.4b has 11.4e9 in BF16, and runs on one device of 24 GB.
MOST_SHARED_BYTES = 16e9
#: All steps are replayed that can be within so many seconds, of more a share that is drawn.
REPLAY_S = 120.0


def new_nonce() -> str:
    """Return a nonce of the system's own randomness, as ``DIGITS`` hexadecimal digits."""
    return secrets.token_hex(DIGITS // 2)


def nonce_of(nonce: str, repeat: int) -> str:
    """Return the nonce of one repeat: the first has the run's own ``nonce``."""
    if repeat == 0:
        return nonce
    return hashlib.sha256(f"{nonce}:repeat:{repeat}".encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class Draws:
    """What follows from the nonce of one repeat, for each of its steps."""

    nonce: str
    optimizer: Optimizer
    #: Every step is told which elements of its gradients, or of its logits, to show (rule L1).
    ledger: bool
    #: The learning rate is the workload's own in every step.
    constant_rate: bool = False
    #: Tokens, places and what is audited follow from it, too, from its first step on. The place of
    #: the window and the learning rates do not: they are drawn before it comes.
    stamp: Stamp | None = None

    @property
    def window(self) -> int:
        """The seed from which the place of the window follows, and which steps are audited."""
        return self._of("window")

    def audit(self, step: int) -> int:
        """Return the seed of what is looked at in an audited step, and of the probes' weights."""
        return derive(int(self.nonce_at(step), 16), "audit", step)

    def places(self, step: int) -> int:
        """Return the seed of which elements are read in the pause of ``step``."""
        return derive(int(self.nonce_at(step), 16), "places", step)

    def nonce_at(self, step: int) -> str:
        """Return the nonce from which tokens, places and what is audited of ``step`` are drawn."""
        return nonce_at(self.nonce, self.stamp, step)

    def rate(self, step: int) -> float:
        """Return the learning rate of ``step``, which counts from 0.

        AdamW's is log-uniform from ``SMALLEST_RATE`` to ``LARGEST_RATE``, whatever the workload's
        own is; from the workload's own where that is smaller. SGD's is the workload's own: there
        the length of a step is that of the gradient. So is every rate where no step shows its
        gradients. Example: the mean is 8.5e-5, of llama-1.4b (1e-5) and of gpt2-125m (1e-3).
        """
        if not self.varies:
            return self.optimizer.lr
        least, share = _smallest(self.optimizer), self._of("rate", step) / 2**63
        # In so many digits any computer finds the same number.
        return float(f"{least * (LARGEST_RATE / least) ** share:.6g}")

    @property
    def varies(self) -> bool:
        """Tell whether each step has a learning rate of its own."""
        return self.ledger and varies(self.optimizer) and not self.constant_rate

    def least_replayed(self, steps: int) -> int:
        """Return how many of ``steps`` are replayed at least: a quarter or more, drawn evenly.

        Known to nobody outside the supervisor before the stream has ended.
        """
        least = -(-steps // 4)
        return least + self._of("replayed") % (steps - least + 1)

    def recomputed(self, steps: int) -> tuple[int, ...]:
        """Return which of ``steps`` that can be replayed are computed once more, without a plugin.

        Two, in order: one of those that are replayed in any case, and one of all. The second is
        left out where the replay ends before it. Not the first step: a replay that finds too little
        memory begins anew, which it may only before it has heard of a step that is drawn.
        """
        if not steps:
            return ()
        least = self.least_replayed(steps)
        ranges = (range(min(1, least - 1), least), range(min(1, steps - 1), steps))
        drawn = (one[self._of("recomputed", n) % len(one)] for n, one in enumerate(ranges))
        return tuple(sorted({*drawn}))

    def compares_all(self, steps: int) -> bool:
        """Tell whether the gradients of all of ``steps`` are kept and compared (rule L1)."""
        return self.ledger and self.steps_compared(steps) == steps

    def steps_compared(self, steps: int) -> int:
        """Return of how many of ``steps``, from the first, gradients are kept and compared.

        ``MOST_STEPS`` at most, and as long as honest runs stay together.
        """
        return steps_compared([self.rate(step) for step in range(steps)], self.optimizer)

    def calls_compared(self, made: int) -> tuple[int, ...]:
        """Return which of ``made`` calls that train nothing are kept and compared, in order."""
        return calls_compared(self.audit(made - 1), made)

    def _of(self, *labels: object) -> int:
        return derive(int(self.nonce, 16), *labels)


def varies(optimizer: Optimizer) -> bool:
    """Tell whether the learning rate of a workload with ``optimizer`` can be drawn."""
    return optimizer.name == "AdamW"


def _smallest(optimizer: Optimizer) -> float:
    return min(optimizer.lr, SMALLEST_RATE)


def mean_rate(optimizer: Optimizer, *, constant: bool) -> float:
    """Return the mean of the learning rates that are drawn, the workload's own if it is constant.

    Example: 8.5e-5. It is that of a log-uniform distribution, (b - a) / ln(b / a).
    """
    if constant or not varies(optimizer):
        return optimizer.lr
    least = _smallest(optimizer)
    return (LARGEST_RATE - least) / math.log(LARGEST_RATE / least)


def steps_compared(rates: Sequence[float], optimizer: Optimizer) -> int:
    """Return of how many steps from the first the gradients are kept and compared.

    ``MOST_STEPS`` at most, and as long as honest runs stay together. Example: 80 steps at rates
    that are drawn, which add up to 0.007 in the mean; 3 at a constant 1e-3.
    """
    total = 0.0
    for step, one in enumerate(rates[:MOST_STEPS]):
        if total > HORIZON:
            return step
        total += drift([one], optimizer)
    return min(len(rates), MOST_STEPS)


def calls_compared(seed: int, made: int) -> tuple[int, ...]:
    """Return numbers of ``MOST_STEPS`` of ``made`` calls at most, in the order of their replay.

    No call depends on another where nothing is trained, so any may be chosen. The ``seed`` is that
    of the last step's audit, and is told when all have been made.
    """
    turn = sorted(range(made), key=lambda call: derive(seed, "call", call))
    return tuple(turn[:MOST_STEPS])


def drift(rates: Sequence[float], optimizer: Optimizer) -> float:
    """Return how far honest runs can have drifted apart in steps of these ``rates``.

    It is to be held against ``HORIZON``. Steps of SGD are as long as their gradients, which are
    small: 0.
    """
    if optimizer.name == "SGD":
        return 0.0
    return sum(one * (_TIMES_OF_FAST if one > LARGEST_RATE else 1.0) for one in rates)


def fence_every(mode: str) -> int:
    """Return the steps between two fences: calls and samples have a fence each."""
    return FENCE_EVERY if mode == "train" else 1


def longest_stream(mode: str, warmup_steps: int, timed_steps: int) -> int:
    """Return how many steps a repeat has at most: START may lie a fence later, and a tail follows.

    Example: 66 for 3 untimed and 50 timed steps; the last has no update.
    """
    return warmup_steps + fence_every(mode) + timed_steps + MOST_TAIL_STEPS + 2


def state_bytes(parameters: int, precision: Precision, optimizer: Optimizer) -> int:
    """Return the bytes of the weights, gradients and moments of so many ``parameters``."""
    return (2 + optimizer.moments) * precision.bytes_per_value * parameters


def why_no_ledger(
    mode: str,
    precision: Precision,
    *,
    mesh: Parallelism,
    state: int,
    dropout: float,
    records_steps: bool,
) -> str | None:
    """Return why no step of a run can be replayed (rule L1), None where all can.

    ``state`` are the run's ``state_bytes``. They are held to a constant and not to the memory of
    the device: a plugin reports that memory, and could report too little. ``records_steps``: the
    device records a step, compiles it and runs it later.
    """
    if precision.judged_as is None:
        return "nobody knows what an honest run in this format computes"
    if mesh.world_size > MOST_RANKS:
        return f"one process would have to do the work of more than {MOST_RANKS} ranks"
    if mesh.is_shared and state > MOST_SHARED_BYTES:
        return f"one process would have to hold {state / 1e9:.0f} GB that ranks share"
    if mode != "train":
        return None
    if dropout:
        return "dropout draws each step's gradients"
    if records_steps:
        return "the device records its steps and compiles them for one learning rate"
    if precision.dtype == "float16":
        return "moments underflow in FP16, or steps are left out where scaled gradients overflow"
    if precision.bits < LEAST_BITS:
        return "honest runs in formats of fewer than 8 bits drift apart within a few steps"
    return None
