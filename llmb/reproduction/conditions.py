"""The conditions of a run, recorded or on this machine: software, plugin and hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmb.config import OptionValue
from llmb.records.run_record import RunRecord
from llmb.records.system import SystemDescription
from llmb.reproduction import hardware
from llmb.reproduction.hardware import HardwareClass


@dataclass(frozen=True)
class PluginState:
    """A plugin with version, options and digests of files."""

    name: str
    distribution: str
    version: str
    #: Path -> sha256 of the files loaded by the original run, as far as present.
    files: Mapping[str, str]
    #: Option -> value, all options; None if the plugin gave no answer.
    options: Mapping[str, OptionValue] | None
    #: Names of environment variables set by the plugin, such as ``OMP_NUM_THREADS``.
    variables: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Conditions:
    """Everything besides the configuration with an effect on the speed of a run."""

    llmb: str
    rules: str
    #: Digest of the reference code, and the model family, such as ``gpt2``.
    reference: str
    family: str
    #: None: the plugin is not installed.
    plugin: PluginState | None
    system: SystemDescription
    #: None: unknown without the plugin.
    hardware: HardwareClass | None
    #: False: the plugin reported no versions of drivers and libraries.
    has_drivers: bool = True


def of_record(record: RunRecord) -> Conditions:
    """Return the conditions of the run of ``record``."""
    plugin = record.plugin
    return Conditions(
        llmb=record.llmb_version,
        rules=record.rules_version,
        reference=record.reference_digest,
        family=record.workload.family,
        plugin=PluginState(
            name=plugin.name,
            distribution=plugin.distribution,
            version=plugin.version,
            files={file.path: file.sha256 for file in plugin.files},
            options=plugin.options,
            variables=frozenset(plugin.environment),
        ),
        system=record.system,
        hardware=hardware.of_record(record),
    )
