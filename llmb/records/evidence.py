"""What a worker writes down for others to judge: the files under ``evidence/`` of a run."""

from __future__ import annotations

import hashlib
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

#: What each rank was, where there are several.
RANKS = "ranks.json"
#: Which run the evidence of a repeat is of; the supervisor writes it when the window is over.
REPEAT = "repeat.json"
#: What each product keeps of its operands (``llmb.records.precision_recipe``).
PAIRS = "pairs.json"


def path(repeat: int, name: str) -> str:
    """Return where evidence ``name`` of a repeat lies within a run directory or bundle."""
    return f"{EVIDENCE_FOLDER}/repeat-{repeat}/{name}"


class RepeatEvidence(Frozen):
    """Which run, repeat, window and plugin the files beside it are evidence of.

    No worker writes it: a worker does not learn where its window lay. Runs of rules 2 and older
    have none (``llmb.submission.evidence_files``).
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
    """One group of the optimizer, as it stood after the last step."""

    parameters: int
    lr: float
    #: Of AdamW alone, as ``amsgrad`` and ``capturable``; the next three of SGD alone.
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
    """Who stepped, over what, with which constants, how often (rule O1)."""

    class_name: str
    class_is_torchs: bool
    #: ``type(optimizer).step`` is the function torch had before any plugin code was imported.
    step_is_torchs: bool
    #: Callables put on the instance, which would shadow the class's.
    instance_overrides: tuple[str, ...]
    step_hooks: int
    trainable: int
    missing: tuple[str, ...]
    repeated: tuple[str, ...]
    groups: tuple[ParameterGroup, ...]
    steps_expected: int
    #: Smallest and largest step counter over all parameters; None when there is no state at all.
    steps_min: int | None
    steps_max: int | None
    #: Steps that a gradient scaler left out, not among ``steps_expected``.
    skipped: int = Field(default=0, ge=0)


class ParameterDigest(Frozen):
    """One parameter: its form, and the sha256 of its bytes in row-major order."""

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
    #: Canonical parameters that were not found; stored ones that hold none and are not declared;
    #: stored ones that are not trained, declared padding aside.
    missing: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    #: Elements of all stored and of all canonical parameters found; None in old records.
    stored_elements: int | None = None
    canonical_elements: int | None = None


class ModelEvidence(Frozen):
    """The module tree before and after post-processing: path -> class and its own parameters."""

    before: dict[str, str]
    after: dict[str, str]


class SettingsEvidence(Frozen):
    """torch's settings and the environment, before the plugin came in and after its hooks."""

    before: dict[str, str]
    after: dict[str, str]


class PluginEvidence(Frozen):
    """What of the plugin was loaded (rule S1), and what it says of itself."""

    files: tuple[FileDigest, ...]
    #: Paths of those whose code, as it was run, is not what the file's text compiles to.
    run_otherwise: tuple[str, ...] = ()
    closed_components: tuple[ClosedComponent, ...]
    declared_patches: tuple[DeclaredPatch, ...]
    declared_helpers: tuple[DeclaredHelper, ...] = ()


#: torch's name of a dtype, such as "bfloat16".
TypeName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")]

_NUMBERS = re.compile(r"(?:bfloat|float|q?u?int|bits)([0-9]+)")


def bits_of_numbers(dtype: str) -> int | None:
    """Return how many bits a value of ``dtype`` has, None where the values are no operands.

    Integers of more than 8 bits index and count, booleans mask.
    """
    found = _NUMBERS.match(dtype)
    bits = int(found.group(1)) if found else None
    return None if bits is None or ("float" not in dtype and bits > 8) else bits


class OperatorTypes(Frozen):
    """An operator, and the types of the tensors it took and gave in so many calls."""

    #: "cast": to a type of 8 bits or fewer; "foreign": of a library that is not torch, so that its
    #: name does not tell what it does, nor its types what is inside.
    kind: Literal["product", "cast", "foreign"]
    operator: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:]{1,100}$")]
    #: Every type once, in the order of the arguments.
    operands: tuple[TypeName, ...] = Field(max_length=64)
    results: tuple[TypeName, ...] = Field(max_length=64)
    calls: int = Field(ge=1)


class TypesEvidence(Frozen):
    """The types that the operators of a training step have (rule P2)."""

    #: Run by one untimed forward and backward, compiled or not; all threads.
    executed: tuple[OperatorTypes, ...]
    #: In the programs that torch.compile made, or took from a cache, in this process.
    compiled: tuple[OperatorTypes, ...]
    #: Frames that torch.compile compiled, and those of them whose operators are not known.
    compiled_frames: int = Field(ge=0)
    unread_frames: int = Field(ge=0)
    #: Why ``executed`` is empty; None where the step was watched.
    obstacle: str | None = Field(default=None, max_length=300)
    #: Kinds of call beyond those that are listed.
    omitted: int = Field(default=0, ge=0)


#: Whose a piece of code is: "needed" by torch or llmb, "library": by the plugin only, "other": an
#: installed package that nobody asked for, "compiler": a product of torch's compilers.
Origin = Literal[
    "python", "llmb", "needed", "library", "plugin", "other", "compiler", "system", "unknown"
]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Replacement(Frozen):
    """A name of torch, llmb or Python that stands for something else than it did, or should."""

    name: str = Field(max_length=500)
    #: "foreign": nobody saw what stood there before; what stands there is not torch's own code.
    kind: Literal["callable", "kernel", "foreign"]
    dispatch_key: str | None = None
    origin: Origin
    distribution: str | None = None
    #: Module and name of what stands there now, or the source file of a kernel.
    place: str | None = None
    #: Of its Python code, what it wraps included; None where it has none.
    sha256: _Sha256 | None = None


