"""Random draws for each step of a run, from a nonce that nobody knows before the run has begun.

The supervisor draws the nonce of each repeat. The worker receives the draws of a step in the pause
of the step. The record holds the nonce, so anybody can repeat the draws.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from llmb.config import AuditMode, Mode, Parallelism, Precision, RunConfig
from llmb.records.seeds import Stamp, derive, nonce_at
from llmb.reference.recipe import Optimizer

#: Steps between two fences of a training; most steps after the window, by a draw. Without training
#: one more follows if the window ends on the parity of an audited call.
FENCE_EVERY, MOST_TAIL_STEPS = 10, 4
#: Hexadecimal digits of a nonce (``config.NONCE``): 128 bits.
DIGITS = 32
#: Learning rates of AdamW are drawn between the workload's own rate and this rate. At larger rates
#: honest runs drift apart within a window. Weights copied a step late differ 4 times as much as
#: honest runs (docs/adr/0048).
LARGEST_RATE = 3e-4
#: Lower end of the drawn rates, also for workloads with a larger rate (docs/adr/0059).
SMALLEST_RATE = 1e-5
#: Weight of a rate above ``LARGEST_RATE``. Example: honest BF16 trainings of twelve layers part
#: after 7 steps at a constant 1e-3 (GPT-2), and after 4 at 6e-4 (BERT).
_TIMES_OF_FAST = 10.0
#: Largest sum of learning rates: after more, honest runs in 16 bits may have drifted too far apart
#: for a comparison.
HORIZON = 2e-2
#: Most steps with kept gradients: a bundle keeps its size (docs/adr/0023). An official window of 50
#: steps, together with the steps before and after, stays below with at most 14 untimed steps.
MOST_STEPS = 80
#: Judged steps of a window, least and most (rule G1): if rule L1 compares every step, and if G1 is
#: alone. Each number has the same chance, and so has each step. With two steps at least, no plugin
#: can stop being honest after the first (docs/adr/0087).
JUDGED, JUDGED_ALONE = (2, 3), (3, 5)
#: Bits of the narrowest format in which honest runs stay together. Example: in NVFP4 the head
#: differed by 3 times the head's norm after 20 steps.
LEAST_BITS = 8
#: Most ranks that one process replays, and the ranks of a node. Of a node's steps a quarter is
#: replayed at least; of 65 steps of 64 ranks 3 at least, and 20 in the mean (docs/adr/0096).
MOST_RANKS, RANKS_OF_A_NODE = 64, 8
#: Fewest replayed steps of more ranks than a node's.
_FEWEST = 2
#: Most bytes of weights, gradients and moments together, of a sharded model that one process
#: replays. Example: llama-1.4b has 11.4e9 in BF16, and runs on one device of 24 GB.
MOST_SHARED_BYTES = 16e9
#: All steps are replayed if the replay fits into 120 seconds; of more steps, a drawn share.
REPLAY_S = 120.0
#: Why no step with dropout is repeated bit by bit.
DROPOUT = "dropout draws each step's gradients"


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
    """The draws of one repeat, for each step, all from the nonce of the repeat."""

    nonce: str
    optimizer: Optimizer
    #: True: every step receives indices of gradient or logit elements to show (rule L1).
    ledger: bool
    #: The learning rate is the workload's own in every step.
    constant_rate: bool = False
    #: No process can repeat a step exactly: rule L1 compares directions (``why_rough``).
    rough: bool = False
    #: One process replays the work of all ranks, so of more ranks fewer steps are replayed.
    ranks: int = 1
    #: Every step is replayed (``--audit complete``).
    complete: bool = False
    #: Time stamp that is mixed into tokens, sampled indices and audits from ``stamp.first`` on. The
    #: window's place and the learning rates do not depend on the stamp, which comes too late.
    stamp: Stamp | None = None

    @classmethod
    def of_run(
        cls,
        config: RunConfig,
        optimizer: Optimizer,
        nonce: str,
        *,
        ledger: bool,
        dropout: bool,
        stamp: Stamp | None = None,
    ) -> Draws:
        """Return the draws of one repeat of a run with ``config``, whose model has ``dropout``."""
        trains = config.mode is Mode.TRAIN
        rough = trains and why_rough(config.precision, dropout=dropout) is not None
        ranks = config.parallelism.world_size
        complete = config.audit is AuditMode.COMPLETE
        return cls(nonce, optimizer, ledger, config.constant_rate, rough, ranks, complete, stamp)

    @property
    def window(self) -> int:
        """The seed of the window's place, and of the choice of audited steps."""
        return self._of("window")

    def audit(self, step: int) -> int:
        """Return the seed of the samples of an audited step, and of the probes' weights."""
        return derive(int(self.nonce_at(step), 16), "audit", step)

    def places(self, step: int) -> int:
        """Return the seed of the indices that are sampled in the pause of ``step``."""
        return derive(int(self.nonce_at(step), 16), "places", step)

    def nonce_at(self, step: int) -> str:
        """Return the nonce for tokens, sampled indices and audit of ``step``."""
        return nonce_at(self.nonce, self.stamp, step)

    def rate(self, step: int) -> float:
        """Return the learning rate of ``step``, counted from 0.

        AdamW's rate is log-uniform from ``SMALLEST_RATE``, or from a smaller rate of the workload,
        to ``LARGEST_RATE``. SGD's rate is the workload's own, because the length of an SGD step is
        proportional to the gradient. If no step shows gradients, all rates are the workload's own.
        Example: the mean is 8.5e-5, for llama-1.4b (1e-5) and for gpt2-125m (1e-3).
        """
        if not self.varies:
            return self.optimizer.lr
        least, share = _smallest(self.optimizer), self._of("rate", step) / 2**63
        # Six digits, so any computer finds the same number.
        return float(f"{least * (LARGEST_RATE / least) ** share:.6g}")

    @property
    def varies(self) -> bool:
        """Tell whether each step has a learning rate of its own."""
        return self.ledger and varies(self.optimizer) and not self.constant_rate

    def least_replayed(self, steps: int) -> int:
        """Return the least number of replayed steps of ``steps``: a quarter or more, drawn evenly.

        Of more than 8 ranks fewer, and each doubling has the same chance. Example: 3 to 65 of 65
        steps of 64 ranks, and 14 or more in every second run. Known only to the supervisor before
        the stream has ended. All ``steps`` of a complete audit.
        """
        if self.complete:
            return steps
        least = fewest_replayed(steps, self.ranks)
        if self.ranks <= RANKS_OF_A_NODE:
            return least + self._of("replayed") % (steps - least + 1)
        share = self._of("replayed") / 2**63
        return min(steps, int(least * (steps / max(least, 1)) ** share + 0.5))

    def recomputed(self, steps: int) -> tuple[int, ...]:
        """Return the steps of ``steps`` replayable steps that are recomputed without a plugin.

        Two steps, in order: the first from the steps that are always replayed, the second from all
        steps. The second is left out if the replay ends earlier. Never the first step: a replay
        with too little memory starts again, which is allowed only before a drawn step.
        """
        if not steps:
            return ()
        least = self.least_replayed(steps)
        ranges = (range(min(1, least - 1), least), range(min(1, steps - 1), steps))
        drawn = (one[self._of("recomputed", n) % len(one)] for n, one in enumerate(ranges))
        return tuple(sorted({*drawn}))

    def judged(self, window: range, steps: int) -> tuple[int, ...]:
        """Return the steps of ``window`` whose weights the worker hands over (rule G1), in order.

        ``steps`` are all steps of the repeat. Never all steps of the window: one is left for rule
        O2, so a window of one step has none.
        """
        least, most = JUDGED if self.compares_all(steps) else JUDGED_ALONE
        number = least + self._of("judged") % (most - least + 1)
        turn = sorted(window, key=lambda step: self._of("judged", step))
        return tuple(sorted(turn[: min(number, len(window) - 1)]))

    def compares_all(self, steps: int) -> bool:
        """Tell whether rule L1 compares all of ``steps`` as exactly as rounding allows.

        Of more than 8 ranks a few steps may be all that is replayed.
        """
        exact = self.ledger and not self.rough and self.ranks <= RANKS_OF_A_NODE
        return exact and self.steps_compared(steps) == steps

    def steps_compared(self, steps: int) -> int:
        """Return how many of ``steps``, from the first, have kept and compared gradients.

        At most ``MOST_STEPS``, and only while honest runs stay together.
        """
        return steps_compared([self.rate(step) for step in range(steps)], self.optimizer)

    def calls_compared(self, made: int) -> tuple[int, ...]:
        """Return the kept and compared calls of ``made`` calls, in the order of the replay."""
        return calls_compared(self.audit(made - 1), made)

    def _of(self, *labels: object) -> int:
        return derive(int(self.nonce, 16), *labels)


