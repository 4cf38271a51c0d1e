"""Declared as FP64 with weights in float32: every product is computed in FP32."""

# The reference of an FP64 run would be in float32: an honest FP64 pass would be as far from it as
# FP32 is from FP64.

from llmb.config import Precision
from llmb.plugin import hookimpl


@hookimpl
def llmb_precisions():
    return [
        Precision(name="FP64", bits=64, dtype="float64", master_weights=True, native=False),
    ]
