"""The model is compiled by thunder."""

import torch

from llmb.plugin import hookimpl


def _absent(name):
    def absent(*arguments, **named):
        raise NotImplementedError(name)

    absent.__name__, absent.__qualname__ = name, f"Tensor.{name}"
    return absent


# thunder 0.2.6 looks names up that torch 2.13 no longer has, and calls none of them.
for name in ("align_as", "align_to", "has_names", "refine_names", "rename"):
    if not hasattr(torch.Tensor, name):
        setattr(torch.Tensor, name, _absent(name))

import thunder  # noqa: E402

from llmb.reference.llama import Attention, LlamaModel, RMSNorm, rotate  # noqa: E402


class Norm(RMSNorm):
    """The reference's, without ``torch.promote_types``, which thunder cannot trace."""

    def forward(self, x):
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * normed).to(x.dtype)


class Attend(Attention):
    """The reference's, without ``enable_gqa``, which thunder does not know."""

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        split = (batch, length, -1, self.head_dim)
        q = rotate(self.q_proj(x).view(split).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(split).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(split).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class Body(LlamaModel):
    """The reference's, likewise."""

    def forward(self, ids):
        x, width = self.embed_tokens(ids), self.shape.head_dim
        exponent = torch.arange(0, width, 2, dtype=torch.float32) / width
        position = torch.arange(ids.shape[1], dtype=torch.float32)
        angle = position[:, None] * (self.shape.rope_theta**-exponent)[None]
        angle = torch.cat((angle, angle), dim=-1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers.values():
            x = layer(x, cos, sin)
        return self.norm(x)


@hookimpl
def llmb_warmup_steps():
    return 2


@hookimpl
def llmb_post_process_model(model):
    model.model.__class__ = Body
    own = {RMSNorm: Norm, Attention: Attend}
    for module in model.modules():
        module.__class__ = own.get(type(module), type(module))
    return thunder.jit(model)
