"""Differences between two runs that forbid a comparison, or must be told beside a comparison.

Refused: the figures are of different work, or are no figures of the benchmark.
  workload, sizes, mode, optimizer   rules.md, "Cannot change": tokens of another model, mode or
                                     optimizer are different work
  prompt_length, new_tokens          a token after a longer prompt is more work
  verdict INVALID                    rules.md: a blocking rule failed, the run has no valid figure
Not comparable: figures are shown, but do not tell which system is faster.
  effective_precision                rules.md: a run counts under the lowest bits used anywhere, and
                                     the leaderboard groups by precision; a precision not observed
                                     is never equal
  rules_version                      rules.md: a change that breaks comparability raises the version
                                     (versions that differ by new rules alone: noted)
  class, waivers                     rules.md: debug runs are labelled everywhere, waivers burned in
                                     (two debug runs of the same sizes: noted)
  dynamic                            sequences of another length are different work for attention
  run                                the same run twice: a second measurement is missing
Noted: settings that rules.md lets a submitter choose ("Can change") and that users often want to
compare, such as hardware, plugin, batch size, executor, versions and seeds; and verdicts short of
CONSISTENT. More timed steps than 50 are allowed: windows of two lengths are noted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from llmb.records.finding import Verdict, alike
from llmb.records.provenance import same_computation
from llmb.records.run_record import RunRecord


class Weight(str, Enum):
    """The effect of a difference on a comparison."""

    REFUSED = "refused"
    NOT_COMPARABLE = "not comparable"
    NOTED = "noted"


@dataclass(frozen=True)
class ConditionDifference:
    """One item in which two runs differ, or a remark on either run, such as a verdict."""

    item: str
    base: str
    other: str
    weight: Weight
    reason: str

    def __str__(self) -> str:
        """Return one line for people, such as ``accumulate: 2 against 4``."""
        both = self.base if self.base == self.other else f"{self.base} against {self.other}"
        return f"{self.item}: {both}" + (f" ({self.reason})" if self.reason else "")


def differences(base: RunRecord, other: RunRecord) -> tuple[ConditionDifference, ...]:
    """Return all differences and remarks for comparing ``other`` with ``base``, gravest first."""
    found = [*_work(base, other), *_standing(base, other), *_choices(base, other)]
    order = list(Weight)
    return tuple(sorted(found, key=lambda difference: order.index(difference.weight)))


def _unlike(
    item: str, base: object, other: object, weight: Weight, reason: str = ""
) -> Iterator[ConditionDifference]:
    """Yield a difference if the two values differ."""
    if base != other:
        yield ConditionDifference(item, _words(base), _words(other), weight, reason)


def _work(base: RunRecord, other: RunRecord) -> Iterator[ConditionDifference]:
    """Yield differences in the work itself, such as another workload, and INVALID verdicts."""
    refused = Weight.REFUSED
    a, b = base.workload, other.workload
    other_model = "tokens of another model are other work"
    yield from _unlike("workload", a.name, b.name, refused, other_model)
    yield from _unlike("mode", a.mode, b.mode, refused, "a step of another mode is other work")
    if a.name == b.name:
        yield from _unlike("family", a.family, b.family, refused, other_model)
        yield from _sizes(base, other)
    if (a.name, a.mode) == (b.name, b.mode):
        reason = "the optimizer cannot be changed"
        yield from _unlike("optimizer", a.optimizer, b.optimizer, refused, reason)
        yield from _unlike("clip_grad_norm", a.clip_grad_norm, b.clip_grad_norm, refused, reason)
        c, d = base.config, other.config
        reason = "a token after a longer text is more work"
        yield from _unlike("prompt_length", c.prompt_length, d.prompt_length, refused, reason)
        yield from _unlike("new_tokens", c.new_tokens, d.new_tokens, refused, reason)
    for record, name in ((base, "base"), (other, "other")):
        if record.audit.verdict is Verdict.INVALID:
            mine, theirs = base.audit.verdict.value, other.audit.verdict.value
            reason = f"{name}: a blocking rule failed, so there is no figure to compare"
            yield ConditionDifference("verdict", mine, theirs, refused, reason)


def _sizes(base: RunRecord, other: RunRecord) -> Iterator[ConditionDifference]:
    a, b = base.workload.shapes, other.workload.shapes
    names = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
    if names:
        values = [", ".join(f"{name} {shapes.get(name)}" for name in names) for shapes in (a, b)]
        reason = "tokens of a model of another size are other work"
        yield ConditionDifference("sizes", values[0], values[1], Weight.REFUSED, reason)


def _standing(base: RunRecord, other: RunRecord) -> Iterator[ConditionDifference]:
    """Yield differences that keep figures of the same work from being ranked together."""
    apart = Weight.NOT_COMPARABLE
    if base.run_id == other.run_id:
        yield ConditionDifference("run", base.run_id, other.run_id, apart, "one run twice")
    formats = [record.precision.effective or "not observed" for record in (base, other)]
    if formats[0] != formats[1] or "not observed" in formats:
        reason = "figures are grouped by the lowest precision that was seen to compute"
        yield ConditionDifference("effective_precision", formats[0], formats[1], apart, reason)
    reason = "a change of the rules that breaks comparability raises their version"
    one, another = base.rules_version, other.rules_version
    weight = Weight.NOTED if alike(one, another) else apart
    yield from _unlike("rules_version", one, another, weight, reason)
    if "debug" in (base.class_, other.class_):
        # Two debug runs of the same sizes are the same work, such as before and after a change.
        weight = Weight.NOTED if base.class_ == other.class_ else apart
        reason = "a debug run is comparable with none but its like"
        yield ConditionDifference("class", base.class_, other.class_, weight, reason)
    if base.waivers or other.waivers:
        waivers = ["; ".join(record.waivers) or "none" for record in (base, other)]
        yield ConditionDifference(
            "waivers", waivers[0], waivers[1], apart, "what a run was let off"
        )
    reason = "sequences of another length are other work for attention"
    yield from _unlike("dynamic", base.config.dynamic, other.config.dynamic, apart, reason)
    verdicts = (base.audit.verdict, other.audit.verdict)
    for verdict, reason in _SHORT_OF.items():
        if verdict in verdicts:
            values = (verdicts[0].value, verdicts[1].value)
            yield ConditionDifference("verdict", values[0], values[1], Weight.NOTED, reason)


_SHORT_OF = {
    Verdict.UNVERIFIED: "UNVERIFIED: a blocking rule could not be observed",
    Verdict.FLAGGED: "FLAGGED: a human should look",
}


def _choices(base: RunRecord, other: RunRecord) -> Iterator[ConditionDifference]:
    """Yield differences in free settings, hardware, software and timing."""
    for (item, a, reason), (_, b, _) in zip(_chosen(base), _chosen(other), strict=True):
        if isinstance(a, dict) and isinstance(b, dict):
            names = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
            a, b = ({name: one[name] for name in names if name in one} for one in (a, b))
        yield from _unlike(item, a, b, Weight.NOTED, reason)
    if base.workload.family == other.workload.family and not same_computation(base, other):
        mine, theirs = base.reference_digest[:12], other.reference_digest[:12]
        reason = f"the {base.workload.family} computation of another llmb"
        yield ConditionDifference("reference_digest", mine, theirs, Weight.NOTED, reason)


def _chosen(record: RunRecord) -> Iterator[tuple[str, object, str]]:
    """Yield name, value and remark of every free setting."""
    config, plugin, timing, system = record.config, record.plugin, record.timing, record.system
    devices = {device.name: device.description for device in system.devices}
    yield "declared_precision", record.precision.declared, ""
    yield "device", devices.get(config.device) or config.device, ""
    yield "processor", system.cpu.model, ""
    yield "cores", system.cpu.usable_cores, ""
    yield "world_size", record.topology.world_size, "figures are of all devices together"
    yield "nodes", record.topology.nodes, ""
    yield "parallelism", config.parallelism.model_dump(), ""
    yield "plugin", f"{plugin.distribution} {plugin.version} ({plugin.name})", ""
    yield "plugin_options", plugin.options, ""
    yield "strict", plugin.strict, ""
    yield "batch_size", config.batch_size, "free: the best throughput under any may be reported"
    yield "accumulate", config.accumulate, ""
    yield "mixed_precision", config.mixed_precision, ""
    yield "executor", _executor(record), ""
    yield "sac_freq", config.sac_freq, ""
    yield "generate_scope", config.generate_scope, ""
    yield "tokens", record.workload.tokens, ""
    yield "prompt", config.prompt_tokens, ""
    yield "weights", config.weights and config.weights.sha256[:12], ""
    yield "timed_steps", timing.timed_steps, "windows of two lengths"
    yield "warmup_steps", timing.warmup_steps, ""
    yield "repeats", len(timing.repeats), ""
    yield "step_clock", timing.step_clock, "step times of two clocks are not one quantity"
    yield "audit", config.audit.value, ""
    yield "torch", system.torch, ""
    yield "drivers", system.drivers, ""
    yield "python", system.python, ""
    yield "os", system.os, ""
    yield "env", system.env, ""
    yield "llmb_version", record.llmb_version, ""
    yield "seed", config.seed, "other weights and tokens"


def _executor(record: RunRecord) -> str:
    config = record.config
    return config.executor + (f" {config.compile_mode}" if config.executor == "inductor" else "")


def _words(value: object) -> str:
    """Return ``value`` as text for people; "none" for an empty value."""
    if value is None or value == () or value == {}:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return str(value)
