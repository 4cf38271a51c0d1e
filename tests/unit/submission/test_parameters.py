"""Names and shapes of the second path are those of the models themselves."""

from __future__ import annotations

import math

import pytest
import torch

from llmb.errors import BundleRefusedError
from llmb.families import SHAPES
from llmb.reference.models import model_of
from llmb.submission.official import DEFAULTS, MATRICES, OFFICIAL, parameters_of

SMALL = {
    "vocab_size": 48,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,  # does not divide the hidden size
    "num_key_value_heads": 2,
    "sequence_length": 8,
}


def of_model(family, shapes):
    """Return what torch says of the reference's model."""
    with torch.device("meta"):
        model = model_of(SHAPES[family](**shapes))
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def whole(shapes):
    return {name: size for name, size in shapes.items() if isinstance(size, int)}


@pytest.mark.parametrize("workload", OFFICIAL)
def test_every_official_workload_has_the_parameters_of_its_model(workload):
    official = OFFICIAL[workload]
    found = parameters_of(official.family, whole(official.shapes))
    assert list(found.items()) == list(of_model(official.family, official.shapes).items())


@pytest.mark.parametrize("family", SHAPES)
def test_a_model_of_odd_sizes_has_them_too(family):
    given = {name: size for name, size in SMALL.items() if name in DEFAULTS[family]}
    shapes = {**DEFAULTS[family], **given}
    found = parameters_of(family, whole(shapes))
    assert found == of_model(family, shapes)
    ends = MATRICES[family].outputs
    writing = [name for name in found if name.endswith(ends)]
    assert len(writing) >= 2 * shapes["num_hidden_layers"]
    heads = [n for n, shape in found.items() if shape == (48, 24) and "position" not in n]
    assert len(heads) == (1 if MATRICES[family].tied else 2)


def test_a_model_without_layers_is_what_is_left_of_it():
    whole_model = parameters_of("gpt2", whole(DEFAULTS["gpt2"]))
    bare = parameters_of("gpt2", whole({**DEFAULTS["gpt2"], "num_hidden_layers": 0}))
    assert bare.keys() == {name for name in whole_model if ".h." not in name}


def test_a_family_that_nobody_knows_is_refused():
    with pytest.raises(BundleRefusedError, match="family 'mamba'"):
        parameters_of("mamba", SMALL)


def test_more_layers_than_can_be_checked_are_refused_at_once():
    with pytest.raises(BundleRefusedError, match="1000000000 layers"):
        parameters_of("llama", {**SMALL, "num_hidden_layers": 10**9})


def test_the_largest_has_a_trillion_elements():
    sizes = parameters_of("llama", whole(OFFICIAL["alcf-1t"].shapes)).values()
    assert sum(map(math.prod, sizes)) > 10**12
