"""What ``llmb doctor`` finds: plain values, for a reader or a machine."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from llmb.config import Frozen, OptionValue
from llmb.plugin.discovery import TorchExtension
from llmb.records.lacks import Lacks
from llmb.records.system import Cpu, Device, HostMemory
from llmb.wire.messages import Offer

#: Says in one word what an offer is worth.
READY, NO_DEVICE, BROKEN = "ready", "no device", "broken"


def state_of(offer: Offer) -> str:
    """Return what an offer is worth: ready, no device, or broken."""
    if offer.available:
        return READY
    return BROKEN if offer.broken else NO_DEVICE


class LlmbState(Frozen):
    """This llmb, and whether its reference is the published one."""

    version: str
    rules_version: str
    reference_digest: str
    #: Files of the reference that are not what is pinned; none of an intact llmb.
    reference_changed: tuple[str, ...]


class HostState(Frozen):
    """The machine, as far as a process may see it."""

    os: str
    python: str
    cpu: Cpu
    memory: HostMemory
    free_disk_bytes: dict[str, int | None]
    #: Limits of the container, as the kernel words them.
    limits: dict[str, str]
    #: PCI devices that may be accelerators, whatever torch sees.
    bus: tuple[str, ...]
    load_1min: float | None


class TorchState(Frozen):
    """The installed torch, or why it cannot be imported."""

    installed: str | None
    version: str | None
    error: str | None
    #: It can be imported where it loads no extensions: then one of them is the culprit.
    importable_alone: bool | None
    import_s: float | None
    build: dict[str, str]
    accelerator: str | None
    accelerators: int
    troubles: tuple[str, ...]
    extensions: tuple[TorchExtension, ...]
    autoload: str | None


class DiagnosedPlugin(Frozen):
    """One installed plugin, and what it said."""

    name: str
    distribution: str
    version: str
    state: str
    reason: str | None
    device: str
    devices: tuple[Device, ...]
    available_memory_bytes: int | None
    #: Formats by name; those that torch only emulates are slow.
    precisions: tuple[str, ...]
    slow: tuple[str, ...]
    #: Those whose products are computed in FP32 and rounded once.
    widened: tuple[str, ...] = ()
    refused: dict[str, str]
    lacks: Lacks = Lacks()
    options: dict[str, OptionValue]
    #: What backend and plugin say of driver, firmware and libraries.
    facts: dict[str, str]
    #: Why the official run does not fit here, None if it does or that is not known.
    official_run: str | None


class Restriction(Frozen):
    """What ``LLMB_LOAD_PLUGINS`` does here."""

    value: str
    left_out: tuple[str, ...]
    unknown: tuple[str, ...]


class Diagnosis(Frozen):
    """Everything ``llmb doctor`` finds, without the places, names and secrets of the machine."""

    model_config = ConfigDict(populate_by_name=True)  # the rest is inherited from Frozen

    schema_: Literal["llmb.doctor/1"] = Field(alias="schema", default="llmb.doctor/1")
    llmb: LlmbState
    host: HostState
    torch: TorchState
    plugins: tuple[DiagnosedPlugin, ...]
    restriction: Restriction | None
    #: What ``llmb run`` would choose and how long that would take, None if nothing.
    choice: str | None
    #: Versions of packages that plugins, torch or llmb itself require, where installed.
    packages: dict[str, str]
    #: Requirements of llmb and of the plugins that are not met, in sentences.
    unmet: tuple[str, ...]
    #: Compilers that torch.compile may use, by name.
    compilers: tuple[str, ...]
    #: Variables that steer torch or its libraries.
    environment: dict[str, str]
    #: What stands in the way, and what to do about it, in sentences.
    missing: tuple[str, ...]
