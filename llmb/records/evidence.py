"""The worker's evidence, for others to judge: the files under ``evidence/`` of a run."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from llmb.config import NONCE, Frozen
from llmb.records.canonical import canonical_bytes
from llmb.records.run_record import ClosedComponent, DeclaredHelper, DeclaredPatch, FileDigest

EVIDENCE_FOLDER = "evidence"
#: File names within ``evidence/repeat-<n>/``.
OPTIMIZER, WEIGHTS, MODEL, SETTINGS, PLUGIN, FENCES, PROGRAM, TYPES = (
    "optimizer.json",
    "weights.json",
    "model.json",
    "settings.json",
    "plugin.json",
    "fences.safetensors",
    "program.txt",  # only from devices that record a step and run it later
    "types.json",
)
NAMESPACE, LIBRARY, SURROUNDINGS, LITMUS = (
    "namespace.json",
    "library.json",  # of the run, not of a repeat
    "surroundings.json",
    "litmus.json",  # of the run, not of a repeat
)

#: Facts of each rank, in a run with several ranks.
RANKS = "ranks.json"
#: The run that a repeat's evidence belongs to; the supervisor writes the file after the window.
REPEAT = "repeat.json"
#: Precision that each matrix product keeps of the operands (``llmb.records.precision_recipe``).
PAIRS = "pairs.json"


def path(repeat: int, name: str) -> str:
    """Return the path of evidence ``name`` of a repeat in a run directory or bundle."""
    return f"{EVIDENCE_FOLDER}/repeat-{repeat}/{name}"


class RepeatEvidence(Frozen):
    """The run, repeat, window and plugin that the files in the same folder are evidence of.

    The supervisor writes this file, because a worker never learns the place of the window. Runs of
    rules 2 and older have no such file (``llmb.submission.evidence_files``).
    """

    run_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    repeat: int = Field(ge=0)
    seed: int
    nonce: str | None = Field(pattern=NONCE)
    warmup_steps: int = Field(ge=1)
    timed_steps: int = Field(ge=1)
    plugin: str
    #: ``plugin_digest`` of the plugin's files.
    plugin_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


def plugin_digest(files: Iterable[FileDigest]) -> str:
    """Return the sha256 over the canonical JSON object path -> sha256 of a plugin's ``files``."""
    return hashlib.sha256(canonical_bytes({file.path: file.sha256 for file in files})).hexdigest()


class ParameterGroup(Frozen):
    """One parameter group of the optimizer, after the last step."""

    parameters: int
    lr: float
    #: Of AdamW alone, like ``amsgrad`` and ``capturable``; the three fields after are SGD's.
    betas: tuple[float, float] | None = None
    eps: float | None = None
    weight_decay: float
    amsgrad: bool = False
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    maximize: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool = False


class OptimizerEvidence(Frozen):
    """The optimizer's class, parameters, constants and number of steps (rule O1)."""

    class_name: str
    class_is_torchs: bool
    #: ``type(optimizer).step`` is the function torch had before any plugin code was imported.
    step_is_torchs: bool
    #: Callables set on the instance, which would shadow methods of the class.
    instance_overrides: tuple[str, ...]
    step_hooks: int
    trainable: int
    missing: tuple[str, ...]
    repeated: tuple[str, ...]
    groups: tuple[ParameterGroup, ...]
    steps_expected: int
    #: Smallest and largest step counter over all parameters; None without optimizer state.
    steps_min: int | None
    steps_max: int | None
    #: Steps skipped by a gradient scaler, not included in ``steps_expected``.
    skipped: int = Field(default=0, ge=0)


class ParameterDigest(Frozen):
    """One parameter: name, shape, dtype, and the sha256 of the bytes in row-major order."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    sha256: str


class WeightsEvidence(Frozen):
    """Every parameter before and after post-processing (rule W1)."""

    pristine: tuple[ParameterDigest, ...]
    processed: tuple[ParameterDigest, ...]
    #: Stored parameters that hold padding besides canonical values, as the plugin declares them.
    padding: tuple[str, ...] = ()
    #: Canonical parameters not found; stored parameters that hold no canonical parameter and are
    #: not declared; stored parameters that are not trained, declared padding aside.
    missing: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    #: Elements of all stored, and of all found canonical parameters; None in old records.
    stored_elements: int | None = None
    canonical_elements: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Element count of each parameter before post-processing, in the model's own order."""
        return {one.name: math.prod(one.shape) for one in self.pristine}


