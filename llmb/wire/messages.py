"""The messages between the processes of a run: typed, validated, and a JSON line each.

Example: ``{"kind":"tick","index":3,"ns":81234567890}``.
"""

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
from llmb.records.run_record import StepClock
from llmb.records.system import Device
from llmb.wire.measurements import (
    Calibration,
    CalibrationOrder,
    Collected,
    CollectivesOrder,
    MeasuredRates,
    RatesOrder,
)

CheckStatus = Literal["pass", "fail", "skip"]
_DIGEST_OR_NOTHING = r"^([0-9a-f]{64})?$"

# -- every child ----------------------------------------------------------------------------


class Hello(Frozen):
    """First message of a child: the nonce proves that the supervisor started the child."""

    kind: Literal["hello"] = "hello"
    nonce: str
    pid: int


class Failure(Frozen):
    """The child cannot continue; ``error`` names a class of ``llmb.errors``."""

    kind: Literal["error"] = "error"
    error: str
    message: str


class Done(Frozen):
    """The child has finished its order."""

    kind: Literal["done"] = "done"


# -- probe ----------------------------------------------------------------------------------


class OfferOrder(Frozen):
    """Ask the process ``offer`` for the offer of ``plugin`` for ``request``."""

    kind: Literal["probe"] = "probe"
    plugin: str
    request: RunRequest


class Offer(Frozen):
    """The offer of a plugin on this machine, or the reason without an offer."""

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
    #: Allowed values of options with a fixed set of values.
    option_choices: dict[str, tuple[OptionValue, ...]] = Field(default_factory=dict)
    precisions: tuple[Precision, ...] = ()
    refused: tuple[Refused, ...] = ()
    torch_version: str
    lacks: Lacks = Lacks()
    #: The plugin is faulty: loading the plugin failed, or a hook raised an error.
    broken: bool = False


class Resolved(Frozen):
    """Tell the process ``offer`` the final configuration of the run."""

    kind: Literal["resolved"] = "resolved"
    config: RunConfig


class Terms(Frozen):
    """The plugin's needs for the run, such as variables and warm-up steps, and system facts."""

    kind: Literal["terms"] = "terms"
    environment: dict[str, str]
    warmup_steps: int
    facts: dict[str, str]
    peak: Peak | None


# -- inspector ------------------------------------------------------------------------------


class TorchFacts(Frozen):
    """Facts of torch on this machine; ``error`` is set if the import of torch failed."""

    kind: Literal["torch"] = "torch"
    error: str | None = None
    version: str | None = None
    import_s: float | None = None
    #: Build settings of torch, such as versions of toolkits, and whether a debug build.
    build: dict[str, str] = Field(default_factory=dict)
    #: The accelerator type of the build, even if this machine has no accelerator.
    accelerator: str | None = None
    accelerators: int = 0
    #: Oddities of the installation, in sentences.
    troubles: tuple[str, ...] = ()


# -- worker ---------------------------------------------------------------------------------


class WorkOrder(Frozen):
    """The order for a worker, with all facts that a worker may know: the run and its folders."""

    kind: Literal["work"] = "work"
    config: RunConfig
    evidence_folder: str
    #: Collect digests and module trees; off in trials of the batch-size search.
    collect_evidence: bool
    #: Folder for full weights, kept until the end of the audit; empty without weights, such as on
    #: all ranks above 0.
    scratch_folder: str = ""
    #: Folder for the profiler trace of an additional step; empty without a trace.
    profile_folder: str = ""
    #: The rank address of the worker, None for a single worker.
    place: RankAddress | None = None
    #: Number of the repeat: each repeat connects its ranks separately.
    repeat: int = 0
    #: Seconds to wait for a message from a rank.
    rank_timeout_s: float = Field(default=600.0, gt=0)
    #: Folder for the last collective calls of each rank after a failure: rank 0's value counts.
    calls_folder: str = ""
    #: Gradients of every step are compared (rule L1), so audited steps show none.
    every_step: bool = False
    #: The only audited part when a single judgement is repeated; None in every run.
    only: OnePart | None = None

    @property
    def audited(self) -> bool:
        """Whether this worker is audited. Either all ranks are, or none."""
        follows = self.place is not None and not self.place.leads
        return bool(self.scratch_folder) or (follows and self.config.audit is not AuditMode.OFF)


