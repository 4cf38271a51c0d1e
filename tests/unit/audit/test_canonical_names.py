"""A sampled parameter is called by where it lies in the model, whatever its plugin calls it."""

from __future__ import annotations

import pytest

from llmb.audit.canonical_names import names_of
from llmb.audit.distance import UNSEEN
from llmb.records.evidence import ParameterDigest, WeightsEvidence

KEY, FUSED = "layer.0.attention.self.key.bias", "h.0.attn.c_attn.bias"
SIZES = {"w": 100, KEY: 12, FUSED: 30}
WEIGHTS = WeightsEvidence(
    pristine=tuple(
        ParameterDigest(
            name=name, shape=(size,), dtype="float32", requires_grad=True, sha256="a" * 64
        )
        for name, size in SIZES.items()
    ),
    processed=(),
)


def name(stored: str, places: list[int]) -> str:
    return names_of([stored], [len(places)], places, WEIGHTS)[0]


def test_a_key_bias_under_another_name_is_a_key_bias() -> None:
    assert name("b_k", [100, 105, 111]) == KEY
    assert name("k", [122, 130, 131]).endswith(UNSEEN)  # the middle third of queries, keys, values
    assert name("q", [112, 121]) == FUSED
    assert name("v", [132, 141]) == FUSED


def test_a_name_alone_hides_nothing() -> None:
    assert name(KEY, [0, 50, 99]) == "w"
    assert not name(KEY, [0, 105]).endswith(UNSEEN)
    assert not name(KEY, [-1, -1]).endswith(UNSEEN)


def test_parts_of_a_parameter_keep_names_of_their_own() -> None:
    found = names_of(["a", "b", "c"], [2, 2, 2], [0, 1, 50, 51, 100, -1], WEIGHTS)
    assert found == ["a in w", "b in w", KEY]
    found = names_of(["q", "k", "v"], [1, 1, 1], [112, 125, 140], WEIGHTS)
    assert len({*found}) == 3
    assert [one.endswith(UNSEEN) for one in found] == [False, True, False]
    assert names_of(["w", "x"], [2, 1], [0, 100, 1], WEIGHTS) == ["w of several", "w"]


def test_places_of_every_row_count() -> None:
    assert name("b_k", [100]) == KEY
    assert names_of(["b_k"], [1], [100, 0], WEIGHTS) == ["b_k"]
    for places in ([100, 101, 102], [10**6]):
        with pytest.raises(ValueError, match=r"places are no rows|none of the model's"):
            names_of(["b_k"], [2], places * 2 if len(places) == 1 else places, WEIGHTS)


def test_no_two_parameters_are_called_alike() -> None:
    found = names_of(["a in w", "a", "b"], [2, 1, 1], [0, 100, 1, 2], WEIGHTS)
    assert len({*found}) == 3
