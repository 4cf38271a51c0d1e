"""Find the model's canonical parameters after post-processing.

A wrapper only adds a prefix to a parameter's name, and a module that takes over a parameter keeps
the object: both cases need no help from the plugin. Example: ``module.lm_head.weight``. A plugin
that fuses or repacks parameters declares the mapping by ``llmb_parameter_map``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from llmb.errors import RunFailedError, UsageError
from llmb.parallel.shards import is_elsewhere, is_spread, whole, write
from llmb.plugin import ParameterView
from llmb.plugin.hookspecs import Kind

#: Shares a rank's value of a stored parameter with all ranks; None if the rank has no value. The
#: value has shape and dtype of the parameter (the last argument).
Share = Callable[[str, Tensor | None, Tensor], Tensor | None]


class Origin:
    """The parameters before post-processing: names, and weak references to the objects."""

    def __init__(self, model: nn.Module) -> None:
        """Remember the parameters of ``model`` without keeping the parameters alive."""
        self.names = tuple(name for name, _ in model.named_parameters())
        self._objects = {name: weakref.ref(p) for name, p in model.named_parameters()}

    def name_of(self, stored: str, parameter: nn.Parameter) -> str | None:
        """Return the canonical name of a stored parameter, by identity or else by name suffix."""
        for name, known in self._objects.items():
            if known() is parameter:
                return name
        if stored in self._objects:
            return stored
        endings = [name for name in self.names if stored.endswith(f".{name}")]
        return max(endings, key=len, default=None)


@dataclass(frozen=True)
class _PlainView:
    """View of a parameter that a map leaves out, and that the model still has."""

    parameter: nn.Parameter
    padding: tuple[str, ...] = ()

    def read(self, kind: Kind) -> Tensor | None:
        return {"value": self.parameter.detach(), "grad": self.parameter.grad}.get(kind)

    def write(self, value: Tensor) -> None:
        self.parameter.detach().copy_(value)


def check_dense(model: nn.Module, plugin: str) -> None:
    """Check that no embedding of ``model`` has sparse gradients, which no rule can read.

    Example: ``torch.nn.Embedding(32000, 64, sparse=True)``.

    Raises:
        RunFailedError: an embedding has.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise RunFailedError(
                f"plugin {plugin}: {name} has sparse gradients, which llmb cannot read: make the "
                "module with sparse=False"
            )


class Canonical:
    """Reads and writes canonical parameters of a post-processed model."""

    # See ``StepSampler``: with slots no method can be replaced on the object alone.
    __slots__ = (
        *("_plain", "_share", "_stored", "_views"),
        *("by_stored", "mapped", "missing", "names", "padding"),
    )

    def __init__(
        self, origin: Origin, model: nn.Module, views: Mapping[str, ParameterView] | None
    ) -> None:
        """Find the parameters of ``origin`` in ``model``, through ``views`` where given.

        A parameter that ``views`` leave out is found as without views.
        """
        self.mapped = bool(views)
        self._views = dict(views or {})
        #: Stored name -> canonical name, for parameters found without a map.
        self.by_stored: dict[str, str] = {}
        self._plain: dict[str, nn.Parameter] = {}
        self._stored: dict[str, str] = {}
        self._share: Share | None = None
        for stored, parameter in model.named_parameters():
            name = origin.name_of(stored, parameter)
            if name is None:
                continue
            if self.mapped:
                self._views.setdefault(name, _PlainView(parameter))
            elif name not in self._plain:
                self.by_stored[stored] = name
                self._plain[name] = parameter
                self._stored[name] = stored
        #: Canonical names in the model's own order, then the names that only a map has.
        found = self._views if self.mapped else self._plain
        self.names: tuple[str, ...] = (
            *(name for name in origin.names if name in found),
            *(name for name in found if name not in origin.names),
        )
        #: Stored parameters with padding besides canonical values, as the plugin declares them.
        self.padding = tuple(sorted({n for v in self._views.values() for n in v.padding}))
        self.missing: Sequence[str] = tuple(name for name in origin.names if name not in found)

    def stored_as(self, name: str) -> str | None:
        """Return the stored name of ``name``, None if only a map gives the location."""
        return self._stored.get(name)

    def follow(self, model: nn.Module, share: Share | None = None) -> None:
        """Find the parameters again in ``model``, now sharded over ranks under the same names.

        If no rank has all parameters, ``share`` gives the values of another rank.

        Raises:
            UsageError: only a plugin's map locates the parameters, and the map names no ranks.
        """
        divided = share is not None or any(map(is_spread, model.parameters()))
        if divided and self.mapped:
            raise UsageError(
                "--dp-shard, --tp, --pp: the plugin stores parameters in a form of its own "
                "(llmb_parameter_map), and a rank cannot tell which of these parameters the other "
                "ranks hold: leave the flag out, or use another option of the plugin"
            )
        self._share = share
        stored = dict(model.named_parameters())
        for name, canonical in self.by_stored.items():
            self._plain[canonical] = stored[name]

    def value(self, name: str) -> Tensor:
        """Return the value of ``name`` in canonical shape; do not write to the value.

        For a sharded parameter a collective call, like ``gradient`` and ``values``.
        """
        if not self.mapped:
            found = self._of_all(name, self._plain[name].detach())
            assert found is not None
            return found
        value = self._views[name].read("value")
        if value is None:
            raise LookupError(f"llmb_parameter_map shows no value of {name}")
        if value.is_meta:
            raise RunFailedError(
                f"the plugin's llmb_parameter_map returns a meta tensor for {name}, which has no "
                "numbers: return the stored values"
            )
        return value.detach()

    def gradient(self, name: str) -> Tensor | None:
        """Return the gradient of ``name`` in canonical shape, None without a gradient."""
        if not self.mapped:
            return self._of_all(name, self._plain[name].grad)
        found = self._views[name].read("grad")
        return None if found is None else whole(found.detach())

    def _of_all(self, name: str, found: Tensor | None) -> Tensor | None:
        """Return the full ``found`` of ``name``, shared by the ranks that hold the parameter."""
        present = None if found is None or is_elsewhere(found) else whole(found.detach())
        if self._share is None:
            return present
        return self._share(self._stored[name], present, self._plain[name])

    def write(self, name: str, value: Tensor) -> None:
        """Overwrite ``name`` with ``value``, given in canonical shape, on any device."""
        with torch.no_grad():
            if self.mapped:
                present = self.value(name)
                self._views[name].write(value.to(present.device, present.dtype))
            else:
                write(self._plain[name].detach(), value)

    def requires_grad(self, name: str) -> bool:
        """Tell whether ``name`` is trained; mapped parameters always count as trained."""
        return self.mapped or self._plain[name].requires_grad

    def values(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every canonical name with the value."""
        for name in self.names:
            yield name, self.value(name)
