"""The type of a command-line argument that names a run: a path, ``latest``, a tag, or a name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from llmb.cli.settings import completed_runs_folder, runs_folder
from llmb.cli.text import printable

F = TypeVar("F", bound=Callable[..., Any])


class RunName(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A run directory or file, by path or by name; ``run_names.find_run`` says which names exist.

    An older run by the name ``latest`` is announced on stderr: the newest run has no record.
    """

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path of the run called ``value``.

        Raises:
            UsageError: no run has the name, or several runs have the name.
        """
        return value if isinstance(value, Path) else self.found(value, runs_folder(ctx))

    @staticmethod
    def found(value: str, folder: Path) -> Path:
        """Return the path of the run called ``value`` in ``folder``, as ``convert`` does."""
        from llmb.records.run_names import find_run, newer_without_record, runs_in

        found = find_run(value, folder)
        if str(found) != value and value.startswith("latest"):
            newer = newer_without_record(runs_in(folder))
            if newer is not None:
                name = printable(newer.path.name)
                click.echo(
                    f"llmb: {value} is {printable(found.name)}; the newer {name} has no record",
                    err=True,
                )
        return found

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return names of runs, the newest first, or files for other text."""
        from llmb.records.run_names import known_names

        names = known_names(completed_runs_folder(ctx))
        found = [name for name in names if name.startswith(incomplete) and name.isprintable()]
        return [CompletionItem(name) for name in found] or [CompletionItem(incomplete, type="file")]


def runs_folder_option(text: str) -> Callable[[F], F]:
    """Return an option ``--output-dir`` for the folder of runs; ``text`` is the help."""
    return click.option(
        "--output-dir",
        "output_dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help=f"{text} [default: runs, or the --output-dir of `llmb run` in your settings].",
    )
