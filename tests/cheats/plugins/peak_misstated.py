"""The datasheet's peak is lower than what the device does."""

from llmb.config import FP32
from llmb.plugin import Peak, hookimpl
from llmb.plugin.builtin.cpu import CpuBackend


class Understated(CpuBackend):
    def peak_flops(self, precision):
        return Peak(flops_per_second=1e6, source="no datasheet")


@hookimpl
def llmb_precisions():
    return [FP32]


@hookimpl
def llmb_backend():
    return Understated()
