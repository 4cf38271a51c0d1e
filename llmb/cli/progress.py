"""A run's progress on stderr: a live line on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
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
from llmb.supervision.run_phases import Display, Silent
from llmb.supervision.silence import Silence
from llmb.wire.messages import Fence, Phase, Tick

_MINUTE_S = 60
#: Fewer busy cores are shown as idle: a waiting process wakes up now and then.
_LEAST_CORES = 0.02


@dataclass
class ProgressRate:
    """Tokens per second since the stream's first step, for the eye only: not synchronised."""

    tokens_per_step: int
    _first_ns: int | None = None
    _first_index: int = 0

    def after(self, tick: Tick) -> str:
        """Return the rate after ``tick``."""
        if self._first_ns is None:
            self._first_ns, self._first_index = tick.ns, tick.index
            return ""
        steps = tick.index - self._first_index
        return f"{steps * self.tokens_per_step / ((tick.ns - self._first_ns) / 1e9):,.1f} tokens/s"


@dataclass
class Doing:
    """The present work in words: a phase of the run, a phase of a child process, or a step."""

    phase: str = ""
    label: str = ""
    steps: int = 0

    def stream(self, label: str, steps: int) -> None:
        """Begin a stream of at most ``steps`` steps."""
        self.phase = self.label = label
        self.steps = steps

    def of_child(self, phase: Phase) -> str:
        """Begin a phase of a worker, and return the phase in words."""
        self.phase = f"{self.label}: {phase.name}"
        return self.phase

    def still(self, silence: Silence) -> str:
        """Return the phase or step, the time since its start, and the load of the process."""
        work = self.phase
        if silence.step is not None:
            work = f"{self.label}: step {silence.step + 1} of at most {self.steps}"
        minutes, seconds = divmod(int(silence.since_s), _MINUTE_S)
        doing = _busy(silence) + _compiling(silence)
        return f"{work}, running for {minutes} min {seconds:02d} s, {doing}"


def _compiling(silence: Silence) -> str:
    minutes = silence.compiling_min
    return "" if minutes is None else f" (compiling a program takes about {minutes:g} min here)"


def _busy(silence: Silence) -> str:
    who, cores = silence.who, silence.busy_cores
    if cores is None:
        return f"not measured whether the {who} is busy"
    if cores >= _LEAST_CORES:
        return f"{who} busy on {cores:.2f} cores"
    return f"{who} idle" if silence.on_cpu else f"{who} uses no CPU, its device may be at work"


class Live:
    """A line in the terminal, redrawn at most five times a second."""

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
        self._rate, self._doing = ProgressRate(0), Doing()
        self._is_silent = False
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
        """Remove the line from the terminal."""
        self._progress.stop()

    def phase(self, name: str) -> None:
        """Show a phase without a known length."""
        self._doing.phase = name
        self._begin(name, None)

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        """Show a stream of steps."""
        self._rate = ProgressRate(tokens_per_step)
        self._doing.stream(label, steps)
        self._begin(label, steps)

    def note(self, text: str) -> None:
        """Write a note above the line."""
        self._progress.console.print(f"note: {text}", style="yellow", markup=False)

    def message(self, message: Phase | Tick | Fence | Silence | None) -> None:
        """Show a step, a phase of the worker, or the passing time."""
        assert self._task is not None
        if isinstance(message, Phase):
            self._describe(self._doing.of_child(message))
        elif isinstance(message, Silence):
            self._describe(self._doing.still(message), is_silent=True)
        elif self._is_silent and message is not None:
            self._describe(self._doing.phase)
        if isinstance(message, Tick):
            rate = self._rate.after(message)
            due = clock.now_ns() - self._drawn_ns > self._EVERY_NS
            self._progress.update(self._task, completed=message.index + 1, rate=rate, refresh=due)
            if due:
                self._drawn_ns = clock.now_ns()
        elif message is None:
            self._progress.refresh()

    def _describe(self, text: str, *, is_silent: bool = False) -> None:
        assert self._task is not None
        self._is_silent = is_silent
        self._progress.update(self._task, description=escape(text), refresh=True)

    def _begin(self, name: str, steps: int | None) -> None:
        self._is_silent = False
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(escape(name), total=steps, rate="")
        self._progress.refresh()


@dataclass
class Plain:
    """A line now and then, for logs and pipes."""

    _EVERY_NS = 10_000_000_000

    console: Console
    _rate: ProgressRate = field(default_factory=lambda: ProgressRate(0))
    _doing: Doing = field(default_factory=Doing)
    _told: int = 0  # minutes of the present silence
    _last_ns: int = 0

    def __enter__(self) -> Plain:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End."""

    def phase(self, name: str) -> None:
        """Write the name of the phase."""
        self._doing.phase, self._told = name, 0
        self._write(name)

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        """Remember the label of the stream."""
        self._rate, self._told = ProgressRate(tokens_per_step), 0
        self._doing.stream(label, steps)

    def note(self, text: str) -> None:
        """Write a note."""
        self._write(f"note: {text}")

    def message(self, message: Phase | Tick | Fence | Silence | None) -> None:
        """Write a phase at once, steps at most every ten seconds, and each minute of silence."""
        if isinstance(message, Silence):
            self._silence(message)
        elif message is not None:
            self._told = 0
        if isinstance(message, Phase):
            self._write(self._doing.of_child(message))
        elif isinstance(message, Tick):
            rate = self._rate.after(message)
            if message.index == 0:
                self._write(f"{self._doing.label}: first step done")
            elif clock.now_ns() - self._last_ns > self._EVERY_NS:
                step = f"step {message.index + 1} of {self._doing.steps}"
                self._write(f"{self._doing.label}: {step}  {rate}")

    def _silence(self, silence: Silence) -> None:
        minutes = int(silence.since_s // _MINUTE_S)
        if minutes > self._told:
            self._told = minutes
            self._write(self._doing.still(silence))

    def _write(self, text: str) -> None:
        self._last_ns = clock.now_ns()
        with suppress(OSError):  # a full or closed stderr must not stop a run
            self.console.print(f"llmb: {text}", highlight=False, soft_wrap=True, markup=False)


def display(*, quiet: bool) -> AbstractContextManager[Display]:
    """Return a live line for a terminal, plain lines for a pipe, or silence."""
    if quiet:
        return nullcontext(Silent())
    console = Console(stderr=True)
    return Live(console) if console.is_terminal else Plain(console)
