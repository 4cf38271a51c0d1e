"""What the processes of a run say to each other: one JSON line per message, typed and bounded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from llmb.config import (
    AuditMode,
    Frozen,
    OptionValue,
    Precision,
    RankAddress,
    Refused,
    RunConfig,
    RunRequest,
)
from llmb.plugin.backend import Peak
from llmb.records.audited import LedgerEvidence, OnePart, RerunOrder
from llmb.records.lacks import Lacks
from llmb.records.node_report import CollectiveRate
from llmb.records.run_record import StepClock
from llmb.records.system import Device
from llmb.wire.measurements import Calibration, CalibrationOrder, MeasuredRates, RatesOrder

CheckStatus = Literal["pass", "fail", "skip"]

# -- every child ----------------------------------------------------------------------------


class Hello(Frozen):
    """First line of a child: proves that it is the one the supervisor started."""

    kind: Literal["hello"] = "hello"
    nonce: str
    pid: int


class Failure(Frozen):
    """The child cannot go on; ``error`` is the class in ``llmb.errors`` it amounts to."""

    kind: Literal["error"] = "error"
    error: str
    message: str


class Done(Frozen):
    """The child has done all it was asked to."""

    kind: Literal["done"] = "done"


# -- probe ----------------------------------------------------------------------------------


class OfferOrder(Frozen):
    """Ask a probe what ``plugin`` offers for ``request``."""

    kind: Literal["probe"] = "probe"
    plugin: str
    request: RunRequest


class Offer(Frozen):
    """What a plugin offers on this machine, or why it offers nothing."""

    kind: Literal["offer"] = "offer"
    plugin: str
    distribution: str
    version: str
    available: bool
    reason: str | None = None
    device: str
    step_clock: StepClock = "host"
    devices: tuple[Device, ...] = ()
    available_memory_bytes: int | None = None
    options: dict[str, OptionValue] = Field(default_factory=dict)
    option_help: dict[str, str] = Field(default_factory=dict)
    #: The values an option is limited to, where it is.
    option_choices: dict[str, tuple[OptionValue, ...]] = Field(default_factory=dict)
    precisions: tuple[Precision, ...] = ()
    refused: tuple[Refused, ...] = ()
    torch_version: str
    lacks: Lacks = Lacks()
    #: The plugin itself is at fault: it cannot be loaded, or one of its hooks went wrong.
    broken: bool = False


class Resolved(Frozen):
    """Tell the probe what will be run."""

    kind: Literal["resolved"] = "resolved"
    config: RunConfig


class Terms(Frozen):
    """What the plugin needs for this very run, and its facts about the system."""

    kind: Literal["terms"] = "terms"
    environment: dict[str, str]
    warmup_steps: int
    facts: dict[str, str]
    peak: Peak | None


# -- inspector ------------------------------------------------------------------------------


class TorchFacts(Frozen):
    """What torch is like on this machine; with an ``error`` where it cannot be imported."""

    kind: Literal["torch"] = "torch"
    error: str | None = None
    version: str | None = None
    import_s: float | None = None
    #: What the build says of itself: versions of the toolkits it was made with, debug or not.
    build: dict[str, str] = Field(default_factory=dict)
    #: The accelerator this build was made for, whether there is one or not.
    accelerator: str | None = None
    accelerators: int = 0
    #: What is odd about it, in sentences.
    troubles: tuple[str, ...] = ()


# -- worker ---------------------------------------------------------------------------------


class WorkOrder(Frozen):
    """Everything a worker may know: the run, and where to leave its evidence."""

    kind: Literal["work"] = "work"
    config: RunConfig
    evidence_folder: str
    #: Digests and module trees are wanted; a trial of the batch-size search needs none.
    collect_evidence: bool
    #: Where whole weights go, for as long as the audit lasts; empty where none are wanted, as on
    #: all ranks but the first.
    scratch_folder: str = ""
    #: Where the trace of one more step goes; empty where none is wanted.
    profile_folder: str = ""
    #: Where this worker stands among the ranks, None if it is alone.
    place: RankAddress | None = None
    #: Number of the repeat: the ranks of each meet apart.
    repeat: int = 0
    #: Seconds to wait for another rank.
    rank_timeout_s: float = Field(default=600.0, gt=0)
    #: Where each rank writes its last collective calls, if the run fails: rank 0 says so.
    calls_folder: str = ""
    #: Gradients of every step are compared (rule L1): no weights of an audited step are kept.
    every_step: bool = False
    #: The one part that is looked at, where a single judgement is repeated; None in every run.
    only: OnePart | None = None

    @property
    def audited(self) -> bool:
        """Tell whether this worker is looked at; all ranks are, or none."""
        follows = self.place is not None and not self.place.leads
        return bool(self.scratch_folder) or (follows and self.config.audit is not AuditMode.OFF)


class Ready(Frozen):
    """Post-processing is over and the optimizer built: only now may token seeds be known."""

    kind: Literal["ready"] = "ready"


class StepOrder(Frozen):
    """One step of the stream, sent well before its turn."""

    kind: Literal["step"] = "step"
    index: int
    seed: int
    fence: bool


class Paused(Frozen):
    """A step's gradients, or logits, are there; the worker waits to hear what becomes of it.

    It waits in every step: what is to come cannot be seen in this process before it has asked.
    """

    kind: Literal["paused"] = "paused"
    index: int
    #: sha256 over what was read of the gradients, or logits, of the step before; empty where
    #: nothing was.
    commitment: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")


class StepDraw(Frozen):
    """What a step is told in its pause, where steps are replayed afterwards (rule L1)."""

    #: The seed of which elements of the gradients, or which logits, are read.
    places: int
    #: The learning rate of this step, if it trains.
    rate: float


class Proceed(Frozen):
    """Go on with the step."""

    kind: Literal["proceed"] = "proceed"
    draw: StepDraw | None = None


class AuditRequest(Frozen):
    """Look at the step in whose pause this arrives; with ``last`` the stream ends there."""

    kind: Literal["audit"] = "audit"
    draw: StepDraw | None = None
    #: Which elements are looked at follows from it, and the tokens of the probes after the last.
    seed: int
    last: bool


class Phase(Frozen):
    """A child has entered a new phase of its line."""

    kind: Literal["phase"] = "phase"
    name: str


class Tick(Frozen):
    """A step has been enqueued (finished, on a synchronous device)."""

    kind: Literal["tick"] = "tick"
    index: int
    ns: int


class Fence(Frozen):
    """The device is synchronised after ``steps`` steps, and this was read back from it.

    It leaves before the plugin is asked for any reading.
    """

    kind: Literal["fence"] = "fence"
    steps: int
    worker_ns: int
    loss: float | None
    #: sha256 over the bits of the loss and of the sampled parameters.
    bits: str = Field(pattern=r"^[0-9a-f]{64}$")
    cpu_s: float
    starved_steps: int
    #: Numbers of the steps looked at so far, and nanoseconds spent in pauses so far.
    audited_steps: tuple[int, ...] = ()
    pause_ns: int = 0
    #: What the step's prefill took, in mode generate.
    prefill_ns: int | None = None


class Readings(Frozen):
    """What the backend and the plugin tell of the device after the fence of ``steps`` steps."""

    kind: Literal["readings"] = "readings"
    steps: int
    peak_memory_bytes: int | None
    energy_j: float | None
    energy_source: Literal["counter", "sampled", "estimated"] | None
    energy_scope: Literal["device", "package", "node"] | None
    telemetry: dict[str, float] = Field(default_factory=dict)


class EvidenceFile(Frozen):
    """A file in the evidence folder (or the scratch folder) is complete and has this digest."""

    kind: Literal["evidence"] = "evidence"
    name: str
    sha256: str
    scratch: bool = False


class Unmade(Frozen):
    """The honest run failed to make one part of its order (``what``); it makes the other parts."""

    kind: Literal["unmade"] = "unmade"
    what: str
    reason: str


class StreamEnded(Frozen):
    """The worker has heard which step is the last, and its device is done with it."""

    kind: Literal["ended"] = "ended"
    #: sha256 over what was read of the last step's gradients; empty where nothing was.
    commitment: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")


class Worked(Frozen):
    """The stream has ended; how many steps it had."""

    kind: Literal["worked"] = "worked"
    steps: int


class Collected(Frozen):
    """What collectives attained between ranks that were ordered to work, and hold no model."""

    kind: Literal["collected"] = "collected"
    rates: tuple[CollectiveRate, ...]


# -- audit: honest run and reference run ------------------------------------------------------


class StreamToReplay(Frozen):
    """The steps of a worker's stream, to be replayed with the pristine model."""

    #: Of each step from the first: the seed of its tokens, and its learning rate.
    token_seeds: tuple[int, ...]
    rates: tuple[float, ...]
    #: Steps that are replayed however long they take. Example: 40 of 60.
    least: int
    #: More steps are begun as long as the replay has taken fewer seconds than this.
    seconds: float