class Ready(Frozen):
    """The plugin's post-processing is finished and the optimizer is built.

    Only now may the worker learn token seeds.
    """

    kind: Literal["ready"] = "ready"


class StepOrder(Frozen):
    """A step of the stream, sent well before the step runs."""

    kind: Literal["step"] = "step"
    index: int
    seed: int
    fence: bool


class Paused(Frozen):
    """A step has its gradients or logits; the worker waits for ``StepDraw``, or for the answer.

    The worker waits in every step. Before the answer (``Proceed``, ``AuditRequest`` or
    ``KeepWeights``), the process has no sign whether the step is audited.
    """

    kind: Literal["paused"] = "paused"
    index: int
    #: sha256 over the gradients or logits read in the previous step; empty if nothing was read.
    commitment: str = Field(default="", pattern=_DIGEST_OR_NOTHING)
    #: sha256 over a blind sample of this step's gradients, if not every step is compared (rule
    #: L1); ``""`` while a device still computes the sample.
    glanced: str = Field(default="", pattern=_DIGEST_OR_NOTHING)


class StepDraw(Frozen):
    """Values for a paused step, if steps are replayed afterwards (rule L1): before the answer."""

    kind: Literal["draw"] = "draw"
    #: Seed of the sampled indices: elements of the gradients, or of the logits, to read.
    places: int
    #: The learning rate of a training step.
    rate: float


class Sampled(Frozen):
    """The elements of ``StepDraw`` were read; the worker waits for the answer.

    A worker on the CPU that learns from the answer that the step is judged can change no sample.
    """

    kind: Literal["sampled"] = "sampled"
    index: int
    #: sha256 over the elements; ``""`` while a device still computes the elements.
    commitment: str = Field(default="", pattern=_DIGEST_OR_NOTHING)


class Proceed(Frozen):
    """Continue the paused step without an audit, or the clock after ``Stopped``."""

    kind: Literal["proceed"] = "proceed"
    #: Time in nanoseconds in which the supervisor's clock stood still: the worker's clock stands
    #: still as long.
    stopped_ns: int = 0


class AuditRequest(Frozen):
    """Audit the paused step; with ``last`` the stream ends after the step."""

    kind: Literal["audit"] = "audit"
    #: Seed of the audited elements, and of the probes' tokens after the last step.
    seed: int
    last: bool


class KeepWeights(Frozen):
    """Keep the weights of the paused step: of a worker's judged step, or of a recomputed step."""

    kind: Literal["keep"] = "keep"
    #: Seed of the sampled elements; None where the elements of ``StepDraw`` are compared (rule L1).
    seed: int | None = None


class ShownStep(Frozen):
    """The gradients of the judged step ``index`` were read; the clock of the run still runs.

    No code of the plugin has run since the worker learned that the step is judged.
    """

    kind: Literal["shown"] = "shown"
    index: int
    #: sha256 over the gradients read in this step as in every step, ``""`` if none are.
    commitment: str = Field(pattern=_DIGEST_OR_NOTHING)
    #: sha256 over the elements of ``KeepWeights.seed``, ``""`` without a seed.
    digest: str = Field(default="", pattern=_DIGEST_OR_NOTHING)
    #: sha256 over the blind sample of ``Paused``, read again.
    glanced: str = Field(default="", pattern=_DIGEST_OR_NOTHING)


class Stopped(Frozen):
    """The device has finished the judged step ``index``, and the clock of the run stops."""

    kind: Literal["stopped"] = "stopped"
    index: int


class Phase(Frozen):
    """A child has entered a new run phase."""

    kind: Literal["phase"] = "phase"
    name: str


class Tick(Frozen):
    """A step has been enqueued (finished, on a synchronous device)."""

    kind: Literal["tick"] = "tick"
    index: int
    ns: int


class Fence(Frozen):
    """The device is synchronised after ``steps`` steps; loss and sampled parameters are read.

    The worker sends the message before asking the plugin for any reading.
    """

    kind: Literal["fence"] = "fence"
    steps: int
    worker_ns: int
    loss: float | None
    #: sha256 over the bits of the loss and of the sampled parameters.
    bits: str = Field(pattern=r"^[0-9a-f]{64}$")
    cpu_s: float
    starved_steps: int
    #: Numbers of the audited steps, and nanoseconds in pauses, both up to this fence.
    audited_steps: tuple[int, ...] = ()
    pause_ns: int = 0
    #: Nanoseconds of the step's prefill, in mode generate.
    prefill_ns: int | None = None


