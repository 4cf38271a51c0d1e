"""The second path for models: sizes, names and products of every family, written out again.

Neither ``llmb.families`` nor ``llmb.workloads`` nor the reference is used. Sizes that a workload
does not name have the family's default.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from llmb.errors import BundleRefusedError

Shapes = dict[str, int | float | None]
#: Parameter name -> shape, in the model's order.
Parameters = dict[str, tuple[int, ...]]

#: Most layers of a model with checked evidence. The largest official model has 128.
_MOST_LAYERS = 4096

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
    "qwen3": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sequence_length": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "initializer_range": 0.02,
        "padding_idx": None,
        "head_dim": 128,
    },
}
DEFAULTS["llama-ungated"] = DEFAULTS["llama"]
DEFAULTS["qwen3-tied"] = DEFAULTS["qwen3"]


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


def _qwen3(*sizes: int) -> Shapes:
    return {**DEFAULTS["qwen3"], **_sizes(*sizes)}


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
    "qwen3-0.6b": Official("qwen3-tied", _qwen3(28, 16, 8, 1024, 3072, 4096), FIXED),
    "qwen3-8b": Official("qwen3", _qwen3(36, 32, 8, 4096, 12288, 4096), FIXED),
}


def parameters_of(family: str, sizes: Mapping[str, int]) -> Parameters:
    """Return every parameter of a model of ``family``, in the order of the model.

    Args:
        family: a name of ``DEFAULTS``, such as "gpt2".
        sizes: the whole numbers among the record's ``workload.shapes``.

    Example: of llama-1.4b ``model.layers.0.mlp.down_proj.weight`` is ``(3200, 6400)``, the second
    last is ``model.norm.weight`` ``(3200,)``. A tied head is no parameter of its own: GPT-2 and
    BERT have none.

    Raises:
        BundleRefusedError: the family is unknown, or has more layers than any benchmarked model.
        KeyError: a size is missing.
    """
    if sizes["num_hidden_layers"] > _MOST_LAYERS:
        raise BundleRefusedError(
            f"{sizes['num_hidden_layers']} layers: no more than {_MOST_LAYERS} are checked"
        )
    if family not in MATRICES:
        raise BundleRefusedError(f"nobody knows the parameters of family {family!r}")
    return MATRICES[family].parameters(sizes)


def parameter_count(family: str, sizes: Mapping[str, int]) -> int:
    """Return the number of parameters of a model of any number of layers.

    Raises:
        BundleRefusedError, KeyError: as ``parameters_of``.
    """
    return sum(math.prod(shape) * count for _, shape, count in _counted(family, sizes))


def products_of(family: str, sizes: Mapping[str, int]) -> Counter[tuple[int, int]]:
    """Return (inputs, outputs) of a matrix -> number of multiplications per token.

    Raises:
        BundleRefusedError, KeyError: as ``parameters_of``.
    """
    found = Counter[tuple[int, int]]()
    for name, shape, count in _counted(family, sizes):
        if len(shape) == 2 and not name.endswith(MATRICES[family].idle):
            found[shape[1], shape[0]] += count
    return found


def _counted(family: str, sizes: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield name, shape and number of each parameter: those of a layer as often as there are."""
    outside = parameters_of(family, {**sizes, "num_hidden_layers": 0})
    for name, shape in parameters_of(family, {**sizes, "num_hidden_layers": 1}).items():
        yield name, shape, 1 if name in outside else sizes["num_hidden_layers"]


def _of_llama(sizes: Mapping[str, int], *, gated: bool = True) -> Parameters:
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    head = hidden // sizes["num_attention_heads"]
    queries, keys = head * sizes["num_attention_heads"], head * sizes["num_key_value_heads"]
    layer: Parameters = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        **({"mlp.gate_proj.weight": (inner, hidden)} if gated else {}),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    return {
        "model.embed_tokens.weight": (sizes["vocab_size"], hidden),
        **_layers("model.layers", layer, sizes),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (sizes["vocab_size"], hidden),
    }


