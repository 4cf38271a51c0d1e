"""Judges a bundle's audit again from the evidence, and compares the result with the claim."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from llmb.audit import judgement, rules
from llmb.audit.bench import UnreadableError, facts_of
from llmb.audit.judgement import Judgement
from llmb.config import Frozen, Mode
from llmb.errors import BundleRefusedError
from llmb.records import audited, evidence
from llmb.records.bundle import Bundle, parse_model
from llmb.records.draws import Draws, nonce_of
from llmb.records.finding import RULES_VERSION, Audit, Finding, Level, Status
from llmb.records.run_directory import PLUGIN_FOLDER
from llmb.records.run_record import FileDigest, RunRecord
from llmb.records.seeds import token_seed
from llmb.reference import pins

PLUGIN_PREFIX = f"{PLUGIN_FOLDER}/"
_Kind = TypeVar("_Kind", bound=Frozen)
_ACCUSES = (Status.FAIL, Status.FLAG)
_CONTEXT = {Status.NOTE, Status.NOT_OBSERVED, Status.NOT_APPLICABLE}


def load(bundle: Bundle, repeat: int, file: str, kind: type[_Kind]) -> _Kind:
    """Return evidence ``file`` of ``repeat`` as a ``kind``.

    Raises:
        BundleRefusedError: the file is missing, or this llmb does not write such a file.
    """
    path = evidence.path(repeat, file)
    return parse_model(kind, bundle.json(path), path)


def plugin_digests(bundle: Bundle) -> tuple[FileDigest, ...]:
    """Return the digest of every plugin file that the bundle shows."""
    return tuple(
        FileDigest(
            path=name.removeprefix(PLUGIN_PREFIX),
            sha256=hashlib.sha256(content).hexdigest(),
            bytes=len(content),
        )
        for name, content in sorted(bundle.files.items())
        if name.startswith(PLUGIN_PREFIX)
    )


def judge(bundle: Bundle, record: RunRecord) -> Judgement:
    """Return the judgement that the bundle's own evidence supports; the rest: ``not_observed``.

    Raises:
        BundleRefusedError: evidence is missing, or this llmb does not write such evidence.
    """
    if not record.timing.repeats:
        raise BundleRefusedError("the record has no repeat to judge")
    _check_optimizer(bundle, record)
    # ``verify`` checks separately whether the run used this reference.
    pinned = pins.pinned_digests()
    facts = facts_of(record, plugin_digests(bundle), pinned)
    try:
        return judgement.judge(bundle.files.get, facts)
    except UnreadableError as error:
        raise BundleRefusedError(str(error)) from None
    except (KeyError, IndexError, ValueError, ArithmeticError):
        raise BundleRefusedError(
            "the fences of the record do not span its window, or evidence is incomplete"
        ) from None


def other_draws(bundle: Bundle, record: RunRecord) -> Iterator[str]:
    """Yield a sentence for each value that does not follow from the seed and the nonces.

    Records of rules 2 and older have no nonce: sampled indices cannot be derived again.
    """
    timings = record.timing.repeats
    for n, timing in enumerate(timings):
        for index, drawn in _drawn(bundle, n).items():
            if drawn.tokens != token_seed(record.config.seed, n, index, timing.nonce_at(index)):
                yield f"step {index} of repeat {n} was not made with the tokens of seed and nonce"
            if timing.nonce is None:
                continue
            optimizer = record.workload.optimizer
            known = Draws(timing.nonce, optimizer, ledger=True, stamp=timing.stamp)
            if drawn.looked_at != known.audit(index):
                yield f"what was looked at in step {index} of repeat {n} was not drawn by the nonce"
        first = timings[0].nonce
        if timing.nonce != (None if first is None else nonce_of(first, n)):
            yield f"the nonce of repeat {n} does not follow from the run's"
    if record.config.nonce not in (None, timings[0].nonce):
        yield "the nonce of the run is not the one that it was asked to have"


@dataclass(frozen=True)
class _Drawn:
    """The drawn values of an audited step, from the evidence."""

    tokens: int
    looked_at: int


def _drawn(bundle: Bundle, repeat: int) -> dict[int, _Drawn]:
    """Return the drawn values of each audited step of ``repeat`` and of the last step."""
    found = {}
    if evidence.path(repeat, audited.STEPS) in bundle.files:
        steps = load(bundle, repeat, audited.STEPS, audited.StepsEvidence).steps
        found = {step.index: _Drawn(step.token_seed, step.seed) for step in steps}
    if evidence.path(repeat, audited.PROBED) in bundle.files:
        probed = load(bundle, repeat, audited.PROBED, audited.ProbedEvidence)
        found[probed.last_step] = _Drawn(probed.token_seed, probed.seed)
    return found


def differences(claimed: Audit, judged: Audit) -> Iterator[str]:
    """Yield a sentence for each difference between the ``claimed`` and the ``judged`` audit.

    A finding of a context rule (level NOTE) may claim more than this judgement: such a finding
    cannot change the verdict.
    """
    if claimed.rules_version != judged.rules_version:
        yield f"judged by rules {claimed.rules_version!r}, this llmb has {judged.rules_version!r}"
    if claimed.limits != judged.limits:
        yield "the limits of the audit are not those that llmb prints"
    order = [rule.id for rule in rules.RULES]
    if any(finding.id not in order for finding in claimed.findings):
        yield "it holds a finding of a rule that does not exist"
    for rule in rules.RULES:
        stated = [finding for finding in claimed.findings if finding.id == rule.id]
        ours = [finding for finding in judged.findings if finding.id == rule.id]
        if rule.level is Level.NOTE and stated and all(map(_is_context, stated)):
            continue
        if _worded(stated, judged) != _worded(ours, judged):
            yield f"{rule.id} is {_statuses(stated)}, the evidence supports {_statuses(ours)}"


def _worded(findings: Sequence[Finding], audit: Audit) -> list[Finding]:
    """Return ``findings`` in comparable words: later rules changed the words of accusations."""
    if audit.rules_version == RULES_VERSION:
        return [*findings]
    return [
        finding.model_copy(update={"message": ""}) if finding.status in _ACCUSES else finding
        for finding in findings
    ]


def _is_context(finding: Finding) -> bool:
    return finding.level is Level.NOTE and finding.status in _CONTEXT


def _statuses(findings: Sequence[Finding]) -> str:
    parts = [f"{f.status.value} ({f.level.value}: {f.message})" for f in findings]
    return " and ".join(parts) if parts else "missing"


def _check_optimizer(bundle: Bundle, record: RunRecord) -> None:
    for n, repeat in enumerate(record.timing.repeats):
        if record.workload.mode != Mode.TRAIN.value:
            continue
        seen = load(bundle, n, evidence.OPTIMIZER, evidence.OptimizerEvidence)
        if seen.steps_expected + seen.skipped < repeat.warmup_steps + repeat.timed_steps:
            path = evidence.path(n, evidence.OPTIMIZER)
            raise BundleRefusedError(f"{path!r} is of fewer steps than the window has")
