"""A bar in a notebook, redrawn a few times a second, and removed at the end of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from IPython.display import HTML, display

from llmb import clock
from llmb.cli.progress import Doing, ProgressRate
from llmb.report.card import progress_card
from llmb.supervision.forecast import Forecast
from llmb.supervision.silence import Silence
from llmb.wire.messages import Fence, Phase, Tick

_EVERY_NS = 300_000_000


@dataclass
class NotebookBar:
    """The progress of a run as one piece of HTML below the cell."""

    _handle: Any = None
    _rate: ProgressRate = field(default_factory=lambda: ProgressRate(0))
    _doing: Doing = field(default_factory=Doing)
    _done: int = 0
    _steps: int | None = None
    _notes: list[str] = field(default_factory=list)
    _drawn_ns: int = 0

    def __enter__(self) -> NotebookBar:
        """Show an empty bar."""
        self._handle = display(HTML(progress_card("starting", 0, None, ())), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar; notes stay."""
        left = progress_card("", 0, None, self._notes) if self._notes else ""
        self._handle.update(HTML(left))

    def foresee(self, forecast: Forecast) -> None:
        """Show nothing: the bar in a notebook has the steps alone."""

    def phase(self, name: str) -> None:
        """Show a phase without a known length."""
        self._doing.phase, self._steps = name, None
        self._draw(name)

    def stream(self, steps: int, tokens_per_step: int, label: str) -> None:
        """Show a stream of at most ``steps`` steps."""
        self._rate = ProgressRate(tokens_per_step)
        self._doing.stream(label, steps)
        self._done, self._steps = 0, steps
        self._draw(label)

    def note(self, text: str) -> None:
        """Add a note below the bar."""
        self._notes.append(text)
        self._draw(self._doing.phase)

    def message(self, message: Phase | Tick | Fence | Silence | None) -> None:
        """Show a step, a phase of the worker, or a long silence."""
        if isinstance(message, Phase):
            self._draw(self._doing.of_child(message))
        elif isinstance(message, Silence):
            self._draw(self._doing.still(message))
        elif isinstance(message, Tick):
            rate, self._done = self._rate.after(message), message.index + 1
            if clock.now_ns() - self._drawn_ns > _EVERY_NS:
                self._draw(f"{self._doing.phase} {rate}")

    def _draw(self, words: str) -> None:
        self._drawn_ns = clock.now_ns()
        self._handle.update(HTML(progress_card(words, self._done, self._steps, self._notes)))