class Library(Frozen):
    """A package that the plugin needs, with the modules of it that were imported."""

    distribution: str
    version: str | None
    #: Of the list of its files and their digests (RECORD); None where there is none.
    sha256: _Sha256 | None
    modules: tuple[str, ...]


class Stranger(Frozen):
    """An object that a step was made of, or that Python or torch called, and should not have."""

    #: Such as "gradient", "state of the optimizer", "hook of all modules".
    what: str = Field(max_length=100)
    #: Module and name of the object's class, or of the callable.
    type: str = Field(max_length=500)
    origin: Origin
    distribution: str | None = None
    #: The step, counted from 0, in which it was first seen, and how many looks saw it.
    first_step: int = Field(ge=0)
    looks: int = Field(ge=1)


class NamespaceEvidence(Frozen):
    """What of torch and llmb is not what it was before the plugin was loaded (rule N1)."""

    #: How many names and operators were compared.
    callables: int = Field(ge=0)
    operators: int = Field(ge=0)
    replaced: tuple[Replacement, ...]
    #: Kernels for other devices than the CPU, where torch itself has none.
    device_kernels: int = Field(ge=0)
    libraries: tuple[Library, ...]
    strangers: tuple[Stranger, ...] = ()


class LibraryBaseline(Frozen):
    """What importing the plugin's libraries, and nothing of the plugin, replaces (rule N1)."""

    imported: tuple[str, ...]
    #: Module -> why it could not be imported.
    failed: dict[str, str]
    replaced: tuple[Replacement, ...]


PresenceKind = Literal[
    "thread", "process", "library", "code", "import hook", "gc callback", "tracer"
]


class Presence(Frozen):
    """Something in or beside the worker that was not there before the plugin was loaded."""

    kind: PresenceKind
    name: str = Field(max_length=500)
    origin: Origin
    distribution: str | None = None


class Act(Frozen):
    """What a line of code that is not torch's had Python do, by the audit event (PEP 578)."""

    #: Example: "sys.setprofile".
    event: str = Field(max_length=100)
    #: File, line and function.
    place: str = Field(max_length=500)
    origin: Origin
    distribution: str | None = None
    count: int = Field(ge=1)
    #: Blocks between fences in which it was done, each by the steps before it; -1: before the
    #: first fence.
    blocks: tuple[int, ...] = Field(max_length=10_000)
    #: llmb had asked for readings at a fence.
    invited: bool = False


class ThreadSeen(Frozen):
    """A thread that was not there before the plugin, at the fences of the stream."""

    name: str = Field(max_length=500)
    origin: Origin
    distribution: str | None = None
    #: Steps before the first and the last fence at which it was there.
    first: int = Field(ge=0)
    last: int = Field(ge=0)
    #: Between these two: its CPU time, None where the system does not tell, and the time that went
    #: by, both in seconds.
    cpu_s: float | None = Field(ge=0)
    wall_s: float = Field(ge=0)


class SurroundingsEvidence(Frozen):
    """What came to the worker's process after the plugin was loaded (rule N2)."""

    found: tuple[Presence, ...]
    #: Libraries that the loader was told to load before all others.
    preloaded: tuple[Presence, ...]
    #: Python's collector: objects set aside from it, and whether it is on, before and after.
    frozen_objects: tuple[int, int]
    collecting: tuple[bool, bool]
    native_threads: tuple[int, int] | None
    #: What was done in the course of the stream, and how much more than is listed.
    acts: tuple[Act, ...] = ()
    acts_omitted: int = Field(default=0, ge=0)
    threads: tuple[ThreadSeen, ...] = ()
    #: CPU seconds so far, by the steps before each fence: of all child processes, and of threads
    #: that have ended.
    children_cpu_s: dict[int, float] = Field(default_factory=dict, max_length=100_000)
    ended_threads_cpu_s: dict[int, float] = Field(default_factory=dict, max_length=100_000)


class LitmusEvidence(Frozen):
    """How wide the device's matrix products are inside, from sums that tell (rule P3)."""

    dtype: str
    #: A product of ones over ``length`` elements; ``length`` itself if no count was lost.
    length: int
    ones: float
    #: Smallest sum of ``big + 1 - big`` in several orders; ``big + 1`` is no value of the operands.
    big: float
    kept: float
    #: Significant bits that an operand keeps on its way into the product.
    operand_bits: int


class RankEvidence(Frozen):
    """One rank, as its own worker saw it."""

    rank: int
    #: First 12 hex digits of the sha256 of the host name.
    host: str
    device: str
    peak_memory_bytes: int | None
    #: Its own clock at each fence: comparable with itself alone.
    fence_ns: tuple[int, ...]
    #: Seconds of a step without a word to the others, the median of three;
    #: None where the ranks share parameters, and none can do it alone.
    alone_s: float | None


class CollectiveEvidence(Frozen):
    """One kind of communication of rank 0 in one step, counted in an untimed one."""

    kind: str
    calls: int
    #: What the rank gave in, all calls together.
    bytes: int


class RanksEvidence(Frozen):
    """Every rank of the run, in order, and what rank 0 says to the others in a step."""

    ranks: tuple[RankEvidence, ...]
    collectives: tuple[CollectiveEvidence, ...]
    #: What they communicated with, in torch.distributed's words: nccl, xccl, gloo, ...
    library: str | None = None
