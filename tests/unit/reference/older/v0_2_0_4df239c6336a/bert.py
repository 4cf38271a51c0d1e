"""The BERT model as Megatron has it: pre-norm, token types, masked-token and sentence-order heads.

Parameters carry the state-dict names of the Hugging Face MegatronBertForPreTraining; the decoder of
masked tokens is the embedding of the tokens, with a bias of its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .head import TiedHead
from .loss import masked_loss
from .shapes import BertShape


class Embeddings(nn.Module):
    """The sum of token, position and token-type vectors; no norm follows it."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.position_embeddings = nn.Embedding(shape.max_position_embeddings, shape.hidden_size)
        self.token_type_embeddings = nn.Embedding(shape.type_vocab_size, shape.hidden_size)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Map ids and token types, both ``[B, T]``, to ``[B, T, hidden]``."""
        position = torch.arange(ids.shape[1], device=ids.device)
        x = self.word_embeddings(ids) + self.position_embeddings(position)
        out: Tensor = self.dropout(x + self.token_type_embeddings(token_type_ids))
        return out


class SelfAttention(nn.Module):
    """Attention of every token to every other."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.head_dim, self.dropout = shape.head_dim, shape.dropout
        self.query = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.key = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.value = nn.Linear(shape.hidden_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each sequence of ``x`` ``[B, T, hidden]``."""
        batch, length, _ = x.shape
        split = (batch, length, -1, self.head_dim)
        q, k, v = (
            linear(x).view(split).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        return y.transpose(1, 2).reshape(batch, length, -1)


class Projected(nn.Module):
    """A matrix out of a branch, and its dropout."""

    def __init__(self, inputs: int, shape: BertShape) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, shape.hidden_size)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[B, T, inputs]`` to ``[B, T, hidden]``."""
        out: Tensor = self.dropout(self.dense(x))
        return out


class Attention(nn.Module):
    """A branch: norm, attention, projection. Names are Hugging Face's."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)
        self.add_module("self", SelfAttention(shape))
        self.output = Projected(shape.hidden_size, shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the branch adds to the residual ``x`` ``[B, T, hidden]``."""
        out: Tensor = self.output(self.get_submodule("self")(self.ln(x)))
        return out


class Intermediate(nn.Module):
    """The matrix into the feed-forward, and exact (erf) GELU."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.hidden_size, shape.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` to ``[B, T, intermediate]``."""
        return F.gelu(self.dense(x))


class Layer(nn.Module):
    """Pre-norm layer: attention, then feed-forward, each added to the residual."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.ln = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)
        self.intermediate = Intermediate(shape)
        self.output = Projected(shape.intermediate_size, shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after this layer, ``[B, T, hidden]``."""
        x = x + self.attention(x)
        return x.add(self.output(self.intermediate(self.ln(x))))


class Encoder(nn.Module):
    """The layers and the final norm."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        # A dict keyed by the layer's number: deleting entries renames nothing.
        self.layer = nn.ModuleDict({str(i): Layer(shape) for i in range(shape.num_hidden_layers)})
        self.ln = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states ``[B, T, hidden]`` to hidden states."""
        for layer in self.layer.values():
            x = layer(x)
        out: Tensor = self.ln(x)
        return out


class Pooler(nn.Module):
    """The first token of each sequence, for the sentence-order head."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.hidden_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` to ``[B, hidden]``."""
        return torch.tanh(self.dense(x[:, 0]))


class BertModel(nn.Module):
    """Embeddings, encoder and pooler."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.embeddings = Embeddings(shape)
        self.encoder = Encoder(shape)
        self.pooler = Pooler(shape)


class Transform(nn.Module):
    """What precedes the decoder of masked tokens."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.LayerNorm = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` to ``[B, T, hidden]``."""
        out: Tensor = self.LayerNorm(F.gelu(self.dense(x)))
        return out


class Predictions(nn.Module):
    """The decoder of masked tokens, less its matrix."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.transform = Transform(shape)
        self.decoder = TiedHead()
        self.bias = nn.Parameter(torch.zeros(shape.vocab_size))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` to logits ``[B, T, vocab]`` with ``embedding``."""
        out: Tensor = self.decoder(self.transform(x), embedding, self.bias)
        return out


class Heads(nn.Module):
    """Both heads of pre-training."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.predictions = Predictions(shape)
        self.seq_relationship = nn.Linear(shape.hidden_size, 2)


class Bert(nn.Module):
    """The model as it is pre-trained."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.bert = BertModel(shape)
        self.cls = Heads(shape)

    def forward(
        self,
        ids: Tensor,
        labels: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
    ) -> Tensor:
        """Return the logits ``[B, T, vocab]``, or with ``labels`` ``[B, T]`` the scalar loss.

        The loss is that of the masked tokens (-100 elsewhere), and with ``next_sentence_label``
        ``[B]`` (0 in order, 1 not) that of the sentences' order is added.
        """
        types = torch.zeros_like(ids) if token_type_ids is None else token_type_ids
        hidden = self.bert.encoder(self.bert.embeddings(ids, types))
        words = self.bert.embeddings.word_embeddings.weight
        logits: Tensor = self.cls.predictions(hidden, words)
        if labels is None:
            return logits
        loss = masked_loss(logits, labels)
        if next_sentence_label is not None:
            order = self.cls.seq_relationship(self.bert.pooler(hidden))
            loss = loss + F.cross_entropy(order, next_sentence_label)
        return loss
