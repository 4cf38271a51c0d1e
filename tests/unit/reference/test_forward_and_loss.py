"""What the model promises about logits, loss and the padding row, whatever its size."""

from __future__ import annotations

import torch
from torch import Tensor

from llmb.reference.llama import Llama
from llmb.reference.loss import causal_loss
from llmb.reference.shapes import LlamaShape


def test_the_loss_is_the_mean_negative_log_probability_of_the_next_token(
    model: Llama, ids: Tensor
) -> None:
    model.double()
    log_probability = model(ids).log_softmax(-1)
    batch, length = ids.shape
    terms = [-log_probability[b, t, ids[b, t + 1]] for b in range(batch) for t in range(length - 1)]
    assert len(terms) == batch * (length - 1)
    expected = torch.stack(terms).sum() / (batch * (length - 1))
    torch.testing.assert_close(model(ids, labels=ids), expected, rtol=1e-12, atol=0)


def test_the_last_position_has_no_target_and_gets_no_gradient(ids: Tensor) -> None:
    logits = torch.zeros(*ids.shape, 97, requires_grad=True)
    causal_loss(logits, ids).backward()
    assert logits.grad[:, -1].count_nonzero() == 0
    assert (logits.grad[:, :-1].abs().sum(-1) > 0).all()


def test_the_padding_token_is_a_target_like_any_other() -> None:
    labels = torch.zeros(1, 4, dtype=torch.int64)
    loss = causal_loss(torch.zeros(1, 4, 97, dtype=torch.float64), labels)
    torch.testing.assert_close(loss, torch.tensor(97.0, dtype=torch.float64).log())


def test_labels_are_left_as_they_were(ids: Tensor) -> None:
    before = ids.clone()
    causal_loss(torch.zeros(*ids.shape, 97), ids)
    assert torch.equal(ids, before)


def test_the_loss_has_the_logits_dtype(model: Llama, ids: Tensor) -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert model.to(dtype)(ids, labels=ids).dtype == dtype


def test_a_later_token_does_not_change_earlier_logits(model: Llama, ids: Tensor) -> None:
    changed = ids.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 97
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.isclose(before[:, 9:], after[:, 9:]).all(-1).any()


def test_sequences_of_a_batch_do_not_see_each_other(model: Llama, ids: Tensor) -> None:
    torch.testing.assert_close(model(ids)[1:2], model(ids[1:2]), rtol=1e-5, atol=1e-5)


def test_the_padding_row_receives_no_gradient_and_other_used_rows_do(
    model: Llama, shape: LlamaShape, ids: Tensor
) -> None:
    model(ids, labels=ids).backward()
    rows = model.model.embed_tokens.weight.grad.abs().sum(-1)
    assert rows[0] == 0
    used = ids[:, :-1].unique()  # the last token of a sequence predicts nothing
    assert 0 in used
    assert (rows[used[used != 0]] > 0).all()
