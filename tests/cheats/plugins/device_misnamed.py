"""The device bears the name of another."""

from llmb.plugin import Device, hookimpl
from llmb.plugin.builtin.cpu import CpuBackend


class Grand(CpuBackend):
    def devices(self):
        return (Device(name="cpu", description="Colossus 9000", memory_bytes=2**50),)


@hookimpl
def llmb_backend():
    return Grand()
