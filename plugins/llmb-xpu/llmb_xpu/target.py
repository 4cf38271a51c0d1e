"""The device of a run: an Intel GPU by torch's own back end, or the CPU with Intel's extension."""

from __future__ import annotations

from enum import Enum

import torch

from llmb.config import AUTO_DEVICE, RunConfig
from llmb.errors import UnavailableError, UsageError

from . import extension

OPTION = "extension"
CHOICES = ("auto", "on", "off")
NO_GPU = (
    "this torch ({version}) sees no Intel GPU: install Intel's GPU driver and a build of torch "
    "with XPU support"
)


class Target(Enum):
    """The two kinds of devices of this package."""

    GPU = "xpu"
    CPU = "cpu"


def find(config: RunConfig) -> Target:
    """Return the target of ``config``; without a named device a GPU before the CPU.

    Raises:
        UsageError: device and option contradict each other.
        UnavailableError: machine or software lack the target; the message names the package to
            install.
    """
    kind, choice = config.device.partition(":")[0], config.plugin_options[OPTION]
    if kind == Target.CPU.value or (kind == AUTO_DEVICE and choice == "on"):
        return _cpu(str(choice))
    if kind == Target.GPU.value:
        return _gpu(str(choice))
    if kind != AUTO_DEVICE:
        raise UnavailableError(f"it drives Intel GPUs (xpu) and the CPU, not {config.device!r}")
    if torch.xpu.is_available():
        return Target.GPU
    no_gpu = NO_GPU.format(version=torch.__version__)
    fault = extension.fault()
    if choice == "off":
        raise UnavailableError(no_gpu)
    if fault is not None:
        raise UnavailableError(f"{no_gpu}; nor can it use the CPU: {fault}")
    return Target.CPU


def _cpu(choice: str) -> Target:
    if choice == "off":
        raise UsageError(
            f"-O {OPTION}=off: without Intel's extension the CPU is the plugin cpu's (--plugin cpu)"
        )
    fault = extension.fault()
    if fault is not None:
        raise UnavailableError(fault)
    return Target.CPU


def _gpu(choice: str) -> Target:
    if choice == "on":
        raise UsageError(
            f"-O {OPTION}=on: Intel's extension is for --device cpu; torch itself drives GPUs"
        )
    if not torch.xpu.is_available():
        raise UnavailableError(NO_GPU.format(version=torch.__version__))
    return Target.GPU
