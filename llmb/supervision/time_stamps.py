"""Time stamps of one repeat: asked for at START and STOP, and mixed into what is drawn between.

The worker must not learn where its window lies, also not from the traffic of its host. So a stamp
is asked for at each of the four fences where START or STOP may lie, and two are thrown away.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field

from llmb.records import time_stamp
from llmb.records.run_record import RepeatTiming, TimeStamps
from llmb.records.seeds import Stamp
from llmb.records.time_stamp import LEAST_SHARE, START, STOP, AtStop
from llmb.supervision.time_authority import Asked, TimeAuthority


@dataclass
class RepeatStamps:
    """The time stamps of one repeat of a run, as they come."""

    authority: TimeAuthority
    run_id: str
    repeat: int
    #: The first step whose draws follow from the first token; None until then.
    mixed_from: int | None = None
    _start: Asked | None = None
    _stop: Asked | None = None
    #: Held, so that what is thrown away is answered like the others.
    _others: list[Asked] = field(default_factory=list)

    def at_start(self, nonce: str) -> None:
        """Ask for the first token."""
        message = time_stamp.start_message(self.run_id, self.repeat, nonce)
        self._start = Asked(self.authority, message)

    def at_stop(self, known: AtStop) -> None:
        """Ask for the second, over the first and all that is ``known``, if the first has come."""
        if self._start is None or self._start.token is None or self.mixed_from is None:
            self.at_another()
            return
        first = self._start.token.sha256
        message = time_stamp.stop_message(self.run_id, self.repeat, first, known)
        self._stop = Asked(self.authority, message)

    def at_another(self) -> None:
        """Ask at a fence where START or STOP might have been: what comes is thrown away."""
        self._others.append(Asked(self.authority, secrets.token_bytes(16)))

    def mixed(self, step: int) -> Stamp | None:
        """Return the stamp to mix into what is drawn from ``step`` on, None if there is none yet.

        It is returned once.
        """
        if self._start is None or self.mixed_from is not None:
            return None
        token = self._start.came
        if token is None:
            return None
        self.mixed_from = step
        return Stamp(token.sha256, step)

    def said(self, timing: RepeatTiming, tokens_per_step: int) -> TimeStamps | None:
        """Return what the stamps say of a repeat that is over; this waits for the second.

        None where the first did not come before STOP.
        """
        if self._start is None or self._start.token is None or self.mixed_from is None:
            return None
        tokens = time_stamp.tokens_after(timing, self.mixed_from, tokens_per_step)
        stop = self._stop.wait() if self._stop else None
        return time_stamp.said(
            self.authority.url,
            self._start.token,
            stop,
            mixed_from=self.mixed_from,
            tokens=tokens,
        )

    @property
    def answers(self) -> dict[str, bytes]:
        """The authority's answers that belong to the evidence: file name -> DER."""
        if self.mixed_from is None:
            return {}
        asked = {START: self._start, STOP: self._stop}
        return {name: one.answer for name, one in asked.items() if one and one.token and one.answer}

    def notes(
        self, timing: RepeatTiming, said: TimeStamps | None, tokens_per_step: int
    ) -> tuple[str, ...]:
        """Return why there is no bound, or why it is far below the figure, in sentences."""
        if said is None or said.tokens_per_second is None:
            return self._failures
        tokens = time_stamp.tokens_after(timing, timing.warmup_steps, tokens_per_step)
        share = said.tokens_per_second * (timing.stop_ns - timing.start_ns) / 1e9 / tokens
        if share >= LEAST_SHARE:
            return ()
        # What is lost is the same in a longer window.
        enough = math.ceil(1.1 * timing.timed_steps * (1 - share) / (1 - LEAST_SHARE))
        return (
            f"the foreign clock leaves {share:.0%} of the figure: a level of its own begins at "
            f"{LEAST_SHARE:.0%}; make the window longer, by a larger batch or --timed-steps "
            f"{enough}",
        )

    @property
    def _failures(self) -> tuple[str, ...]:
        found = [
            f"no time stamp at {name}: {one.failure}"
            for name, one in (("START", self._start), ("STOP", self._stop))
            if one is not None and one.failure is not None
        ]
        if not found and self.mixed_from is None:
            found = [f"no time stamp: {self.authority.url} did not answer before the window ended"]
        return tuple(found)
