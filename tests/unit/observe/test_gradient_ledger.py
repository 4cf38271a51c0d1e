"""The ledger: elements of gradients and moments at places told in the pause, committed to later."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

from llmb.observe.gradient_ledger import GradientLedger
from llmb.observe.ledger import _Underway
from llmb.records.places import ELEMENTS
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import Optimizer

DTYPES = [torch.float32, torch.bfloat16]


def model_of(dtype: torch.dtype = torch.float32) -> nn.Module:
    model = nn.Module()
    model.register_parameter("matrix", nn.Parameter(torch.zeros(40, 30, dtype=dtype)))
    model.register_parameter("gain", nn.Parameter(torch.zeros(7, dtype=dtype)))
    model.register_parameter("fixed", nn.Parameter(torch.zeros(9), requires_grad=False))
    return model


def ledger_of(model: nn.Module) -> GradientLedger:
    return GradientLedger(model, build_optimizer(model.parameters()))


def numbered(model: nn.Module, add: float = 0.0) -> None:
    """Make each gradient the elements' own numbers, and ``add``."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            numbers = torch.arange(parameter.numel()).view(parameter.shape)
            parameter.grad = (numbers + add).to(parameter.dtype)


@pytest.fixture
def two_steps() -> tuple[nn.Module, GradientLedger]:
    model = model_of()
    ledger = ledger_of(model)
    for seed in (5, 6):
        numbered(model)
        ledger.take(seed, 1e-4)
    return model, ledger


