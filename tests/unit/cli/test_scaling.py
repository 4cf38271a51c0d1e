"""Numbers of ranks are read, and what is of the whole is no part of a run in it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb import config
from llmb.cli import scaling
from llmb.errors import AuditInvalidError, RunFailedError, UsageError
from llmb.parallel import launch
from llmb.plugin.builtin import host
from llmb.records.finding import Verdict


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
        scaling.run({**flags, name: 2, "scaling": "1,2"}, None, [])


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


# -- all numbers of ranks, one after the other ----------------------------------------------------


class Runs:
    """What is started for each number of ranks, and how it ends."""

    def __init__(self) -> None:
        self.started: list[tuple[int, list[str]]] = []
        self.codes: dict[int, int] = {}
        self.threads: list[int] = []
        self.verdicts: dict[int, Verdict] = {}
        self.shown: list[list[int]] = []

    def start(self, count: int, arguments: list[str], run_id: str) -> int:
        self.started.append((count, arguments))
        return self.codes.get(count, 0)

    def points(self, folder: Path, counts: tuple[int, ...]) -> Any:
        for count in counts:
            verdict = self.verdicts.get(count, Verdict.CONSISTENT)
            audit = SimpleNamespace(verdict=verdict)
            yield SimpleNamespace(ranks=count, record=SimpleNamespace(audit=audit))

    def show(self, points: Any, flags: Any) -> None:
        self.shown.append([point.ranks for point in points])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(launch, "start", made.start)
    monkeypatch.setattr(scaling, "_points", made.points)
    monkeypatch.setattr(scaling, "_show", made.show)
    monkeypatch.setattr(config, "limit_threads", made.threads.append)
    monkeypatch.setattr(host, "usable_cores", lambda: 8)
    return made


def scaled(tmp_path: Path, *, strong: bool = False, batch_size: object = None) -> int:
    flags = dict.fromkeys(("nproc", "dp_replicate", "dp_shard", "tp", "pp"))
    more = {"scaling": "1,2,4", "output_dir": tmp_path, "strong": strong}
    return scaling.run({**flags, **more}, batch_size, ["run", "--scaling", "1,2,4", "--seed", "7"])


def test_each_number_of_ranks_is_a_run_of_its_own_in_a_folder_of_its_own(
    runs: Runs, tmp_path: Path
) -> None:
    assert scaled(tmp_path) == 0
    assert [count for count, _ in runs.started] == [1, 2, 4]
    words = [arguments for _, arguments in runs.started]
    assert all(each[:3] == ["run", "--seed", "7"] for each in words)
    assert [each[4:] for each in words] == [[], ["--nproc=2"], ["--nproc=4"]]
    folders = [Path(each[3].removeprefix("--output-dir=")) for each in words]
    assert [folder.name for folder in folders] == ["1", "2", "4"]
    assert {folder.parent.parent for folder in folders} == {tmp_path}
    assert (runs.threads, runs.shown) == ([2], [[1, 2, 4]])


def test_ranks_that_share_one_batch_are_given_their_part(runs: Runs, tmp_path: Path) -> None:
    scaled(tmp_path, strong=True, batch_size=8)
    shares = [arguments[4] for _, arguments in runs.started]
    assert shares == ["--batch-size=8", "--batch-size=4", "--batch-size=2"]


def test_the_first_failure_ends_it_with_its_exit_code(runs: Runs, tmp_path: Path) -> None:
    runs.codes = {2: 4, 4: 3}
    assert scaled(tmp_path) == 4
    assert [count for count, _ in runs.started] == [1, 2]
    assert runs.shown == []


def test_an_invalid_run_is_shown_with_the_others_and_ends_in_5(runs: Runs, tmp_path: Path) -> None:
    runs.codes, runs.verdicts = {2: 5}, {2: Verdict.INVALID}
    with pytest.raises(AuditInvalidError, match="with 2 ranks the run is INVALID"):
        scaled(tmp_path)
    assert runs.shown == [[1, 2, 4]]
