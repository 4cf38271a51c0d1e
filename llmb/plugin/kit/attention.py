"""Sets the kernel of ``scaled_dot_product_attention`` for the rest of the process."""

from __future__ import annotations

from contextlib import ExitStack

import torch.compiler.config
from torch.nn.attention import SDPBackend, sdpa_kernel

#: "auto" leaves the choice to torch; the rest are kernels under torch's names.
CHOICES = ("auto", "flash", "efficient", "cudnn", "math")
_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_held = ExitStack()  # torch offers the choice as a context; this context stays open


def choose(kernel: str) -> None:
    """Let only ``kernel`` be used from now on; ``auto`` leaves the choice to torch.

    A kernel that cannot run the model's attention makes torch raise at the first step.
    """
    _held.close()
    if kernel == "auto":
        return
    _held.enter_context(sdpa_kernel(_BACKENDS[kernel]))
    # torch.compile's disk cache key does not contain the kernel choice: without a tag of its own,
    # a program compiled for another kernel would run.
    config = torch.compiler.config
    _held.callback(setattr, config, "cache_key_tag", config.cache_key_tag)
    config.cache_key_tag += f"attention={kernel}"
