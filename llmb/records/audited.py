"""The evidence of the audit's passes, which the judges compare number by number.

Arrays are float32 in safetensors files, which hold 16-bit numbers exactly. The supervisor makes the
files smaller after all processes have ended (``llmb.supervision.reduced``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from llmb.config import Frozen, RunConfig
from llmb.records import evidence

#: File names within ``evidence/repeat-<n>/``, with the process that writes each file.
GRADIENTS, PROBED = "gradients.safetensors", "probed.json"  # worker
STEP_VALUES, STEPS = "steps.safetensors", "steps.json"  # worker
HONEST, REPLAY = "honest.safetensors", "replay.safetensors"  # honest run
HONEST_NAMESPACE = "honest-namespace.json"
REFERENCE, PRISTINE = "reference.safetensors", "pristine.json"  # reference run
#: Gradients and a moment of every step, or logits of every call: from the worker, and from an
#: honest run that repeats the steps or calls (rule L1).
LEDGER, LEDGER_VALUES = "ledger.json", "ledger.safetensors"  # worker
REPLAYED = "replayed.safetensors"  # honest run (reference run if the device is the CPU)
#: The rows of two replayed steps once more, in a wider format and without any plugin.
RECOMPUTED = "recomputed.safetensors"  # reference run
#: The arrays in the row files: ``[steps, elements]``, one row per step. ``WHERE`` holds the indices
#: of the gradient elements in a row, counted through all canonical parameters; -1 is padding.
#: Indices that follow from the nonce are left out: then the plugin stores parameters plainly.
ROWS, WHERE = "rows", "where"
#: In ``HONEST``, of each judged step with dropout: the mean gradient of ``MASKS`` honest steps with
#: masks of their own, and with weights and tokens of the judged step; and the distance of each from
#: the mean, ``[steps, parameters]``. Example: ``BF16/step-7/dropped`` (rule G1). And the gradient
#: of an honest step with the worker's own masks.
DROPPED, DROPPED_APART, MASKS = "dropped", "dropped/apart", 4
DROPPED_ALIKE = "dropped/alike"
#: In ``REPLAYED``: distances of the worker's rows from the honest run's, for each step and for all
#: steps, of gradients and of each moment by name (``llmb.audit.compared_rows``); and ``ROWS``, the
#: honest run's own gradients in the steps of ``RECOMPUTED``. Of calls: ``LOGITS``.
OF_GRADIENTS, OF_ALL_STEPS = "gradients", "/all"
#: In a repeated run of a bundle: the loss of each step, and samples of the weights at fences.
LOSSES, SAMPLES = "losses", "samples"
#: Of the judged steps: distances from the reference, made by the supervisor from the worker's rows
#: (``MEASURED``) and from the honest runs with the same weights (``IS_HONEST``, and with
#: ``WIDE_LOSS``), for each step and parameter (``llmb.audit.compared_rows``).
JUDGED = "judged.safetensors"
#: Passes too large for a host: the reference on the device itself, by the honest run.
DEVICE_REFERENCE = "device-reference.safetensors"

#: Prefix of the passes that ``reference_run`` makes in the declared format, on the host.
HOST = "host"
#: Joins the name of a 16-bit format in an honest run with the loss in float32, as computed by
#: autocast and fused kernels (docs/adr/0027).
WIDE_LOSS = " with its loss in float32"

#: Compared in place of gradients, in the modes forward and generate.
LOGITS = "logits"
#: The part of a ledger row with the tokens drawn in mode generate.
TOKENS = "tokens"
#: The part of a ledger row with the seed of the noise that the tokens were drawn with, and the
#: numbers it takes, of 24 bits each: a float32 holds each exactly.
NOISE, SEED_PARTS = "noise", 2

#: Files with expected values: no process with a plugin inside may write a reference.
BY_HONEST_RUN = frozenset(
    {
        *(HONEST, REPLAY, HONEST_NAMESPACE, DEVICE_REFERENCE),
        *(evidence.LIBRARY, evidence.LITMUS),
    }
)
BY_REFERENCE_RUN = frozenset({REFERENCE, PRISTINE, RECOMPUTED})
#: Files of the process that repeats the worker's steps or calls: the reference run if the device is
#: the CPU, else the honest run.
BY_REPETITION = frozenset({REPLAYED})
NOT_BY_WORKER = BY_HONEST_RUN | BY_REFERENCE_RUN | BY_REPETITION

#: Input, output and gradient of one part of the model, if one judgement is repeated
#: (``llmb audit --only``): from the worker, an honest run and the reference. The files are in the
#: scratch folder, never in a run directory's evidence.
PART, PART_SEEN = "part.safetensors", "part.json"  # worker
PART_HONEST, PART_REFERENCE = "part-honest.safetensors", "part-reference.safetensors"
#: Names of the arrays in the part files: ``<who>/<pass>/<input, output or gradient>``.
MEASURED, IS_HONEST, IS_RIGHT = "measured", "honest", "reference"
WHO = (MEASURED, IS_HONEST, IS_RIGHT)
INPUT, OUTPUT, GRADIENT = "input", "output", "gradient"

#: Weights for the honest and the reference run, written by the worker and deleted afterwards.
LIVE_WEIGHTS = "live-weights.safetensors"


def replayed_weights(step: int) -> str:
    """Return the scratch file with the weights of a replayed step. Example: replayed-7 for 7."""
    return f"replayed-{step}.safetensors"


def judged_weights(step: int) -> str:
    """Return the scratch file with a worker's weights in a judged step (rule G1)."""
    return f"judged-{step}.safetensors"


