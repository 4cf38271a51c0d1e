"""Time stamps of one repeat: requested at START and STOP; the first is mixed into later draws.

The worker must not learn the position of the timed window, for example from network traffic on the
worker's host. A stamp is requested at each of the four fences where START or STOP may lie, and two
stamps are thrown away.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from llmb.records import time_stamp
from llmb.records.run_record import RepeatTiming, TimeStamps
from llmb.records.seeds import Stamp
from llmb.records.time_stamp import LEAST_SHARE, START, STOP, AtStop
from llmb.supervision.time_authority import Asked, TimeAuthority


@dataclass
class RepeatStamps:
    """The time stamps of one repeat of a run, requested at fences."""

    authority: TimeAuthority
    run_id: str
    repeat: int
    #: The first step with draws from the first token; None before the token has arrived.
    mixed_from: int | None = None
    _start: Asked | None = None
    _stop: Asked | None = None
    #: Requests with unused answers, kept alive so that the network traffic looks the same.
    _others: list[Asked] = field(default_factory=list)

    def at_start(self, nonce: str) -> None:
        """Request the first token."""
        message = time_stamp.start_message(self.run_id, self.repeat, nonce)
        self._start = Asked(self.authority, message)

    def at_stop(self, known: AtStop) -> None:
        """Request the second token, over the first token and ``known``, if the first has come."""
        if self._start is None or self._start.token is None or self.mixed_from is None:
            self.at_another()
            return
        first = self._start.token.sha256
        message = time_stamp.stop_message(self.run_id, self.repeat, first, known)
        self._stop = Asked(self.authority, message)

    def at_another(self) -> None:
        """Request a token at a fence where START or STOP might have been; drop the answer."""
        self._others.append(Asked(self.authority, secrets.token_bytes(16)))

    def mixed(self, step: int) -> Stamp | None:
        """Return the stamp to mix into draws from ``step`` on; None before the stamp has arrived.

        The stamp is returned only once. Example: a stamp arrives before step 12 is ordered:
        ``mixed(12)`` returns the stamp, and ``mixed(13)`` returns None.
        """
        if self._start is None or self.mixed_from is not None:
            return None
        token = self._start.came
        if token is None:
            return None
        self.mixed_from = step
        return Stamp(token.sha256, step)

    def said(self, timing: RepeatTiming, tokens_per_step: int) -> TimeStamps | None:
        """Return the stamps' evidence on a finished repeat, after waiting for the second token.

        The result is None if the first token did not come before STOP.
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
        """Return the reasons for a missing bound, or for a bound far below the run's figure."""
        if said is None or said.tokens_per_second is None:
            return self._failures
        tokens = time_stamp.tokens_after(timing, timing.warmup_steps, tokens_per_step)
        share = said.tokens_per_second * (timing.stop_ns - timing.start_ns) / 1e9 / tokens
        if share >= LEAST_SHARE:
            return ()
        # A longer window loses the same number of seconds.
        longer = 1.1 * (1 - share) / (1 - LEAST_SHARE)
        return (
            f"the foreign clock leaves {share:.0%} of the figure: a level of its own begins at "
            f"{LEAST_SHARE:.0%}; make the window {longer:.1f} times as long, by a larger batch",
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
