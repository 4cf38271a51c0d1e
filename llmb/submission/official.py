"""The second path for sizes: the sizes of every official workload, written out again.

``llmb.workloads`` is not used. Sizes that a workload does not name have the family's default.
"""

from __future__ import annotations

from typing import NamedTuple

Shapes = dict[str, int | float | None]

DEFAULTS: dict[str, Shapes] = {
    "llama": {
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
    },
    "gpt2": {
        "vocab_size": 50304,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "sequence_length": 1024,
        "max_position_embeddings": 1024,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
    },
    "bert": {
        "vocab_size": 64000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "sequence_length": 512,
        "max_position_embeddings": 2048,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "dropout": 0.1,
    },
}
DEFAULTS["llama-ungated"] = DEFAULTS["llama"]


class OfficialConstants(NamedTuple):
    """An optimizer's constants, by the class's name in ``torch.optim``, such as "AdamW"."""

    name: str
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01


class Official(NamedTuple):
    """A workload: family, sizes and training recipe."""

    family: str
    shapes: Shapes
    optimizer: OfficialConstants

    @property
    def clip_grad_norm(self) -> float | None:
        """The largest norm of all gradients; the fixed workload and SGD do not clip (None)."""
        return None if self.optimizer in (FIXED, _SGD) else 1.0


def _sizes(*sizes: int) -> Shapes:
    """Return sizes from layers, heads, key-value heads, hidden, feed-forward, sequence."""
    names = ["num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
    names += ["hidden_size", "intermediate_size", "sequence_length"]
    return dict(zip(names, sizes, strict=True))


def _llama(*sizes: int, **other: float | None) -> Shapes:
    return {**DEFAULTS["llama"], "padding_idx": None, **_sizes(*sizes), **other}


def _tied(family: str, layers: int, heads: int, hidden: int, sequence: int, **other: int) -> Shapes:
    sizes = _sizes(layers, heads, heads, hidden, 4 * hidden, sequence)
    del sizes["num_key_value_heads"]
    return {**DEFAULTS[family], **sizes, **other}


#: Optimizer of the fixed workload, and of a user's own model.
FIXED = OfficialConstants("AdamW", 1e-5, eps=1e-6)
_DEFAULT = OfficialConstants("AdamW", 1e-3)
_MEGATRON = OfficialConstants("AdamW", 1.5e-4)
_ALCF = OfficialConstants("AdamW", 3e-3)
_NANOTRON = OfficialConstants("AdamW", 3e-4, betas=(0.9, 0.95))
_NEMO = OfficialConstants("AdamW", 6e-4, betas=(0.9, 0.98))
_SGD = OfficialConstants("SGD", 6e-4, eps=1e-6, weight_decay=0.1)

_LLAMA_2 = {"rms_norm_eps": 1e-5}
_LLAMA_3 = {"vocab_size": 128256, "rms_norm_eps": 1e-5, "rope_theta": 500000.0}
_ALCF_1T = {"vocab_size": 32256, "rms_norm_eps": 1e-5}
_175B = {"vocab_size": 50432, "max_position_embeddings": 2048}
_7B = (32, 32, 32, 4096, 11008)
_70B = (64, 8, 8192, 28672, 4096)

OFFICIAL: dict[str, Official] = {
    "llama-1.4b": Official("llama", DEFAULTS["llama"], FIXED),
    "llama-410m": Official("llama", _llama(12, 16, 16, 1600, 3200, 256, padding_idx=0), FIXED),
    "llama-128m": Official("llama", _llama(12, 8, 8, 800, 1600, 256, padding_idx=0), FIXED),
    "llama-45m": Official("llama", _llama(12, 4, 4, 400, 800, 256, padding_idx=0), FIXED),
    "gpt-bench-117b": Official("gpt2", _tied("gpt2", 64, 96, 12288, 2048, **_175B), _MEGATRON),
    "gpt-bench-175b": Official("gpt2", _tied("gpt2", 96, 96, 12288, 2048, **_175B), _MEGATRON),
    "alcf-1t": Official("llama", _llama(128, 192, 192, 24576, 98304, 2048, **_ALCF_1T), _ALCF),
    "alcf-1t-readme": Official(
        "llama-ungated", _llama(128, 132, 132, 25872, 98304, 2048, **_ALCF_1T), _ALCF
    ),
    "alcf-1t-readme-swiglu": Official(
        "llama", _llama(128, 132, 132, 25872, 98304, 2048, **_ALCF_1T), _ALCF
    ),
    "alcf-1t-4l": Official("llama", _llama(4, 192, 192, 24576, 98304, 2048, **_ALCF_1T), _ALCF),
    "alcf-7b": Official("llama", _llama(*_7B, 4096, **_LLAMA_2), _ALCF),
    "nanotron-llama2-7b": Official(
        "llama", _llama(*_7B, 4096, rms_norm_eps=1e-6, initializer_range=0.025), _NANOTRON
    ),
    "nemo-bert-base": Official("bert", _tied("bert", 12, 12, 768, 512), _NEMO),
    "nemo-bert-base-2048": Official("bert", _tied("bert", 12, 12, 768, 2048), _NEMO),
    "nemo-bert-large": Official("bert", _tied("bert", 24, 16, 1024, 512), _NEMO),
    "gpt2-125m": Official("gpt2", _tied("gpt2", 12, 12, 768, 1024), _DEFAULT),
    "gpt2-350m": Official("gpt2", _tied("gpt2", 24, 16, 1024, 1024), _DEFAULT),
    "gpt2-774m": Official("gpt2", _tied("gpt2", 36, 20, 1280, 1024), _DEFAULT),
    "gpt2-1.5b": Official("gpt2", _tied("gpt2", 48, 25, 1600, 1024), _DEFAULT),
    "llama-2-7b": Official("llama", _llama(*_7B, 4096, **_LLAMA_2), _DEFAULT),
    "llama-2-7b-proxy": Official("llama", _llama(1, *_7B[1:], 4096, **_LLAMA_2), _DEFAULT),
    "llama-3.1-8b": Official("llama", _llama(32, 32, 8, 4096, 14336, 4096, **_LLAMA_3), _DEFAULT),
    "llama-3.1-8b-proxy": Official(
        "llama", _llama(1, 32, 8, 4096, 14336, 4096, **_LLAMA_3), _DEFAULT
    ),
    "llama-3.1-70b": Official("llama", _llama(80, *_70B, **_LLAMA_3), _DEFAULT),
    "llama-3.1-70b-proxy": Official("llama", _llama(1, *_70B, **_LLAMA_3), _DEFAULT),
    "llama-3.1-70b-proxy2": Official("llama", _llama(2, *_70B, **_LLAMA_3), _DEFAULT),
    "llama-3.1-70b-proxy4": Official("llama", _llama(4, *_70B, **_LLAMA_3), _DEFAULT),
    "litgpt-forward": Official("llama", _llama(*_7B, 2048), FIXED),
    "litgpt-model-inference": Official("llama", _llama(*_7B, 4096, **_LLAMA_2), FIXED),
    "litgpt-generation": Official("llama", _llama(*_7B, 4096, **_LLAMA_2), FIXED),
    "litgpt-train": Official("llama", _llama(26, 32, 32, 3200, 8640, 2048), _SGD),
    "litgpt-fsdp": Official("llama", _llama(26, 32, 32, 3200, 8640, 2048), _SGD),
}
