"""How a model is spread over ranks: what is gathered is given back, unless nothing is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from llmb.config import Parallelism
from llmb.parallel import layout


@pytest.mark.parametrize(
    ("mesh", "again"),
    [
        (Parallelism(dp_shard=2), True),
        (Parallelism(dp_replicate=2, dp_shard=2), True),
        (Parallelism(dp_shard=2, reshard_after_forward=False), False),
        (Parallelism(dp_replicate=2, tp=2), False),  # nothing is gathered
    ],
)
def test_parameters_are_given_back_after_the_forward_pass_where_they_were_gathered(
    monkeypatch: pytest.MonkeyPatch, mesh: Parallelism, again: bool
) -> None:
    seen: list[bool] = []

    def shard(block: nn.Module, *, reshard_after_forward: bool, **_: Any) -> None:
        seen.append(reshard_after_forward)

    monkeypatch.setattr(layout, "fully_shard", shard)
    monkeypatch.setattr(layout, "slice_model", lambda *_: None)
    monkeypatch.setattr(layout, "blocks_of", lambda *_: (nn.Identity(),))
    monkeypatch.setattr(layout, "_of_shards", lambda model: None)
    ranks: Any = object.__new__(layout.Layout)
    ranks._parallelism, ranks.pipeline = mesh, None
    ranks._config = SimpleNamespace(executor="eager")
    ranks.mesh = SimpleNamespace(part=lambda *names: names)
    ranks.spread(nn.Identity(), SimpleNamespace())
    assert seen == [again, again]
