"""Offline checks of a bundle, for any reader: does the evidence support the record?"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from llmb import __version__
from llmb.audit.judgement import Judgement
from llmb.audit.rule import verdict
from llmb.errors import BundleRefusedError, UnavailableError
from llmb.records import diff, evidence, references, run_directory
from llmb.records.bundle import Bundle, Take, completed, read_bundle
from llmb.records.finding import Status
from llmb.records.provenance import Provenance, provenance
from llmb.records.references import is_up_to
from llmb.records.reproduction import ReproductionOf
from llmb.records.run_record import PrecisionBits, RunRecord
from llmb.records.seed_commitment import SeedCommitment
from llmb.records.strict_json import same
from llmb.reference import pins
from llmb.submission import evidence_files, layout, page, ranks, rejudge, time_stamps
from llmb.submission.clashes import Content, content_of
from llmb.submission.recompute import link_mismatches, mismatches
from llmb.submission.signatures import Signature, signers

_SHOWN = 5
#: Text files for people, and the bytes no text file may hold: control bytes except tab and newline.
_TEXTS, _CONTROL = (".diff", ".md", ".txt"), re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
#: Longest text of a record. Leaderboards show texts of records; an honest one has 1,100 characters.
_LONGEST = 16_384
#: Last version of llmb with a manifest that does not name the bundle's owner.
_LAST_WITHOUT_OWNER = "0.1.0"
#: Lines of a diff: the time grows with the product of both sides' lines. The worst two diffs
#: within the limit took 1.2 s together, with 5,000 lines 6 s. A trillion parameters: 1,500 lines.
_MOST_LINES = 3000
#: Message of a check that failed by an unexpected error: a defect of llmb, and still a refusal.
UNFORESEEN = "what is there cannot be checked"


@dataclass(frozen=True)
class VerifyCheck:
    """One check, and the outcome."""

    name: str
    ok: bool
    message: str


@dataclass(frozen=True)
class Verification:
    """A readable bundle, and the outcome of every check."""

    bundle_id: str
    record: RunRecord
    checks: tuple[VerifyCheck, ...]
    #: Content that no other bundle may have.
    content: Content
    #: Signatures found; empty for an unsigned bundle, or if no signature could be checked.
    signatures: tuple[Signature, ...] = ()
    #: Id of the submitter; None: the manifest names none.
    submitter: str | None = None

    @property
    def provenance(self) -> Provenance:
        """Who made the bundle, and whether this llmb runs the bundle's workload."""
        return provenance(self.record)

    @property
    def ok(self) -> bool:
        """True when no check failed."""
        return all(check.ok for check in self.checks)

    @property
    def headline(self) -> str:
        """The result in one line, with precision, class of the run and verdict.

        Example: ``llama-1.4b train BF16: 1,234.5 tokens/s, official, CONSISTENT``.
        """
        record = self.record
        precision = record.precision.effective or f"{record.precision.declared} declared"
        return (
            f"{record.workload.name} {record.workload.mode} {precision}: "
            f"{record.result.tokens_per_second:,.1f} tokens/s, "
            f"{record.class_}, {record.audit.verdict.value}"
        )


@dataclass(frozen=True)
class Case:
    """The input of the checks."""

    bundle: Bundle
    record: RunRecord

    @property
    def judged(self) -> Judgement:
        """The judgement that the evidence supports, by the rules of this llmb."""
        if isinstance(self._judged, BundleRefusedError):
            raise self._judged
        return self._judged

    @cached_property
    def _judged(self) -> Judgement | BundleRefusedError:
        # A refusal is cached, too.
        try:
            return rejudge.judge(self.bundle, self.record)
        except BundleRefusedError as error:
            return error


