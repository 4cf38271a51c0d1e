"""torch_xla computes FP32 products of a TPU in BF16 by default: a reference pass asks for FP32."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import torch
from llmb_xla.backend import XlaBackend
backend = XlaBackend("xla:0")
native = backend._xla._XLAC
native._xla_set_mat_mul_precision("default")
with backend.full_float32_products():
    print(native._xla_get_mat_mul_precision())
    x = torch.ones(8, 8, device="xla")
    y = x @ x
print(native._xla_get_mat_mul_precision(), y.sum().item())
try:
    with backend.full_float32_products():
        raise RuntimeError
except RuntimeError:
    print(native._xla_get_mat_mul_precision())
"""


def test_products_are_full_in_a_reference_pass_and_as_before_after_it() -> None:
    # In a separate process: the precision belongs to the whole process.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split() == ["highest", "default", "512.0", "default"]