class ModelEvidence(Frozen):
    """The module tree before and after post-processing: path -> class and own parameters."""

    before: dict[str, str]
    after: dict[str, str]


class SettingsEvidence(Frozen):
    """Torch's settings and the environment, before the plugin is loaded and after the hooks."""

    before: dict[str, str]
    after: dict[str, str]


class PluginEvidence(Frozen):
    """The loaded files of the plugin (rule S1), and the plugin's declarations."""

    files: tuple[FileDigest, ...]
    #: Paths of files with executed code that differs from the compiled text of the file.
    run_otherwise: tuple[str, ...] = ()
    closed_components: tuple[ClosedComponent, ...]
    declared_patches: tuple[DeclaredPatch, ...]
    declared_helpers: tuple[DeclaredHelper, ...] = ()


#: torch's name of a dtype, such as "bfloat16".
TypeName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")]

_NUMBERS = re.compile(r"(?:bfloat|float|q?u?int|bits)([0-9]+)")


def bits_of_numbers(dtype: str) -> int | None:
    """Return the bits of a value of ``dtype``, None if such values are no operands.

    Integers of more than 8 bits index and count, booleans mask.
    """
    found = _NUMBERS.match(dtype)
    bits = int(found.group(1)) if found else None
    return None if bits is None or ("float" not in dtype and bits > 8) else bits


class OperatorTypes(Frozen):
    """An operator with the types of input and output tensors, and the number of such calls."""

    #: "product": a matrix product. "cast": to a type of 8 bits or fewer. "foreign": an operator
    #: from a library other than torch, so neither name nor types show the computation inside.
    kind: Literal["product", "cast", "foreign"]
    operator: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:]{1,100}$")]
    #: Every type once, in the order of the arguments.
    operands: tuple[TypeName, ...] = Field(max_length=64)
    results: tuple[TypeName, ...] = Field(max_length=64)
    calls: int = Field(ge=1)


class TypesEvidence(Frozen):
    """The tensor types of a training step's operators (rule P2)."""

    #: Operators run by one untimed forward and backward pass, compiled or not, in all threads.
    executed: tuple[OperatorTypes, ...]
    #: Operators in programs that torch.compile made, or took from a cache, in this process.
    compiled: tuple[OperatorTypes, ...]
    #: Frames that torch.compile compiled, and the number of those with unknown operators.
    compiled_frames: int = Field(ge=0)
    unread_frames: int = Field(ge=0)
    #: The reason for an empty ``executed``; None if the step was watched.
    obstacle: str | None = Field(default=None, max_length=300)
    #: Kinds of call beyond those that are listed.
    omitted: int = Field(default=0, ge=0)


#: The owner of a piece of code. "needed": by torch or llmb; "library": by the plugin only; "other":
#: an installed package that nothing requires; "compiler": a product of torch's compilers.
Origin = Literal[
    "python", "llmb", "needed", "library", "plugin", "other", "compiler", "system", "unknown"
]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Replacement(Frozen):
    """A name of torch, llmb or Python that refers to another object than before the plugin."""

    name: str = Field(max_length=500)
    #: "foreign": the earlier object is unknown; the present object is not torch's own code.
    kind: Literal["callable", "kernel", "foreign"]
    dispatch_key: str | None = None
    origin: Origin
    distribution: str | None = None
    #: Module and name of the present object, or the source file of a kernel.
    place: str | None = None
    #: sha256 of the replacement's bytecode, wrapped functions included; None for native code.
    sha256: _Sha256 | None = None


class Library(Frozen):
    """A package that the plugin needs, with the package's imported modules."""

    distribution: str
    version: str | None
    #: Of the list of files and digests (RECORD); None without such a list.
    sha256: _Sha256 | None
    modules: tuple[str, ...]


class Stranger(Frozen):
    """An unexpected object that a step was made of, or that Python or torch called."""

    #: Such as "gradient", "state of the optimizer", "hook of all modules".
    what: str = Field(max_length=100)
    #: Module and name of the object's class, or of the callable.
    type: str = Field(max_length=500)
    origin: Origin
    distribution: str | None = None
    #: The first step with the object, counted from 0, and the number of looks that saw the object.
    first_step: int = Field(ge=0)
    looks: int = Field(ge=1)


class NamespaceEvidence(Frozen):
    """Parts of torch and llmb that changed after the plugin was loaded (rule N1)."""

    #: Number of compared names, and of compared operators.
    callables: int = Field(ge=0)
    operators: int = Field(ge=0)
    replaced: tuple[Replacement, ...]
    #: Kernels for devices other than the CPU, for operators without a kernel of torch's own.
    device_kernels: int = Field(ge=0)
    libraries: tuple[Library, ...]
    strangers: tuple[Stranger, ...] = ()


