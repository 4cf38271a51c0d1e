"""The CPU plugin: the default without an accelerator, and the example to copy."""

from __future__ import annotations

import platform

import torch
from torch import nn

from llmb.config import BF16, FP16, FP32, Precision, RunConfig
from llmb.plugin import Device, DeviceMemory, EnergyReading, Peak, PluginOption, hookimpl
from llmb.plugin.builtin import host
from llmb.plugin.builtin.attention import write_out_attention
from llmb.plugin.builtin.products import faster_way
from llmb.plugin.builtin.wide import widen_products
from llmb.records.run_record import StepClock


class CpuBackend:
    """The host processor. Work is done when a call returns."""

    device_type = "cpu"
    step_clock: StepClock = "host"
    distributed_backend: str | None = "gloo" if torch.distributed.is_available() else None

    def is_available(self) -> bool:
        """Return True: every machine has a CPU."""
        return True

    def devices(self) -> tuple[Device, ...]:
        """List the one device, ``cpu``."""
        description = platform.processor() or platform.machine()
        memory = host.memory_limit_bytes()
        return (Device(name="cpu", description=description, memory_bytes=memory),)

    def synchronize(self) -> None:
        """Return at once: CPU work is done when a call returns."""

    def step_begin(self) -> None:
        """Mark nothing."""

    def step_end(self) -> None:
        """Mark nothing."""

    def memory(self) -> DeviceMemory:
        """Return main memory within container limits, and this process's peak resident size."""
        return DeviceMemory(
            total_bytes=host.memory_limit_bytes(),
            available_bytes=host.available_memory_bytes(),
            peak_bytes=host.peak_resident_bytes(),
        )

    def reset_peak_memory(self) -> None:
        """Start a new peak at the present use, after freed memory went back to the kernel."""
        host.return_freed_memory()
        host.reset_peak_resident()

    def energy(self) -> EnergyReading | None:
        """Return the sum of RAPL's package counters, None if the kernel hides them."""
        joules = host.package_energy_joules()
        if joules is None:
            return None
        return EnergyReading(joules=joules, source="counter", scope="package")

    def peak_flops(self, precision: str) -> Peak | None:
        """Return None: no datasheet states a dense peak at the clock a CPU really runs at."""
        return None

    def versions(self) -> dict[str, str]:
        """Return the instruction set torch dispatches to."""
        return {"cpu_capability": torch.backends.cpu.get_cpu_capability()}


@hookimpl
def llmb_backend(config: RunConfig) -> CpuBackend:
    """Drive the host processor."""
    return CpuBackend()


@hookimpl
def llmb_options() -> list[PluginOption]:
    """Offer four options: threads, freed memory, attention, and 16-bit products."""
    return [
        PluginOption(
            name="keep_memory",
            type="bool",
            default=True,
            help="keep freed memory in the process: no page faults for each step's gradients",
        ),
        PluginOption(
            name="written_attention",
            type="bool",
            default=True,
            help="attention as matrix products (BF16, up to 512 tokens), faster than torch's",
        ),
        PluginOption(
            name="products",
            type="str",
            default="auto",
            choices=("auto", "native", "wide"),
            help="BF16 and FP16 products by torch's own kernels, or widened to FP32 and rounded "
            "once; auto measures which is faster",
        ),
        PluginOption(
            name="threads",
            type="int",
            default=0,
            minimum=0,
            help="OpenMP threads; 0 is OMP_NUM_THREADS or else one per physical core",
        ),
    ]


@hookimpl
def llmb_environment_variables(config: RunConfig) -> dict[str, str]:
    """Set the thread count before OpenMP starts, and ask for huge pages."""
    return host.variables(config.plugin_options.get("threads"))


@hookimpl
def llmb_precisions(config: RunConfig) -> list[Precision]:
    """Offer native formats of the processor before formats with widened products.

    With ``-O products=native`` torch emulates the 16-bit formats that the processor lacks:
    BF16 is 30 times slower than FP32 without avx512_bf16 or AMX.
    """
    asked = config.plugin_options.get("products", "auto")
    formats = [_computed(BF16, asked), FP32, _computed(FP16, asked)]
    return sorted(formats, key=lambda precision: not precision.native)


def _computed(precision: Precision, asked: object) -> Precision:
    """Return ``precision`` as this processor computes with ``-O products=<asked>``."""
    faster = faster_way(getattr(torch, precision.dtype))
    wide = (faster if asked == "auto" else asked) == "wide"
    how = {"native": faster == "native" and not wide, "products": FP32.name if wide else None}
    return precision.model_copy(update=how)


@hookimpl
def llmb_post_process_model(model: nn.Module, config: RunConfig) -> nn.Module:
    """Widen products or write causal attention out, and keep freed memory from now on.

    Not earlier: the process would also keep memory freed while the model was made, and the peak
    would be 1 GB higher.
    """
    if config.precision.products is not None:
        widen_products(model, traced=config.executor != "eager")
    elif config.plugin_options["written_attention"]:
        write_out_attention(model)
    if config.plugin_options["keep_memory"]:
        host.keep_freed_memory()
    return model


@hookimpl
def llmb_optimizer_options() -> dict[str, bool]:
    """Use torch's fused AdamW kernel: one pass over the state instead of a dozen."""
    return {"fused": True}
