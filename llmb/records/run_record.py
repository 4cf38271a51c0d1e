"""The run record, ``record.json``: raw values first, headline numbers beside them.

Everything derived can be recomputed from the raw values here, and ``llmb verify`` does.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from llmb.config import NONCE, Frozen, OptionValue, Parallelism, RunConfig
from llmb.records.ceiling import Ceilings
from llmb.records.finding import Audit
from llmb.records.lacks import Lacks
from llmb.records.precision_recipe import PrecisionRecipe
from llmb.records.reproduction import ReproductionOf
from llmb.records.seed_commitment import SeedCommitment
from llmb.records.seeds import Stamp, nonce_at
from llmb.records.system import SystemDescription
from llmb.reference.recipe import OFFICIAL_OPTIMIZER, Optimizer

# Version history of the record, one line per change; old versions load for ever.
# llmb.run/1  2026-11  first version.
# llmb.run/1  2026-11  seed_commitment added: optional, absent from records before.
# llmb.run/1  2026-11  plugin.environment added: empty in records before.
# llmb.run/1  2026-11  timing.audited_steps, ceilings' squares and best_product_flops_per_second
#                      added: empty and None in records before.
# llmb.run/1  2026-11  workload.family, optimizer and clip_grad_norm, config.definition, accumulate
#                      and mixed_precision added: those of llama-1.4b in records before.
# llmb.run/1  2026-11  modes forward and generate: losses are None there, timing.prefill_ns;
#                      config.executor, compile_mode, dynamic (timing.step_tokens), sac_freq,
#                      generate_scope, prompt_length, new_tokens added: none of them before.
# llmb.run/1  2026-11  result.metrics filled: may be empty in records of llmb 0.1.0 and older.
# llmb.run/1  2026-11  reproduction_of added: optional, absent from records before.
# llmb.run/1  2026-11  config.parallelism.schedule added: nothing without a pipeline.
# llmb.run/1  2026-11  config.precision.products and duration added: None in records before.
# llmb.run/1  2026-11  plugin.lacks added: nothing is lacking in records before.
# llmb.run/1  2026-11  timing.nonce and commitments, config.nonce and constant_rate added: nothing
#                      of them in records before.
# llmb.run/1  2026-11  precision_recipe added: optional, absent from records before.
# llmb.run/1  2026-11  timing.fence_bits added: empty in records of rules 2 and older.
# llmb.run/1  2026-11  timing.time_stamps added: optional, absent from records before.
SCHEMA: Literal["llmb.run/1"] = "llmb.run/1"

RunClass = Literal["official", "debug"]
StepClock = Literal["host", "device", "enqueue"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class WorkloadFacts(Frozen):
    """What was trained."""

    name: str
    family: str = "llama"
    mode: str
    parameters: int
    flops_per_token: int
    tokens_per_step: int
    shapes: dict[str, int | float | None]
    #: "random", or what was read: "data" and the first 12 digits of its digest.
    tokens: str = "random"
    optimizer: Optimizer = OFFICIAL_OPTIMIZER
    #: Largest norm of all gradients together; None where they are not clipped.
    clip_grad_norm: float | None = None


class FileDigest(Frozen):
    """A file by its path relative to the plugin's folder, with forward slashes."""

    path: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class ClosedComponent(Frozen):
    """A native library that a plugin ships or uses, and whose source the bundle does not show."""

    #: Path relative to the folder of Python's packages, or the file's name if it lies elsewhere.
    name: str
    version: str | None
    sha256: str
    bytes: int
    where_to_get: str
    licence: str


class DeclaredPatch(Frozen):
    """A callable (dotted name or glob) that a plugin says it replaces, and why."""

    target: str
    reason: str


#: Of one core: what a declared helper thread may ask for at most.
MOST_HELPER_SHARE = 0.05


class DeclaredHelper(Frozen):
    """A thread that a plugin says it keeps beside the steps: its name (or a glob), and why."""

    name: str = Field(min_length=1, max_length=200)
    reason: str = Field(min_length=1, max_length=2000)
    #: CPU time of one core that it needs at most. Example: 0.01 is 10 ms in a second.
    cpu_share: float = Field(gt=0, le=MOST_HELPER_SHARE)


