"""The fake device: a torch accelerator out of tree, so the building blocks do nearly all of it."""

from llmb.config import BF16, FP32, Precision, Refused, RunConfig
from llmb.plugin import Peak, hookimpl
from llmb.plugin.kit.accelerator import Accelerator


class FakeDevice(Accelerator):
    """What the building block cannot know of the device."""

    def peak_flops(self, precision: str) -> Peak | None:
        """The datasheet has one figure."""
        return (
            Peak(flops_per_second=1e12, source="fakedev datasheet") if precision == "FP32" else None
        )


@hookimpl
def llmb_backend(config: RunConfig) -> FakeDevice:
    """Drive one of its devices."""
    return FakeDevice(config.device)


@hookimpl
def llmb_precisions() -> list[Precision | Refused]:
    """It multiplies in two formats, and says why not in a third."""
    return [FP32, BF16, Refused(name="FP8", reason="the fake device has no 8-bit products")]
