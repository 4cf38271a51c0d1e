"""Digests of parameters and the samples a fence reads: functions of values, not of their layout."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor, nn

from llmb.observe.canonical import Canonical, Origin
from llmb.observe.weights import FenceSamples, canonical_digests, digests, sha256_of


class Holder(nn.Module):
    """A module with the given parameters."""

    def __init__(self, **parameters: Tensor) -> None:
        super().__init__()
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_digest_is_the_sha256_of_the_bytes_in_row_major_order() -> None:
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    (found,) = digests(Holder(w=value))
    assert found.sha256 == hashlib.sha256(value.numpy().tobytes()).hexdigest()
    assert (found.name, found.shape, found.dtype) == ("w", (2, 2), "float32")
    assert found.requires_grad


def test_a_digest_does_not_depend_on_strides() -> None:
    value = random(6, 4)
    transposed = value.t().contiguous().t()
    wide = torch.zeros(6, 8)
    wide[:, ::2] = value
    assert transposed.stride() != value.stride()
    expected = digests(Holder(w=value))
    assert digests(Holder(w=transposed)) == expected
    assert digests(Holder(w=wide[:, ::2])) == expected


def test_a_digest_changes_with_one_bit_a_type_or_a_shape() -> None:
    value = torch.ones(4, 4)
    other = value.clone()
    other[3, 3] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    forms = [value, other, value.bfloat16(), value.view(2, 8)]
    found = [digests(Holder(w=form))[0] for form in forms]
    assert len({(d.shape, d.dtype, d.sha256) for d in found}) == 4
    assert found[0].sha256 != found[1].sha256


def test_minus_zero_is_not_zero() -> None:
    zero, minus = digests(Holder(a=torch.zeros(2), b=-torch.zeros(2)))
    assert zero.sha256 != minus.sha256


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_stored_type_has_a_digest_of_its_own_bytes(dtype: torch.dtype) -> None:
    value = random(5).to(dtype)
    (found,) = digests(Holder(w=value))
    raw = bytes(value.view(torch.uint8).tolist())
    assert found.sha256 == hashlib.sha256(raw).hexdigest()
    assert found.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_digest_of_a_value_is_the_one_its_parameter_has(dtype: torch.dtype) -> None:
    value = random(4, 3).to(dtype)
    assert sha256_of(value) == digests(Holder(w=value))[0].sha256
    assert sha256_of(value.t()) == digests(Holder(w=value.t().contiguous()))[0].sha256


def test_digests_come_in_the_models_order_however_threads_finish() -> None:
    big_first = {f"p{i}": random(200_000 if i < 3 else 2, seed=i) for i in range(40)}
    found = digests(Holder(**big_first))
    assert [d.name for d in found] == [f"p{i}" for i in range(40)]
    assert found == digests(Holder(**big_first))
    assert len({d.sha256 for d in found}) == 40


def test_a_frozen_parameter_is_written_down_as_such() -> None:
    model = Holder(w=random(2))
    model.w.requires_grad_(False)
    assert not digests(model)[0].requires_grad


class View:
    """A canonical parameter within a fused one."""

    padding = ()

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def read(self, kind: str) -> Tensor | None:
        assert kind == "value"
        return self.value


def test_with_a_parameter_map_digests_are_of_canonical_values_under_canonical_names() -> None:
    q, k = random(4, 4), random(2, 4, seed=1)
    plain = Holder(q=q, k=k)
    fused = Holder(qk=torch.cat([q, k]))
    views = {"q": View(fused.qk[:4].detach()), "k": View(fused.qk[4:].detach())}
    found = canonical_digests(Canonical(Origin(plain), fused, views))
    assert found == digests(plain)


def test_without_a_map_canonical_digests_are_those_of_the_parameters_wherever_they_went() -> None:
    plain = Holder(q=random(4, 4), k=random(2, 4, seed=1))
    origin, expected = Origin(plain), digests(plain)
    wrapped = nn.Sequential(plain)
    assert canonical_digests(Canonical(origin, wrapped, None)) == expected
    assert [d.name for d in digests(wrapped)] == ["0.q", "0.k"]


LOSS = torch.tensor(10.5)


def samples(*parameters: Tensor, seed: int = 3) -> FenceSamples:
    return FenceSamples([nn.Parameter(p) for p in parameters], seed)


def test_a_fence_reads_the_loss_and_the_same_bits_as_long_as_nothing_changes() -> None:
    reading = samples(random(9, 9), random(5))
    (loss, bits), again = reading.read(LOSS), reading.read(LOSS)
    assert loss == 10.5
    assert again == (loss, bits)
    assert len(bits) == 64


def test_the_bits_change_when_any_parameter_changes() -> None:
    parameters = [nn.Parameter(random(8, 8, seed=i)) for i in range(4)]
    reading = FenceSamples(parameters, seed=3)
    seen = {reading.read(LOSS)[1]}
    for parameter in parameters:
        with torch.no_grad():
            parameter.add_(1.0)
        seen.add(reading.read(LOSS)[1])
    assert len(seen) == 5


def test_the_bits_change_with_the_loss() -> None:
    reading = samples(random(3))
    assert reading.read(LOSS)[1] != reading.read(LOSS + 1)[1]


def test_another_seed_samples_other_places() -> None:
    values = random(100, 100)
    assert samples(values, seed=1).read(LOSS) != samples(values, seed=2).read(LOSS)
    assert samples(values, seed=1).read(LOSS) == samples(values, seed=1).read(LOSS)


def test_samples_do_not_depend_on_strides() -> None:
    value = random(6, 4)
    transposed = value.t().contiguous().t()
    assert samples(value).read(LOSS) == samples(transposed).read(LOSS)


def test_sixteen_values_of_every_parameter_are_kept_for_every_fence() -> None:
    first, second = random(8, 8), random(3)
    reading = samples(first, second)
    reading.read(LOSS)
    reading.read(LOSS + 1)
    kept = reading.tensors()
    assert kept["loss"].tolist() == [10.5, 11.5]
    assert kept["parameters"].shape == (2, 32)
    assert set(kept["parameters"][0, :16].tolist()) <= set(first.flatten().tolist())
    assert set(kept["parameters"][1, 16:].tolist()) <= set(second.tolist())


def test_a_loss_that_is_not_finite_is_read_as_it_is() -> None:
    assert samples(random(3)).read(torch.tensor(float("inf")))[0] == float("inf")


def test_a_parameter_that_is_one_number_is_read_once() -> None:
    scale = nn.Parameter(torch.tensor(2.0))
    reading = FenceSamples([scale, nn.Parameter(random(3))], seed=3)
    bits = reading.read(LOSS)[1]
    with torch.no_grad():
        scale.add_(1.0)
    assert reading.read(LOSS)[1] != bits
    kept = reading.tensors()["parameters"]
    assert kept.shape == (2, 17)
    assert kept[:, 0].tolist() == [2.0, 3.0]


def test_a_parameter_without_elements_is_passed_over() -> None:
    assert len(samples(torch.empty(0, 4), random(3)).read(LOSS)[1]) == 64


def test_a_fence_reads_nothing_of_what_another_stage_has() -> None:
    here, there = random(4, 5), random(6, seed=1).to("meta")
    samples = FenceSamples(Holder(a=here, b=there).parameters(), 3)
    samples.read(torch.tensor(1.0))
    (sampled,) = samples.tensors()["parameters"]
    assert set(sampled.tolist()) <= set(here.flatten().tolist())
