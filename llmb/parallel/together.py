"""Merges the audit's evidence over all ranks: an act of any rank is an act of the run.

Example: a namespace replaced on rank 3 only is listed in the evidence of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from llmb.config import Frozen
from llmb.records.audited import StepsEvidence
from llmb.records.evidence import (
    NamespaceEvidence,
    OperatorTypes,
    OptimizerEvidence,
    PluginEvidence,
    SettingsEvidence,
    SurroundingsEvidence,
    TypesEvidence,
)

if TYPE_CHECKING:
    from torch import Tensor

    from llmb.parallel.ranks import Ranks

E = TypeVar("E", bound=Frozen)


def of_all(ranks: Ranks | None, found: E) -> E:
    """Return ``found`` of rank 0, merged with the evidence of all ranks: a collective call."""
    if ranks is None:
        return found
    every = [type(found).model_validate(one) for one in ranks.gather(found.model_dump(mode="json"))]
    return every[0].model_copy(update=_union(every))


def glances_of_all(ranks: Ranks | None, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the blind samples that changed after the answer, over all ranks: a collective call.

    ``seen`` has this rank's samples by name: ``<step>/asked`` is the sample before the worker
    learns whether the step is audited; ``<step>/asked before`` and ``<step>/asked after`` are the
    same elements read again. For each step, the samples of the lowest rank with a change are
    returned, and replace rank 0's samples.
    """
    mine: dict[str, Tensor] = {}
    for key, asked in seen.items():
        if key.endswith("/asked"):
            later = {name: seen[name] for name in (f"{key} before", f"{key} after")}
            if not all(asked.equal(value) for value in later.values()):
                mine |= {key: asked, **later}
    found: dict[str, Tensor] = {}
    for theirs in reversed(ranks.gather(mine)) if ranks is not None else ():
        found |= theirs
    return found


def _union(every: Sequence[Any]) -> dict[str, object]:
    """Return the merged fields; all remaining fields keep rank 0's values.

    Evidence types without an entry in ``_HOW`` merge every tuple field.
    """
    tuples = tuple(name for name, value in every[0] if isinstance(value, tuple))
    names, more = _HOW.get(type(every[0]), (tuples, None))
    found: dict[str, object] = {name: _each_once(getattr(e, name) for e in every) for name in names}
    return found | (more(every) if more else {})


def _surroundings(every: Sequence[SurroundingsEvidence]) -> dict[str, object]:
    # A rank that changed the state of the garbage collector outweighs ranks without a change.
    states = [one.collecting for one in every]
    natives = [counts for one in every if (counts := one.native_threads) is not None]
    return {
        "collecting": next((s for s in states if s[0] != s[1]), states[0]),
        "frozen_objects": max((one.frozen_objects for one in every), key=_rise),
        "native_threads": max(natives, key=_rise, default=None),
        "acts_omitted": sum(one.acts_omitted for one in every),
        "children_cpu_s": _added_up([one.children_cpu_s for one in every]),
        "ended_threads_cpu_s": _added_up([one.ended_threads_cpu_s for one in every]),
    }


def _rise(counts: tuple[int, int]) -> int:
    """Return by how much a count has risen, from the first look to the last."""
    return counts[1] - counts[0]


def _added_up(every: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the sum over ranks at each fence that every rank has a value for."""
    told = [steps for steps in every[0] if all(steps in one for one in every)]
    return {steps: sum(one[steps] for one in every) for steps in told}


def _optimizers(every: Sequence[OptimizerEvidence]) -> dict[str, object]:
    fewest = [one.steps_min for one in every]
    odd = next((one for one in every if not one.class_is_torchs), every[0])
    return {
        "class_name": odd.class_name,
        "class_is_torchs": odd.class_is_torchs,
        "step_is_torchs": all(one.step_is_torchs for one in every),
        "step_hooks": max(one.step_hooks for one in every),
        "steps_min": None if None in fewest else min(n for n in fewest if n is not None),
        "steps_max": max((n for one in every if (n := one.steps_max) is not None), default=None),
    }


def _types(every: Sequence[TypesEvidence]) -> dict[str, object]:
    return {
        "executed": _added(kind for one in every for kind in one.executed),
        "compiled": _added(kind for one in every for kind in one.compiled),
        "compiled_frames": sum(one.compiled_frames for one in every),
        "unread_frames": sum(one.unread_frames for one in every),
        "obstacle": next((one.obstacle for one in every if one.obstacle is not None), None),
        "omitted": sum(one.omitted for one in every),
    }


def _added(kinds: Iterable[OperatorTypes]) -> tuple[OperatorTypes, ...]:
    """Return each kind of call a single time, with the number of calls on all ranks."""
    calls: Counter[OperatorTypes] = Counter()
    for kind in kinds:
        calls[kind.model_copy(update={"calls": 1})] += kind.calls
    return tuple(kind.model_copy(update={"calls": count}) for kind, count in calls.items())


def _settings(every: Sequence[SettingsEvidence]) -> dict[str, object]:
    """Return rank 0's settings, plus the settings that only ranks above 0 have or have changed."""
    before, after = dict(every[0].before), dict(every[0].after)
    for one in every[1:]:
        for name in sorted(one.before.keys() | one.after.keys()):
            old, new = one.before.get(name), one.after.get(name)
            if before.get(name) == after.get(name) and (old != new or name not in after):
                _put(before, name, old)
                _put(after, name, new)
    return {"before": before, "after": after}


def _put(settings: dict[str, str], name: str, value: str | None) -> None:
    settings.pop(name, None)
    if value is not None:
        settings[name] = value


def _steps(every: Sequence[StepsEvidence]) -> dict[str, object]:
    """Return rank 0's steps with the parameters without a gradient on any rank."""
    steps = tuple(
        same[0].model_copy(
            update={"without_gradient": _each_once(step.without_gradient for step in same)}
        )
        for same in zip(*(one.steps for one in every), strict=True)
    )
    return {"steps": steps}


def _each_once(parts: Iterable[Iterable[object]]) -> tuple[object, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))


#: By evidence type: the tuple fields to concatenate, and a function that merges further fields.
_HOW: dict[type, tuple[tuple[str, ...], Callable[[Sequence[Any]], dict[str, object]] | None]] = {
    NamespaceEvidence: (("replaced", "libraries", "strangers"), None),
    OptimizerEvidence: (("missing", "repeated", "groups", "instance_overrides"), _optimizers),
    PluginEvidence: (
        ("files", "run_otherwise", "closed_components", "declared_patches", "declared_helpers"),
        None,
    ),
    SettingsEvidence: ((), _settings),
    StepsEvidence: ((), _steps),
    SurroundingsEvidence: (("found", "preloaded", "acts", "threads", "at_start"), _surroundings),
    TypesEvidence: ((), _types),
}
