"""``llmb doctor``: devices, plugins and packages of this machine, for reading or for an issue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from llmb.cli.tables import print_row, wide_option
from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.supervision.diagnosis import DiagnosedPlugin, Diagnosis, TorchState

#: A name and its text.
_Row = tuple[str, str]
_INDENT = 14
#: Most printed characters of a variable's value; ``--json`` has all characters.
_LONGEST = 200


@click.command("doctor", short_help="Show devices and packages here, and missing ones.")
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(wide: bool, as_json: bool) -> None:
    """Show devices, plugins and packages, missing parts, and the size that `llmb run` would take.

    Names of host and user, home, working and temporary folders, and values that look secret are
    left out; read the output before you publish the output. Takes about ten seconds; a minute or
    two if a plugin hangs, and ten minutes if torch hangs. The exit code is 0 even if parts are
    missing.

    \b
    llmb doctor
    llmb doctor --json > doctor.json
    """
    from rich.text import Text

    from llmb.records.canonical import pretty_bytes
    from llmb.supervision.doctor import examine

    found = examine()
    if as_json:
        click.echo(pretty_bytes(found), nl=False)
        return
    for name, text in _lines(found, wide=wide):
        gap = " " if len(name) >= _INDENT else ""
        print_row(Text(printable(name + gap)), printable(text), wide=wide, indent=_INDENT)


def _lines(found: Diagnosis, *, wide: bool) -> Iterator[_Row]:
    changed = ", ".join(found.llmb.reference_changed)
    reference = f"changed: {changed}" if changed else "as published"
    yield _row("llmb", f"{found.llmb.version}, rules {found.llmb.rules_version}")
    yield _row("reference", f"{reference}, digest {found.llmb.reference_digest[:12]}")
    yield _row("python", f"{found.host.python}, {found.host.os} {found.host.cpu.architecture}")
    yield from _host(found)
    yield from _torch(found.torch)
    if found.restriction is not None:
        left_out = ", ".join(found.restriction.left_out) or "nothing"
        yield _row(
            "restricted", f"LLMB_LOAD_PLUGINS={found.restriction.value!r} leaves out {left_out}"
        )
    for plugin in found.plugins:
        yield from _plugin(plugin)
    yield _row("llmb run", f"would take {found.choice}" if found.choice else "finds nothing to use")
    yield _row("compilers", ", ".join(found.compilers) or "none")
    yield _row("packages", _listed(found.packages, " "))
    variables = [
        f"{name}={value if wide else _short(value)}" for name, value in found.environment.items()
    ]
    yield from _rows("environment", variables or ["nothing that steers torch is set"])
    yield _row("", "")
    yield from _rows("missing", found.missing or ["nothing that llmb knows of"])


def _short(value: str) -> str:
    """Return ``value`` shortened for printing; some images have values of 1,600 characters."""
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."


def _host(found: Diagnosis) -> Iterator[_Row]:
    cpu, memory = found.host.cpu, found.host.memory
    cores = f"{cpu.usable_cores} of {cpu.logical_cores} cores usable"
    yield _row("cpu", f"{cpu.model or 'unknown'}, {cores}, load {found.host.load_1min}")
    yield _row("memory", f"{_gb(memory.available_bytes)} free of {_gb(memory.total_bytes)}")
    places = (f"{_gb(free)} for {place}" for place, free in found.host.free_disk_bytes.items())
    yield _row("free disk", ", ".join(places))
    yield _row("limits", _listed(found.host.limits, " ") or "none")
    yield _row("pci", ", ".join(found.host.bus) or "nothing that may be an accelerator")


def _torch(torch: TorchState) -> Iterator[_Row]:
    if torch.version is None:
        yield _row("torch", f"{torch.installed or 'not installed'}, cannot be imported")
    else:
        took = "" if torch.import_s is None else f", imported in {torch.import_s:.1f} s"
        yield _row("torch", f"{torch.version}{took}")
        yield _row("", f"built with {_listed(torch.build, ' ')}")
        made_for = f"for {torch.accelerator!r}" if torch.accelerator else "for no accelerator"
        yield _row("", f"made {made_for}, sees {torch.accelerators}")
    if torch.error is not None:
        yield _row("", f"error: {torch.error}")
    for trouble in torch.troubles:
        yield _row("", f"trouble: {trouble}")
    loads = [f"{e.name} = {e.target} ({e.distribution} {e.version})" for e in torch.extensions]
    yield _row("torch loads", ", ".join(loads) or "no extension by itself")
    if torch.autoload is not None:
        yield _row("", f"TORCH_DEVICE_BACKEND_AUTOLOAD={torch.autoload}")


def _plugin(plugin: DiagnosedPlugin) -> Iterator[_Row]:
    origin = f"{plugin.distribution} {plugin.version}"
    yield _row(f"plugin {plugin.name}", f"{plugin.state}, {origin}")
    if plugin.reason is not None:
        yield _row("", plugin.reason)
    for device in plugin.devices:
        memory = "" if device.memory_bytes is None else f", {_gb(device.memory_bytes)}"
        yield _row("", f"{device.name}: {device.description or 'not described'}{memory}")
    marks = dict.fromkeys(plugin.slow, " (slow)")
    marks |= dict.fromkeys(plugin.widened, " (products in FP32)")
    formats = [name + marks.get(name, "") for name in plugin.precisions]
    if formats:
        yield _row("", ", ".join(formats))
    for name, reason in plugin.refused.items():
        yield _row("", f"no {name}: {reason}")
    if lacking := plugin.lacks.named():
        yield _row("", f"lacks {', '.join(lacking)}")
    if plugin.options:
        yield _row("", "-O " + _listed(plugin.options, "="))
    if plugin.facts:
        yield _row("", _listed(plugin.facts, " "))


def _row(name: str, text: str) -> _Row:
    return name, text


def _rows(name: str, texts: Sequence[str]) -> Iterator[_Row]:
    for number, text in enumerate(texts):
        yield _row("" if number else name, text)


def _listed(values: Mapping[str, object], between: str) -> str:
    return ", ".join(f"{name}{between}{value}" for name, value in values.items())


def _gb(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e9:.1f} GB"
