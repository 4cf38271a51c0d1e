"""Canonical parameters are found again by identity, by ending, or through the plugin's map."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from llmb.errors import RunFailedError, UsageError
from llmb.observe.canonical import Canonical, Origin, check_dense
from llmb.plugin import ParameterView


class Layer(nn.Module):
    """A module with two parameters, in a tree like the reference's."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.norm = nn.LayerNorm(3, bias=False)
        self.norm = nn.LayerNorm(3, bias=False)


class Around(nn.Module):
    """A wrapper, as distributed training or a compiler puts around a model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.module = inner


NAMES = ("model.norm.weight", "norm.weight")


@pytest.mark.parametrize("views", [None, {}])
def test_an_untouched_model_is_its_own_canonical_form(
    views: dict[str, ParameterView] | None,
) -> None:
    model = Layer()
    found = Canonical(Origin(model), model, views)
    assert found.names == NAMES
    assert found.by_stored == {name: name for name in NAMES}
    assert (found.mapped, found.missing, found.padding) == (False, (), ())


def test_under_a_wrapper_parameters_are_found_by_the_longest_ending_of_their_names() -> None:
    model = Layer()
    origin = Origin(model)
    copied = Layer()  # other objects: names are all there is to go by
    found = Canonical(origin, Around(Around(copied)), None)
    assert found.by_stored == {f"module.module.{name}": name for name in NAMES}
    assert found.value("model.norm.weight") is not None
    assert found.names == NAMES


def test_a_parameter_that_another_module_took_over_is_found_by_identity() -> None:
    model = Layer()
    origin = Origin(model)
    other = nn.Module()
    other.scale = model.model.norm.weight
    other.norm = model.norm
    found = Canonical(origin, other, None)
    assert found.by_stored == {"scale": "model.norm.weight", "norm.weight": "norm.weight"}
    assert found.missing == ()


def test_identity_goes_before_a_name() -> None:
    model = Layer()
    origin = Origin(model)
    swapped = Layer()
    swapped.norm.weight, swapped.model.norm.weight = model.model.norm.weight, model.norm.weight
    found = Canonical(origin, swapped, None)
    assert found.by_stored == {
        "model.norm.weight": "norm.weight",
        "norm.weight": "model.norm.weight",
    }
    assert found.names == NAMES, "in the pristine model's order"


def test_what_a_map_leaves_out_is_found_as_without_a_map() -> None:
    model = Layer()
    own = View(nn.Parameter(torch.zeros(3, 4)), 1)
    found = Canonical(Origin(model), model, {"norm.weight": own})
    assert (found.names, found.mapped, found.missing) == (NAMES, True, ())
    name, parameter = "model.norm.weight", model.model.norm.weight
    assert found.gradient(name) is None
    parameter.grad = torch.ones(3)
    assert found.gradient(name) is not None
    found.write(name, torch.full((3,), 2.0))
    assert found.value(name).tolist() == parameter.tolist() == [2.0, 2.0, 2.0]
    found.write("norm.weight", torch.zeros(2, 3))
    assert own.written


def test_a_parameter_that_went_is_missing_and_one_that_came_has_no_canonical_name() -> None:
    model = Layer()
    origin = Origin(model)
    del model.norm
    model.extra = nn.Parameter(torch.zeros(2))
    found = Canonical(origin, model, None)
    assert found.missing == ("norm.weight",)
    assert "extra" not in found.by_stored
    assert found.names == ("model.norm.weight",)


def test_of_two_stored_parameters_that_end_alike_only_one_counts() -> None:
    origin = Origin(Layer())
    twice = nn.ModuleDict({"a": Layer(), "b": Layer()})
    found = Canonical(origin, twice, None)
    assert sorted(found.by_stored.values()) == sorted(NAMES)
    assert all(stored.startswith("a.") for stored in found.by_stored)


def test_a_word_that_merely_ends_like_a_name_is_no_ending() -> None:
    model = Layer()
    origin = Origin(model)
    other = nn.Module()
    other.xnorm = nn.LayerNorm(3, bias=False)
    assert Canonical(origin, other, None).by_stored == {}


def test_the_pristine_parameters_are_not_kept_alive() -> None:
    model = Layer()
    origin = Origin(model)
    gone = weakref.ref(model.norm.weight)
    del model
    gc.collect()
    assert gone() is None
    assert origin.names == NAMES


def test_an_address_that_is_used_again_is_not_taken_for_the_same_parameter() -> None:
    origin = Origin(Layer())  # nothing of it is alive
    gc.collect()
    strangers = [nn.Parameter(torch.zeros(3)) for _ in range(200)]
    assert all(origin.name_of("stranger", parameter) is None for parameter in strangers)


def test_values_and_gradients_are_read_without_a_graph_and_written_in_place() -> None:
    model = Layer()
    found = Canonical(Origin(model), model, None)
    weight = model.norm.weight
    assert found.gradient("norm.weight") is None
    weight.grad = torch.full((3,), 2.0)
    assert not found.value("norm.weight").requires_grad
    assert found.gradient("norm.weight").tolist() == [2.0, 2.0, 2.0]
    found.write("norm.weight", torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert model.norm.weight is weight
    assert weight.tolist() == [1.0, 2.0, 3.0]
    assert weight.requires_grad
    assert [name for name, _ in found.values()] == list(NAMES)


def test_a_frozen_parameter_is_told_from_a_trained_one() -> None:
    model = Layer()
    model.norm.weight.requires_grad_(False)
    found = Canonical(Origin(model), model, None)
    assert not found.requires_grad("norm.weight")
    assert found.requires_grad("model.norm.weight")


class View:
    """Half of a stored parameter, kept transposed and in another type."""

    def __init__(self, stored: nn.Parameter, half: int, padding: tuple[str, ...] = ()) -> None:
        self.stored, self.half, self.padding = stored, half, padding
        self.written: list[torch.dtype] = []

    def read(self, kind: str) -> Tensor | None:
        tensor = {"value": self.stored, "grad": self.stored.grad}[kind]
        return None if tensor is None else tensor.t().chunk(2)[self.half]

    def write(self, value: Tensor) -> None:
        self.written.append(value.dtype)
        self.stored.t().chunk(2)[self.half].copy_(value)


def mapped() -> tuple[nn.Parameter, dict[str, View], Canonical]:
    model = Layer()
    stored = nn.Parameter(torch.arange(12.0).view(3, 4).bfloat16())
    holder = nn.Module()
    holder.fused = stored
    views = {
        "more": View(stored, 0),
        "norm.weight": View(stored, 1, padding=("pad", "fused")),
        "model.norm.weight": View(stored, 0, padding=("pad",)),
    }
    return stored, views, Canonical(Origin(model), holder, views)


def test_through_a_map_names_come_in_the_models_order_and_then_what_the_map_adds() -> None:
    _, _, found = mapped()
    assert found.mapped
    assert found.names == (*NAMES, "more")
    assert found.padding == ("fused", "pad")
    assert found.missing == ()
    assert found.by_stored == {}


def test_through_a_map_values_gradients_and_writes_have_the_canonical_shape() -> None:
    stored, views, found = mapped()
    assert found.value("norm.weight").tolist() == [[2.0, 6.0, 10.0], [3.0, 7.0, 11.0]]
    assert not found.value("norm.weight").requires_grad
    assert found.gradient("norm.weight") is None
    stored.grad = -stored.detach()
    assert found.gradient("norm.weight").tolist() == [[-2.0, -6.0, -10.0], [-3.0, -7.0, -11.0]]
    found.write("norm.weight", torch.zeros(2, 3))
    assert views["norm.weight"].written == [torch.bfloat16], "in the type it is stored in"
    assert stored.tolist() == [[0.0, 1.0, 0.0, 0.0], [4.0, 5.0, 0.0, 0.0], [8.0, 9.0, 0.0, 0.0]]


def test_what_a_map_leaves_out_and_the_model_lost_is_missing() -> None:
    stored = nn.Parameter(torch.zeros(4, 3))
    found = Canonical(Origin(Layer()), nn.Module(), {"norm.weight": View(stored, 0)})
    assert found.missing == ("model.norm.weight",)


def test_a_map_without_a_value_is_named() -> None:
    class Blind(View):
        def read(self, kind: str) -> Tensor | None:
            return None

    model = Layer()
    found = Canonical(Origin(model), model, {"norm.weight": Blind(model.norm.weight, 0)})
    with pytest.raises(LookupError, match=r"no value of norm\.weight"):
        found.value("norm.weight")


def test_a_name_that_is_the_parameters_own_is_not_taken_for_a_shorter_ones_ending() -> None:
    origin = Origin(Layer())
    other = Layer()
    assert origin.name_of("norm.weight", other.norm.weight) == "norm.weight"
    assert origin.name_of("model.norm.weight", other.norm.weight) == "model.norm.weight"
    assert origin.name_of("another", other.norm.weight) is None


class Sharded(nn.Parameter):
    """A parameter that looks like a shard of torch's DTensor."""

    placements, device_mesh = (), None


@pytest.mark.parametrize("by", ["shards", "stages", "nothing"])
def test_a_map_that_names_no_ranks_is_refused_where_the_model_is_divided(by: str) -> None:
    model, (*_, found) = Layer(), mapped()
    if by == "shards":
        model.norm.weight = Sharded(torch.ones(3))
    share = (lambda name, value, like: value) if by == "stages" else None
    if by == "nothing":
        found.follow(model, share)
        return
    with pytest.raises(UsageError, match="--dp-shard, --tp, --pp: the plugin stores parameters"):
        found.follow(model, share)


def test_a_map_that_returns_no_numbers_is_named() -> None:
    _, views, canonical = mapped()
    name = next(iter(views))
    views[name].read = lambda kind: torch.zeros(2, device="meta")  # type: ignore[method-assign]
    with pytest.raises(RunFailedError, match=f"meta tensor for {name}"):
        canonical.value(name)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused_with_the_module_and_the_plugin(kind: type[nn.Module]) -> None:
    check_dense(nn.ModuleDict({"words": kind(4, 2)}), "acme")
    with pytest.raises(RunFailedError, match=r"plugin acme: words has sparse gradients"):
        check_dense(nn.ModuleDict({"words": kind(4, 2, sparse=True)}), "acme")
