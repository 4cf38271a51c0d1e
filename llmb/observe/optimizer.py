"""Record optimizer class, parameters, constants and number of steps (rule O1)."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from types import CodeType

import torch
import torch.optim.optimizer as optim_module
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from llmb.observe.callables import no_collection
from llmb.parallel.shards import is_elsewhere
from llmb.records.evidence import OptimizerEvidence, ParameterGroup


class OptimizerBaseline:
    """State of torch's optimizer class before any plugin code is imported."""

    def __init__(self, name: str = "AdamW") -> None:
        """Take the baseline of ``torch.optim``'s ``name`` from a throw-away instance.

        On the first instance, torch itself wraps ``step``; a baseline taken earlier would accuse
        every run.
        """
        kind: type[Optimizer] = {"AdamW": AdamW, "SGD": SGD}[name]
        with no_collection():  # imports torch's compiler; collections would take half of the time
            throw_away = kind([nn.Parameter(torch.zeros(1))], lr=1.0)  # type: ignore[call-arg]
        self.optimizer_class = kind
        self._step = kind.step
        self._code = _code(kind.step)
        self._callables = {name for name, v in vars(throw_away).items() if callable(v)}

    def observe(
        self, optimizer: Optimizer, model: nn.Module, steps_expected: int
    ) -> OptimizerEvidence:
        """Return the evidence on ``optimizer`` over ``model`` after ``steps_expected`` steps."""
        kind = type(optimizer)
        named = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        # Parameters without requires_grad (declared padding, say) are never stepped: no counter.
        held = Counter(
            id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad
        )
        # Parameters of other ranks' stages are stepped and counted on the other ranks.
        elsewhere = {id(p) for p in model.parameters() if is_elsewhere(p)}
        counters = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
        return OptimizerEvidence(
            class_name=f"{kind.__module__}.{kind.__qualname__}",
            class_is_torchs=kind is self.optimizer_class,
            step_is_torchs=kind.step is self._step and _code(kind.step) is self._code,
            instance_overrides=tuple(
                sorted(
                    name
                    for name, value in vars(optimizer).items()
                    if callable(value) and name not in self._callables
                )
            ),
            step_hooks=len(list(hooks_of(optimizer))),
            trainable=len(named),
            missing=tuple(sorted(name for key, name in named.items() if key not in held)),
            repeated=tuple(sorted(named.get(key, "?") for key, n in held.items() if n > 1)),
            groups=tuple(_group(group) for group in optimizer.param_groups),
            steps_expected=steps_expected,
            steps_min=min(counters)
            if counters and len(counters) == len(held.keys() - elsewhere)
            else None,
            steps_max=max(counters, default=None),
        )


def _code(step: object) -> CodeType:
    return inspect.unwrap(step).__code__  # type: ignore[arg-type,no-any-return]


def hooks_of(optimizer: Optimizer) -> Iterator[object]:
    """Yield the hooks that torch calls before and after a step of ``optimizer``."""
    for hooks in hook_tables_of(optimizer):
        yield from hooks.values()


def hook_tables_of(optimizer: Optimizer) -> tuple[Mapping[int, object], ...]:
    """Return the tables of hooks that torch calls before and after a step of ``optimizer``."""
    return (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        optim_module._global_optimizer_pre_hooks,
        optim_module._global_optimizer_post_hooks,
    )


def _group(group: dict[str, object]) -> ParameterGroup:
    fields = {name: group[name] for name in ParameterGroup.model_fields if name in group}
    fields["parameters"] = len(group["params"])  # type: ignore[arg-type]
    return ParameterGroup.model_validate(fields)