class PluginFacts(Frozen):
    """Which plugin ran, down to the digest of every Python file of it that was loaded."""

    name: str
    distribution: str
    version: str
    options: dict[str, OptionValue]
    files: tuple[FileDigest, ...]
    closed_components: tuple[ClosedComponent, ...] = ()
    strict: bool
    declared_patches: tuple[DeclaredPatch, ...] = ()
    declared_helpers: tuple[DeclaredHelper, ...] = ()
    #: Names of the environment variables it asked for.
    environment: tuple[str, ...] = ()
    #: What the device lacks, as the plugin's backend declares it.
    lacks: Lacks = Lacks()


class Rank(Frozen):
    """One rank of the run, as its own supervisor saw it."""

    rank: int
    #: First 12 hex digits of the sha256 of the host name: tells hosts apart, names none.
    host: str
    device: str
    peak_memory_bytes: int | None
    fence_ns: tuple[int, ...]
    #: Seconds of a step without a word to the others; None where no rank can make one alone.
    alone_s: float | None = None


class Topology(Frozen):
    """How many of what, and how they were laid out."""

    nodes: int
    devices_per_node: int
    world_size: int
    parallelism: Parallelism
    ranks: tuple[Rank, ...]


class PrecisionBits(Frozen):
    """Effective bits, measured; None where they were not."""

    forward_min: float | None = None
    gradient_min: float | None = None
    honest_forward_min: float | None = None
    honest_gradient_min: float | None = None


class PrecisionFacts(Frozen):
    """The format that was claimed and the format that was seen to compute."""

    declared: str
    effective: str | None
    bits: PrecisionBits = PrecisionBits()
    how: Literal["measured", "not observed"]


class Tail(Frozen):
    """What followed a timed window, by the supervisor's stamps in nanoseconds."""

    #: Steps that were done after STOP.
    steps: int = Field(ge=0)
    #: When the gradients of the step after them were there, in whose pause the worker was told that
    #: it is the last, and when it answered.
    paused_ns: int
    told_ns: int
    ended_ns: int


class TimeStamps(Frozen):
    """What the clock of somebody else says of a window (``llmb.records.time_stamp``)."""

    #: Two tokens of a time-stamping authority. A witness who watches the run would be another kind.
    kind: Literal["rfc3161"] = "rfc3161"
    #: Its address, as it was asked; whose tokens they are, only their certificates tell.
    authority: str = Field(max_length=500)
    #: sha256 of the token that was asked for at START, from which tokens, places and what is
    #: audited follow from step ``mixed_from`` on.
    start_sha256: Sha256
    mixed_from: int = Field(ge=0)
    #: The authority's times of START and STOP. None where the second token did not come.
    start_utc: str = Field(max_length=40)
    stop_utc: str | None = Field(max_length=40)
    #: Between them, and what the two times may be off by, together.
    seconds: float | None
    uncertainty_s: float | None
    #: Tokens of the steps from ``mixed_from`` to STOP, over ``seconds + uncertainty_s``.
    tokens_per_second: float | None