def varies(optimizer: Optimizer) -> bool:
    """Tell whether the learning rate of a workload with ``optimizer`` can be drawn."""
    return optimizer.name == "AdamW"


def _smallest(optimizer: Optimizer) -> float:
    return min(optimizer.lr, SMALLEST_RATE)


def steps_compared(rates: Sequence[float], optimizer: Optimizer) -> int:
    """Return how many steps, from the first, have kept and compared gradients.

    At most ``MOST_STEPS``, and only while honest runs stay together. Example: 80 steps at drawn
    rates, with a mean sum of 0.007; 3 at a constant 1e-3.
    """
    total = 0.0
    for step, one in enumerate(rates[:MOST_STEPS]):
        if total > HORIZON:
            return step
        total += drift([one], optimizer)
    return min(len(rates), MOST_STEPS)


def fewest_replayed(steps: int, ranks: int) -> int:
    """Return the smallest number of ``steps`` that a draw can have replayed.

    Of more than 8 ranks 2 at least. Example: 17 of 65 steps for 8 ranks, 9 for 16, and 3 for 64.
    """
    fewest = _FEWEST if ranks > RANKS_OF_A_NODE else 0
    return min(steps, max(fewest, math.ceil(steps * fewest_share(ranks))))


def fewest_share(ranks: int) -> float:
    """Return the smallest share of the steps that a draw can have replayed.

    A quarter for 8 ranks and fewer, and in proportion less for more ranks. Example: 1/8 for 16.
    """
    return 0.25 * min(1.0, RANKS_OF_A_NODE / ranks)


