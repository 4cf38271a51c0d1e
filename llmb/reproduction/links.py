"""Who has repeated what, derived from the links between the bundles of a tree.

A bundle never changes: whether it is REPRODUCED follows from other bundles, each time it is asked.
Everything here is about bundles that passed ``llmb verify``; this module checks none itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmb.config import RunConfig
from llmb.records.finding import Reproduction, Verdict, alike
from llmb.records.provenance import same_computation
from llmb.records.run_record import RunRecord
from llmb.reproduction import hardware
from llmb.reproduction.agreement import Agreement, agreement

#: Fields of a configuration that a repetition does not share: tokens and weights follow from a
#: seed that is drawn afresh, the plugin decides how many untimed steps it needs, files lie
#: elsewhere (their digests count), and a machine may number its devices differently.
_ITS_OWN = {"seed", "warmup_steps", "device", "data", "weights"}


@dataclass(frozen=True)
class Member:
    """A verified bundle of a tree, and who signed it."""

    bundle_id: str
    record: RunRecord
    #: Fingerprints of the keys whose signature of the manifest holds.
    signers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Repetition:
    """A bundle that repeats another, and what keeps it from making that one REPRODUCED."""

    reproduction: Reproduction
    agreement: Agreement
    #: In sentences; none: it counts.
    lacking: tuple[str, ...]

    @property
    def counts(self) -> bool:
        """Tell whether every condition of rules.md holds."""
        return not self.lacking


@dataclass(frozen=True)
class Standing:
    """A bundle, as the other bundles of its tree make it stand."""

    #: The record's own, or REPRODUCED.
    verdict: Verdict
    repetitions: tuple[Repetition, ...] = ()


def standings(members: Iterable[Member]) -> dict[str, Standing]:
    """Return how each of ``members`` stands, by bundle id.

    A bundle that is there twice, as folder and zip, is one, and who signed either signed it. A link
    that does not say of its original what that says of itself is no repetition.
    """
    every = _by_id(members)
    found: dict[str, list[Repetition]] = {bundle_id: [] for bundle_id in every}
    for member, original in _linked(every):
        if not list(_false(member.record, original.record)):
            found[original.bundle_id].append(_repetition(member, original))
    return {bundle_id: _standing(every[bundle_id], each) for bundle_id, each in found.items()}


def false_links(members: Iterable[Member]) -> dict[str, str]:
    """Return why a link is false, by the id of the bundle that has it; nothing of sound ones.

    A link whose original is not among ``members`` cannot be judged.
    """
    every = _by_id(members)
    found = {}
    for member, original in _linked(every):
        faults = list(_false(member.record, original.record))
        if faults:
            found[member.bundle_id] = (
                f"it says that it repeats {original.bundle_id[:12]}, {'; '.join(faults)}"
            )
    return found


def shortfalls(repetition: RunRecord, original: RunRecord) -> tuple[str, ...]:
    """Return what keeps one run from making another REPRODUCED, whoever signed them."""
    return tuple(_shortfalls(repetition, original))


def agreement_of(repetition: RunRecord, original: RunRecord) -> Agreement:
    """Return how the throughput of one run compares with that of another."""
    ours, theirs = repetition.result, original.result
    return agreement(ours.tokens_per_second, ours.ci95, theirs.tokens_per_second, theirs.ci95)


def signing_shortfall(signers: frozenset[str], original: frozenset[str]) -> str | None:
    """Return what keeps two bundles from being signed by different parties, None if nothing."""
    if not original:
        return "the original has no valid signature"
    if not signers:
        return "the repetition has no valid signature"
    if signers & original:
        return "both are signed with the same key"
    return None


def _by_id(members: Iterable[Member]) -> dict[str, Member]:
    found: dict[str, Member] = {}
    for member in members:
        copy = found.get(member.bundle_id)
        signers = member.signers | (copy.signers if copy else frozenset())
        found[member.bundle_id] = Member(member.bundle_id, member.record, signers)
    return found


def _linked(every: Mapping[str, Member]) -> Iterator[tuple[Member, Member]]:
    """Yield each bundle that links to another of them, with that one."""
    for member in every.values():
        link = member.record.reproduction_of
        if link is not None and link.bundle_id in every and link.bundle_id != member.bundle_id:
            yield member, every[link.bundle_id]


def _false(record: RunRecord, original: RunRecord) -> Iterator[str]:
    link = record.reproduction_of
    assert link is not None
    stated = (link.run_id, link.tokens_per_second, link.ci95)
    result = original.result
    if stated != (original.run_id, result.tokens_per_second, result.ci95):
        yield (
            f"as run {link.run_id[:8]} with {link.tokens_per_second:,.2f} tokens/s; that is run "
            f"{original.run_id[:8]} with {result.tokens_per_second:,.2f}"
        )


def _repetition(member: Member, original: Member) -> Repetition:
    agrees = agreement_of(member.record, original.record)
    lacking = [*_shortfalls(member.record, original.record)]
    unsigned = signing_shortfall(member.signers, original.signers)
    return Repetition(
        reproduction=Reproduction(
            bundle_id=member.bundle_id,
            run_id=member.record.run_id,
            tokens_per_second=member.record.result.tokens_per_second,
            difference_percent=agrees.difference_percent,
        ),
        agreement=agrees,
        lacking=(*lacking, *([unsigned] if unsigned else [])),
    )


def _standing(member: Member, repetitions: Sequence[Repetition]) -> Standing:
    verdict = member.record.audit.verdict
    if any(repetition.counts for repetition in repetitions):
        verdict = Verdict.REPRODUCED
    ordered = sorted(repetitions, key=lambda each: each.reproduction.bundle_id)
    return Standing(verdict, tuple(ordered))


def _shortfalls(ours: RunRecord, theirs: RunRecord) -> Iterator[str]:
    for name, record in (("original", theirs), ("repetition", ours)):
        if record.audit.verdict is not Verdict.CONSISTENT:
            yield f"the {name} is {record.audit.verdict.value}, not CONSISTENT"
        if record.class_ != "official":
            yield f"the {name} is a {record.class_} run"
    yield from _other_work(ours, theirs)
    unlike = hardware.unlike(hardware.of_record(theirs), hardware.of_record(ours))
    if unlike:
        yield f"another class of hardware: {'; '.join(unlike)}"
    agrees = agreement_of(ours, theirs)
    if not agrees.is_within_limit:
        yield f"the throughput differs by {agrees.difference_percent:+.2f} %, more than 5"


def _other_work(ours: RunRecord, theirs: RunRecord) -> Iterator[str]:
    if ours.run_id == theirs.run_id:
        yield "it is the same run"
    # ``verify`` holds the tokens in the evidence to the seed: a plain copy of the original, under
    # another run id, has its seed. Against evidence that is forged throughout nothing helps.
    if ours.config.seed == theirs.config.seed:
        yield "it has the seed of the original, and may be a copy of it"
    if not alike(ours.rules_version, theirs.rules_version):
        yield f"other rules: {theirs.rules_version}, {ours.rules_version}"
    if ours.workload != theirs.workload:
        yield "another workload"
    elif not same_computation(ours, theirs):
        versions = f"llmb {theirs.llmb_version}, llmb {ours.llmb_version}"
        yield f"another computation of family {ours.workload.family}: {versions}"
    other = [*_other_configuration(ours.config, theirs.config)]
    if other:
        yield f"another configuration: {', '.join(other)}"
    if ours.precision.effective != theirs.precision.effective:
        yield (
            f"another effective precision: {theirs.precision.effective}, {ours.precision.effective}"
        )
    # REPRODUCED is said of a bundle, and a bundle shows the code that ran.
    if {f.path: f.sha256 for f in ours.plugin.files} != {
        f.path: f.sha256 for f in theirs.plugin.files
    }:
        yield "other files of the plugin"


def _other_configuration(ours: RunConfig, theirs: RunConfig) -> Iterator[str]:
    for name in RunConfig.model_fields:
        if name not in _ITS_OWN and getattr(ours, name) != getattr(theirs, name):
            yield name
    if ours.device.partition(":")[0] != theirs.device.partition(":")[0]:
        yield "device"
    for name in ("data", "weights"):
        sources = (getattr(ours, name), getattr(theirs, name))
        if len({source and source.sha256 for source in sources}) > 1:
            yield name
