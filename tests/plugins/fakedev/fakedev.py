"""The runtime module of the fake device: what torch and its users find at ``torch.fakedev``."""

from __future__ import annotations

import sys
from pathlib import Path


def autoload() -> None:
    """Entry point of group ``torch.backends``: ``import torch`` calls it at its end."""
    import torch

    torch.ops.load_library(Path(__file__).with_name("fakedev_device.so"))
    torch.utils.rename_privateuse1_backend("fakedev")
    torch._register_device_module("fakedev", sys.modules[__name__])
    if torch.distributed.is_available():
        import fakedev_ccl

        fakedev_ccl.register()


def device_count() -> int:
    import torch

    return torch.ops.fakedev.device_count()


def is_available() -> bool:
    return device_count() > 0


def current_device() -> int:
    import torch

    return torch.accelerator.current_device_index()


def get_device_name(index: int) -> str:
    return f"fake device {index}"


def is_initialized() -> bool:
    return True


def set_device(device: object) -> None:
    import torch

    torch.accelerator.set_device_index(torch.device(device).index or 0)