def verify(
    path: Path,
    allowed: Path | None = None,
    take: Take | None = None,
    authorities: Path | None = None,
) -> Verification:
    """Return every check of the bundle (folder or zip) at ``path``.

    Args:
        path: the bundle.
        allowed: a file of allowed signers in ssh's format: an allowed signer must have signed.
        take: gives evidence that is stored elsewhere.
        authorities: certificates in PEM: time stamps must come from the listed authorities.

    Raises:
        UsageError: ``path`` or ``allowed`` has nothing to read.
        BundleRefusedError: files, digests or record are too damaged for the checks; or
            ``authorities`` has no certificates.
        EvidenceNotHereError: evidence is stored elsewhere, and ``take`` is missing or cannot find
            the evidence.
        UnavailableError: ``allowed`` is given and ssh-keygen is missing; or ``authorities`` is
            given and rfc3161-client is not installed.
    """
    return verify_bundle(read_bundle(path, take), allowed, authorities)


def verify_bundle(
    bundle: Bundle, allowed: Path | bytes | None = None, authorities: Path | None = None
) -> Verification:
    """Return every check of ``bundle``; reading has already compared files and digests.

    Raises:
        BundleRefusedError: the record cannot be read.
        UsageError, UnavailableError: as ``verify``. EvidenceNotHereError: evidence is missing.
    """
    completed(bundle, None)
    record = bundle.record()
    written = bundle.json(run_directory.RECORD)["schema"]
    now = "" if written == record.schema_ else f", read as {record.schema_}"
    checks = [
        VerifyCheck("integrity", True, f"{len(bundle.files)} files are those of the manifest"),
        VerifyCheck("schema", True, f"{written}{now}, written by llmb {record.llmb_version}"),
    ]
    case = Case(bundle, record)
    checks += [_run(name, faults, case) for name, faults in _CHECKS.items()]
    if record.seed_commitment is not None:
        checks.append(_seed(record, record.seed_commitment))
    if record.reproduction_of is not None:
        checks.append(_reproduction(record, record.reproduction_of))
    if time_stamps.has_any(bundle, record):
        checks.append(_time_stamps(case, authorities))
    checks.append(_owner(bundle, record))
    signed, found = _signatures(bundle, allowed)
    checks.append(signed)
    content = content_of(bundle, record)
    whose = bundle.submission
    owner = whose.submitter if whose else None
    return Verification(bundle.bundle_id, record, tuple(checks), content, found, owner)


def _owner(bundle: Bundle, record: RunRecord) -> VerifyCheck:
    """Check that a bundle names its owner; only a signature can prove the owner."""
    whose = bundle.submission
    if whose is not None:
        name = f" ({whose.organisation})" if whose.organisation else ""
        said = f"handed in by {whose.submitter}{name}, system {whose.system}"
        return VerifyCheck("owner", True, said)
    of_older_rules = not evidence_files.names_its_run(record)
    if of_older_rules and is_up_to(record.llmb_version, _LAST_WITHOUT_OWNER):
        older = "not said: a manifest of llmb.bundle/1 names no submitter"
        return VerifyCheck("owner", True, older)
    version = record.llmb_version
    missing = f"the manifest names no submitter, and that of llmb {version} does"
    return VerifyCheck("owner", False, missing)


def _signatures(
    bundle: Bundle, allowed: Path | bytes | None
) -> tuple[VerifyCheck, tuple[Signature, ...]]:
    """Check the signatures; without ``allowed`` a signature shows a key, not the key's owner.

    With ``allowed`` the bundle's own submitter must have signed: a signature by another allowed
    signer is not enough.
    """
    count = len(bundle.signatures)
    try:
        found = signers(bundle, allowed)
    except BundleRefusedError as error:
        return VerifyCheck("signatures", False, str(error)), ()
    except UnavailableError as error:
        if allowed is not None:
            raise
        return VerifyCheck("signatures", True, f"{count} NOT CHECKED: {error}"), ()
    keys = ", ".join(f"{one.key_type} {one.fingerprint}" for one in found)
    if allowed is None:
        none = "none: nobody vouches for this bundle"
        some = f"{count} intact, by {keys}; whose keys these are, --signers FILE would say"
        return VerifyCheck("signatures", True, some if found else none), found
    if not found:
        return VerifyCheck("signatures", False, "not signed, and a signer is asked for"), ()
    owner = bundle.submission.submitter if bundle.submission else None
    if owner is None:
        unknown = "the bundle does not say whose it is: no signature can be held to its owner"
        return VerifyCheck("signatures", False, unknown), found
    known = [one for one in found if one.principal == owner]
    if known:
        who = ", ".join(f"{one.principal!r} ({one.key_type} {one.fingerprint})" for one in known)
        others = f"; {count - known_count} by others" if (known_count := len(known)) < count else ""
        return VerifyCheck("signatures", True, f"signed by {who}{others}"), found
    reasons = "; ".join(
        f"{one.fingerprint}: {one.doubt or f'of {one.principal!r}'}" for one in found
    )
    return VerifyCheck("signatures", False, f"not signed by {owner!r} ({reasons})"), found


def _run(name: str, faults: _Faults, case: Case) -> VerifyCheck:
    try:
        found = list(faults(case))
    except BundleRefusedError as error:
        found = [str(error)]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A bundle must not pass because a check could not handle its content.
        found = [f"{UNFORESEEN} ({type(error).__name__})"]
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    said = "; ".join(found[:_SHOWN]) + more if found else _AS_IT_SHOULD[name]
    if name == "evidence" and not found:
        said += _less(case)
    return VerifyCheck(name, not found, said)


def _seed(record: RunRecord, said: SeedCommitment) -> VerifyCheck:
    """Check the committed seed; only the publication itself can prove author and time."""
    # By the documented formula, independent of the code that accepted the commitment.
    given = hashlib.sha256(b"llmb-seed:%d:%b" % (said.seed, said.salt.encode())).hexdigest()
    found = []
    if given != said.commitment:
        found.append(f"seed and salt give {given}, the commitment is {said.commitment}")
    if said.seed != record.config.seed:
        found.append(f"committed to was seed {said.seed}, the run's is {record.config.seed}")
    where = f" ({said.published_at})" if said.published_at else ""
    holds = f"{said.commitment} holds; compare it with what {said.committed_by!r} published{where}"
    return VerifyCheck("seed commitment", not found, "; ".join(found) or holds)


def _reproduction(record: RunRecord, link: ReproductionOf) -> VerifyCheck:
    """Check the link to the repeated bundle; only that bundle can prove the link true."""
    found = [str(wrong) for wrong in link_mismatches(record, link)]
    holds = (
        f"repeats bundle {link.bundle_id}, {link.difference_percent:+.2f} % of its tokens/s; "
        "llmb verify --all compares the two where that bundle is, too"
    )
    return VerifyCheck("reproduction", not found, "; ".join(found) or holds)


def _time_stamps(case: Case, authorities: Path | None) -> VerifyCheck:
    """Check that time stamps fit the record; only ``authorities`` can show the clocks' owners."""
    listed = None if authorities is None else time_stamps.listed(authorities)
    try:
        check = _run("time stamps", lambda case: time_stamps.faults(case.bundle, case.record), case)
    except UnavailableError as error:
        return VerifyCheck("time stamps", True, f"NOT CHECKED: {error}")
    if not check.ok:
        return check
    said = time_stamps.described(case.bundle, case.record)
    if listed is None:
        whose = "; whose clock that is, --authorities FILE would say"
        return VerifyCheck("time stamps", True, said + whose)
    found = [*time_stamps.strangers(case.bundle, case.record, listed)]
    return VerifyCheck("time stamps", not found, "; ".join(found) or f"{said}, which is listed")


def _recomputation(case: Case) -> Iterator[str]:
    record = case.record
    yield from map(str, mismatches(record))


