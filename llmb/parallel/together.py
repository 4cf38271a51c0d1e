"""What the rules look for in a process, of all ranks: what one has done, the run has done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from llmb.config import Frozen
from llmb.records.evidence import NamespaceEvidence, PluginEvidence, SurroundingsEvidence

if TYPE_CHECKING:
    from llmb.parallel.ranks import Ranks

E = TypeVar("E", NamespaceEvidence, PluginEvidence, SurroundingsEvidence)


def of_all(ranks: Ranks | None, found: E) -> E:
    """Return ``found`` of this rank with what the others found: a collective call."""
    if ranks is None:
        return found
    every = [type(found).model_validate(one) for one in ranks.gather(found.model_dump(mode="json"))]
    return found.model_copy(update=_union(every))


def _union(every: Sequence[Frozen]) -> dict[str, object]:
    """Return the fields in which ranks add to each other; in the rest, rank 0 speaks for all."""
    names = {
        NamespaceEvidence: ("replaced", "libraries"),
        SurroundingsEvidence: ("found", "preloaded"),
        PluginEvidence: ("files", "run_otherwise", "closed_components", "declared_patches"),
    }[type(every[0])]
    found: dict[str, object] = {name: _each_once(getattr(e, name) for e in every) for name in names}
    if isinstance(every[0], SurroundingsEvidence):
        # A rank that has switched the collector off outweighs those that have not.
        states = [one.collecting for one in every if isinstance(one, SurroundingsEvidence)]
        found["collecting"] = next((s for s in states if s[0] != s[1]), states[0])
    return found


def _each_once(parts: Iterable[Iterable[object]]) -> tuple[object, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))
