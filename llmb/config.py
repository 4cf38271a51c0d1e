"""What a run is asked to do: frozen values, and the few facts llmb reads from its environment.

``RunRequest`` is what the user typed (None means "choose for me"); ``RunConfig`` is what is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from llmb.formats import Format, PrecisionClass, checked, class_of

#: A training run with fewer timed steps is a debug run (rules.md); of the other modes, one with
#: fewer calls or samples than their documents take.
OFFICIAL_TIMED_STEPS, OFFICIAL_TIMED_CALLS = 50, 10
OFFICIAL_WORKLOAD = "llama-1.4b"

#: Device of a request that names none, as a plugin's hooks see it until one is settled.
AUTO_DEVICE = "auto"

OptionValue = bool | int | float | str
ShapeName = Literal[
    "sequence_length",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
]


#: A user's own model: its family, and the sizes that are not the family's own defaults.
Definition = Mapping[str, int | float | str | None]


class Mode(str, Enum):
    """What one step does."""

    #: Forward, backward, optimizer.
    TRAIN = "train"
    #: Forward alone.
    FORWARD = "forward"
    #: One token after another.
    GENERATE = "generate"

    @property
    def official_steps(self) -> int:
        """Timed steps of an official run, at least."""
        return OFFICIAL_TIMED_STEPS if self is Mode.TRAIN else OFFICIAL_TIMED_CALLS


#: What runs the model's Python code, and how torch's compiler is asked to.
Executor = Literal["eager", "inductor", "thunder"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
#: What the executor thunder goes with: the pairs that were run.
THUNDER = (
    "lightning-thunder 0.2.6 goes with torch 2.9.1 or 2.13.0: "
    "pip install lightning-thunder==0.2.6 torch==2.13.0"
)
#: What the executor is given in mode generate: the model, or one token's step with the sampler.
GenerateScope = Literal["model", "step"]


class AuditMode(str, Enum):
    """How closely a run is looked at; what is left out is never passed."""

    #: Every rule.
    FULL = "full"
    #: Every blocking rule; no census of types, no borders of narrower formats.
    QUICK = "quick"
    #: Nothing beyond what every run records: a debug run.
    OFF = "off"


class Frozen(BaseModel):
    """A value: immutable, and nothing beyond its declared fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Precision(Frozen):
    """A numeric format a run can be done in."""

    name: str
    #: Bits of one stored operand: a run counts as done in the lowest number used anywhere.
    bits: int = Field(gt=0)
    #: torch's name of the dtype the model is cast to, such as "bfloat16".
    dtype: str
    #: True: weights, gradients and moments are kept in float32, and the plugin's post-processing
    #: computes in the narrower format (autocast, FP8 modules).
    master_weights: bool = False
    #: True where the hardware computes in the format, False where torch emulates it.
    native: bool = True
    #: "FP32" where matrix products and attention take the format's values, compute in float32 and
    #: round the result once, as a processor without 16-bit instructions does fastest. None: they
    #: compute in the format.
    products: Literal["FP32"] | None = None
    #: Numbers of a format that llmb does not know (``llmb.formats``): without, nobody can judge it.
    format: Format | None = None

    _is_what_its_name_says = model_validator(mode="after")(checked)

    @property
    def judged_as(self) -> PrecisionClass | None:
        """What the audit holds a run in it to; None where nobody knows what it computes."""
        return class_of(self.name, self.format)

    @property
    def is_slow(self) -> bool:
        """Tell whether a device emulates the format number by number, 30 times slower than FP32."""
        return not self.native and self.products is None

    @property
    def computing(self) -> Precision:
        """The format that matrix products compute in, which a ceiling is measured in."""
        return FP32 if self.products == FP32.name or self.is_slow else self

    @property
    def described(self) -> str:
        """The name, and how products are computed where that is in another format."""
        return self.name if self.products is None else f"{self.name} (products in {self.products})"

    @property
    def stored_dtype(self) -> str:
        """Torch's name of the dtype of the weights."""
        return "float32" if self.master_weights else self.dtype

    @property
    def bytes_per_value(self) -> int:
        """Bytes of one stored weight, gradient or optimizer moment."""
        return {"float32": 4, "float64": 8}.get(self.stored_dtype, 2)


class Refused(Frozen):
    """A numeric format that is not offered here, and why: what a user who asks for it is told."""

    name: str
    reason: str


FP32 = Precision(name="FP32", bits=32, dtype="float32")
TF32 = Precision(name="TF32", bits=19, dtype="float32")
FP16 = Precision(name="FP16", bits=16, dtype="float16")
BF16 = Precision(name="BF16", bits=16, dtype="bfloat16")


#: The order in which the stages of a pipeline take their micro-batches: torch's names.
Schedule = Literal[
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
]
#: Each rank has the first stage of one half and the last of the other, so that the way back begins
#: where the way there ends; two stages a rank; gradients of inputs and of weights at two times.
V_SHAPED = frozenset({"ZBVZeroBubble", "DualPipeV"})
TWO_STAGED = V_SHAPED | {"Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"}
SPLITS_BACKWARD = V_SHAPED | {"InterleavedZeroBubble"}


