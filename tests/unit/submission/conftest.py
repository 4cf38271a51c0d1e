"""What is worked out once for all tests of submissions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from llmb.submission import recompute_time


@pytest.fixture(scope="module", autouse=True)
def intervals_of_the_same_blocks_are_drawn_once() -> Iterator[None]:
    """Keep what the second path has drawn: nearly every test verifies the same stamps again."""
    once = cache(recompute_time.confidence_interval)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            recompute_time, "confidence_interval", lambda repeats: once(tuple(map(tuple, repeats)))
        )
        yield
