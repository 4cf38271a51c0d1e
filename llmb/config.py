"""The description of a run: frozen values, and the few facts that llmb reads from its environment.

``RunRequest`` is the user's request (None means "choose for me"). ``RunConfig`` is the resolved
run. Example: a request with ``precision=None`` may become a config with ``precision=BF16``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from llmb.formats import Format, PrecisionClass, checked, class_of

#: A training run with fewer timed steps is a debug run (rules.md). In the other modes, a run with
#: fewer calls or samples is a debug run.
OFFICIAL_TIMED_STEPS, OFFICIAL_TIMED_CALLS = 50, 10
OFFICIAL_WORKLOAD = "llama-1.4b"

#: Device of a request without a device, as a plugin's hooks see the config until llmb has chosen.
AUTO_DEVICE = "auto"

OptionValue = bool | int | float | str
ShapeName = Literal[
    "sequence_length",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
]


#: A user's own model: the family, and the sizes that differ from the family's defaults.
Definition = Mapping[str, int | float | str | None]


class Mode(str, Enum):
    """The kind of work in one step."""

    #: Forward, backward, optimizer.
    TRAIN = "train"
    #: Forward alone.
    FORWARD = "forward"
    #: Token by token, after a prefill.
    GENERATE = "generate"

    @property
    def official_steps(self) -> int:
        """Smallest number of timed steps of an official run."""
        return OFFICIAL_TIMED_STEPS if self is Mode.TRAIN else OFFICIAL_TIMED_CALLS


#: How the model's Python code is executed, and the mode of torch's compiler.
Executor = Literal["eager", "inductor", "thunder"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
#: Versions for the executor thunder: the pairs that were tested.
THUNDER = (
    "lightning-thunder 0.2.6 goes with torch 2.9.1 or 2.13.0: "
    "pip install lightning-thunder==0.2.6 torch==2.13.0"
)
#: Scope of the executor in mode generate: the model, or one token's step with the sampler.
GenerateScope = Literal["model", "step"]


class AuditMode(str, Enum):
    """How closely a run is audited; a rule that was left out never counts as passed."""

    #: Every rule, and rule L1 repeats every step, however long that takes.
    COMPLETE = "complete"
    #: Every rule. Rule L1 repeats a drawn share of the steps if all would take over two minutes.
    FULL = "full"
    #: Every blocking rule; no census of types, no borders of narrower formats.
    QUICK = "quick"
    #: Only the evidence that every run records: a debug run.
    OFF = "off"

    @property
    def has_census(self) -> bool:
        """Whether types are counted, and the borders of narrower formats measured."""
        return self in (AuditMode.COMPLETE, AuditMode.FULL)


class Frozen(BaseModel):
    """An immutable value that refuses undeclared fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class JsonFile(Frozen):
    """The content of a JSON file: ``schema_`` and ``class_`` are ``schema`` and ``class`` there."""

    model_config = ConfigDict(populate_by_name=True)  # the rest is inherited from Frozen


class Precision(Frozen):
    """A numeric format for a run."""

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
    #: "FP32" if matrix products and attention take the format's values, compute in float32 and
    #: round the result once. Example: the fastest way on a processor without 16-bit instructions.
    #: None: products compute in the format.
    products: Literal["FP32"] | None = None
    #: Numbers of a format unknown to llmb (``llmb.formats``): without numbers no rule can judge.
    format: Format | None = None

    _is_what_its_name_says = model_validator(mode="after")(checked)

    @property
    def judged_as(self) -> PrecisionClass | None:
        """Class that the audit judges a run in; None if the format's numbers are unknown."""
        return class_of(self.name, self.format)

    @property
    def is_slow(self) -> bool:
        """Tell whether a device emulates the format number by number, 30 times slower than FP32."""
        return not self.native and self.products is None

    @property
    def computing(self) -> Precision:
        """The format that matrix products compute in, and that a ceiling is measured in."""
        return FP32 if self.products == FP32.name or self.is_slow else self

    @property
    def described(self) -> str:
        """The name, and the format of products if different. Example: BF16 (products in FP32)."""
        return self.name if self.products is None else f"{self.name} (products in {self.products})"

    @property
    def underflows(self) -> bool:
        """Tell whether gradients and moments are kept in float16: numbers below 2^-24 are 0."""
        return self.dtype == "float16" and not self.master_weights

    @property
    def scales_loss(self) -> bool:
        """Tell whether the loss is scaled, so that a step may overflow: FP16 under autocast."""
        return self.master_weights and self.dtype == "float16"

    @property
    def stored_dtype(self) -> str:
        """Torch's name of the dtype of the weights."""
        return "float32" if self.master_weights else self.dtype

    @property
    def bytes_per_value(self) -> int:
        """Bytes of one stored weight, gradient or optimizer moment."""
        return {"float32": 4, "float64": 8}.get(self.stored_dtype, 2)


