"""What a run was done with, or would be done with here: software, plugin and machine."""

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
    """A plugin, down to the digests of its files."""

    name: str
    distribution: str
    version: str
    #: Path -> sha256 of those files that the original run had loaded, where they are there.
    files: Mapping[str, str]
    #: Every option with its value; None where the plugin could not be asked.
    options: Mapping[str, OptionValue] | None
    #: Names of the environment variables that it sets itself.
    variables: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Conditions:
    """Everything about a run but its configuration that may change its speed."""

    llmb: str
    rules: str
    #: Digest of the reference, and the family of models that is run with it.
    reference: str
    family: str
    #: None: it is not installed.
    plugin: PluginState | None
    system: SystemDescription
    #: None: not known without the plugin.
    hardware: HardwareClass | None
    #: False: what the plugin says of drivers and libraries is not known.
    has_drivers: bool = True


def of_record(record: RunRecord) -> Conditions:
    """Return what the run of ``record`` was done with."""
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
