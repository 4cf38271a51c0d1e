"""A run's progress on stderr: a live line on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from llmb.measure import clock
from llmb.supervision.stations import Display, Silent
from llmb.wire.messages import Fence, Phase, Tick


class Rate:
    """Tokens per second since the stream's first step, for the eye only: not synchronised."""

    def __init__(self, tokens_per_step: int) -> None:
        """Count steps of ``tokens_per_step``."""
        self._tokens = tokens_per_step
        self._first_ns: int | None = None
        self._first_index = 0

    def after(self, tick: Tick) -> str:
        """Return the rate after ``tick``."""
        if self._first_ns is None:
            self._first_ns, self._first_index = tick.ns, tick.index
            return ""
        steps = tick.index - self._first_index
        return f"{steps * self._tokens / ((tick.ns - self._first_ns) / 1e9):,.1f} tokens/s"


class Live:
    """One line that redraws itself."""

    _EVERY_NS = 200_000_000  # a redraw takes a few milliseconds of the supervisor's time

    def __init__(self, console: Console) -> None:
        """Draw on ``console``."""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,  # a refreshing thread would compete with the stamping of fences
            transient=True,
        )
        self._task: TaskID | None = None
        self._rate = Rate(0)
        self._label = ""
        self._drawn_ns = 0

    def __enter__(self) -> Live:
        """Begin drawing."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        self._progress.stop()

    def phase(self, name: str) -> None:
        """Show a phase without a known length."""
        self._begin(name, None)

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        """Show a stream of steps."""
        self._rate, self._label = Rate(tokens_per_step), label
        self._begin(label, steps)

    def note(self, text: str) -> None:
        """Write a note above the line."""
        self._progress.console.print(f"note: {text}", style="yellow", markup=False)

    def message(self, message: Phase | Tick | Fence | None) -> None:
        """Show a step, a phase of the worker, or that time passes."""
        assert self._task is not None
        if isinstance(message, Phase):
            name = escape(f"{self._label}: {message.name}")
            self._progress.update(self._task, description=name, refresh=True)
        elif isinstance(message, Tick):
            rate = self._rate.after(message)
            due = clock.now_ns() - self._drawn_ns > self._EVERY_NS
            self._progress.update(self._task, completed=message.index + 1, rate=rate, refresh=due)
            if due:
                self._drawn_ns = clock.now_ns()
        elif message is None:
            self._progress.refresh()

    def _begin(self, name: str, steps: int | None) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(escape(name), total=steps, rate="")
        self._progress.refresh()


class Plain:
    """A line now and then, for logs and pipes."""

    _EVERY_NS = 10_000_000_000

    def __init__(self, console: Console) -> None:
        """Write to ``console``."""
        self._console = console
        self._rate = Rate(0)
        self._label, self._steps = "", 0
        self._last_ns = 0

    def __enter__(self) -> Plain:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End."""

    def phase(self, name: str) -> None:
        """Write the name of the phase."""
        self._write(name)

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        """Remember what the steps belong to."""
        self._rate, self._label, self._steps = Rate(tokens_per_step), label, steps

    def note(self, text: str) -> None:
        """Write a note."""
        self._write(f"note: {text}")

    def message(self, message: Phase | Tick | Fence | None) -> None:
        """Write a phase at once, and steps at most every ten seconds."""
        if isinstance(message, Phase):
            self._write(f"{self._label}: {message.name}")
        elif isinstance(message, Tick):
            rate = self._rate.after(message)
            if message.index == 0:
                self._write(f"{self._label}: first step done")
            elif clock.now_ns() - self._last_ns > self._EVERY_NS:
                self._write(f"{self._label}: step {message.index + 1} of {self._steps}  {rate}")

    def _write(self, text: str) -> None:
        self._last_ns = clock.now_ns()
        with suppress(OSError):  # a full or closed stderr must not stop a run
            self._console.print(f"llmb: {text}", highlight=False, soft_wrap=True, markup=False)


def display(*, quiet: bool) -> AbstractContextManager[Display]:
    """Return the display that fits stderr and the user's wish."""
    if quiet:
        return nullcontext(Silent())
    console = Console(stderr=True)
    return Live(console) if console.is_terminal else Plain(console)