class Refused(Frozen):
    """A numeric format that is not offered here, and the reason to show a user who asks."""

    name: str
    reason: str


FP32 = Precision(name="FP32", bits=32, dtype="float32")
TF32 = Precision(name="TF32", bits=19, dtype="float32")
FP16 = Precision(name="FP16", bits=16, dtype="float16")
BF16 = Precision(name="BF16", bits=16, dtype="bfloat16")


#: The order in which the stages of a pipeline take micro-batches: torch's names.
Schedule = Literal[
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
]
#: Each rank has two stages, such as the first and the last stage of the model on rank 0: the second
#: half of the stages runs back over the ranks. Input and weight gradients are computed separately.
V_SHAPED = frozenset({"ZBVZeroBubble", "DualPipeV"})
TWO_STAGED = V_SHAPED | {"Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"}
SPLITS_BACKWARD = V_SHAPED | {"InterleavedZeroBubble"}


class Parallelism(Frozen):
    """The mesh of ranks, with the dimension names of torch.distributed."""

    dp_replicate: int = Field(default=1, ge=1)
    dp_shard: int = Field(default=1, ge=1)
    tp: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    #: True: a shard's parameters are gathered once more for the backward pass (ZeRO stage 3).
    #: False: gathered parameters are kept after the forward pass (ZeRO stage 2).
    reshard_after_forward: bool = True
    #: The ranks of ``tp`` share the sequence between blocks, and the vocabulary of the logits.
    sequence_parallel: bool = False
    loss_parallel: bool = False
    #: Order of a pipeline's micro-batches; without effect if ``pp`` is 1.
    schedule: Schedule = "1F1B"

    @property
    def stages(self) -> int:
        """Number of consecutive stages that a replica's layers are cut into."""
        return self.pp * (2 if self.pp > 1 and self.schedule in TWO_STAGED else 1)

    def rank_of(self, stage: int) -> int:
        """Return the pipeline rank of ``stage``. Example: 0 for stage 3, "LoopedBFS" and pp 3."""
        if self.schedule in V_SHAPED and stage >= self.pp:
            return 2 * self.pp - 1 - stage
        return stage % self.pp

    @property
    def world_size(self) -> int:
        """Number of ranks of the mesh."""
        return self.dp_replicate * self.dp_shard * self.tp * self.pp

    @property
    def is_shared(self) -> bool:
        """Tell whether no rank has the full model: sharded, sliced or in stages."""
        return self.world_size > self.dp_replicate

    @property
    def replicas(self) -> int:
        """Number of data-parallel parts that a step's sequences are split into."""
        return self.dp_replicate * self.dp_shard


class RankAddress(Frozen):
    """The address of a rank: numbers of the rank, and the store where ranks meet."""

    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    local_rank: int = Field(ge=0)
    local_world_size: int = Field(ge=1)
    host: str
    port: int = Field(ge=1, le=65535)
    #: True: the launcher has opened the store at ``host``. False: rank 0 opens the store.
    store_is_there: bool = False

    @property
    def leads(self) -> bool:
        """Tell whether this is rank 0, which owns clock, seeds and record."""
        return self.rank == 0


class DataSource(Frozen):
    """Real data that tokens are drawn from: the path, and the digest of the content."""

    #: Absolute: the prefix of a pair of indexed files, a list of such pairs, or a text.
    path: str
    kind: Literal["indexed", "file-list", "text"]
    #: For a text: "bytes", or the absolute path of a tokenizer.json.
    tokenizer: str | None = None
    #: Digest of all content that decides the tokens; paths do not count.
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    #: Tokens of all files together.
    tokens: int = Field(ge=1)


class WeightsSource(Frozen):
    """A checkpoint that a model's weights are read from."""

    #: Absolute: a folder of safetensors files and a config.json.
    path: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