def weights_of(judged: Iterable[int]) -> tuple[str, ...]:
    """Return the names of a worker's scratch files, with the steps ``judged``."""
    return (LIVE_WEIGHTS, *map(judged_weights, judged))


def judged_pass(step: int) -> str:
    """Return the name of the pass that repeats a judged step. Example: ``step-7``."""
    return f"step-{step}"


class OnePart(Frozen):
    """The one part of the model with a repeated judgement, and the passes to repeat."""

    #: Canonical name of the parameter. Example: ``model.layers.3.mlp.up_proj.weight``.
    parameter: str
    passes: tuple[str, ...]

    @property
    def module(self) -> str:
        """The name of the module that holds the parameter."""
        return self.parameter.rpartition(".")[0]


class PartSeen(Frozen):
    """The part that a worker found for ``OnePart`` in the model after the plugin's changes."""

    #: The module with the kept input and output; None if no such module exists.
    module: str | None
    #: The stored parameter that holds the parameter, if steps have shown gradients (rule L1).
    stored: str | None
    #: The reason for a missing input and output, None if both exist.
    why: str | None = None


class RerunOrder(Frozen):
    """Order to repeat a worker's passes; honest run and reference run extend the order."""

    config: RunConfig
    #: Signs and the tokens of the probes follow from this seed.
    seed: int
    #: Passes to repeat, and token seeds of the passes that were steps of the stream.
    passes: tuple[str, ...]
    token_seeds: dict[str, int]
    #: The judged steps, each with the file ``judged_weights``.
    judged: tuple[int, ...] = ()
    #: Rule L1 compares every step: elements of judged steps are in ``LEDGER_VALUES``, and else in
    #: ``STEP_VALUES``.
    every_step: bool = False
    evidence_folder: str
    scratch_folder: str
    #: sha256 of every readable file, by name.
    digests: dict[str, str]
    #: The one part to look at, if a single judgement is repeated; None in every run.
    only: OnePart | None = None


class Segment(Frozen):
    """The elements of one stored parameter in the arrays of an audited step, in this order."""

    name: str
    dtype: str
    #: Number of gradient elements, and of elements of value, gradient and moments for the replay.
    gradients: int = Field(ge=0)
    states: int = Field(ge=0)


