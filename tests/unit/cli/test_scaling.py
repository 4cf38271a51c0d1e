"""Numbers of ranks are read, and what is of the whole is no part of a run in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb.cli import scaling
from llmb.errors import RunFailedError, UsageError


def test_one_rank_is_always_among_the_numbers_and_each_comes_once_in_order() -> None:
    assert scaling.counts_of("4,2,2") == (1, 2, 4)
    assert scaling.counts_of(" 1, 8") == (1, 8)


@pytest.mark.parametrize("text", ["", "1,,2", "two", "0,1", "-1", "1.5", "2000", "1;2"])
def test_numbers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write whole numbers such as 1,2,4"):
        scaling.counts_of(text)


def test_a_run_is_given_what_is_not_of_the_whole() -> None:
    words = ["run", "--scaling", "1,2", "--strong", "--output-dir=x", "--json", "--zero", "3"]
    assert list(scaling._without_ours(words)) == ["run", "--zero", "3"]


@pytest.mark.parametrize("name", ["nproc", "dp_replicate", "dp_shard", "tp", "pp"])
def test_another_number_of_ranks_is_refused(name: str) -> None:
    flags = dict.fromkeys(("nproc", "dp_replicate", "dp_shard", "tp", "pp"))
    with pytest.raises(UsageError, match=f"leave --{name.replace('_', '-')} out"):
        scaling.run({**flags, name: 2, "scaling": "1,2"}, None)


def test_ranks_that_share_a_batch_need_one_that_divides() -> None:
    assert scaling._share(8, 4) == 2
    with pytest.raises(UsageError, match="4 ranks cannot share --batch-size 6"):
        scaling._share(6, 4)
    with pytest.raises(UsageError, match="give the --batch-size"):
        scaling._share(None, 2)


@pytest.mark.parametrize("run", [None, "a run"])
def test_a_number_of_ranks_without_a_record_is_named(tmp_path: Path, run: str | None) -> None:
    (tmp_path / "2").mkdir()
    if run is not None:
        (tmp_path / "2" / run).mkdir()
    with pytest.raises(RunFailedError, match=r"2 has no record: see its log\.txt"):
        list(scaling._points(tmp_path, [2]))
