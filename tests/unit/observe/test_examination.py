"""After the stream: the last gradients are sketched, probes edit the live model and put it back."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.observe import probes
from llmb.observe.canonical import Canonical, Origin
from llmb.observe.examination import Examination, places
from llmb.observe.passes import Numerics, Sketches, plain_pass
from llmb.observe.probes import BRANCHES, HEAD, PROBES
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.reference.data import Batch, random_tokens
from llmb.reference.models import build
from tests.unit.builders_audit import SMALL
from tests.unit.observe.test_probes_of_families import SHAPES

SEED = 31


class Backend(CpuBackend):
    """Notes what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def step_begin(self) -> None:
        self.told.append("begin")

    def step_end(self) -> None:
        self.told.append("end")

    def synchronize(self) -> None:
        self.told.append("synchronize")


def make(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Canonical, Examination]:
    model = build(SMALL, 5, dtype)
    canonical = Canonical(Origin(model), model, None)
    return model, canonical, Examination(canonical, SMALL, SEED)


def weights_of(dtype: torch.dtype) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in build(SMALL, 5, dtype).named_parameters()}


def of_the_reference(name: str, dtype: torch.dtype, batch: int) -> dict[str, Tensor]:
    """Return what the probe shows when the reference makes it from the same weights."""
    weights = weights_of(dtype)
    edits = probes.edits(name, SMALL, str(dtype).removeprefix("torch."))
    for target, edit in edits.items():
        weights[target] = edit(weights[target])
    collect = Sketches(name, SEED, SMALL)
    ids = probes.batch(SEED, name, SMALL).repeat(batch).ids
    loss = plain_pass(weights.__getitem__, SMALL, Batch(ids, ids), Numerics(dtype, "cpu"), collect)
    collect.loss(torch.tensor(loss))
    return collect.tensors


class Asked(Canonical):
    """Notes whose values are asked for: of what is spread over ranks, collective calls."""

    __slots__ = ("asked",)

    def value(self, name: str) -> Tensor:
        self.asked.append(name)
        return super().value(name)


@pytest.mark.parametrize("family", SHAPES)
def test_all_ranks_gather_what_a_probe_edits_in_one_order(family: str) -> None:
    """Not in that of a set of names, which is another one in every process."""
    shape = SHAPES[family]
    model = build(shape, 5, torch.float32)
    canonical = Asked(Origin(model), model, None)
    for probe in PROBES:
        canonical.asked = []
        Examination(canonical, shape, SEED).edit(probe, "float32")
        edits = list(probes.edits(probe, shape, "float32"))
        made = {*probes.parts(shape).out, *probes.parts(shape).biases}
        assert canonical.asked == [name for name in edits if name not in made] + edits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probes_one_after_the_other_show_what_the_reference_shows_from_the_same_weights(
    dtype: torch.dtype,
) -> None:
    model, _, examined = make(dtype)
    ids = torch.zeros(3, SMALL.sequence_length, dtype=torch.int64)
    for name in PROBES:
        stored = str(dtype).removeprefix("torch.")
        examined.probe(name, model, model, Backend(), stored, Batch(ids, ids))
    assert examined.passes == [BRANCHES, HEAD]
    assert examined.missing == []
    expected = of_the_reference(BRANCHES, dtype, 3) | of_the_reference(HEAD, dtype, 3)
    assert set(examined.tensors) == set(expected)
    assert all(torch.equal(examined.tensors[key], expected[key]) for key in expected)


def test_what_a_probe_edited_is_put_back_for_the_next_but_the_out_projections() -> None:
    model, _, examined = make()
    pristine = weights_of(torch.float32)
    ids = torch.zeros(1, SMALL.sequence_length, dtype=torch.int64)
    for name in PROBES:
        examined.probe(name, model, model, Backend(), "float32", Batch(ids, ids))
    now = dict(model.named_parameters())
    changed = {name for name, value in pristine.items() if not torch.equal(now[name], value)}
    assert changed == {*probes.parts(SMALL).out, "model.norm.weight"}
    assert all(not now[name].any() for name in probes.parts(SMALL).out)


