"""Words follow from logits and noise, and the noise from a seed: not from torch's generator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

from llmb.observe.noise import Filled, Noise, Race, as_floats, as_seed, new_seed, words_of
from llmb.reference.cache import KeyValueCache
from llmb.reference.generate import OneToken, exponential_race

ROWS, WORDS = 2, 1000


def noise(dtype: torch.dtype = torch.float32) -> Noise:
    return Noise((ROWS, WORDS), dtype, "cpu")


def logits(tokens: int) -> Tensor:
    return torch.randn(ROWS, tokens, WORDS, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_with_the_same_noise_the_draw_is_that_of_the_reference(dtype: torch.dtype) -> None:
    values, own = logits(1)[:, 0].to(dtype), noise(dtype)
    torch.manual_seed(5)
    own.values.exponential_(1.0)
    torch.manual_seed(5)
    assert torch.equal(Race(own.values)(values), exponential_race(values))


def test_torchs_own_generator_decides_nothing_and_is_left_alone() -> None:
    own, found = noise(), []
    own.begin(7)
    for _ in range(8):
        torch.manual_seed(1)
        own.fill()
        found.append(int(own.values[0].argmin()))
    assert len({*found}) > 1
    assert torch.equal(torch.get_rng_state(), torch.manual_seed(1).get_state())


@pytest.mark.parametrize("first", [0, 1])
def test_the_words_of_a_sample_are_drawn_again_from_its_seed(first: int) -> None:
    own, values, seed = noise(), logits(6), new_seed()
    race = Race(own.values)
    own.begin(seed)
    drawn = []
    for one in values.unbind(1):
        own.fill()
        drawn.append(race(one))
    words = torch.cat(drawn, 1)
    assert torch.equal(words_of(values[first:], noise(), seed, first), words[first:])
    assert not torch.equal(words_of(values[first:], noise(), seed + 1, first), words[first:])


def test_a_ledger_row_holds_every_bit_of_a_seed() -> None:
    for seed in (0, 1, 2**24 - 1, 2**24, 2**48 - 1, new_seed()):
        assert as_seed(as_floats(seed)) == seed
    assert len({new_seed() for _ in range(20)}) == 20


def test_a_device_without_generators_gets_its_noise_from_the_host() -> None:
    own = Noise((1, 4), torch.float32, "meta")
    own.begin(2)
    own.fill()
    assert own.values.device.type == "meta"
    assert own._drawn is not None
    assert own._drawn.device.type == "cpu"
    assert not torch.equal(own._drawn, torch.ones(1, 4).double())


def test_the_noise_is_that_of_waiting_times() -> None:
    own, found = noise(), []
    own.begin(11)
    for _ in range(50):
        own.fill()
        found.append(own.values.flatten().clone())
    values = torch.cat(found).double().sort().values
    expected = -torch.log1p(-(torch.arange(len(values)) + 0.5) / len(values))
    shares = (1 - torch.exp(-values)) - (1 - torch.exp(-expected))
    assert shares.abs().max() < 1.95 / len(values) ** 0.5  # Kolmogorov and Smirnov, 1 in 1,000
    assert values[0] > 0


class Flat(torch.nn.Module):
    """A model whose logits are all equal."""

    def forward(self, ids: Tensor, cache: Any, positions: Tensor) -> Tensor:
        return torch.zeros(len(ids), WORDS) + positions[-1] * 0


def test_a_compiled_step_draws_with_the_noise_of_the_moment_and_is_compiled_once() -> None:
    made = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    own = noise()
    torch._dynamo.reset()
    torch._dynamo.mark_static_address(own.values)
    step = torch.compile(
        OneToken(Flat(), Race(own.values)), backend=backend, fullgraph=True, dynamic=False
    )
    next_token, cache = Filled(own, step), KeyValueCache((), ())
    own.begin(9)
    ids, position = torch.zeros(ROWS, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    address = own.values.data_ptr()
    for _ in range(5):
        token, _ = next_token(ids, position, cache)
        assert torch.equal(token, own.values.argmin(-1, keepdim=True))
    assert (len(made), own.values.data_ptr()) == (1, address)


class Watching(torch.Tensor):
    """A subclass that sees each operation with the tensor."""


def test_a_pass_with_plain_tensors_leaves_nothing_strange() -> None:
    next_token = Filled(noise(), lambda *_: (torch.zeros(ROWS, 1), logits(1)[:, 0]))
    next_token(torch.zeros(ROWS, 1), torch.zeros(1), KeyValueCache((), ()))
    assert next_token.strange == []


def test_a_subclass_that_is_returned_once_in_a_sample_is_kept() -> None:
    every = iter([logits(1)[:, 0].as_subclass(Watching), logits(1)[:, 0]])
    next_token = Filled(noise(), lambda *_: (torch.zeros(ROWS, 1), next(every)))
    for _ in range(2):
        next_token(torch.zeros(ROWS, 1), torch.zeros(1), KeyValueCache((), ()))
    assert [type(one) for one in next_token.strange] == [Watching]


def test_a_mode_that_is_left_on_after_a_pass_is_kept() -> None:
    with BaseTorchFunctionMode() as mode:
        next_token = Filled(noise(), lambda *_: (torch.zeros(ROWS, 1), logits(1)[:, 0]))
        next_token(torch.zeros(ROWS, 1), torch.zeros(1), KeyValueCache((), ()))
    assert next_token.strange == [mode]
