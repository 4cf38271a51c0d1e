"""One observation of the audit, and the verdict over all observations."""

from __future__ import annotations

from enum import Enum

from llmb.config import Frozen

#: Versions of the rules to judge a run by, the latest last. Every new rule adds a version. A
#: changed judgement breaks with earlier runs: the tuple then holds the new version alone.
JUDGED_VERSIONS = ("2", "3", "4")
RULES_VERSION = JUDGED_VERSIONS[-1]
#: First version with judged steps in trainings whose every step is compared (rule G1).
JUDGED_SINCE = 4


def alike(one: str, other: str) -> bool:
    """Tell whether figures by two versions of the rules may be compared and ranked together.

    Allowed if the versions differ by new rules alone. Example: "2" and "3".
    """
    return one == other or {one, other} <= set(JUDGED_VERSIONS)


class Level(str, Enum):
    """The effect of a broken rule on the verdict."""

    BLOCK = "block"
    FLAG = "flag"
    NOTE = "note"


class Status(str, Enum):
    """The result of an observation."""

    PASS = "pass"
    FAIL = "fail"
    FLAG = "flag"
    NOTE = "note"
    NOT_OBSERVED = "not_observed"
    NOT_APPLICABLE = "not_applicable"


class Verdict(str, Enum):
    """The audit's verdict on a run as a whole (rules.md); never "certified"."""

    INVALID = "INVALID"
    UNVERIFIED = "UNVERIFIED"
    FLAGGED = "FLAGGED"
    CONSISTENT = "CONSISTENT"
    REPRODUCED = "REPRODUCED"


class Finding(Frozen):
    """One rule, observed or not: the measured value, the honest value and the limit."""

    id: str
    level: Level
    status: Status
    observer: str
    measured: str | None = None
    honest: str | None = None
    limit: str | None = None
    basis: str | None = None
    message: str
    #: Files of the run directory with the evidence.
    evidence: tuple[str, ...] = ()


class Reproduction(Frozen):
    """Another run of the same configuration, linked by bundle id: derived, never in a record."""

    bundle_id: str
    run_id: str
    tokens_per_second: float
    difference_percent: float


class Audit(Frozen):
    """Every finding of one run, and the verdict."""

    rules_version: str
    verdict: Verdict
    #: Always empty: a bundle cannot know later repetitions (``llmb.reproduction`` derives links).
    reproductions: tuple[Reproduction, ...] = ()
    findings: tuple[Finding, ...]
    #: Limits of this audit, in sentences.
    limits: tuple[str, ...]
