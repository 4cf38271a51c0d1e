"""Tell plain tensors, and a plain thread, from those in which a read runs other code (rule N1).

Example: functorch wraps a plugin's tensor, and the wrapper has the type ``torch.Tensor``. Its
operators call ``__torch_dispatch__`` of the plugin's class, which can compute the read elements
alone. The dispatch keys of a tensor show the wrapper: ``FuncTorchGradWrapper``, ``Functionalize``.
A thread has such keys, too: with ``PythonDispatcher`` torch calls functions that Python code has
given to operators.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _functorch as functorch

#: As the function is before any code of a plugin.
_keys_of = torch._C._dispatch_keys
_included = torch._C._dispatch_tls_local_include_set
_excluded = torch._C._dispatch_tls_local_exclude_set


def _of_thread() -> tuple[int, int]:
    """Return the dispatch keys that the thread adds to tensors, and those that it leaves out."""
    return _included().raw_repr(), _excluded().raw_repr()


def _usual() -> tuple[int, int]:
    """Return the keys of a thread with gradients, and in inference mode."""
    added, left_out = _of_thread()
    with torch.inference_mode():
        more, out = _of_thread()
    return added | more, left_out | out


#: As they are before any code of a plugin.
_ADDED, _LEFT_OUT = _usual()


def strange_keys() -> str:
    """Return the dispatch keys that the thread should not have; ``""`` for none (3 microseconds).

    Example: ``DispatchKeySet(PythonDispatcher)``.
    """
    added, left_out = _of_thread()
    strange = (added & ~_ADDED) | (left_out & ~_LEFT_OUT)
    return str(torch._C.DispatchKeySet.from_raw_repr(strange)) if strange else ""


def _keys(tensor: Tensor) -> int:
    """Return the dispatch keys of ``tensor``, one bit each (0.3 microseconds)."""
    return _keys_of(tensor).raw_repr()


def _wrapped(tensor: Tensor) -> Tensor:
    """Return a wrapper of functorch around ``tensor``, whose level has ended."""
    level = functorch._grad_increment_nesting()
    try:
        return functorch._wrap_for_grad(tensor, level)
    finally:
        functorch._grad_decrement_nesting()


class PlainTensors:
    """Knows the dispatch keys of llmb's own tensors."""

    __slots__ = ("_known", "_never")

    def __init__(self, *own: Tensor) -> None:
        """Accept keys of tensors on the host, and of llmb's ``own`` tensors on a device.

        A tensor without numbers (a parameter in another stage of a pipeline), a tensor of zeros
        without memory, and a tensor whose sign is still to be changed run no other code.
        """
        plain = torch.empty(0)
        batched = functorch._add_batch_dim(torch.empty(1), 0, 1)
        self._never = (_keys(_wrapped(plain)) | _keys(batched)) & ~_keys(plain)
        self._known = 0
        lazily = torch._neg_view(plain), torch._efficientzerotensor(0)
        for tensor in (plain, torch.empty(0, device="meta"), *lazily, *own):
            self.accept(tensor)

    def accept(self, tensor: Tensor) -> None:
        """Accept the keys of ``tensor``, which llmb has made, except those of functorch.

        A plugin's environment could make llmb's own call return a wrapper.
        """
        self._known |= _keys(tensor) & ~self._never

    def has(self, tensor: Tensor) -> bool:
        """Tell whether ``tensor`` has no other keys. A tensor of inference mode has fewer."""
        return not _keys(tensor) & ~self._known
