"""``--sac-freq``: which blocks compute their activations again, as the original document counts."""

from __future__ import annotations

import pytest

from llmb.errors import UsageError
from llmb.workloads.checkpointing import Blocks, parse, recomputed_blocks


@pytest.mark.parametrize(
    ("text", "blocks", "chosen"),
    [
        ("1/4", 8, [0, 4]),
        ("3/4", 8, [0, 1, 2, 4, 5, 6]),
        ("2/5", 10, [0, 1, 5, 6]),
        ("1/1", 3, [0, 1, 2]),
        ("1/9", 3, [0]),
        ("5/5", 3, [0, 1, 2]),
    ],
)
def test_of_every_p_blocks_the_first_q_are_chosen(
    text: str, blocks: int, chosen: list[int]
) -> None:
    found = parse(text)
    assert isinstance(found, Blocks)
    assert [block for block in range(blocks) if found.has(block)] == chosen
    assert found.count(blocks) == recomputed_blocks(text, blocks) == len(chosen)


def test_op_is_about_what_is_in_a_block_and_chooses_none() -> None:
    assert parse("op") is None
    assert recomputed_blocks("op", 8) == 0
    assert recomputed_blocks(None, 8) == 0


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "/", "1/", "/4", "0/4", "0/0", "5/4", "-1/4", "1/-4", "1 / 4", "1/4/2"),
        *("1.5/4", "OP", "ops", "1/4 ", "1/40000", "a/b"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match="write q/p with 1 <= q <= p") as caught:
        parse(text)
    assert str(caught.value).startswith(f"--sac-freq {text}: ")
    assert "\n" not in str(caught.value)