class Parallelism(Frozen):
    """The mesh of ranks, in torch.distributed's words."""

    dp_replicate: int = Field(default=1, ge=1)
    dp_shard: int = Field(default=1, ge=1)
    tp: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    #: A shard's parameters are gathered once more for the backward pass (ZeRO's stage 3), and not
    #: kept from the forward pass (stage 2).
    reshard_after_forward: bool = True
    #: The ranks of ``tp`` share the sequence where blocks meet, and the words of the logits.
    sequence_parallel: bool = False
    loss_parallel: bool = False
    #: Of a pipeline; nothing without one.
    schedule: Schedule = "1F1B"

    @property
    def stages(self) -> int:
        """Consecutive parts that a replica's layers are cut into."""
        return self.pp * (2 if self.pp > 1 and self.schedule in TWO_STAGED else 1)

    def rank_of(self, stage: int) -> int:
        """Return which rank of the pipeline has ``stage``."""
        if self.schedule in V_SHAPED and stage >= self.pp:
            return 2 * self.pp - 1 - stage
        return stage % self.pp

    @property
    def world_size(self) -> int:
        """Number of ranks of the mesh."""
        return self.dp_replicate * self.dp_shard * self.tp * self.pp

    @property
    def is_shared(self) -> bool:
        """Tell whether no rank has the whole model: sharded, sliced or in stages."""
        return self.world_size > self.dp_replicate

    @property
    def replicas(self) -> int:
        """Parts of a step's sequences, each of which other ranks take."""
        return self.dp_replicate * self.dp_shard


class RankAddress(Frozen):
    """One of the ranks, and where they meet."""

    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    local_rank: int = Field(ge=0)
    local_world_size: int = Field(ge=1)
    host: str
    port: int = Field(ge=1, le=65535)
    #: The store at ``host`` is the launcher's own; otherwise rank 0 opens it.
    store_is_there: bool = False

    @property
    def leads(self) -> bool:
        """Tell whether this is rank 0, which owns clock, seeds and record."""
        return self.rank == 0


class DataSource(Frozen):
    """Real data that tokens are drawn from: where they are, and what pins them."""

    #: Absolute: the prefix of a pair of indexed files, a list of such pairs, or a text.
    path: str
    kind: Literal["indexed", "file-list", "text"]
    #: Of a text: "bytes", or the absolute path of a tokenizer.json.
    tokenizer: str | None = None
    #: Digest of what decides the tokens; where the files are does not count.
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    #: Tokens of all files together.
    tokens: int = Field(ge=1)


class WeightsSource(Frozen):
    """A checkpoint that a model's weights are read from."""

    #: Absolute: a folder of safetensors files and a config.json.
    path: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


#: What llmb draws follows from so many hexadecimal digits (``records.draws``).
NONCE = r"^[0-9a-f]{32}$"


class Choices(Frozen):
    """How a step is computed and what it is given, as asked for and as run."""

    executor: Executor = "eager"
    compile_mode: CompileMode = "default"
    #: Sequences of another length in each step.
    dynamic: bool = False
    #: Which blocks compute their activations again in the backward pass: "q/p", or "op".
    sac_freq: str | None = None
    #: In mode generate alone; None in a request: as the workload's original does.
    generate_scope: GenerateScope | None = None
    prompt_length: int | None = Field(default=None, ge=1)
    new_tokens: int | None = Field(default=None, ge=2)
    #: The same prompt in every sample; random ones where there is none.
    prompt_tokens: tuple[int, ...] = ()
    #: None: uniformly random tokens, weights that follow from the seed.
    data: DataSource | None = None
    weights: WeightsSource | None = None
    #: What llmb drew for a recorded run, which is done again; None: drawn afresh. No child sees it.
    nonce: str | None = Field(default=None, pattern=NONCE)
    #: Every step has the workload's own learning rate.
    constant_rate: bool = False


#: A compiler is done after a few; every step from the first is replayed (rule L1).
MOST_WARMUP_STEPS = 20
#: Timed steps of an official training, unless its window is shorter than twice the least: with what
#: lies around the window rule L1 compares 80 steps.
MOST_TIMED_STEPS = 60


