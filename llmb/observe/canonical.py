"""The model's canonical parameters, wherever post-processing has put them.

A wrapper adds to a parameter's name, and a module that took a parameter over keeps the object:
both are found without the plugin's help. What fuses or repacks says so by ``llmb_parameter_map``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from llmb.errors import UsageError
from llmb.observe.shards import is_elsewhere, whole, write
from llmb.plugin import ParameterView

#: Gives to all ranks what one of them has of a stored parameter (or that it has none), which is
#: like the parameter itself.
Share = Callable[[str, Tensor | None, Tensor], Tensor | None]


class Origin:
    """The parameters before post-processing: their names, and weak references to the objects."""

    def __init__(self, model: nn.Module) -> None:
        """Remember the parameters of ``model`` without keeping them alive."""
        self.names = tuple(name for name, _ in model.named_parameters())
        self._objects = {name: weakref.ref(p) for name, p in model.named_parameters()}

    def name_of(self, stored: str, parameter: nn.Parameter) -> str | None:
        """Return the canonical name of a stored parameter, by identity or else by its ending."""
        for name, known in self._objects.items():
            if known() is parameter:
                return name
        if stored in self._objects:
            return stored
        endings = [name for name in self.names if stored.endswith(f".{name}")]
        return max(endings, key=len, default=None)


class Canonical:
    """Reads and writes canonical parameters of a post-processed model."""

    # See ``StepSampler``: what an object has besides its attributes cannot be replaced on it.
    __slots__ = (
        *("_plain", "_share", "_stored", "_views"),
        *("by_stored", "mapped", "missing", "names", "padding"),
    )

    def __init__(
        self, origin: Origin, model: nn.Module, views: Mapping[str, ParameterView] | None
    ) -> None:
        """Find the parameters of ``origin`` in ``model``, through ``views`` where given."""
        self.mapped = views is not None
        self._views = dict(views or {})
        #: Stored name -> canonical name, as far as no map is needed to tell.
        self.by_stored: dict[str, str] = {}
        self._plain: dict[str, nn.Parameter] = {}
        self._stored: dict[str, str] = {}
        self._share: Share | None = None
        if views is None:
            for stored, parameter in model.named_parameters():
                name = origin.name_of(stored, parameter)
                if name is not None and name not in self._plain:
                    self.by_stored[stored] = name
                    self._plain[name] = parameter
                    self._stored[name] = stored
        #: Canonical names in the model's own order, then what a map adds to them.
        found = self._views if self.mapped else self._plain
        self.names: tuple[str, ...] = (
            *(name for name in origin.names if name in found),
            *(name for name in found if name not in origin.names),
        )
        #: Stored parameters with padding besides canonical values, as the plugin declares them.
        self.padding = tuple(sorted({n for v in self._views.values() for n in v.padding}))
        self.missing: Sequence[str] = tuple(name for name in origin.names if name not in found)

    def stored_as(self, name: str) -> str | None:
        """Return under which name ``name`` is stored, None where only a map tells."""
        return self._stored.get(name)

    def follow(self, model: nn.Module, share: Share | None = None) -> None:
        """Find the parameters again in ``model``: spread over ranks, under the same names.

        Where no rank has all of them, ``share`` gives what another one has.

        Raises:
            UsageError: only a map of the plugin's tells where they are, and not on which rank.
        """
        if share is not None and self.mapped:
            raise UsageError(
                "--pp: the plugin stores parameters in a form of its own (llmb_parameter_map), of "
                "which no rank can tell what the others have: use another of its options"
            )
        self._share = share
        stored = dict(model.named_parameters())
        for name, canonical in self.by_stored.items():
            self._plain[canonical] = stored[name]

    def value(self, name: str) -> Tensor:
        """Return the value of ``name`` in its canonical shape; not to be written to.

        Of what is spread over ranks it is a collective call, as of ``gradient`` and ``values``.
        """
        if not self.mapped:
            found = self._of_all(name, self._plain[name].detach())
            assert found is not None
            return found
        value = self._views[name].read("value")
        if value is None:
            raise LookupError(f"llmb_parameter_map shows no value of {name}")
        return value.detach()

    def gradient(self, name: str) -> Tensor | None:
        """Return the gradient of ``name`` in its canonical shape, None where there is none."""
        if not self.mapped:
            return self._of_all(name, self._plain[name].grad)
        found = self._views[name].read("grad")
        return None if found is None else whole(found.detach())

    def _of_all(self, name: str, found: Tensor | None) -> Tensor | None:
        """Return ``found`` of ``name`` as those ranks have it that have any of it."""
        present = None if found is None or is_elsewhere(found) else whole(found.detach())
        if self._share is None:
            return present
        return self._share(self._stored[name], present, self._plain[name])

    def write(self, name: str, value: Tensor) -> None:
        """Overwrite ``name`` with ``value``, given in its canonical shape, on any device."""
        with torch.no_grad():
            if self.mapped:
                present = self.value(name)
                self._views[name].write(value.to(present.device, present.dtype))
            else:
                write(self._plain[name].detach(), value)

    def requires_grad(self, name: str) -> bool:
        """Tell whether ``name`` is trained; a mapped one is if its map does not say otherwise."""
        return self.mapped or self._plain[name].requires_grad

    def values(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every canonical name and its value."""
        for name in self.names:
            yield name, self.value(name)
