"""The audit of a bundle, judged again from its evidence and compared with the one it claims."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

from llmb.audit import optimizer, rules, sources, time, types
from llmb.config import Frozen
from llmb.errors import BundleRefusedError
from llmb.records import evidence
from llmb.records.bundle import Bundle, parse_model
from llmb.records.finding import Audit, Finding, Level, Status
from llmb.records.run_directory import PLUGIN_FOLDER
from llmb.records.run_record import FileDigest, RunRecord
from llmb.reference import pins

PLUGIN_PREFIX = f"{PLUGIN_FOLDER}/"
_Kind = TypeVar("_Kind", bound=Frozen)
_CONTEXT = {Status.NOTE, Status.NOT_OBSERVED, Status.NOT_APPLICABLE}


def load(bundle: Bundle, repeat: int, file: str, kind: type[_Kind]) -> _Kind:
    """Return evidence ``file`` of ``repeat`` as a ``kind``.

    Raises:
        BundleRefusedError: it is missing, or not what this llmb writes.
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


def judge(bundle: Bundle, record: RunRecord) -> Audit:
    """Return the audit that the bundle's own evidence supports; all else is ``not_observed``.

    Raises:
        BundleRefusedError: evidence is missing, or not what this llmb writes.
    """
    repeats = record.timing.repeats
    if not repeats:
        raise BundleRefusedError("the record has no repeat to judge")
    try:
        t1, t2 = time.judge_clocks(repeats), time.judge_fences(repeats)
    except (KeyError, ValueError):
        raise BundleRefusedError("the fences of the record do not span its window") from None
    o1 = rules.worst([_judge_optimizer(bundle, record, n) for n in range(len(repeats))])
    s1 = rules.worst([_judge_sources(bundle, n) for n in range(len(repeats))])
    p2 = _judge_programs(bundle, record)
    return rules.complete([*p2, o1, t1, *t2, s1])


def differences(claimed: Audit, judged: Audit) -> Iterator[str]:
    """Yield a sentence for each way in which the ``claimed`` audit is not the one ``judged``.

    A finding of a rule that is only context (level NOTE) may say more than was judged here: it
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
        if stated != ours:
            yield f"{rule.id} is {_statuses(stated)}, the evidence supports {_statuses(ours)}"


def _is_context(finding: Finding) -> bool:
    return finding.level is Level.NOTE and finding.status in _CONTEXT


def _statuses(findings: Sequence[Finding]) -> str:
    parts = [f"{f.status.value} ({f.level.value}: {f.message})" for f in findings]
    return " and ".join(parts) if parts else "missing"


def _judge_optimizer(bundle: Bundle, record: RunRecord, n: int) -> Finding:
    path = evidence.path(n, evidence.OPTIMIZER)
    seen = load(bundle, n, evidence.OPTIMIZER, evidence.OptimizerEvidence)
    repeat = record.timing.repeats[n]
    if seen.steps_expected < repeat.warmup_steps + repeat.timed_steps:
        raise BundleRefusedError(f"{path!r} is of fewer steps than the window has")
    return optimizer.judge(seen, path)


def _judge_programs(bundle: Bundle, record: RunRecord) -> list[Finding]:
    paths = [evidence.path(n, evidence.PROGRAM) for n in range(len(record.timing.repeats))]
    if any(path not in bundle.files for path in paths):
        return []
    found = []
    for path in paths:
        text = bundle.files[path].decode(errors="replace")
        found.append(types.judge(text, record.config.precision, path))
    return [rules.worst(found)]


def _judge_sources(bundle: Bundle, n: int) -> Finding:
    seen = load(bundle, n, evidence.PLUGIN, evidence.PluginEvidence)
    # Whether the run's reference was this one is a check of its own (``verify``).
    pinned = pins.pinned_digests()
    return sources.judge(seen.files, plugin_digests(bundle), pinned, pinned)