class RepeatTiming(Frozen):
    """The raw stamps of one worker process, all in nanoseconds of ``clock``.

    ``fence_ns[i]`` is the supervisor's stamp of the fence after ``fence_steps[i]`` steps,
    ``fence_worker_ns[i]`` the worker's own. ``step_ns[i]`` is the worker's stamp after step i.
    The window lies between the fences after ``warmup_steps`` and ``warmup_steps + timed_steps``.
    """

    warmup_steps: int = Field(ge=1)
    timed_steps: int = Field(ge=1)
    start_ns: int
    stop_ns: int
    fence_ns: tuple[int, ...]
    fence_worker_ns: tuple[int, ...]
    fence_steps: tuple[int, ...]
    step_ns: tuple[int, ...]
    step_clock: StepClock
    #: Steps at which the worker had to wait for a seed: each makes the figure too low.
    starved_steps: int
    #: None where nothing is trained.
    loss_first: float | None
    loss_last: float | None
    peak_memory_bytes: int | None
    #: Cumulative joules at START and STOP, None without an energy counter.
    energy_start_j: float | None
    energy_stop_j: float | None
    #: CPU seconds of the worker within the window, by the kernel's account.
    cpu_s: float | None
    #: The plugin's gauges and counters at each fence, empty where it has none.
    telemetry: tuple[dict[str, float], ...] = ()
    #: Steps that were audited, counted from 0; empty where none was, or none was asked for.
    audited_steps: tuple[int, ...] = ()
    #: Tokens of each step from the first; empty where every step has ``tokens_per_step``.
    step_tokens: tuple[int, ...] = ()
    #: Mode generate: nanoseconds of the prefill of each step from the first, until the first token
    #: of every sequence is there, on the worker's clock. Empty elsewhere.
    prefill_ns: tuple[int, ...] = ()
    #: The window's place, tokens, audited steps, places, learning rates and how much is replayed
    #: follow from it (``llmb.records.draws``); that of the first repeat is the run's own.
    nonce: str | None = Field(default=None, pattern=NONCE)
    #: sha256 over what was read of the gradients, or logits, of each step from the first, as it was
    #: told in the pause of the next; those of the steps after STOP with them. Empty where no step
    #: is replayed.
    commitments: tuple[Sha256, ...] = ()
    #: sha256 over the loss and the sampled elements of all parameters, as the worker read them back
    #: at each fence and told their digest there (``evidence/repeat-<n>/fences.safetensors``).
    fence_bits: tuple[Sha256, ...] = ()
    #: None where the worker ended before it had answered.
    tail: Tail | None = None
    #: None without ``--timestamp``, and where the authority gave no token in time.
    time_stamps: TimeStamps | None = None

    @property
    def stamp(self) -> Stamp | None:
        """The time stamp that was mixed into what is drawn, None where there is none."""
        found = self.time_stamps
        return None if found is None else Stamp(found.start_sha256, found.mixed_from)

    def nonce_at(self, step: int) -> str | None:
        """Return the nonce from which ``step`` was drawn, None by rules 2 and older."""
        return None if self.nonce is None else nonce_at(self.nonce, self.stamp, step)


class Timing(RepeatTiming):
    """The timing of the median repeat, and every repeat's own."""

    clock: str
    #: Which of ``repeats`` the fields above are: the one with the median throughput.
    headline_repeat: int
    repeats: tuple[RepeatTiming, ...]


class StepTime(Frozen):
    """Statistics of the time one step takes, in seconds; ``cv`` is deviation over mean."""

    median: float
    p5: float
    p95: float
    cv: float


class Mfu(Frozen):
    """Model FLOP/s over a datasheet peak, and where that peak is written."""

    value: float
    peak_flops: float
    peak_source: str


class Energy(Frozen):
    """Energy of the timed window, and how it was come by."""

    joules: float
    tokens_per_joule: float
    source: Literal["counter", "sampled", "estimated"]
    scope: Literal["device", "package", "node"]


class Metric(Frozen):
    """A number a workload adds, with the formula it is by."""

    name: str
    value: float
    unit: str
    formula: str


class Result(Frozen):
    """The headline numbers; None is "not measured"."""

    tokens_per_second: float
    ci95: tuple[float, float] | None
    tokens_per_second_per_device: float
    step_time_s: StepTime | None
    mfu: Mfu | None
    fraction_of_ceiling: float | None
    peak_memory_bytes: int | None
    energy: Energy | None
    #: None where nothing is trained.
    loss_first: float | None
    loss_last: float | None
    metrics: tuple[Metric, ...] = ()


class BatchTrial(Frozen):
    """One worker of the batch-size search."""

    batch_size: int
    status: Literal["measured", "out_of_memory", "predicted_out_of_memory", "failed"]
    tokens_per_second: float | None
    peak_memory_bytes: int | None
    message: str | None = None


class SearchLog(Frozen):
    """The batch-size search that led to the configuration, in the order of its trials."""

    timed_steps: int
    trials: tuple[BatchTrial, ...]
    best: int


