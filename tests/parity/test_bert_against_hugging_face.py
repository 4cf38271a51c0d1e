"""The reference BERT against Hugging Face's MegatronBertForPreTraining, same weights."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from llmb.reference.data import make_batch
from llmb.reference.models import build, model_of
from llmb.reference.shapes import BertShape
from llmb.workloads import WORKLOADS
from tests import needs
from tests.parity.agreement import largest_error, shaken

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import, which reads it
needs.package("transformers")
from transformers import MegatronBertConfig, MegatronBertForPreTraining  # noqa: E402

SHAPE = BertShape(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=8,
    sequence_length=48,
    max_position_embeddings=64,
    initializer_range=0.125,  # 1 / sqrt(hidden_size): attention is far from uniform
    dropout=0.0,
)


def hugging_face_config(shape: BertShape) -> MegatronBertConfig:
    return MegatronBertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        max_position_embeddings=shape.max_position_embeddings,
        type_vocab_size=shape.type_vocab_size,
        layer_norm_eps=shape.layer_norm_eps,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
        hidden_act="gelu",
    )


def as_theirs(model: nn.Module) -> dict[str, Tensor]:
    """Return our weights as the library has them: the tied decoder is named a second time."""
    values = model.state_dict()
    return {
        **values,
        "cls.predictions.decoder.weight": values["bert.embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": values["cls.predictions.bias"],
    }


def test_in_float64_logits_losses_and_gradients_agree_to_1e_12() -> None:
    ours = shaken(build(SHAPE, seed=1, dtype=torch.float64))
    theirs = MegatronBertForPreTraining(hugging_face_config(SHAPE)).double()
    theirs.load_state_dict(as_theirs(ours), strict=False)
    theirs.tie_weights()
    batch = make_batch(3, 3, SHAPE)
    order, types = batch.extra["next_sentence_label"], batch.extra["token_type_ids"]
    shown = theirs(batch.ids, token_type_ids=types, labels=batch.labels, next_sentence_label=order)
    shown.loss.backward()
    loss = ours(batch.ids, labels=batch.labels, **batch.extra)
    loss.backward()
    expected = {n: p.grad for n, p in theirs.named_parameters()}
    expected.pop("cls.predictions.decoder.bias", None)
    name, error = largest_error(
        {
            "logits": ours(batch.ids, token_type_ids=types),
            "loss": loss,
            **{n: p.grad for n, p in ours.named_parameters()},
        },
        {"logits": shown.prediction_logits, "loss": shown.loss, **expected},
    )
    assert error < 1e-12, name


def test_without_a_label_of_their_order_the_loss_is_that_of_the_masked_tokens_alone() -> None:
    model = build(SHAPE, seed=1, dtype=torch.float64)
    batch = make_batch(3, 3, SHAPE)
    types = batch.extra["token_type_ids"]
    both = model(batch.ids, labels=batch.labels, **batch.extra)
    words = model(batch.ids, labels=batch.labels, token_type_ids=types)
    assert both > words
    chosen = batch.labels >= 0
    logits = model(batch.ids, token_type_ids=types)[chosen]
    assert torch.allclose(nn.functional.cross_entropy(logits, batch.labels[chosen]), words)


@pytest.mark.parametrize("name", ["nemo-bert-base", "nemo-bert-large"])
def test_the_workloads_have_the_names_and_sizes_of_hugging_face(name: str) -> None:
    shape = WORKLOADS[name].shape
    assert isinstance(shape, BertShape)
    with torch.device("meta"):
        ours = model_of(replace(shape, dropout=0.0))
        theirs = MegatronBertForPreTraining(hugging_face_config(shape))
    sizes = {n: v.shape for n, v in as_theirs(ours).items()}
    found = {n: v.shape for n, v in theirs.state_dict().items() if "position_ids" not in n}
    assert {n: s for n, s in sizes.items() if n in found} == found
    assert sizes.keys() >= found.keys()
