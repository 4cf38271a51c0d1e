"""The tree of errors that llmb raises on purpose, with the exit code of each.

LlmbError                    1  a defect of llmb itself
├── UsageError               2  a flag, a value or a combination that cannot work
├── UnavailableError         3  plugin, device or format not there, or another version needed
│   └── EvidenceNotHereError 3  evidence of a bundle lies elsewhere, and nobody could read it
├── RunFailedError           4  the run started and did not finish
│   ├── NotEnoughMemoryError 4  refused before anything was allocated, or ran out
│   └── NotEnoughSpaceError  4  the disk of the run directory has too little room
├── AuditInvalidError        5  a blocking rule of the audit failed
├── BundleRefusedError       6  a record or bundle is damaged, forged or not submittable
├── RequirementError         7  a condition of ``llmb compare`` or ``llmb node`` does not hold
└── ConformanceError         8  a plugin failed a check of ``llmb plugin check``

A message states the problem, the value, and the next action, in one line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Exit code of Ctrl-C and SIGTERM: 128 + SIGINT, the convention of shells.
INTERRUPTED_EXIT_CODE = 130
#: Least similarity of a suggested name to the typed name (difflib's ratio, from 0 to 1).
_ALIKE = 0.75
#: Most names in a suggestion, and least letters of a typed name.
_MOST_NAMES, _LEAST_LETTERS = 3, 2


def nearest(typed: str, known: Iterable[str]) -> list[str]:
    """Return up to three names nearest to a mistyped name; none if no name is near.

    Leading dashes and upper case do not count. Near is a name with the same letters, a name that
    begins with the typed text, a spelling with a ratio of 0.75 or more, or a name that contains the
    typed text; the first kind that exists counts. Examples: ``rnu`` gives ``run``, ``llama-1.4``
    gives ``llama-1.4b``, and ``--epochs`` gives nothing.
    """
    word = _plain(typed)
    if len(word) < _LEAST_LETTERS:
        return []
    names = {name: _plain(name) for name in known}
    spelt = difflib.get_close_matches(word, [*names.values()], n=_MOST_NAMES, cutoff=_ALIKE)
    kinds = (
        [name for name, plain in names.items() if sorted(plain) == sorted(word)],
        [name for name, plain in names.items() if plain.startswith(word)],
        [name for one in spelt for name, plain in names.items() if plain == one],
        [name for name, plain in names.items() if word in plain],
    )
    return next((kind for kind in kinds if kind), [])[:_MOST_NAMES]


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """Return the end of an error message: ``; did you mean run?``, or nothing."""
    names = nearest(typed, known)
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _plain(name: str) -> str:
    return name.lstrip("-").lower()


class LlmbError(Exception):
    """An error that llmb reports as one line instead of a traceback."""

    exit_code = 1
    #: Directory of a finished run with this error, set by ``llmb.run``. Example: an INVALID run.
    run_dir: Path | None = None


class UsageError(LlmbError):
    """The request cannot be carried out as written."""

    exit_code = 2


class UnavailableError(LlmbError):
    """The plugin, device, precision or version of a workload is not available here."""

    exit_code = 3


class EvidenceNotHereError(UnavailableError):
    """Evidence of a bundle lies elsewhere: no verdict on the bundle is possible."""


class RunFailedError(LlmbError):
    """A run was started and did not finish."""

    exit_code = 4


class NotEnoughMemoryError(RunFailedError):
    """The workload does not fit, or did not fit, into memory."""


class NotEnoughSpaceError(RunFailedError):
    """The files of a run do not fit, or did not fit, on the disk of the run directory."""


class AuditInvalidError(LlmbError):
    """The audit found a blocking rule broken."""

    exit_code = 5


class BundleRefusedError(LlmbError):
    """A record or bundle must not be trusted, or must not be submitted."""

    exit_code = 6


class RequirementError(LlmbError):
    """A required condition of a comparison, or of a node, is not met; or a run is a regression."""

    exit_code = 7


class ConformanceError(LlmbError):
    """A plugin breaks a promise of the plugin interface."""

    exit_code = 8


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether ``error`` reports a lack of memory, on any device.

    Torch raises ``OutOfMemoryError`` on accelerators and a plain RuntimeError on the CPU.
    """
    words = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    named = type(error).__name__ in ("OutOfMemoryError", "MemoryError")
    return named or any(word in str(error).lower() for word in words)