def test_the_tokens_of_a_probe_are_written_into_the_memory_the_model_was_given_last() -> None:
    model, _, examined = make()
    ids = random_tokens(1, 4, SMALL.sequence_length, SMALL.vocab_size)
    memory, seen = ids.data_ptr(), []
    model.register_forward_pre_hook(lambda _, given: seen.append((given[0].data_ptr(), given[0])))
    for name in PROBES:
        examined.probe(name, model, model, Backend(), "float32", Batch(ids, ids))
        (place, given), *_ = seen[-1:]
        assert place == memory
        assert torch.equal(given, probes.batch(SEED, name, SMALL).repeat(4).ids)
    one, other = (probes.batch(SEED, name, SMALL).ids for name in (BRANCHES, HEAD))
    assert not torch.equal(one, other), "new data in the same buffer"


def test_the_device_is_told_of_a_probe_as_of_a_step_and_waited_for() -> None:
    model, _, examined = make()
    backend = Backend()
    ids = torch.zeros(1, SMALL.sequence_length, dtype=torch.int64)
    examined.probe(HEAD, model, model, backend, "float32", Batch(ids, ids))
    assert backend.told == ["begin", "end", "synchronize"]


def test_gradients_of_the_step_before_are_no_part_of_a_probe() -> None:
    model, _, examined = make()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    ids = torch.zeros(1, SMALL.sequence_length, dtype=torch.int64)
    examined.probe(HEAD, model, model, Backend(), "float32", Batch(ids, ids))
    expected = of_the_reference(HEAD, torch.float32, 1)
    assert all(torch.equal(examined.tensors[key], expected[key]) for key in expected)


def test_live_gradients_are_sketched_as_they_stand_and_those_that_are_not_there_named() -> None:
    model, _, examined = make()
    ids = random_tokens(1, 2, SMALL.sequence_length, SMALL.vocab_size)
    loss = model(ids, labels=ids)
    loss.backward()
    model.model.norm.weight.grad = None
    examined.live(loss)
    weights, collect = weights_of(torch.float32), Sketches("live", SEED, SMALL)
    batch = Batch(ids, ids)
    right = plain_pass(weights.__getitem__, SMALL, batch, Numerics(torch.float32, "cpu"), collect)
    collect.loss(torch.tensor(right))
    assert examined.missing == ["live/model.norm.weight"]
    assert set(collect.tensors) - set(examined.tensors) == {"live/model.norm.weight"}
    assert all(torch.equal(collect.tensors[key], t) for key, t in examined.tensors.items())


# -- where elements are ---------------------------------------------------------------------


def sizes_of(model: nn.Module) -> dict[str, int]:
    return {name: p.numel() for name, p in model.named_parameters()}


def test_without_a_map_an_elements_place_is_its_own_number_after_all_parameters_before_it() -> None:
    model, canonical, _ = make()
    before, found = 0, {}
    for name, p in model.named_parameters():
        found[name] = before
        before += p.numel()
    stored = [
        (name, p, torch.tensor([0, 3, p.numel() - 1])) for name, p in model.named_parameters()
    ]
    expected = [
        found[name] + i for name, p in model.named_parameters() for i in (0, 3, p.numel() - 1)
    ]
    assert places(canonical, sizes_of(model), stored).tolist() == expected


def test_without_a_map_a_parameter_that_is_not_the_models_own_has_no_place() -> None:
    model, canonical, _ = make()
    stranger = nn.Parameter(torch.zeros(9))
    found = places(canonical, sizes_of(model), [("stranger", stranger, torch.arange(4))])
    assert found.tolist() == [-1] * 4


def test_where_nothing_was_read_there_are_no_places() -> None:
    model, canonical, _ = make()
    assert places(canonical, sizes_of(model), []).shape == (0,)