def test_a_row_has_some_elements_of_each_trained_parameter(
    two_steps: tuple[nn.Module, GradientLedger],
) -> None:
    _, ledger = two_steps
    told = {segment.name: segment.elements for segment in ledger.evidence().segments}
    assert told == {"matrix": ELEMENTS, "gain": 7}
    assert ledger.evidence().moments == ("exp_avg", "exp_avg_sq")
    assert ledger.rows().shape == (2, ELEMENTS + 7 + ELEMENTS // 2 + 4)


def test_the_moments_are_read_in_turn_at_every_second_place() -> None:
    model = model_of()
    optimizer = build_optimizer(model.parameters())
    ledger = GradientLedger(model, optimizer)
    numbered(model, add=1)
    optimizer.step()
    for state in optimizer.state.values():
        shape = state["exp_avg"].shape
        state["exp_avg"] = torch.arange(shape.numel(), dtype=torch.float32).view(shape)
        state["exp_avg_sq"] = 2 * state["exp_avg"]
    numbered(model)
    for step in range(4):
        ledger.take(5, 1e-4)
        gradients, moment = torch.split(ledger.rows()[step], [ELEMENTS + 7, 36])
        whole = torch.cat((gradients[:ELEMENTS:2], gradients[ELEMENTS::2]))
        assert torch.equal(moment, (1 + step % 2) * whole)


def test_before_the_first_step_moments_are_zero(
    two_steps: tuple[nn.Module, GradientLedger],
) -> None:
    assert not two_steps[1].rows()[:, ELEMENTS + 7 :].any()


def test_an_optimizer_without_moments_shows_gradients_alone() -> None:
    model = model_of()
    ledger = GradientLedger(model, build_optimizer(model.parameters(), Optimizer(name="SGD")))
    numbered(model)
    ledger.take(5, 1e-4)
    assert ledger.evidence().moments == ()
    assert ledger.rows().shape == (1, ELEMENTS + 7)


def test_what_was_read_is_what_lay_at_the_places_of_each_step(
    two_steps: tuple[nn.Module, GradientLedger],
) -> None:
    _, ledger = two_steps
    places = torch.cat([indices for *_, indices in ledger.read_places()])
    assert torch.equal(ledger.in_steps(places).float(), ledger.rows()[:, : ELEMENTS + 7])


def test_each_step_is_read_at_places_of_its_own(
    two_steps: tuple[nn.Module, GradientLedger],
) -> None:
    rows = two_steps[1].rows()
    assert not torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_commitment_is_the_digest_of_the_latest_row_as_float32(dtype: torch.dtype) -> None:
    model = model_of(dtype)
    ledger = ledger_of(model)
    assert ledger.commitment() == ""
    numbered(model)
    ledger.take(5, 1e-4)
    told = ledger.commitment()
    assert told == hashlib.sha256(ledger.rows()[-1].numpy().tobytes()).hexdigest()
    assert ledger.rows().dtype is torch.float32


@pytest.mark.parametrize("computes", [True, False])
def test_the_digest_leaves_at_once_unless_a_device_still_computes(
    monkeypatch: pytest.MonkeyPatch, computes: bool
) -> None:
    model = model_of()
    ledger = ledger_of(model)
    assert ledger.committed_at_once() == ""
    monkeypatch.setattr(_Underway, "is_computed", not computes)
    numbered(model)
    ledger.take(5, 1e-4)
    told = ledger.committed_at_once()
    assert told == ("" if computes else ledger.commitment())


def test_gradients_that_change_after_they_were_read_change_no_commitment() -> None:
    model = model_of()
    ledger, other = ledger_of(model), ledger_of(model)
    numbered(model)
    ledger.take(5, 1e-4)
    other.take(5, 1e-4)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(2)
    assert ledger.commitment() == other.commitment()
    numbered(model, add=1)
    other.take(5, 1e-4)
    assert other.commitment() != ledger.commitment()


def test_a_device_that_records_steps_shows_the_same_row_and_ends_its_program_once_a_step(
    two_steps: tuple[nn.Module, GradientLedger],
) -> None:
    model, ended = model_of(), list[int]()
    lazy = GradientLedger(
        model, build_optimizer(model.parameters()), settle=lambda: ended.append(1)
    )
    for seed in (5, 6):
        numbered(model)
        lazy.take(seed, 1e-4)
    assert torch.equal(lazy.rows(), two_steps[1].rows())
    assert len(ended) == 2
    model.get_parameter("gain").grad = None
    lazy.take(7, 1e-4)
    assert torch.equal(lazy.rows()[-1][-11:-4], torch.zeros(7)), "the gain has no gradient"


def test_the_optimizers_rate_is_that_of_the_step() -> None:
    model = model_of()
    optimizer = build_optimizer(model.parameters())
    ledger = GradientLedger(model, optimizer)
    numbered(model)
    ledger.take(5, 3e-4)
    assert [group["lr"] for group in optimizer.param_groups] == [3e-4]


def test_a_parameter_without_a_gradient_shows_zeros() -> None:
    model = model_of()
    ledger = ledger_of(model)
    numbered(model, add=1)
    model.get_parameter("matrix").grad = None
    ledger.take(5, 1e-4)
    row = ledger.rows()[0, : ELEMENTS + 7]
    assert not row[:ELEMENTS].any()
    assert row[ELEMENTS:].all()


def test_a_transposed_gradient_is_read_by_its_rows() -> None:
    model = model_of()
    ledger = ledger_of(model)
    numbered(model)
    matrix = model.get_parameter("matrix")
    assert matrix.grad is not None
    matrix.grad = matrix.grad.t().contiguous().t()
    ledger.take(5, 1e-4)
    places = torch.cat([indices for *_, indices in ledger.read_places()])
    assert torch.equal(ledger.in_steps(places).float(), ledger.rows()[:, : ELEMENTS + 7])


def test_of_what_ranks_share_the_row_is_the_sum_of_what_each_holds() -> None:
    model, rows = model_of(), list[torch.Tensor]()

    def join(row: torch.Tensor, turn: int) -> torch.Tensor:
        assert turn == 5  # the seed of the elements
        rows.append(row)
        return row + 1000  # what the other ranks hold

    ledger = GradientLedger(model, build_optimizer(model.parameters()), join)
    numbered(model)
    ledger.take(5, 1e-4)
    alone = ledger_of(model)
    alone.take(5, 1e-4)
    assert torch.equal(ledger.rows(), alone.rows() + 1000)
    assert torch.equal(rows[0], alone.rows()[0])
    assert ledger.commitment() == hashlib.sha256(ledger.rows()[0].numpy().tobytes()).hexdigest()
