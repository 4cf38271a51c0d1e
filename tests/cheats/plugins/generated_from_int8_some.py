"""Words come from INT8 copies of queries, keys, gates and ups, with float32 between."""

# The head is honest, and so are probes, recognised by zeros in a weight. By bytes at batch size 1:
# 9 bits a weight (a scale of 8 bits for each 8 weights) instead of 16.

import torch
import torch.nn.functional as F

from llmb.plugin import hookimpl

from .kit import layers, linears

BLOCK = 8
ENDINGS = ("q_proj", "k_proj", "gate_proj", "up_proj")


def narrow(weight):
    """Round to 8-bit integers with a scale of four significant bits for each BLOCK numbers."""
    wide = weight.detach().float()
    blocks = wide.view(len(wide), -1, BLOCK)
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    fraction, exponent = torch.frexp(scale)
    scale = torch.ldexp((fraction * 16).ceil() / 16, exponent)
    return ((blocks / scale).round() * scale).view(wide.shape)


@hookimpl
def llmb_post_process_model(model):
    trunk, narrow_type = model.model, model.lm_head.weight.dtype
    out = trunk.layers["0"].mlp.down_proj
    state = {"free": False}
    model.register_forward_pre_hook(
        lambda *_: state.update(free=bool((out.weight[:8] == 0).float().mean() <= 0.1))
    )
    trunk.embed_tokens.register_forward_hook(lambda m, i, o: o.float() if state["free"] else o)
    trunk.norm.register_forward_hook(lambda m, i, o: o.to(narrow_type))
    rounded = {m for end in ENDINGS for m in linears(model, end)}
    for linear in linears(model):
        if linear is model.lm_head:
            continue
        if linear not in rounded:
            linear.forward = lambda x, p=linear.forward, m=linear: (
                F.linear(x, m.weight.float()) if state["free"] else p(x)
            )
            continue
        plain, copy = linear.forward, narrow(linear.weight)
        linear.forward = lambda x, p=plain, c=copy: F.linear(x, c) if state["free"] else p(x)
    for layer in layers(model):
        core = layer.self_attn.core_attention

        def attend(q, k, v, mask=None, plain=core.forward):
            if state["free"] and mask is not None:
                return F.scaled_dot_product_attention(q, k.float(), v.float(), mask.float())
            return plain(q, k, v, mask)

        core.forward = attend
    return model
