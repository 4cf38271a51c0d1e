"""The module tree as text: what a plugin swaps, casts or resizes shows."""

from __future__ import annotations

import torch
from torch import nn

from llmb.observe.model_tree import describe


def test_every_module_is_described_by_path_class_and_its_own_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Dropout(0.5))
    assert describe(model) == {
        "(model)": "torch.nn.modules.container.Sequential()",
        "0": "torch.nn.modules.linear.Linear(in_features=3, out_features=2, bias=False) "
        "weight[2, 3]:float32",
        "1": "torch.nn.modules.dropout.Dropout(p=0.5, inplace=False)",
    }


def test_a_module_without_a_configuration_still_shows_its_parameters() -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))

    (line,) = describe(Gain()).values()
    assert line.endswith("Gain() weight[4]:bfloat16")
    assert "test_model_tree" in line


def test_a_cast_and_a_subclass_of_the_same_name_change_the_line() -> None:
    plain = nn.Sequential(nn.Linear(3, 2))
    fake = type("Linear", (nn.Linear,), {})
    assert describe(plain)["0"] != describe(nn.Sequential(fake(3, 2)))["0"]
    assert describe(plain)["0"] != describe(nn.Sequential(nn.Linear(3, 2).half()))["0"]