def _files(case: Case) -> Iterator[str]:
    bundle, record = case.bundle, case.record
    yield from layout.faults(bundle.files, record)
    longest = max(_lengths(bundle.json(run_directory.RECORD)))
    if longest > _LONGEST:
        yield f"{run_directory.RECORD} holds a text of {longest} characters, more than {_LONGEST}"
    for name in sorted(bundle.files):
        if name.endswith(".json"):
            bundle.json(name)  # refuses JSON that two parsers may read differently
        elif name.endswith(_TEXTS) and _CONTROL.search(bundle.files[name]):
            yield f"{name!r} holds a control byte, which a terminal may obey"
    if layout.PAGE in bundle.files:
        fault = page.fault(bundle.files[layout.PAGE], record)
        if fault is not None:
            yield f"{layout.PAGE} {fault}"


def _lengths(value: Any) -> Iterator[int]:
    """Yield the length of every text of a JSON value, names included, and a 0."""
    yield len(value) if isinstance(value, str) else 0
    if isinstance(value, dict):
        yield from map(len, value)
        value = [*value.values()]
    for part in value if isinstance(value, list) else ():
        yield from _lengths(part)


def _copies(case: Case) -> Iterator[str]:
    bundle = case.bundle
    whole = bundle.json(run_directory.RECORD)
    for name, part in ((run_directory.AUDIT, "audit"), (run_directory.SYSTEM, "system")):
        if not same(bundle.json(name), whole.get(part)):
            yield f"{name} is not the one in the record"


def _plugin(case: Case) -> Iterator[str]:
    bundle, record = case.bundle, case.record
    shown = {file.path: file for file in rejudge.plugin_digests(bundle)}
    listed = {file.path: file for file in record.plugin.files}
    if len(listed) != len(record.plugin.files):
        yield "the record lists a plugin file twice"
    for path in sorted(shown.keys() | listed.keys()):
        if shown.get(path) != listed.get(path):
            yield f"plugin file {path!r} is not the one in the record"
    plugin = record.plugin
    stated = (plugin.closed_components, plugin.declared_patches, plugin.declared_helpers)
    for n in range(len(record.timing.repeats)):
        seen = rejudge.load(bundle, n, evidence.PLUGIN, evidence.PluginEvidence)
        if stated != (seen.closed_components, seen.declared_patches, seen.declared_helpers):
            what = "closed components, patches or helpers"
            yield f"{what} are not those in the evidence of repeat {n}"


def _evidence(case: Case) -> Iterator[str]:
    yield from evidence_files.faults(case.bundle, case.record)


def _less(case: Case) -> str:
    """Return a note of facts that the evidence lacks, and of files that a run may lack."""
    said, record = "", case.record
    if not evidence_files.names_its_run(record):
        said = f"; evidence of rules {record.rules_version} does not name its run"
    if absent := evidence_files.absent(case.bundle, record):
        said += f"; not there, and rules that need it not observed: {', '.join(absent[:_SHOWN])}"
    return said


def _audit(case: Case) -> Iterator[str]:
    bundle, record = case.bundle, case.record
    if record.rules_version != record.audit.rules_version:
        yield "record and audit are of different rules"
    yield from rejudge.differences(record.audit, case.judged.audit)
    yield from rejudge.other_draws(bundle, record)
    if record.audit.reproductions:
        yield "it claims reproductions: they follow from bundles that link to it, never from itself"


def _verdict(case: Case) -> Iterator[str]:
    record = case.record
    derived = verdict(record.audit.findings)
    if record.audit.verdict is not derived:
        yield f"it says {record.audit.verdict.value}, its findings add up to {derived.value}"


def _precision(case: Case) -> Iterator[str]:
    record = case.record
    facts, judged = record.precision, case.judged
    if (facts.effective, facts.bits) != (judged.effective, judged.bits):
        yield (
            f"effective precision {facts.effective!r} with bits {facts.bits}, the evidence says "
            f"{judged.effective!r} with {judged.bits}"
        )
    if record.precision_recipe != judged.precision_recipe:
        yield "the measured recipe is not the one that the evidence shows"
    observed = any(
        f.id == "P1" and f.status is not Status.NOT_OBSERVED for f in record.audit.findings
    )
    empty = facts.effective is None and facts.bits == PrecisionBits()
    if (facts.how == "measured") == empty:
        yield "an effective precision and how it was come by contradict each other"
    if not empty and not observed:
        yield f"an effective precision ({facts.effective!r}) is claimed, and rule P1 not observed"


