"""Take a snapshot of torch's settings and of the environment, to compare with a later snapshot."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator

import torch

from llmb.config import environment
from llmb.records.redact import redact_environment

_GETTER = re.compile(r"_get_\w*(allow|precision|determin|benchmark|enabled|sdp|reduction|accum)")
_SIMPLE = (bool, int, float, str)


def snapshot() -> dict[str, str]:
    """Return setting -> value: ``torch.backends``, torch's own getters, and the environment.

    The names come from torch, not from a list of vendors: a build with another backend shows the
    switches of that backend. No device is initialised: a plugin may still set variables that the
    device reads on start.
    """
    settings = dict(_backend_switches())
    settings |= dict(_getters())
    settings |= {
        "torch.default_dtype": str(torch.get_default_dtype()),
        "torch.num_threads": str(torch.get_num_threads()),
        "torch.num_interop_threads": str(torch.get_num_interop_threads()),
        # Raises once a plugin has used the newer fp32_precision switches.
        "torch.float32_matmul_precision": str(_read(torch.get_float32_matmul_precision)),
    }
    env = redact_environment(environment())
    return settings | {f"environment.{name}": value for name, value in env.items()}


def _backend_switches() -> Iterator[tuple[str, str]]:
    for name in sorted(name for name in sys.modules if name.startswith("torch.backends")):
        yield from _switches(name, sys.modules[name])


def _switches(path: str, holder: object) -> Iterator[tuple[str, str]]:
    """Yield the simple values of a module of ``torch.backends``, and of objects in the module."""
    # Some switches are properties of the module's own class. Some objects serve ``fp32_precision``
    # through ``__getattr__`` alone, and ``dir`` does not list the name.
    names = {*dir(holder), *dir(type(holder)), "fp32_precision"}
    for name in sorted(name for name in names if not name.startswith("_")):
        value = _read(lambda name=name: getattr(holder, name))  # type: ignore[misc]
        if isinstance(value, _SIMPLE):
            yield f"{path}.{name}", str(value)
        # An object with an index has a value for each device (cuFFT's plans), and reading any value
        # initialises the devices.
        elif type(value).__module__.startswith("torch.backends") and not _has_index(value):
            precision = _read(lambda value=value: value.fp32_precision)  # type: ignore[misc]
            if isinstance(precision, str):
                yield f"{path}.{name}.fp32_precision", precision


def _has_index(value: object) -> bool:
    return hasattr(type(value), "__getitem__")


def _getters() -> Iterator[tuple[str, str]]:
    for name in sorted(filter(_GETTER.match, dir(torch._C))):
        value = _read(getattr(torch._C, name))
        if isinstance(value, _SIMPLE):
            yield f"torch._C.{name}", str(value)


def _read(getter: Callable[[], object]) -> object:
    try:
        return getter()
    except Exception:  # a getter that needs arguments or a missing device
        return None
