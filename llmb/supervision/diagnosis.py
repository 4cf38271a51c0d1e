"""The findings of ``llmb doctor`` as plain values, for a reader or a program."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmb.config import Frozen, JsonFile, OptionValue
from llmb.plugin.discovery import TorchExtension
from llmb.records.lacks import Lacks
from llmb.records.system import Cpu, Device, HostMemory
from llmb.wire.messages import Offer

#: The states of an offer.
READY, NO_DEVICE, BROKEN = "ready", "no device", "broken"


def state_of(offer: Offer) -> str:
    """Return the state of an offer: ready, no device, or broken."""
    if offer.available:
        return READY
    return BROKEN if offer.broken else NO_DEVICE


class LlmbState(Frozen):
    """The installed llmb, and the changes from the published reference."""

    version: str
    rules_version: str
    reference_digest: str
    #: Files of the reference with a digest different from the pinned digest; empty if intact.
    reference_changed: tuple[str, ...]


class HostState(Frozen):
    """The properties of the machine visible to a process, such as CPU, memory and limits."""

    os: str
    python: str
    cpu: Cpu
    memory: HostMemory
    free_disk_bytes: dict[str, int | None]
    #: Limits of the container, in the kernel's words.
    limits: dict[str, str]
    #: PCI devices that may be accelerators, including devices unknown to torch.
    bus: tuple[str, ...]
    load_1min: float | None


class TorchState(Frozen):
    """The installed torch, or the error of the import."""

    installed: str | None
    version: str | None
    error: str | None
    #: Torch can be imported without extensions: then an extension is the cause of ``error``.
    importable_alone: bool | None
    import_s: float | None
    build: dict[str, str]
    accelerator: str | None
    accelerators: int
    troubles: tuple[str, ...]
    extensions: tuple[TorchExtension, ...]
    autoload: str | None


class DiagnosedPlugin(Frozen):
    """One installed plugin, and the plugin's answers."""

    name: str
    distribution: str
    version: str
    state: str
    reason: str | None
    device: str
    devices: tuple[Device, ...]
    available_memory_bytes: int | None
    #: Names of the formats, for example BF16; ``slow`` has formats that torch only emulates.
    precisions: tuple[str, ...]
    slow: tuple[str, ...]
    #: Formats with products computed in FP32 and rounded once.
    widened: tuple[str, ...] = ()
    refused: dict[str, str]
    lacks: Lacks = Lacks()
    options: dict[str, OptionValue]
    #: Facts reported by backend and plugin, such as driver, firmware and libraries.
    facts: dict[str, str]
    #: The reason for which the official run does not fit here; None if the run fits, or if unknown.
    official_run: str | None


class Restriction(Frozen):
    """The effect of ``LLMB_LOAD_PLUGINS`` on this machine."""

    value: str
    left_out: tuple[str, ...]
    unknown: tuple[str, ...]


class Diagnosis(JsonFile):
    """All findings of ``llmb doctor``, without the paths, names and secrets of the machine."""

    schema_: Literal["llmb.doctor/1"] = Field(alias="schema", default="llmb.doctor/1")
    llmb: LlmbState
    host: HostState
    torch: TorchState
    plugins: tuple[DiagnosedPlugin, ...]
    restriction: Restriction | None
    #: The choice of ``llmb run`` with the estimated time; None if no run is possible.
    choice: str | None
    #: Versions of packages that plugins, torch or llmb itself require, where installed.
    packages: dict[str, str]
    #: Unmet requirements of llmb and of the plugins, in sentences.
    unmet: tuple[str, ...]
    #: Compilers that torch.compile may use, by name.
    compilers: tuple[str, ...]
    #: Environment variables that steer torch or torch's libraries.
    environment: dict[str, str]
    #: Obstacles to a run, each with a remedy, in sentences.
    missing: tuple[str, ...]