class Readings(Frozen):
    """Readings of backend and plugin after the fence of ``steps`` steps, such as peak memory."""

    kind: Literal["readings"] = "readings"
    steps: int
    peak_memory_bytes: int | None
    energy_j: float | None
    energy_source: Literal["counter", "sampled", "estimated"] | None
    energy_scope: Literal["device", "package", "node"] | None
    telemetry: dict[str, float] = Field(default_factory=dict)


class EvidenceFile(Frozen):
    """A file in the evidence folder (or the scratch folder) is complete, with digest ``sha256``."""

    kind: Literal["evidence"] = "evidence"
    name: str
    sha256: str
    scratch: bool = False


class Unmade(Frozen):
    """A process failed at part ``what`` of its order, and continues with the next parts."""

    kind: Literal["unmade"] = "unmade"
    what: str
    reason: str


class StreamEnded(Frozen):
    """The worker knows the last step of the stream, and the device has finished the last step."""

    kind: Literal["ended"] = "ended"
    #: sha256 over the gradients read in the last step; empty if nothing was read.
    commitment: str = Field(default="", pattern=_DIGEST_OR_NOTHING)


class Worked(Frozen):
    """The stream has ended after ``steps`` steps."""

    kind: Literal["worked"] = "worked"
    steps: int


# -- audit: honest run and reference run ------------------------------------------------------


class StreamToReplay(Frozen):
    """The steps of a worker's stream, to be replayed with the pristine model."""

    #: Token seed and learning rate of each step, from the first step on.
    token_seeds: tuple[int, ...]
    rates: tuple[float, ...]
    #: Least number of replayed steps, without a limit of time. Example: 40 of 60.
    least: int
    #: Seconds of replay after which no step beyond ``least`` is begun; on a CPU seconds of work of
    #: the main thread, which no other process can take away.
    seconds: float


class CallToReplay(Frozen):
    """A call of a worker in a mode without training, such as forward."""

    index: int
    #: The seed of the call's tokens, and the seed of the sampled logits.
    token_seed: int
    places: int


class CallsToReplay(Frozen):
    """Calls of a worker's stream to be replayed, in order, with the pristine model."""

    calls: tuple[CallToReplay, ...]
    #: As in ``StreamToReplay``.
    least: int
    seconds: float


class KeptStep(Frozen):
    """A step to be recomputed by the reference run: number, seed, weights and digests."""

    index: int
    token_seed: int
    #: sha256 over the gradients that the honest run (of a judged step the worker) had read before
    #: it knew of the check.
    commitment: str
    #: The file with the step's weights in the scratch folder, and the digest of the file.
    weights: str
    sha256: str


class RecomputeOrder(Frozen):
    """Ask for the gradients of replayed steps, in a wider format and without any plugin."""

    kind: Literal["recompute"] = "recompute"
    config: RunConfig
    #: The device for the recomputation: the run's own device if the host would take hours.
    device: str
    steps: tuple[KeptStep, ...]
    #: The judged steps, if the host would take hours for them (rule G1).
    judged: tuple[KeptStep, ...] = ()
    evidence_folder: str
    scratch_folder: str
    #: sha256 of the readable evidence files, by name.
    digests: dict[str, str]


class AuditOrder(RerunOrder):
    """What the orders for honest run and reference run share beside the passes (rule L1)."""

    #: The stream to replay from the first step on; None if no step can be replayed, or if the
    #: other process replays the stream.
    stream: StreamToReplay | None = None
    #: The calls to replay in modes without training; None as for ``stream``.
    calls: CallsToReplay | None = None


class HonestOrder(AuditOrder):
    """Ask for the measurements of an honest run on this device (rules E1, E2, P1, G1, O2)."""

    kind: Literal["honest"] = "honest"
    #: Measure the limits of narrower formats, too.
    borders: bool
    #: Passes with a reference too slow for the host: the honest run computes them in the wider
    #: format.
    reference_passes: tuple[str, ...] = ()
    #: Modules of the vendor's libraries loaded by the worker (rule N1).
    library_modules: tuple[str, ...] = ()
    #: Learning rate of each step (rule O2); empty: the workload's own in every step.
    rates: tuple[float, ...] = ()


