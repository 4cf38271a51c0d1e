"""Names of sampled parameters by where their elements lie in the model, not by what a plugin says.

Rounding alone decides the gradient of a key's bias, so no limit of a single parameter applies to
the gradient. A plugin chooses the names of its stored parameters. By name, GPT-2's keys in a
parameter of their own broke a limit, and a weight called ``attention.self.key.bias`` had none.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmb.audit.bench import STEP_VALUES, WEIGHTS, Bench
from llmb.audit.distance import KEYS, UNSEEN
from llmb.audit.stored_places import Elements, held
from llmb.records.audited import AuditedStep
from llmb.records.evidence import WeightsEvidence

#: Biases of queries, keys and values in one tensor (GPT-2).
_FUSED_BIAS = "attn.c_attn.bias"


def of_step(bench: Bench, step: AuditedStep) -> AuditedStep:
    """Return ``step`` with the model's names of its parameters."""
    where = bench.whole_numbers(STEP_VALUES).get(f"{step.index}/where")
    weights = bench.read(WEIGHTS)
    if where is None or weights is None:
        return step
    segments = step.segments
    counts = [one.gradients for one in segments]
    names = names_of([one.name for one in segments], counts, where, weights)
    pairs = zip(segments, names, strict=True)
    called = tuple(one.model_copy(update={"name": name}) for one, name in pairs)
    return step.model_copy(update={"segments": called})


def names_of(
    stored: Sequence[str], counts: Sequence[int], where: Sequence[int], weights: WeightsEvidence
) -> list[str]:
    """Return the names of parameters that are called ``stored``, each with a name of its own.

    A row of ``where`` has ``counts`` places of each parameter in turn; -1 is padding. A parameter
    that lies in a single parameter of the model has its name; a part of it is called ``PART in
    NAME``. Example: ``h.1.attn.k.bias in transformer.h.1.attn.c_attn.bias of keys``.

    Raises:
        ValueError: the places are no whole rows, or the model has no such place.
    """
    found = held(counts, where, Elements(weights.sizes))
    own = [_name_of(places) for places in found]
    pairs = zip(stored, own, strict=True)
    return distinct([_called(name, one, own.count(one), own) for name, one in pairs])


def distinct(names: Sequence[str]) -> list[str]:
    """Return ``names`` with an apostrophe after each that is there already.

    Judges keep distances by name: a plugin could give two stored parameters names that become one.
    """
    found = dict[str, None]()
    for name in names:
        while name in found:
            name += "'"
        found[name] = None
    return [*found]


def _name_of(places: set[tuple[str, float]]) -> str | None:
    """Return the parameter that all ``places`` lie in; None if there are several, or none."""
    names = {name for name, _ in places}
    if len(names) != 1:
        return None
    (name,) = names
    if name.endswith(_FUSED_BIAS) and all(1 / 3 <= share < 2 / 3 for _, share in places):
        return f"{name}{KEYS}"
    return name


def _called(stored: str, own: str | None, count: int, known: Sequence[str | None]) -> str:
    if own is None:  # of several parameters, or nothing but padding
        return f"{stored} of several" if stored.endswith(UNSEEN) or stored in known else stored
    return own if count == 1 else f"{stored} in {own}"
