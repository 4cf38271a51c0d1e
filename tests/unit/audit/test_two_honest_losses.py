"""E1 where one over the number of targets is rounded badly: an honest GPT-2 is not accused.

The gradient of a mean loss by a target's own logit is nearly -1 / n. Where the loss is computed in
float32 and its gradient rounded to BF16, that one number is rounded alike in every row, and what
should cancel does not: of 15 targets 0.34 % stays, in the direction of the embeddings' mean, which
a high rate has made long. Summed over tokens it outweighs all other errors.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from llmb.audit.equivalence import is_plausible, judge_live
from llmb.audit.sums import RoundedSums
from llmb.config import BF16
from llmb.observe.passes import LIVE, Numerics, Sketches, plain_pass
from llmb.records.audited import WIDE_LOSS, ProbedEvidence
from llmb.records.finding import Status
from llmb.reference.data import Batch, make_batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import Optimizer
from llmb.reference.shapes import Gpt2Shape

SHAPE = Gpt2Shape(
    vocab_size=4096,
    hidden_size=64,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    sequence_length=16,
    max_position_embeddings=16,
)
STEPS, LAST = 20, 5
GLANCES = {f"{LAST}/{name}": [1.0] for name in ("asked", "asked before", "asked after")}
PROBED = ProbedEvidence(seed=1, last_step=LAST, token_seed=2, passes=("live",), missing=())


def step(seed: int) -> tuple[dict[str, Tensor], Batch, dict[str, list[float]]]:
    """Return weights after some steps under autocast, and tokens and sketches of the next."""
    model = build(SHAPE, seed, torch.float32)
    optimizer = build_optimizer(model.parameters(), Optimizer(lr=1e-3, eps=1e-8))
    for index in range(STEPS + 1):
        batch = make_batch(100 * seed + index, 4, SHAPE)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch.ids, labels=batch.labels)
        loss.backward()
        if index < STEPS:
            optimizer.step()
    sketches = Sketches(LIVE, 1, SHAPE)
    sketches.loss(loss)
    for name, parameter in model.named_parameters():
        sketches.add(name, parameter.grad)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return weights, batch, listed(sketches)


def listed(sketches: Sketches) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in sketches.tensors.items()}


def again(
    weights: dict[str, Tensor], batch: Batch, dtype: torch.dtype, **how: bool
) -> dict[str, list[float]]:
    sketches = Sketches(LIVE, 1, SHAPE)
    numerics = Numerics(dtype, "cpu", **how)
    loss = plain_pass(weights.__getitem__, SHAPE, batch, numerics, sketches)
    sketches.loss(torch.tensor(loss))
    return listed(sketches)


# Of 24 seeds these were accused when the loss in BF16 was the only honest one: 2.2 and 3.3 times.
@pytest.mark.parametrize("seed", [5, 20])
def test_an_honest_step_under_autocast_is_not_accused(seed: int) -> None:
    weights, batch, seen = step(seed)
    reference, honest = again(weights, batch, torch.float32), {}
    for way in ("", WIDE_LOSS):
        shown = again(weights, batch, torch.bfloat16, wide_loss=way == WIDE_LOSS)
        honest |= {f"BF16{way}/{name}": value for name, value in shown.items()}
        reference |= {f"host{way}/{name}": value for name, value in shown.items()}
    assert is_plausible(honest, reference, BF16, on_host=True)
    found = judge_live(PROBED, GLANCES, seen, honest, reference, BF16, (), RoundedSums(1, BF16))
    assert found.status is Status.PASS, found.message


def test_what_a_fifteenth_loses_in_bf16_is_the_same_in_every_row() -> None:
    logits = 0.1 * torch.randn(15, 50304, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(15)
    right = logits.requires_grad_()
    F.cross_entropy(right, targets).backward()
    rounded = logits.detach().bfloat16().requires_grad_()
    F.cross_entropy(rounded.float(), targets).backward()
    assert float((15 * right.grad.sum(1)).abs().max()) < 1e-4
    left = 15 * rounded.grad.double().sum(1)
    assert -0.0042 < float(left.min()) <= float(left.max()) < -0.0026
