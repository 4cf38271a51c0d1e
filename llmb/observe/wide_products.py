"""Honest passes on a processor without 16-bit instructions: torch's own operators, widened.

Every product of matrices and every attention of 16-bit tensors is computed in float32, and results
are rounded once. The code is independent of the cpu plugin's code, and knows nothing of the model:
a mistake in either shows as a difference between a run and the honest run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from llmb.config import RunConfig
from llmb.plugin.builtin.products import faster_way

_NARROW = (torch.bfloat16, torch.float16)
_aten = torch.ops.aten
#: Operator -> number of results, counted from the first, to round to the operands' type. Further
#: results stay float32, as in torch. Example: the log-sum-exp of attention.
_ROUNDED = {
    _aten.mm: 1,
    _aten.addmm: 1,
    _aten.bmm: 1,
    _aten.baddbmm: 1,
    _aten.mv: 1,
    _aten._scaled_dot_product_flash_attention_for_cpu: 1,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: 3,
}


class WideProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes 16-bit products and attention in float32 while entered, backward too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: hiding the mode from torch's compiler would import the compiler.

        The import takes two seconds in a process that compiles nothing.
        """
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call ``func``; if ``func`` is a product, with 16-bit operands widened to float32."""
        named: Mapping[str, Any] = kwargs or {}
        rounded = _ROUNDED.get(func.overloadpacket)
        narrow = _narrow(args) if rounded is not None else None
        if rounded is None or narrow is None:
            return func(*args, **named)
        found = func(*map(_wide, args), **{name: _wide(value) for name, value in named.items()})
        if isinstance(found, Tensor):
            return found.to(narrow)
        return type(found)(
            one.to(narrow) if number < rounded else one for number, one in enumerate(found)
        )


def _narrow(args: Sequence[Any]) -> torch.dtype | None:
    """Return the 16-bit type among CPU tensors, None if there are no 16-bit tensors."""
    types = (one.dtype for one in args if isinstance(one, Tensor) and one.device.type == "cpu")
    return next((dtype for dtype in types if dtype in _NARROW), None)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _NARROW else value


def as_computed(
    config: RunConfig, dtype: torch.dtype, device: str
) -> AbstractContextManager[object]:
    """Return the context for an honest pass in ``dtype`` on ``device``.

    A run's own format is computed as in the run, every other format in the host's faster way.
    """
    if torch.device(device).type != "cpu" or dtype not in _NARROW:
        return nullcontext()
    own = config.device.partition(":")[0] == "cpu" and config.precision.dtype == str(dtype)[6:]
    wide = config.precision.products is not None if own else faster_way(dtype) == "wide"
    return WideProducts() if wide else nullcontext()  # type: ignore[no-untyped-call]