class CallToReplay(Frozen):
    """A call of a worker that trains nothing."""

    index: int
    #: The seed of its tokens, and that of which logits were read.
    token_seed: int
    places: int


class CallsToReplay(Frozen):
    """Calls of a worker's stream that are made again, in this order, with the pristine model."""

    calls: tuple[CallToReplay, ...]
    #: As in ``StreamToReplay``.
    least: int
    seconds: float


class KeepWeights(Frozen):
    """Leave the weights of the replayed step in whose pause this arrives: it is recomputed."""

    kind: Literal["keep"] = "keep"


class KeptStep(Frozen):
    """A replayed step that is recomputed by the reference: its number and what it is made of."""

    index: int
    token_seed: int
    #: sha256 over what the honest run read of its gradients before it knew that they are checked.
    commitment: str
    #: The file with its weights in the scratch folder, and the file's digest.
    weights: str
    sha256: str


class RecomputeOrder(Frozen):
    """Ask for the gradients of replayed steps, in a wider format and without any plugin."""

    kind: Literal["recompute"] = "recompute"
    config: RunConfig
    #: Where they are computed: the run's own device where the host would take hours.
    device: str
    steps: tuple[KeptStep, ...]
    evidence_folder: str
    scratch_folder: str
    #: sha256 of the evidence that may be read, by name.
    digests: dict[str, str]


