"""Which kernel ``scaled_dot_product_attention`` uses, for the rest of the process."""

from __future__ import annotations

from contextlib import ExitStack

import torch.compiler.config
from torch.nn.attention import SDPBackend, sdpa_kernel

#: Left to torch, or one of its kernels by the name it has in ``torch.nn.attention``.
CHOICES = ("auto", "flash", "efficient", "cudnn", "math")
_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_held = ExitStack()  # torch has the choice as a context; this one is never left


def choose(kernel: str) -> None:
    """Let only ``kernel`` be used from now on; ``auto`` leaves the choice to torch.

    A kernel that cannot run the model's attention makes torch raise at the first step.
    """
    _held.close()
    if kernel == "auto":
        return
    _held.enter_context(sdpa_kernel(_BACKENDS[kernel]))
    # What torch.compile keeps on disk is found again by everything but this choice: without a mark
    # of its own, a program compiled for another kernel would run.
    config = torch.compiler.config
    _held.callback(setattr, config, "cache_key_tag", config.cache_key_tag)
    config.cache_key_tag += f"attention={kernel}"
