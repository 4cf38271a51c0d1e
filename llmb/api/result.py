"""The result of a run, as ``llmb.run`` and ``llmb.load`` return it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmb.api.frames import data_frame
from llmb.api.steps import TimedStep, timed_steps
from llmb.errors import BundleRefusedError, UsageError
from llmb.records import members
from llmb.records.bundle import MANIFEST, RECORD, read_partly
from llmb.records.finding import Audit, Finding, Verdict
from llmb.records.printable import printable
from llmb.records.run_directory import REPORT
from llmb.records.run_record import RunRecord

if TYPE_CHECKING:
    from pandas import DataFrame

    from llmb.api.options import PathText


@dataclass(frozen=True, repr=False)
class RunResult:
    """One run: the record, and the figures that most programs want.

    Figures come from the record as written: ``llmb.verify`` checks the record of a stranger.
    """

    #: Everything about the run, as ``record.json`` has it (docs/records.md).
    record: RunRecord
    #: The run directory, ``record.json``, or bundle (folder or zip) that was loaded.
    path: Path

    @property
    def run_dir(self) -> Path | None:
        """Absolute path of the run directory or bundle folder; None for a zip or a single record.

        Example: ``runs/20261101T120000Z-llama-1.4b-BF16-cpu``.
        """
        return self.path if os.path.isdir(self.path) else None

    @property
    def run_id(self) -> str:
        """The run's random name, 32 hexadecimal digits."""
        return self.record.run_id

    @property
    def tokens_per_second(self) -> float:
        """Tokens from START to STOP over the time between, of all devices together, in tokens/s.

        Of several repeats, the median repeat counts.
        """
        return self.record.result.tokens_per_second

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of ``tokens_per_second``, in tokens/s; None if too little was measured.

        The spread of repeats, or of the fence blocks of a single repeat (docs/measuring.md). Two
        values give an interval that holds any number: use ``repeats=3`` or more.
        """
        return self.record.result.ci95

    @property
    def verdict(self) -> Verdict:
        """The audit's verdict, a text.

        Example: ``result.verdict == "CONSISTENT"`` is True or False.
        """
        return self.record.audit.verdict

    @property
    def audit(self) -> Audit:
        """The verdict with every finding, and the limits of the audit."""
        return self.record.audit

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every rule of the audit, with the status, the measured value and the limit."""
        return self.record.audit.findings

    @property
    def is_official(self) -> bool:
        """Whether the run may be ranked; of a debug run, ``record.waivers`` says why not."""
        return self.record.class_ == "official"

    @property
    def ceiling_share(self) -> float | None:
        """FLOP/s of the run over FLOP/s of the model's own products alone, about 0 to 1.

        None if the ceiling was not measured.
        """
        return self.record.result.fraction_of_ceiling

    @property
    def peak_memory_bytes(self) -> int | None:
        """Peak memory of the rank with the most, in bytes; None if not measured."""
        return self.record.result.peak_memory_bytes

    @property
    def steps(self) -> tuple[TimedStep, ...]:
        """The timed steps of every repeat in order, with seconds, loss and learning rate.

        Example: ``statistics.median(step.seconds for step in result.steps)``.

        Raises:
            BundleRefusedError: the record's stamps are of no run, such as a stamp of 400 digits.
        """
        try:
            return tuple(timed_steps(self.record, self._files()))
        except (ValueError, ArithmeticError, IndexError) as error:
            raise BundleRefusedError(
                f"run {self.run_id}: no steps can be made of its stamps ({error})"
            ) from None

    @property
    def command(self) -> str | None:
        """The ``llmb run`` line of the same run; None if the line holds unprintable text."""
        from llmb.cli.show import command_line

        try:
            return command_line(self.record)
        except BundleRefusedError:
            return None

    @property
    def html(self) -> str:
        """The page of the run, ``report.html``, without a script, and loading nothing.

        Raises:
            BundleRefusedError: the record's numbers are of no run.
        """
        from llmb.report.run_page import run_page

        return run_page(self.record, self.command)

    def report(self, path: PathText | None = None) -> Path:
        """Write the page of the run to ``path``, and return the path.

        Args:
            path: the file; None: ``report.html`` in the run directory.

        Raises:
            UsageError: the file cannot be written, or ``path`` is missing for a bundle.
        """
        from llmb.cli import pages

        if path is None:
            folder = self.run_dir
            if folder is None or (folder / MANIFEST).exists():
                raise UsageError(f"{printable(str(self.path))} is no run directory: name a file")
            path = folder / REPORT
        pages.put_for_user(Path(path), self.html, say=False)
        return Path(path)

    def to_pandas(self) -> DataFrame:
        """Return the timed steps as a table: one row per step, columns as ``TimedStep``.

        Raises:
            UnavailableError: pandas is not installed.
        """
        return data_frame([asdict(step) for step in self.steps])

    def __repr__(self) -> str:
        from llmb.report.card import shown_interval
        from llmb.report.run_page import drawn, title_of

        parts = [title_of(self.record), f"{self.tokens_per_second:,.2f} tokens/s"]
        if (interval := drawn(lambda: shown_interval(self.record))) is not None:
            parts.append(f"95 % interval {interval}")
        parts += [self.record.class_, self.verdict.value, str(self.path)]
        return f"<llmb run: {printable(', '.join(parts))}>"

    def _repr_html_(self) -> str:
        """Return the result as notebooks show it: figures, verdict and the page's drawing."""
        from llmb.report.card import run_card

        return run_card(self.record)

    def _files(self) -> Callable[[str], bytes | None]:
        """Return the reader of the run's files; of a single record there are none."""
        files: Mapping[str, bytes] = {}
        folder = self.run_dir
        if folder is not None and not (folder / MANIFEST).exists():
            return lambda name: _file_of(folder / name)
        if self.path.name != RECORD:
            files = read_partly(self.path).files
        return files.get


def load(path: PathText) -> RunResult:
    """Return the result of a finished run.

    Args:
        path: a run directory, a ``record.json``, or a bundle (folder or zip). A text may also be a
            name of ``llmb list``: ``latest``, ``latest~1``, a tag, or the beginning of a name.

    Raises:
        UsageError: nothing is readable at ``path``, no run has the name, or the run did not finish.
        BundleRefusedError: the record is damaged, forged, or newer than this llmb.

    Example:
        >>> result = llmb.load("runs/20261101T120000Z-llama-1.4b-BF16-cpu")  # doctest: +SKIP
        >>> result.tokens_per_second  # doctest: +SKIP
        11.53
    """
    from llmb.cli.settings import runs_folder
    from llmb.records.bundle import read_record
    from llmb.records.run_names import find_run

    found = find_run(path, runs_folder(None)) if isinstance(path, str) else Path(path)
    return RunResult(read_record(found), Path(os.path.abspath(found)))


def _file_of(path: Path) -> bytes | None:
    try:
        return members.read_file(path)
    except (UsageError, BundleRefusedError):
        return None
