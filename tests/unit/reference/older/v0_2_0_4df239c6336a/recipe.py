"""How a workload's original trains: optimizer, clipping, accumulation, dropout. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Optimizer:
    """An optimizer's class in ``torch.optim`` and its constants; the learning rate is constant."""

    name: Literal["AdamW", "SGD"] = "AdamW"
    lr: float = 1e-5
    #: Of AdamW alone.
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01

    @property
    def moments(self) -> int:
        """Values it keeps of every parameter."""
        return 2 if self.name == "AdamW" else 0


#: That of the fixed workload.
OFFICIAL_OPTIMIZER = Optimizer()


@dataclass(frozen=True)
class Recipe:
    """What one optimizer step of the original is made of.

    The defaults are llama-1.4b's, the fixed workload of the benchmark.
    """

    optimizer: Optimizer = OFFICIAL_OPTIMIZER
    #: Sequences a device takes at once, and how many times before the optimizer's step.
    micro_batch_size: int | None = None
    accumulate: int = 1
    #: Largest norm of all gradients together; None where the original does not clip.
    clip_grad_norm: float | None = None
    #: The original computes in the narrow format over float32 weights (autocast).
    mixed_precision: bool = False


#: That of the fixed workload.
OFFICIAL_RECIPE = Recipe()
