"""The run record, ``record.json``: raw values first, headline numbers beside them.

All derived values can be recomputed from the raw values, and ``llmb verify`` checks the results.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llmb.config import NONCE, Frozen, JsonFile, OptionValue, Parallelism, RunConfig
from llmb.records.ceiling import Ceilings
from llmb.records.finding import Audit
from llmb.records.interconnect import Interconnect
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
# llmb.run/1  2026-11  interconnect added: optional, absent from records before.
SCHEMA: Literal["llmb.run/1"] = "llmb.run/1"
#: Rules of runs with evidence that does not name the run, and with records without bits of fences.
#: A record itself states its rules (docs/adr/0051).
OLDER_RULES = ("2",)

RunClass = Literal["official", "debug"]
StepClock = Literal["host", "device", "enqueue"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

#: llmb's own count of compiled programs, among the readings of a fence; never the plugin's.
COMPILATIONS_COUNTED = "compilations_counted"


class WorkloadFacts(Frozen):
    """The workload of the run: model, size, tokens and optimizer."""

    name: str
    family: str = "llama"
    mode: str
    parameters: int
    flops_per_token: int
    tokens_per_step: int
    shapes: dict[str, int | float | None]
    #: "random", or the data source: "data" and the first 12 digits of the digest.
    tokens: str = "random"
    optimizer: Optimizer = OFFICIAL_OPTIMIZER
    #: Largest norm of all gradients together; None if gradients are not clipped.
    clip_grad_norm: float | None = None


class FileDigest(Frozen):
    """A file by its path relative to the plugin's folder, with forward slashes."""

    path: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class ClosedComponent(Frozen):
    """A native library that a plugin ships or uses, without source code in the bundle."""

    #: Path relative to the folder of Python's packages, or the file name of a library elsewhere.
    name: str
    version: str | None
    sha256: str
    bytes: int
    where_to_get: str
    licence: str


class DeclaredPatch(Frozen):
    """A callable (dotted name or glob) that a plugin declares as replaced, with the reason."""

    target: str
    reason: str


#: Largest share of one core that a declared helper thread may ask for.
MOST_HELPER_SHARE = 0.05


class DeclaredHelper(Frozen):
    """A thread that a plugin runs beside the steps: the name (or a glob), and the reason."""

    name: str = Field(min_length=1, max_length=200)
    reason: str = Field(min_length=1, max_length=2000)
    #: Largest CPU time, as a share of one core. Example: 0.01 is 10 ms in a second.
    cpu_share: float = Field(gt=0, le=MOST_HELPER_SHARE)


class PluginFacts(Frozen):
    """The plugin of the run, with the digest of every loaded Python file of the plugin."""

    name: str
    distribution: str
    version: str
    options: dict[str, OptionValue]
    files: tuple[FileDigest, ...]
    closed_components: tuple[ClosedComponent, ...] = ()
    strict: bool
    declared_patches: tuple[DeclaredPatch, ...] = ()
    declared_helpers: tuple[DeclaredHelper, ...] = ()
    #: Names of the environment variables that the plugin asked for.
    environment: tuple[str, ...] = ()
    #: Missing abilities of the device, as the plugin's backend declares.
    lacks: Lacks = Lacks()


class Rank(Frozen):
    """One rank of the run, as measured by the rank's own supervisor."""

    rank: int
    #: First 12 hex digits of the sha256 of the host name: tells hosts apart, names none.
    host: str
    device: str
    peak_memory_bytes: int | None
    fence_ns: tuple[int, ...]
    #: Seconds of a step without communication; None if no rank can make a step alone.
    alone_s: float | None = None


class Topology(Frozen):
    """Numbers of nodes, devices and ranks, and the mesh of the ranks."""

    nodes: int
    devices_per_node: int
    world_size: int
    parallelism: Parallelism
    ranks: tuple[Rank, ...]


class PrecisionBits(Frozen):
    """Effective bits, measured; None if not measured."""

    forward_min: float | None = None
    gradient_min: float | None = None
    honest_forward_min: float | None = None
    honest_gradient_min: float | None = None


class PrecisionFacts(Frozen):
    """The declared format, and the format that the audit measured."""

    declared: str
    effective: str | None
    bits: PrecisionBits = PrecisionBits()
    how: Literal["measured", "not observed"]


class Tail(Frozen):
    """The steps after a timed window, by the supervisor's stamps in nanoseconds."""

    #: Number of steps done after STOP.
    steps: int = Field(ge=0)
    #: Time when the gradients of the next step were computed, in a pause that made this step the
    #: last; time when the worker learned of the end; time of the worker's answer.
    paused_ns: int
    told_ns: int
    ended_ns: int


