"""What the audit's passes leave behind: evidence the judges compare, number by number.

Arrays are float32 in safetensors files: a 16-bit number is one exactly. The supervisor makes the
files smaller once all processes have gone (``llmb.supervision.reduced``).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmb.config import Frozen, RunConfig
from llmb.records import evidence

#: File names within ``evidence/repeat-<n>/``; who writes each.
GRADIENTS, PROBED = "gradients.safetensors", "probed.json"  # worker
STEP_VALUES, STEPS = "steps.safetensors", "steps.json"  # worker
HONEST, REPLAY = "honest.safetensors", "replay.safetensors"  # honest run
HONEST_NAMESPACE = "honest-namespace.json"
REFERENCE, PRISTINE = "reference.safetensors", "pristine.json"  # reference run
#: Gradients and a moment of every step, or logits of every call: as the worker had them, and as an
#: honest run repeats them (rule L1).
LEDGER, LEDGER_VALUES = "ledger.json", "ledger.safetensors"  # worker
REPLAYED = "replayed.safetensors"  # honest run
#: The rows of two replayed steps once more, in a wider format and without any plugin.
RECOMPUTED = "recomputed.safetensors"  # reference run
#: The arrays in them: ``[steps, elements]``, one row a step. ``WHERE`` says which elements of the
#: gradients are in a row, and counts through all canonical parameters; -1 is padding.
#: Places are left out where they follow from the nonce: the plugin stores parameters plainly.
ROWS, WHERE = "rows", "where"
#: In ``REPLAYED``: how far the worker's rows are from the honest run's, step by step and in all
#: steps, of gradients and each moment by its name (``llmb.audit.compared_rows``); and ``ROWS``, the
#: honest run's own gradients in the steps that are in ``RECOMPUTED``. Of calls: ``LOGITS``.
OF_GRADIENTS, OF_ALL_STEPS = "gradients", "/all"
#: Where a bundle's run is made again: the loss of each step, and samples of the weights at fences.
LOSSES, SAMPLES = "losses", "samples"
#: Passes too large for a host: the reference on the device itself, by the honest run.
DEVICE_REFERENCE = "device-reference.safetensors"

#: Joins the name of a 16-bit format in an honest run whose loss is computed in float32, as autocast
#: and fused kernels do it (docs/adr/0027).
WIDE_LOSS = " with its loss in float32"

#: What is looked at in modes that train nothing, in place of gradients.
LOGITS = "logits"
#: Of a row of the ledger, the tokens that were drawn in mode generate.
TOKENS = "tokens"

#: What only they may write: nobody with a plugin in it says what is right.
BY_HONEST_RUN = frozenset(
    {
        *(HONEST, REPLAY, REPLAYED, HONEST_NAMESPACE, DEVICE_REFERENCE),
        *(evidence.LIBRARY, evidence.LITMUS),
    }
)
BY_REFERENCE_RUN = frozenset({REFERENCE, PRISTINE, RECOMPUTED})

#: What one part of the model took in, put out and had as gradient, where one judgement is repeated
#: (``llmb audit --only``): as the worker had it, an honest run and the reference. In the scratch
#: folder, never in a run directory's evidence.
PART, PART_SEEN = "part.safetensors", "part.json"  # worker
PART_HONEST, PART_REFERENCE = "part-honest.safetensors", "part-reference.safetensors"
#: Who the arrays in them are of: ``<who>/<pass>/<input, output or gradient>``.
MEASURED, IS_HONEST, IS_RIGHT = "measured", "honest", "reference"
WHO = (MEASURED, IS_HONEST, IS_RIGHT)
INPUT, OUTPUT, GRADIENT = "input", "output", "gradient"

#: Weights that travel from the worker to honest and reference run, and are then deleted.
LIVE_WEIGHTS, STEP_WEIGHTS = "live-weights.safetensors", "step-weights.safetensors"


def replayed_weights(step: int) -> str:
    """Return the scratch file with the weights of a replayed step, by its number from 0."""
    return f"replayed-{step}.safetensors"


class OnePart(Frozen):
    """The one part of the model whose judgement is repeated, and the passes that this takes."""

    #: Canonical name of the parameter. Example: ``model.layers.3.mlp.up_proj.weight``.
    parameter: str
    passes: tuple[str, ...]

    @property
    def module(self) -> str:
        """The name of the module that the parameter belongs to."""
        return self.parameter.rpartition(".")[0]


class PartSeen(Frozen):
    """What a worker found of ``OnePart`` in the model as the plugin has left it."""

    #: The module whose input and output were kept; None where there is none.
    module: str | None
    #: The stored parameter that holds it, where steps have shown their gradients (rule L1).
    stored: str | None
    #: Why there is no input and no output, None where there are both.
    why: str | None = None


class RerunOrder(Frozen):
    """Ask for a worker's passes to be made again; honest run and reference run ask for more."""

    config: RunConfig
    #: Signs and the tokens of the probes follow from it.
    seed: int
    #: Passes to make again, and the seed of the tokens of those that were steps of the stream.
    passes: tuple[str, ...]
    token_seeds: dict[str, int]
    #: The audited step whose weights were kept.
    step: int | None
    evidence_folder: str
    scratch_folder: str
    #: sha256 of every file that may be read, by name.
    digests: dict[str, str]
    #: The one part that is looked at, where a single judgement is repeated; None in every run.
    only: OnePart | None = None


