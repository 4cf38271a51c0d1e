"""What came of checking a plugin: a frozen value, and as JSON its badge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from llmb.config import Frozen
from llmb.wire.messages import CheckStatus


class CheckError(Exception):
    """A check found something wrong; the message says what, which value, and what to do."""


class SkipError(Exception):
    """A check cannot be done here; the message says why."""


class Outcome(Frozen):
    """How one check ended."""

    id: str
    title: str
    status: CheckStatus
    #: Of a failure: what, which value, what to do. Of a skip: why. Of a pass: what was seen.
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
    #: None where the plugin has no device here: then only hooks were checked.
    device: str | None
    options: Mapping[str, str]
    seconds: float
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """True if nothing failed; what was skipped says why in its message."""
        return not self.count["fail"]

    @property
    def count(self) -> Counter[str]:
        """Outcomes by status."""
        return Counter(outcome.status for outcome in self.outcomes)

    def outcome(self, check_id: str) -> Outcome:
        """Return how the check called ``check_id`` ended."""
        return next(outcome for outcome in self.outcomes if outcome.id == check_id)