class HonestOrder(RerunOrder):
    """Ask what an honest run measures on this device (rules E1, E2, P1, G1, O2)."""

    kind: Literal["honest"] = "honest"
    #: Measure the borders of narrower formats, too.
    borders: bool
    #: Passes whose reference is too much work for the host: computed here in the wider format.
    reference_passes: tuple[str, ...] = ()
    #: Modules of the vendor's libraries that the worker had loaded (rule N1).
    library_modules: tuple[str, ...] = ()
    #: The stream to be replayed from its first step; None where no step can be (rule L1).
    stream: StreamToReplay | None = None
    #: The same where nothing is trained.
    calls: CallsToReplay | None = None


class ReferenceOrder(RerunOrder):
    """Ask what is right: the same passes in a wider format, on the CPU, no plugin."""

    kind: Literal["reference"] = "reference"
    #: dtypes in which parameters are stored, by name: what rule W1 compares.
    stored_dtypes: dict[str, str]
    #: An honest run, with the vendor's code in it, runs meanwhile: it could alter the weights.
    shared: bool = False


class ReplayOrder(Frozen):
    """Ask for the first weights, and for steps or calls, of one repeat of a bundle's run.

    All follows from config, seed and nonce. ``foreach``, ``fused`` and the names in ``ledger`` are
    the bundle's own: they choose among ways that are honest.
    """

    kind: Literal["replay"] = "replay"
    config: RunConfig
    #: The steps to be made, each at its own rate; None where none can be made again.
    stream: StreamToReplay | None = None
    #: The kernel of torch's optimizer that the run used.
    foreach: bool | None = None
    fused: bool | None = None
    #: Whose the elements of a row are; None where the run kept no rows.
    ledger: LedgerEvidence | None = None
    #: Of each step, the seed of which elements were read.
    places: tuple[int, ...] = ()
    #: Weights are sampled when so many steps are done each.
    fences: tuple[int, ...] = ()
    #: The calls to be made; the tokens that were drawn in them are in the rows of the ledger.
    calls: CallsToReplay | None = None
    evidence_folder: str
    scratch_folder: str
    #: sha256 of the evidence that may be read, by name.
    digests: dict[str, str]


# -- checker (llmb.sdk) ---------------------------------------------------------------------


class CheckOrder(Frozen):
    """Ask a checker to hold ``plugin`` against the interface, as ``request`` would use it."""

    kind: Literal["check"] = "check"
    plugin: str
    request: RunRequest
    #: The device that was settled with the plugin's probe, None where none was.
    device: str | None
    #: Why there is none; None also where the probe failed before it could tell.
    reason: str | None
    precision: Precision
    #: The plugin's variables, which this process has been started with.
    environment: dict[str, str]
    checks: tuple[str, ...]


class CheckBegun(Frozen):
    """The checker is about to do this check: what it dies or hangs in."""

    kind: Literal["check-begun"] = "check-begun"
    id: str


class Checked(Frozen):
    """How one check ended, and what was seen."""

    kind: Literal["checked"] = "checked"
    id: str
    status: CheckStatus
    message: str


Message = Annotated[
    Hello
    | Failure
    | Done
    | OfferOrder
    | Offer
    | Resolved
    | Terms
    | TorchFacts
    | CalibrationOrder
    | Calibration
    | RatesOrder
    | MeasuredRates
    | WorkOrder
    | Ready
    | StepOrder
    | Paused
    | Proceed
    | AuditRequest
    | Phase
    | Tick
    | Fence
    | Readings
    | EvidenceFile
    | Unmade
    | StreamEnded
    | Worked
    | Collected
    | KeepWeights
    | RecomputeOrder
    | HonestOrder
    | ReferenceOrder
    | ReplayOrder
    | CheckOrder
    | CheckBegun
    | Checked,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[Message] = TypeAdapter(Message)


def decode(line: bytes) -> Message:
    """Return the message in ``line``.

    Raises:
        ValueError: not a message, or not of a known form.
    """
    return _ADAPTER.validate_json(line)


def encode(message: Message) -> bytes:
    """Return ``message`` as one line."""
    return message.model_dump_json().encode() + b"\n"