def _of_qwen3(sizes: Mapping[str, int], *, tied: bool = False) -> Parameters:
    hidden, inner, head = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    queries, keys = head * sizes["num_attention_heads"], head * sizes["num_key_value_heads"]
    layer: Parameters = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    embedding = (sizes["vocab_size"], hidden)
    return {
        "model.embed_tokens.weight": embedding,
        **_layers("model.layers", layer, sizes),
        "model.norm.weight": (hidden,),
        **({} if tied else {"lm_head.weight": embedding}),
    }


def _of_gpt2(sizes: Mapping[str, int]) -> Parameters:
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    layer = {
        **_norm("ln_1", hidden),
        **_linear("attn.c_attn", hidden, 3 * hidden),
        **_linear("attn.c_proj", hidden, hidden),
        **_norm("ln_2", hidden),
        **_linear("mlp.c_fc", hidden, inner),
        **_linear("mlp.c_proj", inner, hidden),
    }
    return {
        "transformer.wte.weight": (sizes["vocab_size"], hidden),
        "transformer.wpe.weight": (sizes["max_position_embeddings"], hidden),
        **_layers("transformer.h", layer, sizes),
        **_norm("transformer.ln_f", hidden),
    }


def _of_bert(sizes: Mapping[str, int]) -> Parameters:
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    layer = {
        **_norm("attention.ln", hidden),
        **_linear("attention.self.query", hidden, hidden),
        **_linear("attention.self.key", hidden, hidden),
        **_linear("attention.self.value", hidden, hidden),
        **_linear("attention.output.dense", hidden, hidden),
        **_norm("ln", hidden),
        **_linear("intermediate.dense", hidden, inner),
        **_linear("output.dense", inner, hidden),
    }
    embeddings = "bert.embeddings"
    return {
        f"{embeddings}.word_embeddings.weight": (sizes["vocab_size"], hidden),
        f"{embeddings}.position_embeddings.weight": (sizes["max_position_embeddings"], hidden),
        f"{embeddings}.token_type_embeddings.weight": (sizes["type_vocab_size"], hidden),
        **_layers("bert.encoder.layer", layer, sizes),
        **_norm("bert.encoder.ln", hidden),
        **_linear("bert.pooler.dense", hidden, hidden),
        "cls.predictions.bias": (sizes["vocab_size"],),
        **_linear("cls.predictions.transform.dense", hidden, hidden),
        **_norm("cls.predictions.transform.LayerNorm", hidden),
        **_linear("cls.seq_relationship", hidden, 2),
    }


def _layers(path: str, layer: Parameters, sizes: Mapping[str, int]) -> Parameters:
    numbers = range(sizes["num_hidden_layers"])
    return {f"{path}.{n}.{name}": shape for n in numbers for name, shape in layer.items()}


def _linear(name: str, inputs: int, outputs: int) -> Parameters:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, size: int) -> Parameters:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


class Matrices(NamedTuple):
    """The parameters of a family, and facts about its matrices, by endings of names."""

    parameters: Callable[[Mapping[str, int]], Parameters]
    #: The two matrices that end a layer's branches.
    outputs: tuple[str, str]
    #: Matrices that no token is multiplied by, or one token of a sequence.
    idle: tuple[str, ...]
    #: Whether the token embedding also makes the logits.
    tied: bool = False


_LLAMA_OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
MATRICES = {
    "llama": Matrices(_of_llama, _LLAMA_OUTPUTS, ("embed_tokens.weight",)),
    "llama-ungated": Matrices(
        partial(_of_llama, gated=False), _LLAMA_OUTPUTS, ("embed_tokens.weight",)
    ),
    "gpt2": Matrices(
        _of_gpt2, ("attn.c_proj.weight", "mlp.c_proj.weight"), ("wpe.weight",), tied=True
    ),
    "bert": Matrices(
        _of_bert,
        ("attention.output.dense.weight", "output.dense.weight"),
        (
            "position_embeddings.weight",
            "token_type_embeddings.weight",
            "pooler.dense.weight",
            "seq_relationship.weight",
        ),
        tied=True,
    ),
    "qwen3": Matrices(_of_qwen3, _LLAMA_OUTPUTS, ("embed_tokens.weight",)),
    "qwen3-tied": Matrices(partial(_of_qwen3, tied=True), _LLAMA_OUTPUTS, (), tied=True),
}