def _diff(case: Case) -> Iterator[str]:
    bundle, record = case.bundle, case.record
    for n in range(len(record.timing.repeats)):
        model = rejudge.load(bundle, n, evidence.MODEL, evidence.ModelEvidence)
        weights = rejudge.load(bundle, n, evidence.WEIGHTS, evidence.WeightsEvidence)
        rejudge.load(bundle, n, evidence.SETTINGS, evidence.SettingsEvidence)
        if record.diff.model != diff.model_diff(model, weights):
            yield f"the changes to the model are not those in the evidence of repeat {n}"
    yield from _readable_diffs(bundle, record)


def _readable_diffs(bundle: Bundle, record: RunRecord) -> Iterator[str]:
    model = rejudge.load(bundle, 0, evidence.MODEL, evidence.ModelEvidence)
    settings = rejudge.load(bundle, 0, evidence.SETTINGS, evidence.SettingsEvidence)
    asked_for = {f"environment.{name}" for name in record.plugin.environment}
    early = {c.name: c.after for c in record.diff.settings if c.name in asked_for and c.after}
    before, after = diff.settings_sides(settings, early)
    pairs = len(model.before) * len(model.after) + len(before) * len(after)
    if pairs > _MOST_LINES**2:
        yield f"more than {_MOST_LINES} modules or settings: no diff of them can be checked"
        return
    if record.diff.settings != diff.setting_changes(before, after):
        yield "the changes to settings are not those in the evidence of repeat 0"
    for name, text in (
        (run_directory.MODEL_DIFF, diff.unified(model.before, model.after, "model")),
        (run_directory.SETTINGS_DIFF, diff.unified(before, after, "settings")),
    ):
        if bundle.files.get(name) != text.encode():
            yield f"{name} does not show what the evidence of repeat 0 does"


def _ranks(case: Case) -> Iterator[str]:
    yield from ranks.faults(case.bundle, case.record)


def _reference(case: Case) -> Iterator[str]:
    record, published = case.record, references.table()
    version, digest = record.llmb_version, record.reference_digest
    ours = pins.reference_digest(pins.pinned_digests())
    if (version, digest) == (__version__, ours) or published.has(version, digest):
        return
    row, theirs = published.find(digest), digest[:12]
    if row is None:
        yield f"made with a reference nobody published ({theirs!r}, this llmb has {ours[:12]!r})"
    else:
        yield f"reference {theirs!r} is that of llmb {row.version}, and of no {version!r}"


_Faults = Callable[[Case], Iterator[str]]
_CHECKS: dict[str, _Faults] = {
    "recomputation": _recomputation,
    "files": _files,
    "copies": _copies,
    "plugin": _plugin,
    "evidence": _evidence,
    "audit": _audit,
    "verdict": _verdict,
    "precision": _precision,
    "diff": _diff,
    "ranks": _ranks,
    "reference": _reference,
}
_AS_IT_SHOULD = {
    "recomputation": "every derived number follows from the raw values",
    "files": "every file of a run is there, and no other",
    "copies": "audit.json and system.json are those in the record",
    "plugin": "files, closed components and patches of the plugin are those in the record",
    "evidence": "every file is of this run, its model and its fences",
    "audit": "the evidence supports each finding",
    "verdict": "the verdict follows from the findings",
    "precision": "effective precision and recipe claim nothing that was not observed",
    "diff": "the changes to the model are those in the evidence",
    "ranks": "hosts, devices and fences of the ranks are those in their evidence",
    "reference": "made with a published reference",
    "time stamps": "the tokens fit the record",
}
