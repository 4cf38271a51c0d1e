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
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from llmb.records import references
from llmb.records.finding import RULES_VERSION, Verdict, alike
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


@dataclass(frozen=True)
class ComparedItem:
    """An item of every comparison, with the effect of a difference."""

    name: str
    weight: Weight = Weight.NOTED
    reason: str = ""
    #: Items that must be alike: the difference says nothing new otherwise. Example: sizes of two
    #: workloads always differ.
    within: tuple[str, ...] = ()


_MODEL = "tokens of another model are other work"
_TEXT = "a token after a longer text is more work"
_FIXED = "the optimizer cannot be changed"
_RULES = "a change of the rules that breaks comparability raises their version"
_WORK = ("workload", "mode")
_REFUSED, _APART, _NOTED = Weight.REFUSED, Weight.NOT_COMPARABLE, Weight.NOTED
#: Every item, in the order of a report. ``conditions`` has a value for each.
ITEMS = (
    ComparedItem("workload", _REFUSED, _MODEL),
    ComparedItem("mode", _REFUSED, "a step of another mode is other work"),
    ComparedItem("family", _REFUSED, _MODEL, ("workload",)),
    ComparedItem(
        "sizes", _REFUSED, "tokens of a model of another size are other work", ("workload",)
    ),
    ComparedItem("optimizer", _REFUSED, _FIXED, _WORK),
    ComparedItem("clip_grad_norm", _REFUSED, _FIXED, _WORK),
    ComparedItem("prompt_length", _REFUSED, _TEXT, _WORK),
    ComparedItem("new_tokens", _REFUSED, _TEXT, _WORK),
    ComparedItem(
        "effective_precision",
        _APART,
        "figures are grouped by the lowest precision that was seen to compute",
    ),
    ComparedItem("rules_version", _APART, _RULES),
    ComparedItem("class", _APART, "a debug run is comparable with none but its like"),
    ComparedItem("waivers", _APART, "what a run was let off"),
    ComparedItem("dynamic", _APART, "sequences of another length are other work for attention"),
    ComparedItem("declared_precision"),
    ComparedItem("device"),
    ComparedItem("processor"),
    ComparedItem("cores"),
    ComparedItem("world_size", _NOTED, "figures are of all devices together"),
    ComparedItem("nodes"),
    ComparedItem("parallelism"),
    ComparedItem("plugin"),
    ComparedItem("plugin_options"),
    ComparedItem("strict"),
    ComparedItem("batch_size", _NOTED, "free: the best throughput under any may be reported"),
    ComparedItem("accumulate"),
    ComparedItem("mixed_precision"),
    ComparedItem("executor"),
    ComparedItem("sac_freq"),
    ComparedItem("generate_scope"),
    ComparedItem("tokens"),
    ComparedItem("prompt"),
    ComparedItem("weights"),
    ComparedItem("timed_steps", _NOTED, "windows of two lengths"),
    ComparedItem("warmup_steps"),
    ComparedItem("repeats"),
    ComparedItem("step_clock", _NOTED, "step times of two clocks are not one quantity"),
    ComparedItem("audit"),
    ComparedItem("torch"),
    ComparedItem("drivers"),
    ComparedItem("python"),
    ComparedItem("os"),
    ComparedItem("env"),
    ComparedItem("llmb_version"),
    ComparedItem("seed", _NOTED, "other weights and tokens"),
    ComparedItem("reference_digest", _NOTED, "the computation of another llmb", ("family",)),
)
#: Verdict -> the effect on a comparison with any run, and the reason.
REMARKS = {
    Verdict.INVALID: (_REFUSED, "a blocking rule failed, so there is no figure to compare"),
    Verdict.UNVERIFIED: (_NOTED, "UNVERIFIED: a blocking rule could not be observed"),
    Verdict.FLAGGED: (_NOTED, "FLAGGED: a human should look"),
}
SAME_RUN = ComparedItem("run", _APART, "one run twice")


#: What a waiver says of the length of the window, and the number of steps that would do: measured.
_MEASURED = re.compile(
    r"(a window of|timed steps in) \d+\.\d s(?: \(official: \d+; --timed-steps \d+\))?"
)


@dataclass(frozen=True)
class Condition:
    """The value of one run for one item.

    Two runs with unequal keys differ with the item's weight. Equal keys and unequal values are
    noted. Example: the rules "2" and "3" have one key, because the versions differ by new rules
    alone.
    """

    #: A text; or a table, of which unequal entries alone are told.
    value: str | Mapping[str, object]
    #: None: like no other run, not even a run of an equal value.
    key: str | None
    #: Noted even for two runs with the same value. Example: debug.
    is_remark: bool = False


def conditions(record: RunRecord) -> dict[str, Condition]:
    """Return the condition of ``record`` for each of ``ITEMS``.

    Two conditions can be compared without the records, for example in a page (``llmb.report``).
    """
    told: dict[str, Condition] = {}
    for item, value in _values(record):
        shown = value if isinstance(value, dict) else _words(value)
        told[item] = Condition(shown, json.dumps(value, sort_keys=True, default=str))
    sizes = {name: float(size) for name, size in record.workload.shapes.items() if size is not None}
    told["sizes"] = Condition(told["sizes"].value, json.dumps(sizes, sort_keys=True))
    effective, debug = record.precision.effective, record.class_ == "debug"
    told["effective_precision"] = Condition(effective or "not observed", effective)
    told["rules_version"] = Condition(record.rules_version, _rules(record.rules_version))
    told["class"] = Condition(record.class_, record.class_, is_remark=debug)
    waivers = "; ".join(record.waivers)
    told["waivers"] = Condition(waivers or "none", _MEASURED.sub(r"\1 s", waivers))
    told["reference_digest"] = Condition(record.reference_digest[:12], _computation(record))
    return told