class TimeStamps(Frozen):
    """The times of a window by a foreign clock (``llmb.records.time_stamp``)."""

    #: Two tokens of a time-stamping authority. A person who watches the run would be another kind.
    kind: Literal["rfc3161"] = "rfc3161"
    #: Requested address; only the certificates in the tokens prove the authority.
    authority: str = Field(max_length=500)
    #: sha256 of the token requested at START. Tokens, sampled indices and audited steps follow from
    #: the digest, from step ``mixed_from`` on.
    start_sha256: Sha256
    mixed_from: int = Field(ge=0)
    #: The authority's times of START and STOP. None if the second token did not come.
    start_utc: str = Field(max_length=40)
    stop_utc: str | None = Field(max_length=40)
    #: Seconds between both times, and the error of both times together.
    seconds: float | None
    uncertainty_s: float | None
    #: Tokens of the steps from ``mixed_from`` to STOP, over ``seconds + uncertainty_s``.
    tokens_per_second: float | None


class Stop(Frozen):
    """A stop of the run's clock, while the worker wrote the weights of a judged step (rule G1)."""

    #: The judged step, counted from 0.
    step: int = Field(ge=0)
    #: The supervisor's stamp of the stop, on the clock that stands still meanwhile.
    at_ns: int
    #: Length of the stop in nanoseconds.
    ns: int = Field(ge=0)


