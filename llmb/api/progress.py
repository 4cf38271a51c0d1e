"""The progress of ``llmb.run``: nothing, the bar of the command line, or a bar in a notebook."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from llmb.supervision.run_phases import Silent

if TYPE_CHECKING:
    from llmb.supervision.run_phases import Display


def display(*, progress: bool) -> AbstractContextManager[Display]:
    """Return the place where progress is shown."""
    if not progress:
        return nullcontext(Silent())
    if _is_notebook():
        from llmb.api.notebook import NotebookBar

        return NotebookBar()
    from llmb.cli import progress as of_commands

    return of_commands.display(quiet=False)


def _is_notebook() -> bool:
    """Tell whether the program is a kernel of a notebook, where IPython is imported."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"
