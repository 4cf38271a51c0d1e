"""Differences between the conditions of two runs, one line each, with a command as remedy.

Example: ``torch: 2.13.0 there, 2.12.1 here; to come closer: pip install torch==2.13.0``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llmb.records import references
from llmb.records.printable import few
from llmb.reproduction.conditions import Conditions, PluginState
from llmb.reproduction.install import install_hint

_NOT_HERE, _NOT_KNOWN = "not installed", "not known"
_SHOWN_FILES = 3


@dataclass(frozen=True)
class Difference:
    """One difference, and the remedy if known."""

    subject: str
    there: str
    here: str
    #: Command or action against the difference, such as ``unset OMP_NUM_THREADS``; None: unknown.
    closer: str | None = None

    def __str__(self) -> str:
        """Return the difference as one line of text."""
        line = f"{self.subject}: {self.there} there, {self.here} here"
        return f"{line}; to come closer: {self.closer}" if self.closer else line


def differences(there: Conditions, here: Conditions) -> tuple[Difference, ...]:
    """Return the differences between the original's conditions and the conditions here."""
    return (*_software(there, here), *_plugin(there, here), *_machine(there, here))


def _software(there: Conditions, here: Conditions) -> Iterator[Difference]:
    install = install_hint("llmb", there.llmb)
    if there.llmb != here.llmb:
        yield Difference("llmb", there.llmb, here.llmb, install)
    if there.rules != here.rules:
        yield Difference("rules", there.rules, here.rules, install)
    if references.table().reasons(there.family, there.reference, here.reference) is None:
        closer = install if there.llmb != here.llmb else None
        yield Difference("reference", there.reference[:12], here.reference[:12], closer)
    ours, theirs = here.system, there.system
    if ours.torch != theirs.torch:
        closer = install_hint("torch", theirs.torch or "")
        yield Difference("torch", theirs.torch or _NOT_KNOWN, ours.torch or _NOT_HERE, closer)
    if ours.python != theirs.python:
        yield Difference("python", theirs.python, ours.python, f"run llmb with {theirs.python}")


def _plugin(there: Conditions, here: Conditions) -> Iterator[Difference]:
    theirs, ours = there.plugin, here.plugin
    assert theirs is not None
    subject = f"plugin {theirs.name}"
    name = f"{theirs.distribution} {theirs.version}"
    closer = install_hint(theirs.distribution, theirs.version)
    closer = closer or f"ask who submitted it for {theirs.distribution!r} {theirs.version!r}"
    if ours is None:
        yield Difference(subject, name, _NOT_HERE, closer)
        return
    if (theirs.distribution, theirs.version) != (ours.distribution, ours.version):
        yield Difference(subject, name, f"{ours.distribution} {ours.version}", closer)
        more = closer
    else:
        more = "compare them with the bundle's folder plugin/"
    yield from _files(theirs, ours, more)
    if ours.options is not None and theirs.options is not None:
        for option, value in ours.options.items():
            if option not in theirs.options:
                give = f"-O {option}=VALUE, if the plugin there did as if it had one"
                yield Difference(f"plugin option {option}", "none", str(value), give)


def _files(theirs: PluginState, ours: PluginState, closer: str) -> Iterator[Difference]:
    other = sorted(path for path in theirs.files if ours.files.get(path) != theirs.files[path])
    if not other:
        return
    missing = sum(path not in ours.files for path in other)
    shown = few(other, _SHOWN_FILES) + (f"; {missing} missing" if missing else "")
    here = f"the same but for {len(other)} ({shown})"
    yield Difference("plugin files", str(len(theirs.files)), here, closer)


def _machine(there: Conditions, here: Conditions) -> Iterator[Difference]:
    theirs, ours = there.system, here.system
    if here.hardware is None:
        yield Difference("device", str(there.hardware), "not known without the plugin")
    elif here.hardware != there.hardware:
        yield Difference("device", str(there.hardware), str(here.hardware))
    if ours.devices and len(theirs.devices) != len(ours.devices):  # empty: no answer
        yield Difference("devices in the machine", str(len(theirs.devices)), str(len(ours.devices)))
    if here.has_drivers:
        for name, value in _unequal(theirs.drivers, ours.drivers):
            yield Difference(name, value or "none", ours.drivers.get(name, "none"))
    cpu = [f"{c.model}, {c.usable_cores} usable cores" for c in (theirs.cpu, ours.cpu)]
    named = there.hardware is not None and there.hardware.kind == "cpu"
    if cpu[0] != cpu[1] and not named:
        yield Difference("host processor", cpu[0], cpu[1])
    if theirs.os != ours.os:
        yield Difference("system", theirs.os, ours.os)
    memory = [f"{system.memory.total_bytes / 1e9:.1f} GB" for system in (theirs, ours)]
    if memory[0] != memory[1]:
        yield Difference("memory", memory[0], memory[1])
    yield from _environment(there, here)


def _environment(there: Conditions, here: Conditions) -> Iterator[Difference]:
    theirs, ours = there.system.env, here.system.env
    own = {name for each in (there.plugin, here.plugin) if each for name in each.variables}
    for name, value in _unequal(theirs, ours):
        if name not in own:
            closer = f"set {name}" if value is not None else f"unset {name}"
            yield Difference(
                f"variable {name}", value or "not set", ours.get(name, "not set"), closer
            )


def _unequal(a: Mapping[str, str], b: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Return (name, value in ``a``) of every unequal entry; None: the name is not in ``a``."""
    names = sorted(a.keys() | b.keys())
    return [(name, a.get(name)) for name in names if a.get(name) != b.get(name)]
