"""What every side of one row is asked to do: the same sizes, batch, format and optimizer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from llmb.families import SHAPES
from llmb.reference.shapes import Gpt2Shape, LlamaShape

#: Workloads by size: the family and what differs from its defaults (llama-1.4b and gpt2-125m).
SIZES: dict[str, dict[str, tuple[str, dict[str, int]]]] = {
    "small": {
        "llama-43m": (
            "llama",
            {
                "hidden_size": 512,
                "intermediate_size": 1024,
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "num_key_value_heads": 8,
            },
        ),
        "gpt2-125m at 256": ("gpt2", {"sequence_length": 256}),
    },
    "full": {"llama-1.4b": ("llama", {}), "gpt2-125m": ("gpt2", {})},
}


@dataclass(frozen=True)
class Job:
    """One mode of one workload; all sides compute in BF16 with weights and moments in BF16."""

    workload: str
    family: str
    sizes: dict[str, int]
    mode: str
    batch_size: int
    warmup_steps: int
    #: Of generation: tokens of the prompt, and tokens made from it.
    prompt: int
    new_tokens: int
    #: Whether the process keeps freed memory (see ``host.keep_freed_memory``).
    keep_memory: bool
    #: The folder with gpt-bench's package ``bench``, where it is compared.
    gpt_bench: str | None

    @property
    def shape(self) -> LlamaShape | Gpt2Shape:
        """The sizes as llmb has them; in generation, every position that is needed and no more."""
        shape = SHAPES[self.family](**self.sizes)
        assert isinstance(shape, LlamaShape | Gpt2Shape)
        return shape

    @property
    def tokens_per_step(self) -> int:
        """What counts as done after one step: tokens trained on, seen, or generated."""
        if self.mode == "generate":
            return self.batch_size * self.new_tokens
        return self.batch_size * self.shape.sequence_length

    def to_json(self) -> str:
        """Return the job as the command line of a side has it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job of a command line."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)
