"""What ranks make of what each of them has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from llmb.parallel.ranks import Ranks


def test_the_mean_is_the_sum_of_every_ranks_value_over_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_reduce(total: torch.Tensor, group: object) -> None:
        total += 1.0 + 2.0 + 6.0  # of three others

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    ranks: Any = SimpleNamespace(_control=None, place=SimpleNamespace(world_size=4))
    assert Ranks.mean(ranks, torch.tensor(3.0)).item() == 3.0