class RepeatTiming(Frozen):
    """The raw stamps of one worker process, all in nanoseconds of ``clock``.

    The clock stands still in the ``stops``: each later stamp of supervisor and worker is earlier by
    the length of all stops before.

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
    #: Steps that waited for a seed: each such step makes the reported throughput too low.
    starved_steps: int
    #: None in the modes forward and generate.
    loss_first: float | None
    loss_last: float | None
    peak_memory_bytes: int | None
    #: Cumulative joules at START and STOP, None without an energy counter.
    energy_start_j: float | None
    energy_stop_j: float | None
    #: CPU seconds of the worker within the window, by the kernel's account.
    cpu_s: float | None
    #: The plugin's gauges and counters at each fence, empty if the plugin has none.
    telemetry: tuple[dict[str, float], ...] = ()
    #: Audited steps, counted from 0; empty without audited steps.
    audited_steps: tuple[int, ...] = ()
    #: Tokens of each step from the first; empty if every step has ``tokens_per_step``.
    step_tokens: tuple[int, ...] = ()
    #: Mode generate: nanoseconds of the prefill of each step from the first, until the first token
    #: of every sequence is computed, on the worker's clock. Empty in other modes.
    prefill_ns: tuple[int, ...] = ()
    #: Source of the window's place, tokens, audited steps, sampled indices, learning rates and the
    #: share of replayed steps (``llmb.records.draws``). The first repeat has the run's own nonce.
    nonce: str | None = Field(default=None, pattern=NONCE)
    #: sha256 over the samples of the gradients, or logits, of each step from the first, as reported
    #: in the pause of the next step; steps after STOP included. Empty if no step is replayed.
    commitments: tuple[Sha256, ...] = ()
    #: sha256 over the loss and the sampled elements of all parameters, as the worker read the
    #: values at each fence and reported the digest (``evidence/repeat-<n>/fences.safetensors``).
    fence_bits: tuple[Sha256, ...] = ()
    #: None if the worker ended before an answer.
    tail: Tail | None = None
    #: The stops of the clock, one for each judged step. Empty by rules 3 and older.
    stops: tuple[Stop, ...] = ()
    #: None without ``--timestamp``, or if the authority gave no token in time.
    time_stamps: TimeStamps | None = None

    @property
    def stamp(self) -> Stamp | None:
        """The time stamp that was mixed into the draws, None without a time stamp."""
        found = self.time_stamps
        return None if found is None else Stamp(found.start_sha256, found.mixed_from)

    def nonce_at(self, step: int) -> str | None:
        """Return the nonce that ``step`` was drawn from, None by rules 2 and older."""
        return None if self.nonce is None else nonce_at(self.nonce, self.stamp, step)


class Timing(RepeatTiming):
    """The timing of the median repeat, and the timing of every repeat."""

    clock: str
    #: Index of the repeat with the median throughput, which the fields above are copied from.
    headline_repeat: int
    repeats: tuple[RepeatTiming, ...]


class StepTime(Frozen):
    """Statistics of the time one step takes, in seconds; ``cv`` is deviation over mean."""

    median: float
    p5: float
    p95: float
    cv: float


class Mfu(Frozen):
    """Model FLOP/s over a datasheet peak, and the source of the peak."""

    value: float
    peak_flops: float
    peak_source: str


class Energy(Frozen):
    """Energy of the timed window, and the method of measurement."""

    joules: float
    tokens_per_joule: float
    source: Literal["counter", "sampled", "estimated"]
    scope: Literal["device", "package", "node"]


class Metric(Frozen):
    """A number that a workload adds, with the formula. Example: time to first token."""

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
    #: None in the modes forward and generate.
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
    """The duration of a run, as estimated before the run and as measured."""

    estimated_s: float = Field(gt=0)
    #: From the command to the record, the measurement for the estimate included.
    real_s: float = Field(gt=0)
    #: Time limit in seconds for which the workload's size was chosen; None for a named workload.
    within_s: float | None = None
    #: Inputs of the estimate: rates, and seconds to start a process with torch.
    rates: Rates
    start_s: float = Field(gt=0)


class Interruption(Frozen):
    """The cause of an early end, and the files for `llmb audit --resume` to finish the audit."""

    #: The name of a signal, such as SIGTERM, or the message of a failure.
    by: str
    #: In words, such as "in the honest run".
    phase: str
    #: The first repeat with an unfinished audit or window, counted from 0.
    repeat: int = Field(ge=0)
    #: Number of requested repeats; the record has the repeats with a complete window.
    repeats: int = Field(ge=1)
    #: sha256 of each file of the worker's evidence, by path in the run directory, if the
    #: audit of the repeat can be finished.
    evidence: dict[str, str] = Field(default_factory=dict)
    #: Files of whole weights in the folder ``unfinished`` of the run directory, with digests.
    weights: dict[str, str] = Field(default_factory=dict)
    #: Time when `llmb audit --resume` finished the audit; None for an unfinished audit.
    resumed_utc: str | None = None

    @property
    def text(self) -> str:
        """The early end, as one of the reasons why the run is no official run."""
        of = f"repeat {self.repeat + 1} of {self.repeats}, " if self.repeats > 1 else ""
        later = "" if self.resumed_utc is None else "; its audit was finished afterwards"
        return f"ended early ({of}{self.phase}: {self.by}{later})"


class ModelDiff(Frozen):
    """Changes of the module tree by post-processing."""

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
    """Changes by the plugin; the readable forms are ``*.diff`` beside the record."""

    model: ModelDiff
    settings: tuple[SettingChange, ...]
    #: Files of llmb that differ from the release, None without a release to compare with.
    sources: tuple[str, ...] | None
    sources_base: str


class RunRecord(JsonFile):
    """One run of llmb."""

    schema_: Literal["llmb.run/1"] = Field(alias="schema", default=SCHEMA)
    run_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    created_utc: str
    llmb_version: str
    rules_version: str
    reference_digest: str
    class_: RunClass = Field(alias="class")
    waivers: tuple[str, ...]
    config: RunConfig
    #: The third party's commitment to ``config.seed`` before the run, None without a commitment.
    seed_commitment: SeedCommitment | None = None
    #: The bundle that the run repeats, None for a run that repeats no bundle.
    reproduction_of: ReproductionOf | None = None
    workload: WorkloadFacts
    plugin: PluginFacts
    topology: Topology
    #: None in a run of one rank, and in records of before 2026-11-27.
    interconnect: Interconnect | None = None
    system: SystemDescription
    precision: PrecisionFacts
    #: Measured precision of each matrix product; None if no probe measured products.
    precision_recipe: PrecisionRecipe | None = None
    timing: Timing
    ceilings: Ceilings | None
    batch_size_search: SearchLog | None
    #: Estimated and real duration of an official training run on a processor; None otherwise.
    duration: Duration | None = None
    #: How each kind of process was started: ``forked`` by the fork server, or ``spawned`` and why;
    #: None in records before version 0.2.0.
    processes: dict[str, str] | None = None
    result: Result
    #: Cause of an early end; None for a complete run.
    interruption: Interruption | None = None
    #: Plain sentences on noise and variation, for a reader.
    warnings: tuple[str, ...]
    audit: Audit
    diff: Diff

    @property
    def hardware(self) -> str:
        """The device of the run, as named in the record. Example: ``NVIDIA H100``."""
        device, system = self.config.device, self.system
        named = {each.name: each.description for each in system.devices}
        of_cpu = system.cpu.model if device == "cpu" else None
        return of_cpu or named.get(device) or device
