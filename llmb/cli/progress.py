"""A run's progress on stderr: a bar on a terminal, plain lines elsewhere, or nothing.

One bar shows the whole run, with the foreseen time left (``llmb.supervision.forecast``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from threading import Event, Thread

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from llmb import clock
from llmb.cli import caller
from llmb.supervision.forecast import Forecast
from llmb.supervision.run_phases import Display, Silent
from llmb.supervision.silence import Silence
from llmb.supervision.sizing import readable
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


@dataclass
class Bar:
    """The finished share of a whole run, or of a whole sweep; the share never decreases.

    The share grows by the share of the time left that has passed. Example: half of the bar is left
    and 10 s, then the bar grows by 5 % a second. A longer estimate makes the bar slower.
    """

    share: float = 0.0
    #: Seconds of the work before the bar, such as the start of ranks.
    before_s: float = 0.0
    #: Seconds that follow the present run, such as the later points of a sweep.
    after_s: float = 0.0
    #: Runs that follow and take as long as the present run, as far as anybody knows.
    more_runs: int = 0
    _seen_ns: int | None = None

    def advance(self, forecast: Forecast) -> float:
        """Grow by the time since the last call, and return the seconds left."""
        now, left_s = clock.now_ns(), forecast.left_s() + self.after_s
        left_s += self.more_runs * forecast.whole_s()
        passed_s = self.before_s if self._seen_ns is None else (now - self._seen_ns) / 1e9
        if passed_s > 0:
            self.share += (1 - self.share) * passed_s / (passed_s + left_s)
        self._seen_ns = now
        return left_s


class _Ticker:
    """Calls ``tell`` now and then from a thread that sleeps through streams of steps."""

    def __init__(self, every_s: float, tell: Callable[[], None]) -> None:
        self._every_s, self._tell = every_s, tell
        self._awake, self._over = Event(), Event()
        self._thread = Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._awake.set()

    def sleep(self) -> None:
        """Wait for ``wake`` without any wake-up: fences are being stamped."""
        self._awake.clear()

    def end(self) -> None:
        self._over.set()
        self._awake.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(self._every_s):
            self._awake.wait()
            if not self._over.is_set():
                self._tell()


class Live:
    """A bar in the terminal, with the time left and the present work."""

    #: Least time between two drawings in a stream of steps. A drawing takes a few milliseconds.
    _EVERY_NS = 500_000_000
    #: Seconds between two drawings while no stream runs.
    _TICK_S = 0.5

    def __init__(self, console: Console, bar: Bar | None = None, prefix: str = "") -> None:
        """Draw on ``console``; ``bar`` goes on where an earlier run ended.

        ``prefix``: what the run is a part of, such as ``point 3 of 8: ``.
        """
        self._bar, self._prefix = bar or Bar(), prefix
        self._progress = Progress(
            BarColumn(bar_width=max(8, min(24, console.width // 4))),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
            TextColumn(
                "{task.description}",
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=console,
            auto_refresh=False,  # the thread of ``_ticker`` sleeps through streams of steps
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", total=None, left="")
        self._ticker = _Ticker(self._TICK_S, self._draw)
        self._forecast: Forecast | None = None
        self._rate, self._doing = ProgressRate(0), Doing()
        self._is_silent = self._is_stream = False
        self._drawn_ns = 0

    def __enter__(self) -> Live:
        """Begin drawing."""
        self._progress.start()
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line from the terminal."""
        self._ticker.end()
        self._progress.stop()

    def foresee(self, forecast: Forecast) -> None:
        """Show the time left by ``forecast`` from now on."""
        self._forecast = forecast

    def phase(self, name: str) -> None:
        """Show a phase without a known length."""
        self._doing.phase = name
        self._is_silent = self._is_stream = False
        self._describe(name)
        self._ticker.wake()

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        """Show a stream of steps."""
        self._ticker.sleep()
        self._is_stream = True
        self._rate = ProgressRate(tokens_per_step)
        self._doing.stream(label, steps)
        if self._forecast is not None:
            self._forecast.stream(steps)
        self._describe(label)

    def note(self, text: str) -> None:
        """Write a note above the line."""
        self._progress.console.print(f"note: {text}", style="yellow", markup=False)

    def message(self, message: Phase | Tick | Fence | Silence | None) -> None:
        """Show a step, a phase of the worker, or the passing time.

        Nothing is drawn for a step, because the worker may wait for the next message. After a fence
        the worker has the order for the next step, and None means that the worker computes.
        """
        if isinstance(message, Phase):
            self._describe(self._doing.of_child(message))
        elif isinstance(message, Silence):
            self._is_silent = True
            self._describe(self._doing.still(message))
        elif isinstance(message, Tick):
            self._step(message)
        elif self._is_stream and clock.now_ns() - self._drawn_ns > self._EVERY_NS:
            self._draw()

    def _step(self, tick: Tick) -> None:
        if self._forecast is not None:
            self._forecast.tick(tick)
        rate = self._rate.after(tick)
        work = f"{self._doing.label}: step {tick.index + 1} of at most {self._doing.steps}"
        self._doing.phase = f"{work}, {rate}" if rate else work
        self._progress.update(self._task, description=escape(self._prefix + self._doing.phase))
        if self._is_silent or tick.index == 0:
            self._is_silent = False
            self._draw()

    def _describe(self, text: str) -> None:
        self._progress.update(self._task, description=escape(self._prefix + text))
        self._draw()

    def _draw(self) -> None:
        if self._forecast is not None:
            left_s = self._bar.advance(self._forecast)
            left = f"{min(99, int(100 * self._bar.share)):2d}% {readable(left_s)} left"
            self._progress.update(self._task, total=1.0, completed=self._bar.share, left=left)
        self._progress.refresh()
        self._drawn_ns = clock.now_ns()