class AuditedStep(Frozen):
    """A step of the stream that the worker sampled in the step's pause.

    If rule L1 does not compare every step, judged steps are audited steps as well.
    """

    index: int
    token_seed: int
    #: Seed of the sampled indices.
    seed: int
    #: All weights of this step were kept, to compare gradients with the reference; without
    #: training, of the last audited step.
    weights_kept: bool
    #: AdamW's own step counter before the step, None in the very first.
    steps_before: float | None
    #: Trained stored parameters without a gradient.
    without_gradient: tuple[str, ...] = ()
    foreach: bool | None
    fused: bool | None
    capturable: bool
    #: Values read of each parameter: a segment with fewer values holds a whole parameter.
    states: int = Field(default=257, ge=1)
    segments: tuple[Segment, ...]


class StepsEvidence(Frozen):
    """Every audited step of a worker (rules G1 and O2); the numbers are in ``STEP_VALUES``."""

    steps: tuple[AuditedStep, ...]
    #: Host time of all pauses together, and of the longest pause, in nanoseconds.
    pause_ns: int
    longest_pause_ns: int


Moment = Literal["exp_avg", "exp_avg_sq"]
#: AdamW's moments, in the order of a ledger row.
MOMENTS: tuple[Moment, ...] = ("exp_avg", "exp_avg_sq")


class LedgerSegment(Frozen):
    """The elements of one stored parameter's gradient, or of one sequence's logits, in a row.

    In a row with a moment, half as many elements of the moment follow (``half_of``).
    """

    name: str
    elements: int = Field(ge=1)
    #: Shape of the stored parameter; None for logits, and in runs before llmb told the shape.
    shape: tuple[int, ...] | None = None


class LedgerEvidence(Frozen):
    """The parameters that the elements of each row belong to, in order (rule L1).

    The numbers are in ``LEDGER_VALUES``.
    """

    segments: tuple[LedgerSegment, ...]
    #: The moment after the gradients in a row, as the previous step has left the moment, at every
    #: other gradient index (``half_of``). Steps take turns: the first step has the first moment.
    moments: tuple[Moment, ...] = ()


def half_of(elements: int) -> int:
    """Return the sample size of a moment beside a gradient sample of ``elements`` elements."""
    return (elements + 1) // 2


class ProbedEvidence(Frozen):
    """The last step of the stream and the probes after it (rules E1, E2, E3, P1)."""

    #: Signs, tokens of the probes and channels follow from this seed.
    seed: int
    last_step: int
    token_seed: int
    #: Passes in order; ``GRADIENTS`` holds the sketches of each pass.
    passes: tuple[str, ...]
    #: ``<pass>/<parameter>`` of every missing gradient.
    missing: tuple[str, ...]
    #: The reason why a probe failed.
    failure: str | None = None


#: A shorter vector or side says too little: a random matrix may have a weak direction by chance.
LEAST_SIDE = 32


class PristineDigest(Frozen):
    """The expected value of a parameter after post-processing, as a digest in the stored dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str
    #: Largest change of any element from here to the end of the stream; None if not measured.
    largest_move: float | None = None
    #: The same from here to each judged step, in order, where rule L1 does not compare every step.
    moves: tuple[float, ...] = ()
    #: Of each judged step, in order, where rule L1 does not compare every step: the share of the
    #: parameter that needs no work, less that of the first weights. Empty for small parameters, and
    #: for those that are zero at first.
    idle: tuple[float, ...] = ()
    #: Of a matrix, for each judged step: the share of rows, or of columns, whose right gradient is
    #: far below usual (``llmb.observe.idle.Activity``). Empty for other parameters, and if rule L1
    #: compares every step. Where a device makes the reference: of one sequence.
    asleep: tuple[float, ...] = ()


class PristineEvidence(Frozen):
    """Every parameter as made from the seed, cast to the stored dtype (rule W1)."""

    parameters: tuple[PristineDigest, ...]

    def with_asleep(self, shares: Mapping[str, tuple[float, ...]]) -> PristineEvidence:
        """Return the evidence with the shares ``asleep`` of the parameters named in ``shares``."""
        return PristineEvidence(
            parameters=tuple(
                one.model_copy(update={"asleep": shares.get(one.name, ())})
                for one in self.parameters
            )
        )