def calls_compared(seed: int, made: int) -> tuple[int, ...]:
    """Return the numbers of at most ``MOST_STEPS`` of ``made`` calls, in the order of the replay.

    Without training no call depends on another, so any call may be chosen. The ``seed`` is the seed
    of the last call's audit, known only after all calls.
    """
    turn = sorted(range(made), key=lambda call: derive(seed, "call", call))
    return tuple(turn[:MOST_STEPS])


def drift(rates: Sequence[float], optimizer: Optimizer) -> float:
    """Return how far honest runs can have drifted apart in steps of ``rates``.

    Compare the result with ``HORIZON``. SGD gives 0: a step is as long as the gradient, and
    gradients are small.
    """
    if optimizer.name == "SGD":
        return 0.0
    return sum(one * (_TIMES_OF_FAST if one > LARGEST_RATE else 1.0) for one in rates)


def fence_every(mode: str) -> int:
    """Return the steps between two fences: calls and samples have a fence each."""
    return FENCE_EVERY if mode == "train" else 1


def longest_stream(mode: str, warmup_steps: int, timed_steps: int) -> int:
    """Return the most steps of a repeat: START may lie a fence later, and a tail follows.

    Example: 69 for 3 untimed and 50 timed steps; the last step has no update. A training of rules 4
    has one step less.
    """
    return warmup_steps + fence_every(mode) + timed_steps + MOST_TAIL_STEPS + 2


def state_bytes(parameters: int, precision: Precision, optimizer: Optimizer) -> int:
    """Return the bytes of weights, gradients and moments of ``parameters`` parameters."""
    return (2 + optimizer.moments) * precision.bytes_per_value * parameters


def why_no_ledger(
    mode: str,
    precision: Precision,
    *,
    mesh: Parallelism,
    state: int,
) -> str | None:
    """Return why no step of a run can be replayed (rule L1), None if all steps can.

    ``state`` is the run's ``state_bytes``, compared with a constant and not with the device's
    memory: a plugin reports the memory, and could report too little.
    """
    if precision.judged_as is None:
        return "nobody knows what an honest run in this format computes"
    if mesh.world_size > MOST_RANKS:
        return f"one process would have to do the work of more than {MOST_RANKS} ranks"
    if mesh.is_shared and state > MOST_SHARED_BYTES:
        return f"one process would have to hold {state / 1e9:.0f} GB that ranks share"
    if mode != "train":
        return None
    if precision.underflows:
        return "squares of gradients underflow in FP16, and weights move by any distance"
    return None


def why_rough(precision: Precision, *, dropout: bool) -> str | None:
    """Return why no process can repeat trained steps exactly, None if a process can.

    Rule L1 compares the directions of such steps' gradients. Rules 3 and older compared nothing.
    """
    if dropout:
        return DROPOUT
    if precision.scales_loss:
        return (
            "rounding decides in FP16 whether scaled gradients overflow, and the step is left out"
        )
    if precision.bits < LEAST_BITS:
        return "honest runs in formats of fewer than 8 bits drift apart within a few steps"
    return None