#: Hexadecimal digits of a nonce, from which all that llmb draws follows (``records.draws``).
NONCE = r"^[0-9a-f]{32}$"


class Choices(Frozen):
    """Choices of executor and input data, in the request and in the resolved run."""

    executor: Executor = "eager"
    compile_mode: CompileMode = "default"
    #: True: sequences have another length in each step.
    dynamic: bool = False
    #: Blocks that recompute activations in the backward pass: "q/p" of the blocks, or "op".
    sac_freq: str | None = None
    #: In mode generate alone; None in a request: the scope of the workload's original.
    generate_scope: GenerateScope | None = None
    prompt_length: int | None = Field(default=None, ge=1)
    new_tokens: int | None = Field(default=None, ge=2)
    #: The same prompt in every sample; empty: random prompts.
    prompt_tokens: tuple[int, ...] = ()
    #: None: uniformly random tokens, and weights that follow from the seed.
    data: DataSource | None = None
    weights: WeightsSource | None = None
    #: Nonce of a recorded run to repeat; None: a fresh nonce. No child process sees the nonce.
    nonce: str | None = Field(default=None, pattern=NONCE)
    #: True: every step has the workload's own learning rate.
    constant_rate: bool = False


#: A compiler is done after a few steps; every step from the first is replayed (rule L1).
MOST_WARMUP_STEPS = 20
#: Timed steps of an official training. Together with the steps around the window, rule L1 compares
#: 80 steps.
MOST_TIMED_STEPS = 60


def is_cpu(device: str) -> bool:
    """Tell whether ``device`` is the host processor."""
    return device.partition(":")[0] == "cpu"


class RunRequest(Choices):
    """The user's request; None where llmb chooses."""

    workload: str = OFFICIAL_WORKLOAD
    #: The model of ``workload``, if llmb has no workload of the name.
    definition: Definition | None = None
    #: None: the workload's own.
    mode: Mode | None = None
    plugin: str | None = None
    plugin_options: Mapping[str, str] = {}
    device: str | None = None
    precision: str | None = None
    #: None: 1 on a CPU, a search on an accelerator. "auto": a search.
    batch_size: int | Literal["auto"] | None = None
    #: Number of micro-batches in a step: gradients are accumulated, or a pipeline is filled.
    accumulate: int = Field(default=1, ge=1)
    #: Autocast over float32 weights. None: as the workload's original does, if possible.
    mixed_precision: bool | None = None
    #: None: a fresh seed, so nobody can prepare for the tokens.
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    warmup_steps: int | None = Field(default=None, ge=1, le=MOST_WARMUP_STEPS)
    #: None: the number of an official run of the mode.
    timed_steps: int | None = Field(default=None, ge=1)
    repeats: int = Field(default=1, ge=1)
    shape_overrides: Mapping[ShapeName, int] = {}
    #: None: full for an official run, quick for a debug run.
    audit: AuditMode | None = None
    #: Trace one more step, untimed.
    profile: bool = False
    #: The mesh of ranks, and the longest wait of a rank for another, in seconds.
    parallelism: Parallelism = Parallelism()
    rank_timeout_s: float = Field(default=600.0, gt=0)
    #: Time limit in seconds. The workload is then the largest official size of the fixed model with
    #: an estimated whole run within the limit. None: the user named the workload.
    within_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _batch_size_is_positive(self) -> RunRequest:
        if isinstance(self.batch_size, int) and self.batch_size < 1:
            raise ValueError("batch_size must be at least 1")
        return self