class LibraryBaseline(Frozen):
    """Replacements made by importing the plugin's libraries, without the plugin (rule N1)."""

    imported: tuple[str, ...]
    #: Module -> error of the failed import.
    failed: dict[str, str]
    replaced: tuple[Replacement, ...]


PresenceKind = Literal[
    "thread", "process", "library", "code", "import hook", "gc callback", "tracer"
]


class Presence(Frozen):
    """Something in or beside the worker that appeared after the plugin was loaded."""

    kind: PresenceKind
    name: str = Field(max_length=500)
    origin: Origin
    distribution: str | None = None


class Act(Frozen):
    """A Python audit event (PEP 578) caused by a line of code outside torch."""

    #: Example: "sys.setprofile".
    event: str = Field(max_length=100)
    #: File, line and function.
    place: str = Field(max_length=500)
    origin: Origin
    distribution: str | None = None
    count: int = Field(ge=1)
    #: Blocks between fences with such an event, each by the number of steps before the block; -1:
    #: before the first fence.
    blocks: tuple[int, ...] = Field(max_length=10_000)
    #: True: llmb had asked for readings at a fence.
    invited: bool = False


class ThreadSeen(Frozen):
    """A thread that appeared after the plugin was loaded, at the fences of the stream."""

    name: str = Field(max_length=500)
    origin: Origin
    distribution: str | None = None
    #: Numbers of steps before the first and the last fence at which the thread existed.
    first: int = Field(ge=0)
    last: int = Field(ge=0)
    #: Between both fences: CPU time of the thread (None if the system does not report CPU time)
    #: and elapsed time, both in seconds.
    cpu_s: float | None = Field(ge=0)
    wall_s: float = Field(ge=0)


class SurroundingsEvidence(Frozen):
    """Changes in the worker's process state after the plugin was loaded (rule N2)."""

    found: tuple[Presence, ...]
    #: Libraries that the loader was told to load before all others, such as by LD_PRELOAD.
    preloaded: tuple[Presence, ...]
    #: Python's garbage collector: number of frozen objects, and enabled or not, before and after.
    frozen_objects: tuple[int, int]
    collecting: tuple[bool, bool]
    native_threads: tuple[int, int] | None
    #: Audit events during the stream, and the number of events not listed here.
    acts: tuple[Act, ...] = ()
    acts_omitted: int = Field(default=0, ge=0)
    threads: tuple[ThreadSeen, ...] = ()
    #: Files of the plugin, or of packages that it brings, which every Python process runs when it
    #: starts. Example: sitecustomize.py.
    at_start: tuple[Presence, ...] = ()
    #: CPU seconds so far, by the number of steps before each fence: of all child processes, and of
    #: ended threads.
    children_cpu_s: dict[int, float] = Field(default_factory=dict, max_length=100_000)
    ended_threads_cpu_s: dict[int, float] = Field(default_factory=dict, max_length=100_000)


class LitmusEvidence(Frozen):
    """The internal width of the device's matrix products, shown by special sums (rule P3)."""

    dtype: str
    #: A product of ones over ``length`` elements; ``length`` itself if no count was lost.
    length: int
    ones: float
    #: Smallest sum of ``big + 1 - big`` in several orders; the operands cannot hold ``big + 1``.
    big: float
    kept: float
    #: Significant bits that an operand keeps on its way into the product.
    operand_bits: int


class RankEvidence(Frozen):
    """One rank, as measured by the rank's own worker."""

    rank: int
    #: First 12 hex digits of the sha256 of the host name.
    host: str
    device: str
    peak_memory_bytes: int | None
    #: The rank's own clock at each fence, not comparable with clocks of other ranks.
    fence_ns: tuple[int, ...]
    #: Seconds of a step without communication, the median of three;
    #: None if the ranks share parameters, because no rank can then make a step alone.
    alone_s: float | None


class CollectiveEvidence(Frozen):
    """One kind of communication of rank 0 in one step, counted in an untimed step."""

    kind: str
    calls: int
    #: Bytes that the rank put in, all calls together.
    bytes: int


class RanksEvidence(Frozen):
    """Every rank of the run, in order, and the communication of rank 0 in a step."""

    ranks: tuple[RankEvidence, ...]
    collectives: tuple[CollectiveEvidence, ...]
    #: The communication library, by torch.distributed's names: nccl, xccl, gloo, ...
    library: str | None = None
