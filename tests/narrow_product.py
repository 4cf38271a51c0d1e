"""Computes one kind of product of a Llama, a Qwen3, a GPT-2 or a BERT in FP8.

It takes torch's own casts, and one scale for a tensor.

Written without llmb's emulator. Also the source of a plugin (tests/e2e/test_precision_recipe.py).
"""

import math
import re

import torch
import torch.nn.functional as F

PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down", "head")
SCORES, MIX = "QK^T", "PV"
KINDS = (*PROJECTIONS, SCORES, MIX)
GPT2_PROJECTIONS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "wte")
#: Of BERT, by the end of the module's name.
BERT_PROJECTIONS = {
    "query": "self.query",
    "key": "self.key",
    "value": "self.value",
    "attention.output.dense": "attention.output.dense",
    "intermediate.dense": "intermediate.dense",
    "output.dense": "output.dense",
    "transform.dense": "transform.dense",
    "word_embeddings": "predictions.decoder",
}
DIRECTIONS = ("forward", "input gradient", "weight gradient")


def rounded(value, dtype=torch.float8_e4m3fn):
    scale = value.detach().float().abs().amax().clamp(min=1e-30) / torch.finfo(dtype).max
    return ((value.float() / scale).to(dtype).float() * scale).to(value.dtype)


def straight(value):
    """Round ``value``, and let its gradient through."""
    return value + (rounded(value) - value).detach()


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, directions):
        ctx.save_for_backward(x, w)
        ctx.directions = directions
        return F.linear(rounded(x), rounded(w)) if "forward" in directions else F.linear(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        small = rounded(grad, torch.float8_e5m2)
        of_x = small @ rounded(w) if "input gradient" in ctx.directions else grad @ w
        if "weight gradient" in ctx.directions:
            of_w = small.flatten(0, -2).t() @ rounded(x).flatten(0, -2)
        else:
            of_w = grad.flatten(0, -2).t() @ x.flatten(0, -2)
        return of_x, of_w, None


def attention(kinds, causal=True):
    def attend(q, k, v, mask=None):
        if SCORES in kinds:
            q, k = straight(q), straight(k)
        shared = q.shape[1] // k.shape[1]  # query heads of a key/value head
        k, v = (value.repeat_interleave(shared, 1) for value in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) & causal
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        if MIX in kinds:
            weights, v = straight(weights), straight(v)
        return weights @ v

    return attend


def attention_of_bert(module, kinds):
    def forward(x):
        split = (*x.shape[:2], -1, module.head_dim)
        every = (module.query, module.key, module.value)
        q, k, v = (linear(x).view(split).transpose(1, 2) for linear in every)
        return attention(kinds, causal=False)(q, k, v).transpose(1, 2).reshape(x.shape)

    return forward


def kind_of_bert(name):
    """Return the kind of product a module of BERT makes, None of others."""
    ends = BERT_PROJECTIONS.items()
    found = [kind for kind, end in ends if f".{name}".endswith(f".{end}")]
    return max(found, key=len, default=None)


def affine(module, directions):
    """Return the forward pass of a matrix with a bias, or of a tied head, given its weight."""

    def forward(x, weight=None, bias=None):
        if weight is None:
            weight, bias = module.weight, module.bias
        product = Product.apply(x, weight, directions)
        return product if bias is None else product + bias

    return forward


def narrow(model, kinds, directions=DIRECTIONS, layers=None):
    """Let every product of ``kinds`` compute in FP8, in ``directions`` and ``layers`` (all)."""
    for name, module in model.named_modules():
        number = re.search(r"\.([0-9]+)\.", name)
        if layers is not None and number and int(number.group(1)) not in layers:
            continue
        end = name.rpartition(".")[2]
        kind = "head" if end == "lm_head" else end.removesuffix("_proj")
        of_gpt2 = "wte" if end == "lm_head" else ".".join(name.split(".")[-2:])
        known = of_gpt2 if of_gpt2 in GPT2_PROJECTIONS else kind_of_bert(name)
        if known in kinds or (
            end == "lm_head" and "head" in kinds and not hasattr(module, "weight")
        ):
            module.forward = affine(module, directions)
        elif name.endswith("attention.self") and {SCORES, MIX} & set(kinds):
            module.forward = attention_of_bert(module, kinds)
        elif kind in kinds and kind in PROJECTIONS and isinstance(module, torch.nn.Linear):
            module.forward = lambda x, m=module: Product.apply(x, m.weight, directions)
        elif end == "core_attention" and {SCORES, MIX} & set(kinds):
            module.forward = attention(kinds)
    return model