class Segment(Frozen):
    """The elements of one stored parameter in the arrays of an audited step, in this order."""

    name: str
    dtype: str
    #: How many elements of its gradient, and of its value, gradient and moments for the replay.
    gradients: int = Field(ge=0)
    states: int = Field(ge=0)


class AuditedStep(Frozen):
    """A step of the stream that was looked at in its pause."""

    index: int
    token_seed: int
    #: Which elements were looked at follows from it.
    seed: int
    #: All weights of this step were kept, so its gradients can be compared with the reference's.
    weights_kept: bool
    #: AdamW's own step counter before the step, None in the very first.
    steps_before: float | None
    #: Stored parameters that are trained and had no gradient.
    without_gradient: tuple[str, ...] = ()
    foreach: bool | None
    fused: bool | None
    capturable: bool
    #: Values of each parameter that were read: a segment with fewer holds a whole parameter.
    states: int = Field(default=257, ge=1)
    segments: tuple[Segment, ...]


class StepsEvidence(Frozen):
    """Every audited step of a worker (rules G1 and O2); the numbers are in ``STEP_VALUES``."""

    steps: tuple[AuditedStep, ...]
    #: Nanoseconds of host time that all pauses took, and the longest of them.
    pause_ns: int
    longest_pause_ns: int


Moment = Literal["exp_avg", "exp_avg_sq"]
#: Of AdamW, in the order in which a row of the ledger has them.
MOMENTS: tuple[Moment, ...] = ("exp_avg", "exp_avg_sq")


class LedgerSegment(Frozen):
    """The elements of one stored parameter's gradient, or of one sequence's logits, in a row.

    Of a moment of the parameter, half as many follow (``half_of``).
    """

    name: str
    elements: int = Field(ge=1)


class LedgerEvidence(Frozen):
    """Whose the elements of each row are, in order (rule L1).

    The numbers are in ``LEDGER_VALUES``.
    """

    segments: tuple[LedgerSegment, ...]
    #: What follows the gradients in a row: a moment, as the step before has left it, at every other
    #: place of the gradients (``half_of``). Steps take turns: the first has the first moment.
    moments: tuple[Moment, ...] = ()


def half_of(elements: int) -> int:
    """Return how many elements of a moment are read where a gradient has ``elements``."""
    return (elements + 1) // 2


class ProbedEvidence(Frozen):
    """The last step of the stream and the probes after it (rules E1, E2, E3, P1)."""

    #: Signs, tokens of the probes and channels follow from it.
    seed: int
    last_step: int
    token_seed: int
    #: Passes that were made, in order; ``GRADIENTS`` holds the sketches of each.
    passes: tuple[str, ...]
    #: ``<pass>/<parameter>`` of every gradient that was not there.
    missing: tuple[str, ...]
    #: Why a probe could not be made.
    failure: str | None = None


class PristineDigest(Frozen):
    """What a parameter must be after post-processing, by its stored dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str
    #: How far any element has moved from here by the end of the stream; None where not measured.
    largest_move: float | None = None


class PristineEvidence(Frozen):
    """Every parameter as the seed makes it, cast to the type it is stored in (rule W1)."""

    parameters: tuple[PristineDigest, ...]
