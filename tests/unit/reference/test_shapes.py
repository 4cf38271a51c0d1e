"""The fixed workload has the published sizes."""

from __future__ import annotations

from dataclasses import asdict

import torch

from llmb.reference.llama import Llama
from llmb.reference.shapes import LlamaShape


def default_sizes() -> dict[str, int]:
    with torch.device("meta"):
        model = Llama(LlamaShape())
    return {name: parameter.numel() for name, parameter in model.named_parameters()}


def test_the_default_shape_has_1_433_680_000_parameters_in_111_tensors() -> None:
    sizes = default_sizes()
    assert len(sizes) == 111
    assert sum(sizes.values()) == 1_433_680_000


def test_without_embedding_and_head_1_228_880_000_parameters_are_left() -> None:
    sizes = default_sizes()
    del sizes["model.embed_tokens.weight"], sizes["lm_head.weight"]
    assert sum(sizes.values()) == 1_228_880_000


def test_the_defaults_are_the_fixed_workload_of_the_rules() -> None:
    assert asdict(LlamaShape()) == {
        "vocab_size": 32000,
        "hidden_size": 3200,
        "intermediate_size": 6400,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "sequence_length": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
        "padding_idx": 0,
    }
    assert LlamaShape().head_dim == 100
