"""Changes of model and settings, twice: as data for the record, and as a unified diff."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from llmb.records.evidence import (
    ModelEvidence,
    ParameterDigest,
    SettingsEvidence,
    WeightsEvidence,
)
from llmb.records.printable import plain_text
from llmb.records.run_record import ModelDiff, SettingChange


def unified(before: Mapping[str, str], after: Mapping[str, str], what: str) -> str:
    """Return the unified diff of two mappings, ``key: value`` per line, without control bytes."""
    old, new = ([f"{k}: {v}\n" for k, v in side.items()] for side in (before, after))
    return plain_text(
        "".join(difflib.unified_diff(old, new, f"{what} before", f"{what} after", n=1))
    )


def model_diff(model: ModelEvidence, weights: WeightsEvidence) -> ModelDiff:
    """Return the modules and parameters that post-processing replaced, added, removed, repacked."""
    before, after = model.before, model.after
    return ModelDiff(
        modules_replaced=tuple(k for k in before if k in after and before[k] != after[k]),
        modules_added=tuple(k for k in after if k not in before),
        modules_removed=tuple(k for k in before if k not in after),
        parameters_repacked=tuple(sorted(_forms(weights.pristine) ^ _forms(weights.processed))),
    )


def _forms(parameters: Iterable[ParameterDigest]) -> set[str]:
    return {f"{p.name} {list(p.shape)} {p.dtype}" for p in parameters}


def settings_sides(
    settings: SettingsEvidence, set_early: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings before and after the plugin.

    ``set_early``: variables that the plugin asked for, set before the process began, by name.
    """
    before = {k: v for k, v in settings.before.items() if k not in set_early}
    return before, {**settings.after, **set_early}


def setting_changes(
    before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[SettingChange, ...]:
    """Return every setting with a changed value."""
    names = sorted({*before, *after})
    return tuple(
        SettingChange(name=name, before=before.get(name), after=after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )
