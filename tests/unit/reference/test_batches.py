"""What a model is given: a function of the seed, and as its family is trained."""

from __future__ import annotations

import torch

from llmb.reference.data import Batch, make_batch
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape

BERT = BertShape(vocab_size=1000, sequence_length=256)


def test_a_causal_models_labels_are_its_ids_themselves() -> None:
    for shape in (LlamaShape(vocab_size=100), Gpt2Shape(vocab_size=100, sequence_length=16)):
        batch = make_batch(3, 2, shape)
        assert batch.labels is batch.ids
        assert batch.to("cpu").labels is batch.to("cpu").labels
        assert batch.ids.shape == (2, shape.sequence_length)
        (part, _) = batch.split(2)
        assert part.labels is part.ids


def test_a_batch_follows_from_its_seed_alone() -> None:
    one, same, other = (make_batch(seed, 4, BERT) for seed in (5, 5, 6))
    assert torch.equal(one.ids, same.ids)
    assert torch.equal(one.labels, same.labels)
    assert all(torch.equal(one.extra[name], same.extra[name]) for name in one.extra)
    assert not torch.equal(one.ids, other.ids)


def test_fifteen_percent_of_berts_tokens_are_to_be_found_and_most_of_them_are_masked() -> None:
    batch = make_batch(1, 400, BERT)
    chosen = batch.labels != -100
    masked = batch.ids == BERT.vocab_size - 1
    assert abs(chosen.float().mean() - 0.15) < 0.005
    assert abs((masked & chosen).sum() / chosen.sum() - 0.8) < 0.01
    kept = chosen & (batch.ids == batch.labels)
    assert abs(kept.sum() / chosen.sum() - 0.1) < 0.01
    assert torch.equal(batch.ids[~chosen], make_batch(1, 400, BERT).ids[~chosen])


def test_every_sequence_has_a_token_to_be_found_and_two_sentences() -> None:
    batch = make_batch(2, 200, BertShape(vocab_size=50, sequence_length=2))
    assert ((batch.labels != -100).sum(dim=1) >= 1).all()
    assert batch.extra["token_type_ids"].tolist() == [[0, 1]] * 200
    assert set(batch.extra["next_sentence_label"].tolist()) == {0, 1}


def test_the_parts_of_a_batch_make_it_up() -> None:
    whole = make_batch(1, 6, BERT)
    parts = whole.split(3)
    assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
    for name, value in whole.extra.items():
        assert torch.equal(torch.cat([part.extra[name] for part in parts]), value)


def test_a_batch_is_filled_with_one_sequence_in_the_memory_it_has() -> None:
    batch, one = make_batch(1, 3, BERT), make_batch(9, 1, BERT)
    before = batch.ids.data_ptr()
    batch.fill(one)
    assert batch.ids.data_ptr() == before
    assert torch.equal(batch.ids, one.repeat(3).ids)
    assert torch.equal(batch.labels, one.repeat(3).labels)


def test_labels_that_are_the_ids_are_filled_once() -> None:
    ids = torch.zeros(2, 4, dtype=torch.int64)
    batch = Batch(ids, ids)
    one = Batch(torch.arange(4).view(1, 4), torch.arange(4).view(1, 4))
    batch.fill(one)
    assert batch.labels.tolist() == [[0, 1, 2, 3]] * 2