class Rates(Frozen):
    """Sustained rates of a device, measured before a run for an estimate; never a ceiling."""

    #: torch's name of a dtype -> FLOP/s of one of the model's products, three directions together.
    flops_per_second: dict[str, float]
    #: Bytes read and written a second, of float32 values that do not fit into a cache.
    bytes_per_second: float = Field(gt=0)


class Duration(Frozen):
    """How long a run was estimated to take before it began, and how long it took."""

    estimated_s: float = Field(gt=0)
    #: From the command to the record, the estimate's own measurement included.
    real_s: float = Field(gt=0)
    #: Seconds in which the run was to end, for which its size was chosen; None where it was named.
    within_s: float | None = None
    #: What the estimate was made of: rates, and seconds in which a process with torch started.
    rates: Rates
    start_s: float = Field(gt=0)


class Interruption(Frozen):
    """What ended a run before its end, and what `llmb audit --resume` needs to finish its audit."""

    #: The name of a signal, such as SIGTERM; of a failure, its message.
    by: str
    #: In words, such as "in the honest run".
    phase: str
    #: The first repeat whose audit, or window, was not finished; it counts from 0.
    repeat: int = Field(ge=0)
    #: How many repeats were asked for; the record has those whose window was complete.
    repeats: int = Field(ge=1)
    #: sha256 of each file of the worker's evidence, by its path in the run directory, where the
    #: audit of the repeat can be finished.
    evidence: dict[str, str] = Field(default_factory=dict)
    #: Files of whole weights in the folder ``unfinished`` of the run directory, with their digests.
    weights: dict[str, str] = Field(default_factory=dict)
    #: When `llmb audit --resume` finished the audit; None where nobody did.
    resumed_utc: str | None = None

    @property
    def text(self) -> str:
        """What happened, as one of the reasons why the run is no official run."""
        of = f"repeat {self.repeat + 1} of {self.repeats}, " if self.repeats > 1 else ""
        later = "" if self.resumed_utc is None else "; its audit was finished afterwards"
        return f"ended early ({of}{self.phase}: {self.by}{later})"


class ModelDiff(Frozen):
    """What post-processing did to the module tree."""

    modules_replaced: tuple[str, ...]
    modules_added: tuple[str, ...]
    modules_removed: tuple[str, ...]
    parameters_repacked: tuple[str, ...]


class SettingChange(Frozen):
    """A torch setting or environment variable before and after the plugin."""

    name: str
    before: str | None
    after: str | None


class Diff(Frozen):
    """What the plugin changed; the readable forms are ``*.diff`` beside the record."""

    model: ModelDiff
    settings: tuple[SettingChange, ...]
    #: Files of llmb that differ from the release, None where no release could be compared.
    sources: tuple[str, ...] | None
    sources_base: str


class RunRecord(Frozen):
    """One run of llmb."""

    model_config = ConfigDict(populate_by_name=True)  # the rest is inherited from Frozen

    schema_: Literal["llmb.run/1"] = Field(alias="schema", default=SCHEMA)
    run_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    created_utc: str
    llmb_version: str
    rules_version: str
    reference_digest: str
    class_: RunClass = Field(alias="class")
    waivers: tuple[str, ...]
    config: RunConfig
    #: Who committed to ``config.seed`` before the run, None where nobody did.
    seed_commitment: SeedCommitment | None = None
    #: The bundle that the run repeats, None where it repeats none.
    reproduction_of: ReproductionOf | None = None
    workload: WorkloadFacts
    plugin: PluginFacts
    topology: Topology
    system: SystemDescription
    precision: PrecisionFacts
    #: What each matrix product was seen to keep; None where no probe looked.
    precision_recipe: PrecisionRecipe | None = None
    timing: Timing
    ceilings: Ceilings | None
    batch_size_search: SearchLog | None
    #: Of a run whose length was estimated: an official training run on a processor.
    duration: Duration | None = None
    #: How each kind of process was started: ``forked`` by the fork server, or ``spawned`` and why;
    #: None in records before version 0.2.0.
    processes: dict[str, str] | None = None
    result: Result
    #: What ended the run early; None where nothing did.
    interruption: Interruption | None = None
    #: Plain sentences on noise and spread, for a reader.
    warnings: tuple[str, ...]
    audit: Audit
    diff: Diff
