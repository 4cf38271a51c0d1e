"""Two small things together, from the sixth step on: 8-bit keys, and a column that is left out."""

import torch.nn.functional as F

from llmb.plugin import hookimpl

from .kit import int8, intercept, layers


@hookimpl
def llmb_post_process_model(model):
    layer = layers(model)[1]
    mlp, keys = layer.mlp, layer.self_attn.k_proj

    def pruned(x):
        gate = F.linear(x, mlp.gate_proj.weight[1:])
        up = F.linear(x, mlp.up_proj.weight[1:])
        return F.linear(F.silu(gate) * up, mlp.down_proj.weight[:, 1:])

    def rough(x):
        weight = keys.weight
        return F.linear(x, weight + (int8(weight) - weight).detach())

    def step(number, forward, ids, labels):
        if number == 6:
            mlp.forward, keys.forward = pruned, rough
        return forward(ids, labels)

    return intercept(model, step)
