"""The class of workloads: a model with fixed shapes, and the settings of the source document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmb.config import GenerateScope, Mode, RunConfig
from llmb.families import SHAPES
from llmb.reference.recipe import OFFICIAL_RECIPE, Recipe
from llmb.reference.shapes import Shape

Document = Literal["gpt-bench", "llmb", "alcf", "nanotron", "nemo", "llm-train-bench", "litgpt"]

#: The source documents by short name; "llmb" stands for llmb's own choice.
DOCUMENTS: dict[Document, str] = {
    "gpt-bench": "Large Language Modeling Benchmark (gpt-bench)",
    "llmb": "smaller sizes of llama-1.4b, and models of no document",
    "alcf": "1T Large Language Model Training (ALCF)",
    "nanotron": "Scandinavian LM on Leonardo, Nanotron",
    "nemo": "Scandinavian LM on Leonardo, NeMo",
    "llm-train-bench": "Benchmark LLM Training (llm-train-bench)",
    "litgpt": "Lit-GPT benchmarks (lightning-thunder)",
}


#: Tokens of the Lit-GPT document's prompt, "Hello, my name is", and tokens generated after it.
PROMPT_LENGTH, NEW_TOKENS = 6, 200


@dataclass(frozen=True)
class Workload:
    """A model with fixed shapes, and its modes. Example: llama-1.4b in mode train."""

    name: str
    shape: Shape
    #: None for a user's own workload.
    document: Document | None
    modes: tuple[Mode, ...] = (Mode.TRAIN,)
    recipe: Recipe = OFFICIAL_RECIPE
    #: In mode generate, the executor's input: "model", or "step" (a token's step with sampling).
    scope: GenerateScope = "step"
    #: Name of the document's FLOPs convention (``llmb.workloads.conventions``).
    convention: str = "gemm_full"
    #: Number of devices in the document; None if the document gives no number.
    world_size: int | None = None
    #: Tensor-parallel ranks and pipeline stages in the original.
    tp: int = 1
    pp: int = 1
    #: Errors and ambiguities of the original, and llmb's choices.
    notes: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The kind of model, a name of ``SHAPES``."""
        return next(name for name, kind in SHAPES.items() if kind is type(self.shape))

    @property
    def drops(self) -> bool:
        """Whether training sets values to zero at random (dropout)."""
        return getattr(self.shape, "dropout", 0.0) > 0

    def otherwise(self, config: RunConfig) -> tuple[str, ...]:
        """Return the options of ``config`` that make its step differ from the original's step."""
        found = []
        if config.dynamic and self.document != "litgpt":
            found.append("--dynamic (the original's sequences all have one length)")
        if config.data is not None:  # of equal sequences a plugin may compute one
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
        """Return the counted tokens of a step: every position, or all generated tokens.

        With dynamic shapes the number is the maximum of a step. Example: 4 sequences of 2,048
        tokens count 8,192 tokens.
        """
        return batch_size * (new_tokens or self.shape.sequence_length)

    def global_batch_size(self, world_size: int) -> int | None:
        """Return the sequences of a step on ``world_size`` devices, with the original's mesh.

        None if the original gives no batch size, or if tp * pp does not divide ``world_size``.
        """
        replicas, left = divmod(world_size, self.tp * self.pp)
        if self.recipe.micro_batch_size is None or left or not replicas:
            return None
        return self.recipe.micro_batch_size * self.recipe.accumulate * replicas