def differences(base: RunRecord, other: RunRecord) -> tuple[ConditionDifference, ...]:
    """Return all differences and remarks for comparing ``other`` with ``base``, gravest first."""
    found = [*_of_items(conditions(base), conditions(other)), *_of_verdicts(base, other)]
    if base.run_id == other.run_id:
        item = SAME_RUN
        found.append(
            ConditionDifference(item.name, base.run_id, other.run_id, item.weight, item.reason)
        )
    order = list(Weight)
    return tuple(sorted(found, key=lambda difference: order.index(difference.weight)))


def _of_items(
    base: Mapping[str, Condition], other: Mapping[str, Condition]
) -> Iterator[ConditionDifference]:
    """Yield the differences of two runs' conditions, in the order of ``ITEMS``."""
    unlike = {name for name, one in base.items() if one.key is None or one.key != other[name].key}
    for item in ITEMS:
        a, b = base[item.name], other[item.name]
        if not unlike.isdisjoint(item.within):
            continue
        if item.name in unlike:
            weight = item.weight
        elif a.is_remark or (a.value != b.value and item.name != "reference_digest"):
            weight = Weight.NOTED
        else:
            continue
        one, another = _both(a.value, b.value)
        yield ConditionDifference(item.name, one, another, weight, item.reason)


def _of_verdicts(base: RunRecord, other: RunRecord) -> Iterator[ConditionDifference]:
    """Yield a remark for each verdict that forbids or qualifies the comparison."""
    named = ((base.audit.verdict, "base"), (other.audit.verdict, "other"))
    mine, theirs = base.audit.verdict.value, other.audit.verdict.value
    for verdict, (weight, reason) in REMARKS.items():
        names = [name for own, name in named if own is verdict]
        if verdict is not Verdict.INVALID:
            names = names[:1]
        for name in names:
            why = f"{name}: {reason}" if verdict is Verdict.INVALID else reason
            yield ConditionDifference("verdict", mine, theirs, weight, why)


def _both(base: str | Mapping[str, object], other: str | Mapping[str, object]) -> tuple[str, str]:
    """Return both values in words; of two tables the unequal entries alone."""
    if isinstance(base, str) or isinstance(other, str):
        return str(base), str(other)
    names = [name for name in sorted({*base, *other}) if base.get(name) != other.get(name)]
    a, b = ({name: one[name] for name in names if name in one} for one in (base, other))
    return _words(a), _words(b)


def _rules(version: str) -> str:
    """Return one version for all versions whose figures may be compared with ``version``."""
    return RULES_VERSION if alike(version, RULES_VERSION) else version


def _computation(record: RunRecord) -> str:
    """Return the first published reference that computes the same for the record's family."""
    table, own = references.table(), record.reference_digest
    family = record.workload.family
    same = (r.digest for r in table.references if table.reasons(family, r.digest, own) is not None)
    return next(same, own)


def _values(record: RunRecord) -> Iterator[tuple[str, object]]:
    """Yield name and value of every item whose values are compared as they are."""
    workload, config, plugin = record.workload, record.config, record.plugin
    timing, system = record.timing, record.system
    devices = {device.name: device.description for device in system.devices}
    yield "workload", workload.name
    yield "mode", workload.mode
    yield "family", workload.family
    yield "sizes", {name: size for name, size in workload.shapes.items() if size is not None}
    yield "optimizer", workload.optimizer
    yield "clip_grad_norm", workload.clip_grad_norm
    yield "prompt_length", config.prompt_length
    yield "new_tokens", config.new_tokens
    yield "dynamic", config.dynamic
    yield "declared_precision", record.precision.declared
    yield "device", devices.get(config.device) or config.device
    yield "processor", system.cpu.model
    yield "cores", system.cpu.usable_cores
    yield "world_size", record.topology.world_size
    yield "nodes", record.topology.nodes
    yield "parallelism", config.parallelism.model_dump()
    yield "plugin", f"{plugin.distribution} {plugin.version} ({plugin.name})"
    yield "plugin_options", plugin.options
    yield "strict", plugin.strict
    yield "batch_size", config.batch_size
    yield "accumulate", config.accumulate
    yield "mixed_precision", config.mixed_precision
    yield "executor", _executor(record)
    yield "sac_freq", config.sac_freq
    yield "generate_scope", config.generate_scope
    yield "tokens", record.workload.tokens
    yield "prompt", config.prompt_tokens
    yield "weights", config.weights and config.weights.sha256[:12]
    yield "timed_steps", timing.timed_steps
    yield "warmup_steps", timing.warmup_steps
    yield "repeats", len(timing.repeats)
    yield "step_clock", timing.step_clock
    yield "audit", config.audit.value
    yield "torch", system.torch
    yield "drivers", system.drivers
    yield "python", system.python
    yield "os", system.os
    yield "env", system.env
    yield "llmb_version", record.llmb_version
    yield "seed", config.seed


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
