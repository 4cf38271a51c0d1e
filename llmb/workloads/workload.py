"""What a workload is: a model at fixed shapes, and how its original runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmb.config import GenerateScope, Mode, RunConfig
from llmb.reference.recipe import OFFICIAL_RECIPE, Recipe
from llmb.reference.shapes import FAMILIES, Shape

Document = Literal["gpt-bench", "llmb", "alcf", "nanotron", "nemo", "llm-train-bench", "litgpt"]

#: The source documents by their short names; llmb's own sizes are in none of them.
DOCUMENTS: dict[Document, str] = {
    "gpt-bench": "Large Language Modeling Benchmark (gpt-bench)",
    "llmb": "smaller sizes of llama-1.4b, llmb's own",
    "alcf": "1T Large Language Model Training (ALCF)",
    "nanotron": "Scandinavian LM on Leonardo, Nanotron",
    "nemo": "Scandinavian LM on Leonardo, NeMo",
    "llm-train-bench": "Benchmark LLM Training (llm-train-bench)",
    "litgpt": "Lit-GPT benchmarks (lightning-thunder)",
}


#: Tokens of the Lit-GPT document's prompt, "Hello, my name is", and of what follows it.
PROMPT_LENGTH, NEW_TOKENS = 6, 200


@dataclass(frozen=True)
class Workload:
    """A model at fixed shapes, in the modes it can be run in."""

    name: str
    shape: Shape
    #: None for a user's own.
    document: Document | None
    modes: tuple[Mode, ...] = (Mode.TRAIN,)
    recipe: Recipe = OFFICIAL_RECIPE
    #: In mode generate: what the executor is given.
    scope: GenerateScope = "step"
    #: Name of the way the document counts work (``llmb.workloads.conventions``).
    convention: str = "gemm_full"
    #: Devices the document ran it on; None where it names none.
    world_size: int | None = None
    #: Ranks that share each layer, and stages of layers, in the original.
    tp: int = 1
    pp: int = 1
    #: What is wrong or ambiguous in the original, and what is done here instead.
    notes: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The kind of model, a name of ``FAMILIES``."""
        return next(name for name, kind in FAMILIES.items() if kind is type(self.shape))

    def otherwise(self, config: RunConfig) -> tuple[str, ...]:
        """Return what the original's step has and that of ``config`` has not, or the reverse."""
        found = []
        if config.dynamic and self.document != "litgpt":
            found.append("--dynamic (the original's sequences all have one length)")
        if config.data is not None and self.document != "alcf":
            found.append("--data (official: uniformly random tokens)")
        if config.weights is not None:
            found.append("--weights (official: random weights, which follow from the seed)")
        for flag, value, usual in (
            ("--prompt-length", config.prompt_length, PROMPT_LENGTH),
            ("--new-tokens", config.new_tokens, NEW_TOKENS),
        ):
            if value not in (None, usual):
                found.append(f"{flag} {value} (official: {usual})")
        return tuple(found)

    def tokens_per_step(self, batch_size: int, new_tokens: int | None = None) -> int:
        """Return the tokens one step counts: every position, or all that are generated.

        Of dynamic shapes it is the most a step can have.
        """
        return batch_size * (new_tokens or self.shape.sequence_length)

    def global_batch_size(self, world_size: int) -> int | None:
        """Return the sequences of a step on ``world_size`` devices, laid out as in the original.

        None where the original names no batch, or such a mesh does not fill the devices.
        """
        replicas, left = divmod(world_size, self.tp * self.pp)
        if self.recipe.micro_batch_size is None or left or not replicas:
            return None
        return self.recipe.micro_batch_size * self.recipe.accumulate * replicas
