"""The source documents' multi-device command lines, by name: ``llmb run --recipe NAME``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmb.config import Executor
from llmb.errors import UsageError, did_you_mean

#: Most ranks per dimension, sequences and micro-batches in the debug form.
_FEW = 2


@dataclass(frozen=True)
class RunRecipe:
    """A workload, a number of ranks, and the kinds of parallelism.

    Example: ``tp=2`` with ``world_sizes=(8,)`` has four replicas of two ranks.
    """

    name: str
    workload: str
    #: The document's command line, or the document's settings without a command line.
    original: str
    #: Number of ranks of each row in the document; the default is the first number.
    world_sizes: tuple[int, ...]
    #: Sequences of a micro-batch of each replica.
    micro_batch_size: int
    accumulate: int
    precision: str
    tp: int = 1
    pp: int = 1
    #: ZeRO stage among replicas; None: each replica has the full model.
    zero: int | None = None
    schedule: str | None = None
    sequence_parallel: bool = False
    loss_parallel: bool = False
    executor: Executor = "eager"
    sac_freq: str | None = None
    #: The differences to the original, in words.
    differs: str = ""

    @property
    def replicas(self) -> int:
        """The number of replicas in the first row: ranks / (tp * pp)."""
        return self.world_sizes[0] // (self.tp * self.pp)

    @property
    def debug(self) -> RunRecipe:
        """The debug form: the same parallelism, with at most two ranks and sequences each."""

        def few(count: int) -> int:
            return min(count, _FEW)

        return replace(
            self,
            world_sizes=(few(self.tp) * few(self.pp) * few(self.replicas),),
            tp=few(self.tp),
            pp=few(self.pp),
            micro_batch_size=few(self.micro_batch_size),
            accumulate=few(self.accumulate),
        )

    @property
    def options(self) -> dict[str, object]:
        """The recipe's options for ``llmb run``. Example: ``{"nproc": 8, "tp": 2}``."""
        found: dict[str, object] = {
            "workload": self.workload,
            "nproc": self.world_sizes[0],
            "micro_batch_size": self.micro_batch_size,
            "accumulate": self.accumulate,
            "precision": self.precision,
            "executor": self.executor,
        }
        others = {
            "tp": self.tp if self.tp > 1 else None,
            "pp": self.pp if self.pp > 1 else None,
            "schedule": self.schedule,
            "zero": self.zero,
            "sequence_parallel": self.sequence_parallel or None,
            "loss_parallel": self.loss_parallel or None,
            "sac_freq": self.sac_freq,
        }
        return found | {name: value for name, value in others.items() if value is not None}


_NO_STAGE_1 = "FSDP2 has no stage 1 of its own: gradients are shared, too"
_NODE = "the document names no number of devices: its code takes all of a node, here eight"
_ALCF_1T = RunRecipe(
    name="alcf-1t",
    workload="alcf-1t",
    original="./scripts/aurora/1T.sc",
    world_sizes=(768,),
    tp=12,
    pp=64,
    schedule="1F1B",
    micro_batch_size=1,
    accumulate=512,
    precision="BF16",
    sac_freq="1/1",
    differs="its ZeRO-1 has one replica here as there, and nothing to share; llmb submits no job",
)
_FSDP = RunRecipe(
    name="llm-train-bench-fsdp",
    workload="llama-3.1-70b-proxy",
    original="python train_fsdp.py configs/llama-3.1-70b-proxy.json --sac-freq 1/4",
    world_sizes=(8,),
    zero=3,
    micro_batch_size=8,
    accumulate=8,
    precision="BF16",
    sac_freq="1/4",
    differs=(
        f"gradients are exchanged once a step, in float32 (there after each part, in BF16); {_NODE}"
    ),
)
_DDP = RunRecipe(
    name="llm-train-bench-ddp",
    workload="gpt2-1.5b",
    original="python train_ddp.py configs/gpt2-1.5b.json --bsz 32",
    world_sizes=(8,),
    micro_batch_size=32,
    accumulate=8,
    precision="BF16",
    differs=f"gradients are exchanged in every step (there by a slip once in a run); {_NODE}",
)
_LITGPT = RunRecipe(
    name="litgpt-fsdp-zero2",
    workload="litgpt-fsdp",
    original="python train_fsdp.py --devices 2 --compile eager --stage 2",
    world_sizes=(2,),
    zero=2,
    micro_batch_size=2,
    accumulate=1,
    precision="BF16",
    differs="torch's FSDP2 and not its first FSDP; each block is a unit, not each module",
)

RECIPES: dict[str, RunRecipe] = {
    recipe.name: recipe
    for recipe in (
        RunRecipe(
            name="nanotron-llama2-7b",
            workload="nanotron-llama2-7b",
            original="micro_batch_size=2, batch_accumulation_per_replica=16",
            world_sizes=(8, 16, 32, 64, 128),
            tp=4,
            sequence_parallel=True,
            loss_parallel=True,
            micro_batch_size=2,
            accumulate=16,
            precision="BF16",
            differs="gradients add up in BF16 (there in float32)",
        ),
        RunRecipe(
            name="nemo-bert-base",
            workload="nemo-bert-base",
            original="micro_batch_size=32, tp=1, global_batch_size=1024, sequence length 512",
            world_sizes=(8,),
            micro_batch_size=32,
            accumulate=4,
            precision="FP16",
        ),
        RunRecipe(
            name="nemo-bert-base-2048",
            workload="nemo-bert-base-2048",
            original="micro_batch_size=8, tp=1, global_batch_size=1024, sequence length 2048",
            world_sizes=(8,),
            micro_batch_size=8,
            accumulate=16,
            precision="FP16",
        ),
        RunRecipe(
            name="nemo-bert-large",
            workload="nemo-bert-large",
            original="tp=4, micro_batch_size=128",
            world_sizes=(8,),
            tp=4,
            micro_batch_size=128,
            accumulate=32,
            precision="FP16",
            differs="global batch 8192, as the configuration says (the document prints 8092, 8096)",
        ),
        _DDP,
        replace(
            _DDP,
            name="llm-train-bench-ddp-fp8",
            original="python train_ddp.py configs/gpt2-1.5b.json --bsz 32 --use-fp8",
            precision="FP8",
        ),
        _FSDP,
        replace(
            _FSDP,
            name="llm-train-bench-fsdp-fp8",
            original="python train_fsdp.py configs/llama-3.1-70b-proxy.json --use-fp8",
            precision="FP8",
            sac_freq=None,
        ),
        _LITGPT,
        replace(
            _LITGPT,
            name="litgpt-fsdp-zero3",
            original="python train_fsdp.py --devices 2 --compile eager --stage 3",
            zero=3,
        ),
        _ALCF_1T,
        replace(
            _ALCF_1T,
            name="alcf-1t-4l",
            workload="alcf-1t-4l",
            original="1T-4L.sc",
            world_sizes=(24,),
            pp=2,
            accumulate=16,
        ),
        replace(
            _ALCF_1T,
            name="alcf-7b",
            workload="alcf-7b",
            original="7B.sc",
            world_sizes=(4,),
            tp=1,
            pp=1,
            schedule=None,
            zero=1,
            accumulate=8,
            differs=_NO_STAGE_1,
        ),
    )
}


def recipe_of(name: str) -> RunRecipe:
    """Return the recipe ``name``.

    Raises:
        UsageError: no recipe has this name.
    """
    if name not in RECIPES:
        near = did_you_mean(name, RECIPES)
        raise UsageError(f"--recipe {name!r}: choose one of {', '.join(RECIPES)}{near}")
    return RECIPES[name]
