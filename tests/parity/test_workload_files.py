"""Sizes that a workload file leaves out are those that transformers gives its configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from llmb import workloads
from llmb.inputs.checkpoint_config import shape_of_file
from llmb.workloads.definition import WrittenKey, definition_of
from tests import needs

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import, which reads it
needs.package("transformers")
from transformers import GPT2Config, LlamaConfig  # noqa: E402

LLAMA = {"hidden_size": 64, "intermediate_size": 112, "num_attention_heads": 8}
OWN = {"vocab_size": 97, "num_hidden_layers": 1, "sequence_length": 128}
GPT2 = {"hidden_size": 96, "num_attention_heads": 6, "max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("family", "config", "sizes"),
    [
        (
            "llama",
            LlamaConfig(**LLAMA, vocab_size=97, num_hidden_layers=1, max_position_embeddings=128),
            {**LLAMA, **OWN, "padding_idx": None},
        ),
        (
            "gpt2",
            GPT2Config(n_embd=96, n_head=6, n_positions=32),
            {**GPT2, "vocab_size": 50257},
        ),
    ],
    ids=["llama", "gpt2"],
)
def test_a_file_and_a_configuration_with_the_same_sizes_are_one_shape(
    tmp_path: Path, family: str, config: Any, sizes: dict[str, Any]
) -> None:
    config.save_pretrained(tmp_path)
    found = [WrittenKey(key, value, 1) for key, value in {"family": family, **sizes}.items()]
    shape, _ = shape_of_file(tmp_path / "config.json")
    assert shape == workloads.find("mine", {}, definition_of(found)).shape
