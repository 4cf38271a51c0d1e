"""What a worker writes down for others to judge: the files under ``evidence/`` of a run."""

from __future__ import annotations

from llmb.config import Frozen
from llmb.records.run_record import ClosedComponent, DeclaredPatch, FileDigest

EVIDENCE_FOLDER = "evidence"
#: File names within ``evidence/repeat-<n>/``.
OPTIMIZER, WEIGHTS, MODEL, SETTINGS, PLUGIN, FENCES, PROGRAM = (
    "optimizer.json",
    "weights.json",
    "model.json",
    "settings.json",
    "plugin.json",
    "fences.safetensors",
    "program.txt",  # only from devices that record a step and run it later
)


def path(repeat: int, name: str) -> str:
    """Return where evidence ``name`` of a repeat lies within a run directory or bundle."""
    return f"{EVIDENCE_FOLDER}/repeat-{repeat}/{name}"


class ParameterGroup(Frozen):
    """One group of the optimizer, as it stood after the last step."""

    parameters: int
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    amsgrad: bool
    maximize: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool


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
    closed_components: tuple[ClosedComponent, ...]
    declared_patches: tuple[DeclaredPatch, ...]


Evidence = OptimizerEvidence | WeightsEvidence | ModelEvidence | SettingsEvidence | PluginEvidence
