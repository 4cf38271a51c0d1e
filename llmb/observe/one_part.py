"""Keep input, output and full weight gradient of a single module (``audit --only``).

Of a pass, the first sequence of the first call is kept: the same tokens for any batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from llmb.observe.canonical import Canonical
from llmb.parallel.shards import whole
from llmb.records.audited import GRADIENT, INPUT, OUTPUT, OnePart, PartSeen


class PartKeeper:
    """Keeps the values of a part, by ``<who>/<pass>/<what>``, float32 on the host."""

    def __init__(self, part: OnePart, who: str, module: str | None = None) -> None:
        """Keep values of ``part`` for ``who``; ``module`` is the part's name in the model."""
        self.part, self._who = part, who
        self._module = module or part.module
        self.tensors: dict[str, Tensor] = {}

    def keep(self, name: str, what: str, value: Tensor) -> None:
        """Keep ``value`` of pass ``name``; an existing value stays, from the first call."""
        key = f"{self._who}/{name}/{what}"
        if key not in self.tensors and name in self.part.passes:
            self.tensors[key] = whole(value.detach()).to("cpu").float().clone().contiguous()

    def gradient(self, name: str, value: Tensor | None) -> None:
        """Keep the gradient ``value`` of pass ``name``, if not None."""
        if value is not None:
            self.keep(name, GRADIENT, value)

    @contextmanager
    def watching(self, model: nn.Module, name: str, sequence: int) -> Iterator[None]:
        """Keep the first input and output of the module in a pass over sequences of ``sequence``.

        Nothing is kept if ``model`` lacks the module, or never calls the module under that name.
        """
        module = dict(model.named_modules()).get(self._module)
        if module is None:
            yield
            return

        def look(_: nn.Module, given: tuple[Any, ...], made: Any) -> None:
            for what, values in ((INPUT, given), (OUTPUT, made)):
                first = values if isinstance(values, Tensor) else next(iter(values), None)
                if isinstance(first, Tensor):
                    self.keep(name, what, _first_sequence(first, sequence))

        handle = module.register_forward_hook(look)
        try:
            yield
        finally:
            handle.remove()


def _first_sequence(value: Tensor, length: int) -> Tensor:
    """Return the first sequence of ``[batch, length, ...]`` or ``[batch * length, ...]``."""
    value = value.detach()
    several = value.dim() > 2 or value.shape[1:] == (length,)
    return value[0] if several else value[:length]


def find(part: OnePart, model: nn.Module, canonical: Canonical) -> PartSeen:
    """Return the location of ``part`` in the post-processed ``model``.

    A wrapper adds a prefix to a module's name. If a map declares how parameters are stored, a
    module with the same name as in the pristine model is assumed to be the same module.
    """
    stored = canonical.stored_as(part.parameter)
    modules = dict(model.named_modules())
    wanted = part.module if stored is None else stored.rpartition(".")[0]
    endings = [name for name in modules if name == wanted or name.endswith(f".{wanted}")]
    module = min(endings, key=len, default=None)
    if module is None:
        why = f"the post-processed model has no module {wanted}"
        return PartSeen(module=None, stored=None, why=why)
    return PartSeen(module=module, stored=None)