class RunRequest(Choices):
    """What the user asked for; None where llmb chooses."""

    workload: str = OFFICIAL_WORKLOAD
    #: What ``workload`` is where it is none of llmb's own.
    definition: Definition | None = None
    #: None: the workload's own.
    mode: Mode | None = None
    plugin: str | None = None
    plugin_options: Mapping[str, str] = {}
    device: str | None = None
    precision: str | None = None
    #: None: 1 on a CPU, a search on an accelerator. "auto": a search.
    batch_size: int | Literal["auto"] | None = None
    #: Parts of a step's batch whose gradients are accumulated; the micro-batches of a pipeline.
    accumulate: int = Field(default=1, ge=1)
    #: Autocast over float32 weights. None: as the workload's original does, where it can be done.
    mixed_precision: bool | None = None
    #: None: drawn afresh, so that nobody can prepare for the tokens.
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    warmup_steps: int | None = Field(default=None, ge=1, le=MOST_WARMUP_STEPS)
    #: None: as many as an official run of the mode has.
    timed_steps: int | None = Field(default=None, ge=1)
    repeats: int = Field(default=1, ge=1)
    shape_overrides: Mapping[ShapeName, int] = {}
    #: None: full for an official run, quick for a debug run.
    audit: AuditMode | None = None
    #: Trace one more step, untimed.
    profile: bool = False
    #: The mesh of ranks, and how long each waits for another, in seconds.
    parallelism: Parallelism = Parallelism()
    rank_timeout_s: float = Field(default=600.0, gt=0)
    #: Seconds: the workload is then the largest official size of the fixed model whose whole run is
    #: estimated to end within them. None: the workload was named.
    within_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _batch_size_is_positive(self) -> RunRequest:
        if isinstance(self.batch_size, int) and self.batch_size < 1:
            raise ValueError("batch_size must be at least 1")
        return self


class RunConfig(Choices):
    """The fully resolved run: the same llmb, plugin and machine do the same work again."""

    workload: str
    definition: Definition | None = None
    mode: Mode
    plugin: str
    #: Every option of the plugin, resolved.
    plugin_options: Mapping[str, OptionValue]
    device: str
    precision: Precision
    #: Sequences a step takes on each device, all that are accumulated together.
    batch_size: int = Field(ge=1)
    accumulate: int = Field(default=1, ge=1)
    #: Forward passes run under autocast to the precision; the weights are float32.
    mixed_precision: bool = False
    #: Model and tokens follow from it. Children are shown the model's part of it only.
    seed: int = Field(ge=0, lt=2**63)
    #: At least this many untimed steps; the record's timing says how many there were.
    warmup_steps: int = Field(ge=1)
    timed_steps: int = Field(ge=1)
    repeats: int = Field(ge=1)
    shape_overrides: Mapping[ShapeName, int] = {}
    audit: AuditMode = AuditMode.FULL
    parallelism: Parallelism = Parallelism()

    @property
    def global_batch_size(self) -> int:
        """Sequences of a step on all devices together."""
        return self.batch_size * self.parallelism.replicas

    @property
    def micro_batch_size(self) -> int:
        """Sequences a device takes at once."""
        return self.batch_size // self.accumulate

    @property
    def parts(self) -> int:
        """Batches that the train loop gives the model in a step: a pipeline splits its own."""
        return 1 if self.parallelism.pp > 1 else self.accumulate

    @property
    def parts_of_all(self) -> int:
        """Batches that all replicas take in a step: one process takes them one after another."""
        return self.parallelism.replicas * self.accumulate


#: Read by OpenMP when it starts.
#: Where a rank leaves the line in which it is interrupted; signals that torchrun sends on.
_LAST_LINE, _RELAYED = "LLMB_LAST_LINE", "TORCHELASTIC_SIGNALS_TO_HANDLE"
_WAITING, _THREADS = "OMP_WAIT_POLICY", "OMP_NUM_THREADS"
#: Read by numpy's OpenBLAS when it is loaded.
_BLAS = "OPENBLAS_NUM_THREADS"


def without_waiting(variables: Mapping[str, str]) -> dict[str, str]:
    """Return ``variables`` without how threads wait: whether they are idle is no result."""
    return {name: value for name, value in variables.items() if name != _WAITING}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let numpy, where it is imported inside, multiply in one thread: it starts none then."""
    before = os.environ.get(_BLAS)
    os.environ[_BLAS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BLAS]
        else:
            os.environ[_BLAS] = before


def environment() -> dict[str, str]:
    """Return a copy of the process environment (the one door to it for the rooms below the CLI)."""
    return dict(os.environ)


@contextmanager
def relayed_last_line(file: Path, signals: Iterable[str]) -> Iterator[None]:
    """Let ranks that are started inside leave the line in which they are interrupted in ``file``.

    torchrun, which starts them, sends ``signals`` on to all of them.
    """
    os.environ |= {_LAST_LINE: str(file), _RELAYED: ",".join(signals)}
    try:
        yield
    finally:
        del os.environ[_LAST_LINE], os.environ[_RELAYED]


def last_line_file() -> Path | None:
    """Return where this process leaves the line in which it ends; None: it says that itself."""
    found = os.environ.get(_LAST_LINE)
    return None if found is None else Path(found)


def limit_threads(count: int) -> None:
    """Let child processes compute with ``count`` threads, unless the environment says how many."""
    os.environ.setdefault(_THREADS, str(count))


@contextmanager
def idle_waiting() -> Iterator[None]:
    """Let threads of child processes sleep while they wait for one another, unless told otherwise.

    For work that is not timed: where other programs use the cores too, threads that wait busily
    keep those from running that they wait for (the checks of a plugin took five times as long).
    """
    if _WAITING in os.environ:
        yield
        return
    os.environ[_WAITING] = "passive"
    try:
        yield
    finally:
        os.environ.pop(_WAITING, None)