@dataclass
class Plain:
    """A line now and then, for logs and pipes."""

    _EVERY_NS = 30_000_000_000

    console: Console
    bar: Bar = field(default_factory=Bar)
    prefix: str = ""
    _forecast: Forecast | None = None
    _rate: ProgressRate = field(default_factory=lambda: ProgressRate(0))
    _doing: Doing = field(default_factory=Doing)
    _told: int = 0  # minutes of the present silence
    _last_ns: int = 0

    def __enter__(self) -> Plain:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End."""

    def foresee(self, forecast: Forecast) -> None:
        """Write the time left by ``forecast`` from now on."""
        self._forecast = forecast

    def phase(self, name: str) -> None:
        """Write the name of the phase."""
        self._doing.phase, self._told = name, 0
        self._write(name)

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        """Remember the label of the stream."""
        self._rate, self._told = ProgressRate(tokens_per_step), 0
        self._doing.stream(label, steps)
        if self._forecast is not None:
            self._forecast.stream(steps)

    def note(self, text: str) -> None:
        """Write a note."""
        self._print(f"note: {text}")

    def message(self, message: Phase | Tick | Fence | Silence | None) -> None:
        """Write a phase at once, steps at most every 30 seconds, and each minute of silence."""
        if isinstance(message, Silence):
            self._silence(message)
        elif message is not None:
            self._told = 0
        if isinstance(message, Phase):
            self._write(self._doing.of_child(message))
        elif isinstance(message, Tick):
            self._step(message)

    def _step(self, tick: Tick) -> None:
        if self._forecast is not None:
            self._forecast.tick(tick)
        rate = self._rate.after(tick)
        if tick.index == 0:
            self._write(f"{self._doing.label}: first step done")
        elif clock.now_ns() - self._last_ns > self._EVERY_NS:
            step = f"step {tick.index + 1} of at most {self._doing.steps}"
            self._write(f"{self._doing.label}: {step}, {rate}")

    def _silence(self, silence: Silence) -> None:
        minutes = int(silence.since_s // _MINUTE_S)
        if minutes > self._told:
            self._told = minutes
            self._write(self._doing.still(silence))

    def _write(self, text: str) -> None:
        left = ""
        if self._forecast is not None:
            left_s = self.bar.advance(self._forecast)
            left = f" ({min(99, int(100 * self.bar.share))} %, {readable(left_s)} left)"
        self._print(f"{self.prefix}{text}{left}")

    def _print(self, text: str) -> None:
        self._last_ns = clock.now_ns()
        with suppress(OSError):  # a full or closed stderr must not stop a run
            self.console.print(f"llmb: {text}", highlight=False, soft_wrap=True, markup=False)


def display(
    *, quiet: bool, bar: Bar | None = None, prefix: str = ""
) -> AbstractContextManager[Display]:
    """Return a bar for a terminal, plain lines for a pipe, or silence.

    Args:
        quiet: show nothing.
        bar: the bar of a whole sweep, which goes on over its runs.
        prefix: the part of the sweep, such as ``point 3 of 8: ``.

    The progress of a command that was called by a program is shown by the calling program.
    """
    if quiet:
        return nullcontext(Silent())
    if (relayed := caller.relayed()) is not None:
        return nullcontext(relayed)
    console = Console(stderr=True)
    # FORCE_COLOR makes a pipe a terminal for rich; a dumb terminal cannot redraw a line.
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        return Live(console, bar, prefix)
    return Plain(Console(stderr=True, no_color=True, force_terminal=False), bar or Bar(), prefix)