class ReferenceOrder(AuditOrder):
    """Ask for correct results: the same passes in a wider format, on the CPU, without a plugin.

    If the run's device is the CPU, the process replays steps and calls too.
    """

    kind: Literal["reference"] = "reference"
    #: Stored dtypes of the parameters, by name, for rule W1. Example: ``bfloat16``.
    stored_dtypes: dict[str, str]
    #: An honest run with the vendor's code runs at the same time and could alter the weights.
    shared: bool = False


class ReplayOrder(Frozen):
    """Ask for the initial weights, and for steps or calls, of a repeat of a bundle's run.

    All values follow from config, seed and nonce, except ``foreach``, ``fused`` and the names in
    ``ledger``. The exceptions come from the bundle and choose among honest alternatives.
    """

    kind: Literal["replay"] = "replay"
    config: RunConfig
    #: The steps to replay, each at its own learning rate; None if no step can be replayed.
    stream: StreamToReplay | None = None
    #: The kernel of torch's optimizer that the run used.
    foreach: bool | None = None
    fused: bool | None = None
    #: The parameter of each element of a ledger row; None if the run kept no rows.
    ledger: LedgerEvidence | None = None
    #: Seed of the sampled indices of each step.
    places: tuple[int, ...] = ()
    #: Step counts after which weights are sampled, such as 20 and 40.
    fences: tuple[int, ...] = ()
    #: The calls to replay; the tokens drawn in the calls are in the ledger's rows.
    calls: CallsToReplay | None = None
    evidence_folder: str
    scratch_folder: str
    #: sha256 of the readable evidence files, by name.
    digests: dict[str, str]


# -- checker (llmb.sdk) ---------------------------------------------------------------------


class CheckOrder(Frozen):
    """Ask a checker to test ``plugin`` against the plugin interface, for ``request``."""

    kind: Literal["check"] = "check"
    plugin: str
    request: RunRequest
    #: The device agreed with the plugin's offer, None without a device.
    device: str | None
    #: The reason for a missing device; None also if the offer failed before giving a reason.
    reason: str | None
    precision: Precision
    #: The plugin's variables, already set in the environment of the checker.
    environment: dict[str, str]
    checks: tuple[str, ...]


class CheckBegun(Frozen):
    """The checker begins check ``id``; names the check if the checker dies or hangs."""

    kind: Literal["check-begun"] = "check-begun"
    id: str


class Checked(Frozen):
    """The result of a check, and a message with the observation."""

    kind: Literal["checked"] = "checked"
    id: str
    status: CheckStatus
    message: str


# -- the program that called ``llmb run`` (llmb.api) ------------------------------------------


class TextShown(Frozen):
    """A phase of the run has begun, or a note for the user."""

    kind: Literal["shown-text"] = "shown-text"
    what: Literal["phase", "note"]
    text: str


class StreamShown(Frozen):
    """A stream of at most ``steps`` steps begins."""

    kind: Literal["shown-stream"] = "shown-stream"
    steps: int
    tokens_per_step: int
    label: str


class SilenceShown(Frozen):
    """A process of the run is silent: the fields of ``llmb.supervision.silence.Silence``."""

    kind: Literal["shown-silence"] = "shown-silence"
    who: str
    since_s: float
    busy_cores: float | None
    on_cpu: bool
    step: int | None
    compiling_min: float | None


class Recorded(Frozen):
    """The run has a record. ``path`` is the run directory, with bytes such as ``%20`` quoted."""

    kind: Literal["recorded"] = "recorded"
    path: str


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
    | CollectivesOrder
    | WorkOrder
    | Ready
    | StepOrder
    | Paused
    | Proceed
    | AuditRequest
    | KeepWeights
    | StepDraw
    | Sampled
    | ShownStep
    | Stopped
    | Phase
    | Tick
    | Fence
    | Readings
    | EvidenceFile
    | Unmade
    | StreamEnded
    | Worked
    | Collected
    | RecomputeOrder
    | HonestOrder
    | ReferenceOrder
    | ReplayOrder
    | CheckOrder
    | CheckBegun
    | Checked
    | TextShown
    | StreamShown
    | SilenceShown
    | Recorded,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[Message] = TypeAdapter(Message)


def decode(line: bytes) -> Message:
    """Return the message in ``line``.

    Raises:
        ValueError: the line is not JSON, or not a valid message of a known kind.
    """
    return _ADAPTER.validate_json(line)


def encode(message: Message) -> bytes:
    """Return ``message`` as a JSON line, with a line break at the end."""
    return message.model_dump_json().encode() + b"\n"
