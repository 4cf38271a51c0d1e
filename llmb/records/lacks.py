"""Missing abilities of a device, as declared by the backend, and the consequences for a run."""

from __future__ import annotations

from pydantic import Field

from llmb.config import Frozen, Precision

#: Programs of a calibration's matrix products, with the other programs of the process, on a device
#: that compiles each product; and programs of a worker before the first step.
_PROGRAMS = 30
#: Device types with kernels of torch's own.
_RUN_WHEN_CALLED = ("cpu", "cuda", "xpu", "mps")


class Lacks(Frozen):
    """Missing abilities of a device. A backend that declares nothing lacks nothing.

    A declaration does not make the audit milder. If the device cannot compute a reference, a host
    process without the plugin computes the reference.
    """

    #: Tensors of float64. Example: MPS, Intel Arc.
    float64: bool = False
    #: Float32 matrix products are narrower, and no setting makes them full. A device with a setting
    #: for full products lacks nothing: the backend then has a method ``full_float32_products``.
    full_float32_products: bool = False
    #: Kernels that run when called: a step is recorded, compiled and run later. Example: XLA.
    eager_kernels: bool = False
    #: Counters of total, free and peak memory.
    memory_figures: bool = False
    #: Minutes to compile the program of a step, None for a compiler that takes seconds.
    minutes_per_program: float | None = Field(default=None, gt=0, le=240)

    def fault(self, device: str) -> str | None:
        """Return why ``device`` cannot lack these abilities; None if it can.

        Rule T2 does not judge the pace of the last call on a device that records its steps, so
        that declaration must be true. Torch's own kernels on ``cpu``, ``cuda``, ``xpu`` and ``mps``
        run when called.
        """
        kind = device.partition(":")[0]
        if self.eager_kernels and kind in _RUN_WHEN_CALLED:
            return (
                f"torch's own kernels on {kind} run when called: leave eager_kernels=True out of "
                "the backend's lacks"
            )
        return None

    def named(self) -> tuple[str, ...]:
        """Return the names of missing abilities, in the order above: ``("float64", ...)``."""
        names = {
            "float64": self.float64,
            "full FP32 products": self.full_float32_products,
            "eager kernels": self.eager_kernels,
            "memory figures": self.memory_figures,
        }
        found = [name for name, lacking in names.items() if lacking]
        if self.minutes_per_program is not None:
            found.append(f"a quick compiler (about {self.minutes_per_program:g} min a program)")
        return tuple(found)

    def wide_format(self, precision: Precision) -> bool:
        """Tell whether the device lacks the format for judging a run in ``precision``.

        The judging format is float64 for a run on float32 values, else float32 with full products.
        """
        return self.float64 if precision.dtype == "float32" else self.full_float32_products

    def patience_s(self, usual_s: float) -> float:
        """Return how long a process that compiles may be silent, at least ``usual_s`` seconds.

        Example: half an hour in place of ten minutes if a program takes a minute.
        """
        return max(usual_s, _PROGRAMS * 60 * (self.minutes_per_program or 0))
