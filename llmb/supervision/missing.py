"""Obstacles to a run on this machine, such as a missing driver, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterator

from llmb.config import is_cpu
from llmb.plugin.discovery import source_of
from llmb.supervision.diagnosis import BROKEN, NO_DEVICE, READY, DiagnosedPlugin, Diagnosis

_LITTLE_DISK_BYTES = 10**9
#: A display controller of plain VGA class, for example the console of a server.
_CONSOLE = "class 0300"


def what_is_missing(found: Diagnosis) -> tuple[str, ...]:
    """Return a sentence for every obstacle, the most important first; empty without obstacles."""
    lines = [*_torch(found), *_plugins(found), *_accelerators(found), *found.unmet, *_rest(found)]
    return tuple(dict.fromkeys(lines))


def _torch(found: Diagnosis) -> Iterator[str]:
    torch = found.torch
    if torch.error is not None and torch.importable_alone:
        named = [e for e in torch.extensions if f"extension: {e.name}." in torch.error]
        packages = ", ".join(f"{e.name} ({e.distribution})" for e in named or torch.extensions)
        yield (
            f"import torch fails in an extension that it loads by itself: {packages}. Reinstall or "
            "remove that package, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to do without it "
            f"({torch.error})"
        )
    elif torch.error is not None and torch.installed is None:
        yield "torch is not installed: pip install torch, or your vendor's build of it"
    elif torch.error is not None:
        yield f"torch {torch.installed} cannot be imported: reinstall it ({torch.error})"
    yield from torch.troubles


def _plugins(found: Diagnosis) -> Iterator[str]:
    for plugin in found.plugins:
        if plugin.state == BROKEN and found.torch.error is None:
            yield f"plugin {plugin.name} ({plugin.distribution}) is broken: {plugin.reason}"
    for name in found.restriction.unknown if found.restriction else ():
        yield f"LLMB_LOAD_PLUGINS names {name!r}, which is not installed: {source_of(name)}"


def _accelerators(found: Diagnosis) -> Iterator[str]:
    torch = found.torch
    if torch.version is None:
        return
    vendors = [p for p in found.plugins if p.state == NO_DEVICE and p.distribution != "llmb"]
    cards = [device for device in found.host.bus if _CONSOLE not in device]
    if torch.accelerators == 0 and torch.accelerator is not None:
        yield (
            f"torch {torch.version} is made for {torch.accelerator!r} and sees no such device: "
            "check the driver, who may open the device, and what the container passes on"
        )
    elif torch.accelerators == 0 and (vendors or cards):
        yield (
            f"torch {torch.version} is made for no accelerator: install the build of torch of your "
            "device's vendor"
        )
    for plugin in vendors:
        yield f"plugin {plugin.name} ({plugin.distribution}) finds no device: {plugin.reason}"
    if cards and not any(map(_is_accelerator, found.plugins)):
        yield f"no plugin drives what is on the PCI bus: {', '.join(cards)}"


def _is_accelerator(plugin: DiagnosedPlugin) -> bool:
    return plugin.state == READY and not is_cpu(plugin.device)


def _rest(found: Diagnosis) -> Iterator[str]:
    for plugin in found.plugins:
        if plugin.official_run is not None:
            yield f"plugin {plugin.name}: {plugin.official_run}"
    if not found.compilers:
        yield "no C++ compiler is found, which torch.compile needs: install g++, or set CXX"
    for place, free in found.host.free_disk_bytes.items():
        if free is not None and free < _LITTLE_DISK_BYTES:
            yield f"only {free / 1e9:.1f} GB of disk are free for {place}: make room"
    if found.llmb.reference_changed:
        names = ", ".join(found.llmb.reference_changed)
        yield f"the reference is not the published one ({names}): reinstall llmb"
