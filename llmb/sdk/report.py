"""The result of checking a plugin: a frozen value, published as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from llmb.config import Frozen
from llmb.wire.messages import CheckStatus


class CheckError(Exception):
    """A check failed; the message gives the fault, the value, and a remedy."""


class SkipError(Exception):
    """A check is not possible here; the message gives the reason."""


class Outcome(Frozen):
    """The outcome of one check."""

    id: str
    title: str
    status: CheckStatus
    #: On failure: fault, value, remedy. On skip: the reason. On pass: the observation.
    message: str


class CheckReport(Frozen):
    """Every check of one plugin on one machine."""

    schema_version: str = "llmb.conformance/1"
    plugin: str
    distribution: str
    version: str
    llmb_version: str
    torch_version: str | None
    created_utc: str
    #: None if the plugin has no device here; only hooks were checked then.
    device: str | None
    options: Mapping[str, str]
    seconds: float
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """True if no check failed; a skipped check gives the reason in its message."""
        return not self.count["fail"]

    @property
    def count(self) -> Counter[str]:
        """Number of outcomes by status."""
        return Counter(outcome.status for outcome in self.outcomes)

    def outcome(self, check_id: str) -> Outcome:
        """Return the outcome of check ``check_id``."""
        return next(outcome for outcome in self.outcomes if outcome.id == check_id)
