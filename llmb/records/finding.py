"""One observation of the audit, and the verdict a set of them adds up to."""

from __future__ import annotations

from enum import Enum

from llmb.config import Frozen

#: Versions of the rules that a run is judged by, the latest last. Another one comes with every new
#: rule. A change to a judgement breaks with earlier runs: then it is the only one.
JUDGED_VERSIONS = ("2", "3")
RULES_VERSION = JUDGED_VERSIONS[-1]


def alike(one: str, other: str) -> bool:
    """Tell whether figures by two versions of the rules may be compared and ranked together.

    They may where the versions differ by new rules alone.
    """
    return one == other or {one, other} <= set(JUDGED_VERSIONS)


class Level(str, Enum):
    """What a broken rule does to the verdict."""

    BLOCK = "block"
    FLAG = "flag"
    NOTE = "note"


class Status(str, Enum):
    """How an observation ended."""

    PASS = "pass"
    FAIL = "fail"
    FLAG = "flag"
    NOTE = "note"
    NOT_OBSERVED = "not_observed"
    NOT_APPLICABLE = "not_applicable"


class Verdict(str, Enum):
    """What the audit says of a run as a whole (rules.md); never "certified"."""

    INVALID = "INVALID"
    UNVERIFIED = "UNVERIFIED"
    FLAGGED = "FLAGGED"
    CONSISTENT = "CONSISTENT"
    REPRODUCED = "REPRODUCED"


class Finding(Frozen):
    """One rule, observed or not: what was measured, what is honest, where the limit lies."""

    id: str
    level: Level
    status: Status
    observer: str
    measured: str | None = None
    honest: str | None = None
    limit: str | None = None
    basis: str | None = None
    message: str
    #: Files of the run directory that show it.
    evidence: tuple[str, ...] = ()


class Reproduction(Frozen):
    """Another run of the same configuration, linked by bundle id: derived, never in a record."""

    bundle_id: str
    run_id: str
    tokens_per_second: float
    difference_percent: float


class Audit(Frozen):
    """Every finding of one run, and their sum."""

    rules_version: str
    verdict: Verdict
    #: Always empty: a bundle cannot know who will repeat it (``llmb.reproduction`` derives that).
    reproductions: tuple[Reproduction, ...] = ()
    findings: tuple[Finding, ...]
    #: What this audit cannot see, in sentences.
    limits: tuple[str, ...]
