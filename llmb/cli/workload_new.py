"""``llmb workload new``: writes a workload file in which every key is explained."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import click

from llmb.cli import completion
from llmb.errors import UsageError, did_you_mean


@click.command("new", short_help="Write the file of a new workload.")
@click.argument("name")
@click.option(
    "--family",
    metavar="FAMILY",
    shell_complete=completion.families,
    help="Kind of model, such as llama or gpt2 [default: llama].",
)
@click.option(
    "--from-hf",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="CONFIG.json",
    help="Take family and sizes from a Hugging Face configuration.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Folder of the file [default: here].",
)
def command(name: str, family: str | None, from_hf: Path | None, directory: Path) -> None:
    """Write NAME.json: a family and every size, each explained in a comment.

    A key that begins with // is a comment. NAME is the name in records and tables.

    \b
    llmb workload new mine --family gpt2
    llmb workload new mine --from-hf config.json
    """
    from llmb.families import SHAPES
    from llmb.inputs.checkpoint_config import shape_of_file
    from llmb.workloads import why_no_name
    from llmb.workloads.definition import template

    if family is not None and from_hf is not None:
        raise UsageError("--family and --from-hf: leave --family out, the configuration names one")
    kind: Any = SHAPES.get(family or "llama")
    if kind is None:
        near = did_you_mean(str(family), SHAPES)
        raise UsageError(f"--family {family!r} is none of {', '.join(SHAPES)}{near}")
    wrong = why_no_name(name)
    if wrong:
        raise UsageError(wrong)
    shape, notes = (kind(), ()) if from_hf is None else shape_of_file(from_hf)
    path = directory / f"{name}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(template(name, shape, notes))
    except FileExistsError:
        raise UsageError(f"{path} exists: choose another name, or remove the file") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"wrote {path}")
    for note in notes:
        click.echo(f"note: {note}")
    click.echo(
        "\nNext: change sizes in the file, then\n"
        f"  llmb workload check {quote(str(path))}\n"
        f"  llmb run --workload {quote(str(path))} --preset debug"
    )
