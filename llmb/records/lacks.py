"""What a device lacks, as its backend declares it, and what a run does without it, in sentences."""

from __future__ import annotations

from pydantic import Field

from llmb.config import Frozen, Precision

#: Matrix products of a calibration, which a device that compiles may compile one by one, with the
#: other programs of the process; and of a worker before its first step.
_PROGRAMS = 30


class Lacks(Frozen):
    """What a device does not have. A backend that declares nothing lacks nothing.

    A declaration makes the audit no milder: a reference that cannot be computed on the device is
    computed on the host, by a process without the plugin.
    """

    #: Tensors of float64. Example: MPS, Intel Arc.
    float64: bool = False
    #: Float32 matrix products are narrower, and nothing makes them full. A device that can be asked
    #: for full ones lacks nothing: its backend has a method ``full_float32_products``.
    full_float32_products: bool = False
    #: Kernels that run when called: a step is recorded, compiled and run later. Example: XLA.
    eager_kernels: bool = False
    #: Counters of total, free and peak memory.
    memory_figures: bool = False
    #: Minutes the device's compiler takes for a program of a step, None where it takes seconds.
    minutes_per_program: float | None = Field(default=None, gt=0, le=240)

    def named(self) -> tuple[str, ...]:
        """Return what is lacking, by name and in the order above: ``("float64", ...)``."""
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
        """Tell whether the device lacks the format that a run in ``precision`` is judged in.

        That is float64 for a run on float32 values, and float32 with full products for others.
        """
        return self.float64 if precision.dtype == "float32" else self.full_float32_products

    def patience_s(self, usual_s: float) -> float:
        """Return how long a process may be silent that has programs compiled, ``usual_s`` or more.

        Example: half an hour in place of ten minutes where a program takes a minute.
        """
        return max(usual_s, _PROGRAMS * 60 * (self.minutes_per_program or 0))
