"""Why a run is not ranked, or is ranked with a mark: every reason, with the rules behind it."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from llmb.records.finding import RULES_VERSION, Level, Status, Verdict, alike
from llmb.records.run_record import RunRecord

#: Topic of a reason -> explanation, beside the place in docs/rules.md.
TOPICS = {
    "INVALID": (
        "A blocking rule failed: the run has no valid figure, and is never ranked.",
        "Verdicts",
    ),
    "UNVERIFIED": (
        "A blocking rule could not be observed. The run is ranked and marked: nobody knows whether "
        "the run kept the rule.",
        "Verdicts",
    ),
    "FLAGGED": (
        "No blocking rule failed, and a rule of level flag did. The run is ranked and marked: a "
        "human should look.",
        "Verdicts",
    ),
    "debug": (
        "Every run that is not official is a debug run, for example a run of other sizes or of "
        "fewer than 50 timed steps. Its record lists the reasons.",
        "Classes",
    ),
    "own-model": (
        "The sizes come from a file of the submitter: nobody else has runs of the same work.",
        "Classes",
    ),
    "superseded": (
        "The run was judged by an earlier version of the rules, whose figures are not comparable "
        "with today's.",
        "Verdicts",
    ),
    "refused": (
        "The bundle fails llmb verify, lies in the folder of another submitter or system, or has "
        "the run id, nonce or evidence of an earlier bundle. The first failed check is named.",
        "Verdicts",
    ),
    "not-verified": (
        "No check failed, and evidence outside of the bundle was not to be had: llmb verify "
        "--evidence names a place.",
        "Verdicts",
    ),
}


@dataclass(frozen=True)
class StandingReason:
    """One reason; ``topic`` is a key of ``TOPICS``."""

    topic: str
    text: str
    #: Ids of the rules behind the reason. Example: ``("W1", "E1")``.
    rules: tuple[str, ...] = ()
    after: str = ""

    @property
    def words(self) -> str:
        """The reason in one line. Example: ``INVALID: W1, E1 failed``."""
        return f"{self.text}: {', '.join(self.rules)}{self.after}" if self.rules else self.text


def reasons_apart(record: RunRecord) -> Iterator[StandingReason]:
    """Yield every reason that keeps ``record`` out of the ranking; none: the run is ranked."""
    if record.audit.verdict is Verdict.INVALID:
        broken = _rules(record, {Status.FAIL})
        yield StandingReason("INVALID", "INVALID", broken, " failed")
    if record.class_ == "debug":
        why = "; ".join(record.waivers) or "not comparable"
        yield StandingReason("debug", f"debug: {why}")
    if record.config.definition is not None:
        yield StandingReason("own-model", "a model of the submitter's own")
    if not alike(record.rules_version, RULES_VERSION):
        text = f"rules {record.rules_version}: today's are {RULES_VERSION}"
        yield StandingReason("superseded", text)


def reasons_marked(record: RunRecord) -> Iterator[StandingReason]:
    """Yield the reason of a verdict short of CONSISTENT, with the rules behind the verdict."""
    if record.audit.verdict is Verdict.UNVERIFIED:
        unseen = _rules(record, {Status.NOT_OBSERVED}, Level.BLOCK)
        yield StandingReason("UNVERIFIED", "not observed", unseen)
    if record.audit.verdict is Verdict.FLAGGED:
        yield StandingReason("FLAGGED", "flagged", _rules(record, {Status.FLAG, Status.FAIL}))


def _rules(record: RunRecord, statuses: Set[Status], level: Level | None = None) -> tuple[str, ...]:
    """Return the ids of all rules with one of ``statuses``, each once."""
    every = (one for one in record.audit.findings if level in (None, one.level))
    return tuple(dict.fromkeys(one.id for one in every if one.status in statuses))