class Pair(nn.Module):
    """Two matrices and a gain, the first large enough for three digits of a number."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(300, 250))
        self.b = nn.Parameter(torch.zeros(100, 250))
        self.gain = nn.Parameter(torch.zeros(7))


class Part:
    """A canonical parameter in a slice of a stored one, perhaps transposed or permuted."""

    padding = ("fused",)

    def __init__(self, stored: nn.Parameter, rows: slice, columns: slice, *, turned: bool) -> None:
        self.stored, self.where, self.turned = stored, (rows, columns), turned

    def read(self, kind: str) -> Tensor | None:
        assert kind == "value"
        part = self.stored.detach()[self.where]
        return part.t() if self.turned else part

    def write(self, value: Tensor) -> None:
        with torch.no_grad():
            self.stored[self.where] = value.t() if self.turned else value


class Interleaved(Part):
    """A gain stored backwards in every second element."""

    def __init__(self, stored: nn.Parameter) -> None:
        self.stored = stored

    def read(self, kind: str) -> Tensor | None:
        return self.stored.detach()[::2].flip(0)

    def write(self, value: Tensor) -> None:
        with torch.no_grad():
            self.stored[::2] = value.flip(0)


def repacked(dtype: torch.dtype) -> tuple[Mapping[str, Part], dict[str, nn.Parameter]]:
    """Return a map of ``Pair``: a and b stacked, transposed and padded, the gain interleaved."""
    fused = nn.Parameter(torch.ones(256, 416, dtype=dtype))  # [input + 6, outputs + 16]
    gain = nn.Parameter(torch.ones(14, dtype=dtype))
    views = {
        "a": Part(fused, slice(0, 250), slice(0, 300), turned=True),
        "b": Part(fused, slice(0, 250), slice(300, 400), turned=True),
        "gain": Interleaved(gain),
    }
    return views, {"fused": fused, "gain": gain}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_through_a_map_every_element_is_found_again_where_it_went_and_padding_told(
    dtype: torch.dtype,
) -> None:
    pristine = Pair()
    views, stored = repacked(dtype)
    canonical = Canonical(Origin(pristine), nn.ParameterDict(stored), views)
    every = [(name, p, torch.arange(p.numel())) for name, p in stored.items()]
    found = places(canonical, sizes_of(pristine), every)
    fused, gain = found[: 256 * 416].view(256, 416), found[256 * 416 :]
    right = torch.full((256, 416), -1)
    right[:250, :300] = torch.arange(300 * 250).view(300, 250).t()
    right[:250, 300:400] = (300 * 250 + torch.arange(100 * 250)).view(100, 250).t()
    assert torch.equal(fused, right)
    last = 400 * 250
    assert gain.tolist() == [v for i in range(7) for v in (last + 6 - i, -1)]


def test_through_a_map_only_the_elements_asked_for_are_told_in_their_order() -> None:
    pristine = Pair()
    views, stored = repacked(torch.bfloat16)
    canonical = Canonical(Origin(pristine), nn.ParameterDict(stored), views)
    asked = [
        ("gain", stored["gain"], torch.tensor([2, 1])),
        ("fused", stored["fused"], torch.tensor([1, 416 * 255, 0])),
    ]
    last = 400 * 250
    assert places(canonical, sizes_of(pristine), asked).tolist() == [last + 5, -1, 250, -1, 0]


def test_a_map_that_adds_a_parameter_of_its_own_does_not_disturb_the_numbers() -> None:
    pristine = Pair()
    views, stored = repacked(torch.float32)
    stored["more"] = nn.Parameter(torch.zeros(3, 3))
    views = {**views, "more": Part(stored["more"], slice(0, 3), slice(0, 3), turned=False)}
    canonical = Canonical(Origin(pristine), nn.ParameterDict(stored), views)
    asked = [("gain", stored["gain"], torch.tensor([0]))]
    assert places(canonical, sizes_of(pristine), asked).tolist() == [400 * 250 + 6]
    assert F.relu(stored["more"]).sum() == 0


def test_tokens_of_a_probe_are_one_sequence_of_the_models_own_length_and_vocabulary() -> None:
    found = probes.batch(SEED, HEAD, SMALL).ids
    assert found.shape == (1, SMALL.sequence_length)
    assert 0 <= found.min() <= found.max() < SMALL.vocab_size
    assert torch.equal(found, probes.batch(SEED, HEAD, SMALL).ids)
    assert not torch.equal(found, probes.batch(SEED + 1, HEAD, SMALL).ids)