class RunConfig(Choices):
    """The fully resolved run: the same llmb, plugin and machine repeat the same work."""

    workload: str
    definition: Definition | None = None
    mode: Mode
    plugin: str
    #: Every option of the plugin, resolved.
    plugin_options: Mapping[str, OptionValue]
    device: str
    precision: Precision
    #: Sequences of a step on each device, all micro-batches together.
    batch_size: int = Field(ge=1)
    accumulate: int = Field(default=1, ge=1)
    #: Forward passes run under autocast to the precision; the weights are float32.
    mixed_precision: bool = False
    #: Seed of model and tokens. Child processes see only the seed of the model.
    seed: int = Field(ge=0, lt=2**63)
    #: Smallest number of untimed steps; the record's timing has the real number.
    warmup_steps: int = Field(ge=1)
    timed_steps: int = Field(ge=1)
    repeats: int = Field(ge=1)
    shape_overrides: Mapping[ShapeName, int] = {}
    audit: AuditMode = AuditMode.FULL
    parallelism: Parallelism = Parallelism()

    @property
    def global_batch_size(self) -> int:
        """Number of sequences in a step, on all devices together."""
        return self.batch_size * self.parallelism.replicas

    @property
    def micro_batch_size(self) -> int:
        """Number of sequences that a device takes at once."""
        return self.batch_size // self.accumulate

    @property
    def parts(self) -> int:
        """Batches that the train loop gives the model in a step: a pipeline splits the batch."""
        return 1 if self.parallelism.pp > 1 else self.accumulate

    @property
    def parts_of_all(self) -> int:
        """Batches of all replicas in a step, which one process takes one after another."""
        return self.parallelism.replicas * self.accumulate

    @property
    def added_up(self) -> int:
        """Number of gradients that an honest run adds up in the format of the weights.

        The gradients are those of a replica's micro-batches. Gradients of replicas are averaged in
        float32.
        """
        return self.accumulate


#: File for the final line of an interrupted rank, and the signals that torchrun passes on.
_LAST_LINE, _RELAYED = "LLMB_LAST_LINE", "TORCHELASTIC_SIGNALS_TO_HANDLE"
#: The folders in which Python looks for packages.
_PATH = "PYTHONPATH"
#: If 0, ``import torch`` imports no package of the entry point group ``torch.backends``.
AUTOLOADS = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: Read by OpenMP when OpenMP starts.
_WAITING, _THREADS = "OMP_WAIT_POLICY", "OMP_NUM_THREADS"
#: Read by numpy's OpenBLAS when the library is loaded.
_BLAS = "OPENBLAS_NUM_THREADS"


def without_waiting(variables: Mapping[str, str]) -> dict[str, str]:
    """Return ``variables`` without OMP_WAIT_POLICY, which steers idle threads alone."""
    return {name: value for name, value in variables.items() if name != _WAITING}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit numpy, if imported inside, to one BLAS thread: numpy then starts no threads."""
    with _variable(_BLAS, "1"):
        yield


@contextmanager
def torch_alone() -> Iterator[None]:
    """Let ``import torch``, if inside, import no vendor's package (group ``torch.backends``)."""
    with _variable(AUTOLOADS, "0"):
        yield


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def environment() -> dict[str, str]:
    """Return a copy of the process environment, the only access for modules below the CLI."""
    return dict(os.environ)


@contextmanager
def relayed_last_line(file: Path, signals: Iterable[str]) -> Iterator[None]:
    """Let ranks that are started inside write the final line of an interruption into ``file``.

    torchrun starts the ranks, and passes ``signals`` on to all ranks.
    """
    os.environ |= {_LAST_LINE: str(file), _RELAYED: ",".join(signals)}
    try:
        yield
    finally:
        del os.environ[_LAST_LINE], os.environ[_RELAYED]


def last_line_file() -> Path | None:
    """Return the file for the final line of this process; None: the process prints the line."""
    found = os.environ.get(_LAST_LINE)
    return None if found is None else Path(found)


def limit_threads(count: int) -> None:
    """Let child processes compute with ``count`` threads, unless OMP_NUM_THREADS is set."""
    os.environ.setdefault(_THREADS, str(count))


@contextmanager
def packages_in(folder: Path) -> Iterator[None]:
    """Let this process and its child processes find the packages in ``folder``, as by PYTHONPATH.

    Example: the plugin of ``llmb demo``, which is not installed.
    """
    place = str(folder)
    path = os.pathsep.join(filter(None, (place, os.environ.get(_PATH))))
    sys.path.append(place)
    try:
        with _variable(_PATH, path):
            yield
    finally:
        sys.path.remove(place)


@contextmanager
def idle_waiting() -> Iterator[None]:
    """Let waiting threads of child processes sleep, unless OMP_WAIT_POLICY is set.

    For work that is not timed. If other programs use the cores too, busy waiting takes the cores
    from threads with work to do. Example: the checks of a plugin took five times as long.
    """
    if _WAITING in os.environ:
        yield
        return
    os.environ[_WAITING] = "passive"
    try:
        yield
    finally:
        os.environ.pop(_WAITING, None)
