"""``llmb audit --only``: repeats one judgement of a recorded run, for one part of the model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.records.printable import printable

if TYPE_CHECKING:
    from llmb.audit.bench import Files
    from llmb.audit.rule import PartFinding
    from llmb.reproduction.one_part import Repeated

_NOT_A_VERDICT = "made again for whoever was accused: no part of the run, of a bundle or a verdict"


def repeat(path: Path, rule: str, part: str | None, output: Path | None, flags: Any) -> None:
    """Repeat the judgement of ``rule`` for one part of the run at ``path``, and show the result.

    Raises:
        LlmbError: the part cannot be judged. AuditInvalidError: the rule is still broken.
    """
    from llmb.cli.progress import display
    from llmb.errors import AuditInvalidError
    from llmb.records.bundle import read_record
    from llmb.reproduction import one_part, part_figure
    from llmb.reproduction.request_again import Places, request_of
    from llmb.wire.forking import fork_server

    record = read_record(path)
    one_part.check(record, rule)
    files = _files(path, flags["evidence"])
    names = one_part.parameters(record)
    if part is None:
        parameter = one_part.accused(one_part.recorded(record, files, rule), names)
    else:
        parameter = one_part.resolve(part, names)
    target = output or _default(path, rule, parameter)
    _check_writable(target)
    places = Places(**{name: flags[name] for name in ("data", "tokenizer", "weights", "device")})
    request = request_of(record, places)
    question = one_part.Question(record, files, rule, parameter)
    with fork_server(request.plugin, request.device), display(quiet=flags["quiet"]) as shown:
        repeated = one_part.repeat(question, request, target, shown)
    picture = target.with_suffix(".svg")
    picture.write_bytes(part_figure.draw(repeated, target))
    if flags["as_json"]:
        click.echo(json.dumps(_as_json(repeated, target, picture), indent=1))
    else:
        _show(repeated, (target, picture))
    if not repeated.finding.kept:
        raise AuditInvalidError(f"{rule} still fails in {parameter}")


def _files(path: Path, evidence: tuple[str, ...]) -> Files:
    """Return a reader of the files of the run at ``path``; a single record.json has no files."""
    from llmb.records import members
    from llmb.records.bundle import MANIFEST, read_bundle
    from llmb.submission import layout
    from llmb.submission.elsewhere import places

    if os.path.isdir(path) and not os.path.lexists(path / MANIFEST):
        return members.read_folder(path, layout.is_known).get
    if os.path.isdir(path) or members.read_file(path, members.MAX_TOTAL_BYTES).startswith(b"PK"):
        there = places(evidence)
        return read_bundle(path, there.take if there else None).files.get
    found: Mapping[str, bytes] = {}
    return found.get


def _default(path: Path, rule: str, parameter: str) -> Path:
    """Return where the tensors go: into the run directory, but into no bundle."""
    from llmb.records.bundle import MANIFEST

    short = parameter.removesuffix(".weight").removeprefix("model.")
    is_run = os.path.isdir(path) and not os.path.lexists(path / MANIFEST)
    return (path if is_run else Path()) / f"only-{rule}-{short}.safetensors"


def _check_writable(target: Path) -> None:
    from llmb.errors import UsageError

    if target.suffix != ".safetensors":
        raise UsageError(f"--output {target}: the name must end in .safetensors")
    if not os.access(target.parent, os.W_OK) or target.is_dir():
        raise UsageError(f"--output {target}: cannot write there; choose another file")


def _as_json(repeated: Repeated, target: Path, picture: Path) -> dict[str, Any]:
    from llmb.audit.rules import RULES

    causes = next(rule.causes for rule in RULES if rule.id == repeated.rule)
    recorded = repeated.recorded
    return {
        "rule": repeated.rule,
        "part": repeated.parameter,
        "status": _status(repeated.finding),
        **_figures(repeated.finding),
        "recorded": None
        if recorded is None
        else {"status": _status(recorded), **_figures(recorded)},
        "pass": repeated.pass_name,
        "bits": {
            what: {"measured": measured, "honest": honest}
            for what, (measured, honest) in repeated.bits.items()
        },
        "not_captured": repeated.why and printable(repeated.why),
        "causes": list(causes),
        "broken_parts": [printable(name) for name in repeated.broken],
        "judged_parts": repeated.judged,
        "seconds": round(repeated.seconds, 3),
        "tensors": printable(str(target)),
        "picture": printable(str(picture)),
        "note": _NOT_A_VERDICT,
    }


def _figures(finding: PartFinding) -> dict[str, str]:
    return {
        "what": printable(finding.what),
        "measured": finding.measured,
        "limit": finding.limit,
        "honest": finding.honest,
    }


def _status(finding: PartFinding) -> str:
    return "pass" if finding.kept else "fail"


def _show(repeated: Repeated, written: tuple[Path, Path]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from llmb.audit.rules import RULES

    finding, console = repeated.finding, Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    style = "green" if finding.kept else "bold red"
    table.add_row("rule", Text(f"{repeated.rule}: {_status(finding)}", style=style))
    table.add_row("part", Text(repeated.parameter))
    if finding.part != repeated.parameter:
        table.add_row("stored in", Text(printable(finding.part)))
    for name, value in _figures(finding).items():
        table.add_row(name, Text(value))
    if repeated.recorded is not None:
        then = repeated.recorded
        text = f"{then.measured} ({_status(then)}), {printable(then.what)}"
        table.add_row("recorded", Text(text))
    for what, (measured, honest) in repeated.bits.items():
        table.add_row(what, f"{measured:.2f} bits, honest {honest:.2f}")
    if repeated.why is not None:
        table.add_row("input, output", Text(f"not captured: {printable(repeated.why)}"))
    told = f"{len(repeated.broken)} of {repeated.judged} break the rule here"
    if repeated.broken:
        told += f": {', '.join(map(printable, repeated.broken))}"
    table.add_row("all parts", Text(told))
    console.print(table)
    if not finding.kept and repeated.came_in_wrong:
        console.print("\nits input is off already: look at what computes the input")
    if not finding.kept:
        console.print("\nthe two most likely honest causes:", style="dim")
        for cause in next(rule.causes for rule in RULES if rule.id == repeated.rule):
            console.print(f"  - {cause}", markup=False, soft_wrap=True)
    console.print(f"\n{repeated.seconds:.1f} s; {_NOT_A_VERDICT}", style="dim", markup=False)
    for path in written:
        console.print(f"wrote {printable(str(path))}", markup=False, soft_wrap=True)
