"""The second path for parameters: names and shapes of every family's model, written out again.

Neither ``llmb.workloads`` nor the reference is used.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmb.errors import BundleRefusedError

#: Parameter name -> shape, in the model's order.
Parameters = dict[str, tuple[int, ...]]

#: Most layers of a model with checked evidence. The largest official model has 128.
_MOST_LAYERS = 4096


def parameters_of(family: str, sizes: Mapping[str, int]) -> Parameters:
    """Return every parameter of a model of ``family``, in the order of the model.

    Args:
        family: "llama", "llama-ungated", "gpt2" or "bert".
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
    if family in ("llama", "llama-ungated"):
        return _llama(sizes, gated=family == "llama")
    if family == "gpt2":
        return _gpt2(sizes)
    if family == "bert":
        return _bert(sizes)
    raise BundleRefusedError(f"nobody knows the parameters of family {family!r}")


def outputs_of(family: str) -> tuple[str, str]:
    """Return the name endings of the two matrices that end a layer's branches."""
    return {
        "llama": ("self_attn.o_proj.weight", "mlp.down_proj.weight"),
        "llama-ungated": ("self_attn.o_proj.weight", "mlp.down_proj.weight"),
        "gpt2": ("attn.c_proj.weight", "mlp.c_proj.weight"),
        "bert": ("attention.output.dense.weight", "output.dense.weight"),
    }[family]


def is_tied(family: str) -> bool:
    """Tell whether the token embedding also makes the logits."""
    return not family.startswith("llama")


def _llama(sizes: Mapping[str, int], *, gated: bool) -> Parameters:
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


def _gpt2(sizes: Mapping[str, int]) -> Parameters:
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


def _bert(sizes: Mapping[str, int]) -> Parameters:
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
