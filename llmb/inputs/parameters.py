"""The parameters of a model by name and size, without torch: what a checkpoint has to hold."""

from __future__ import annotations

from llmb.reference.shapes import Gpt2Shape, LlamaShape

Size = tuple[int, ...]


def parameter_sizes(shape: LlamaShape | Gpt2Shape) -> dict[str, Size]:
    """Return the size of every parameter of the model of ``shape``, matrices ``[out, in]``."""
    return _llama(shape) if isinstance(shape, LlamaShape) else _gpt2(shape)


def _llama(shape: LlamaShape) -> dict[str, Size]:
    hidden, inner, words = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    layer: dict[str, Size] = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if shape.gated:
        layer["mlp.gate_proj"] = (inner, hidden)
    return {
        "model.embed_tokens.weight": (words, hidden),
        **{
            f"model.layers.{i}.{name}.weight": size
            for i in range(shape.num_hidden_layers)
            for name, size in layer.items()
        },
        "model.norm.weight": (hidden,),
        "lm_head.weight": (words, hidden),
    }


def _gpt2(shape: Gpt2Shape) -> dict[str, Size]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    layer: dict[str, Size] = {
        "ln_1": (hidden,),
        "attn.c_attn": (3 * hidden, hidden),
        "attn.c_proj": (hidden, hidden),
        "ln_2": (hidden,),
        "mlp.c_fc": (inner, hidden),
        "mlp.c_proj": (hidden, inner),
    }
    sizes: dict[str, Size] = {
        "wte.weight": (shape.vocab_size, hidden),
        "wpe.weight": (shape.max_position_embeddings, hidden),
        "ln_f.weight": (hidden,),
        "ln_f.bias": (hidden,),
    }
    for i in range(shape.num_hidden_layers):
        for name, size in layer.items():
            sizes[f"h.{i}.{name}.weight"] = size
            sizes[f"h.{i}.{name}.bias"] = size[:1]
    return {f"transformer.{name}": size for name, size in sizes.items()}
