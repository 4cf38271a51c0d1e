"""Names for runs: latest, tags and beginnings of names; paths win, and tags are local files."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmb.errors import UsageError
from llmb.records import run_tags
from llmb.records.run_names import find_run, known_names, runs_in

Made = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.chdir(tmp_path)

    def make(name: str, record: bool = True, tags: tuple[str, ...] = ()) -> Path:
        folder = Path("runs") / name
        folder.mkdir(parents=True)
        if record:
            (folder / "record.json").write_text("{}")
        for tag in tags:
            run_tags.add(folder, tag)
        return folder

    return make


def named(text: str) -> str:
    return find_run(text, Path("runs")).name


@pytest.fixture
def five(made: Made) -> None:
    made("20261101T120000Z-a-BF16-cpu", tags=("nightly", "base"))
    made("20261102T120000Z-a-BF16-cpu", tags=("nightly",))
    made("20261102T120000Z-a-BF16-cpu-2")
    made("20261102T120000Z-a-BF16-cpu-10")
    made("20261103T120000Z-a-BF16-cpu", record=False, tags=("nightly",))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("latest", "20261102T120000Z-a-BF16-cpu-10"),
        ("latest~1", "20261102T120000Z-a-BF16-cpu-2"),
        ("latest~3", "20261101T120000Z-a-BF16-cpu"),
        ("base", "20261101T120000Z-a-BF16-cpu"),
        ("nightly", "20261102T120000Z-a-BF16-cpu"),
        ("nightly~1", "20261101T120000Z-a-BF16-cpu"),
        ("20261101", "20261101T120000Z-a-BF16-cpu"),
        ("20261103", "20261103T120000Z-a-BF16-cpu"),
        ("20261102T120000Z-a-BF16-cpu", "20261102T120000Z-a-BF16-cpu"),
        ("gone/record.json", "record.json"),
    ],
)
@pytest.mark.usefixtures("five")
def test_a_run_is_found_by_age_tag_or_beginning(text: str, name: str) -> None:
    assert named(text) == name


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("latest~4", "'latest~4': there are 4 runs with a record in runs"),
        ("base~1", "'base~1': there is 1 run with the tag base in runs"),
        ("20261102", "begins the names of 3 runs (20261102T120000Z-a-BF16-cpu, 2026"),
        ("nightyl", "did you mean nightly?"),
        ("ltaest", "did you mean latest?"),
        ("zzz", "is neither a path nor a run in runs; `llmb list` shows the names"),
    ],
)
@pytest.mark.usefixtures("five")
def test_a_name_of_no_run_or_of_several_runs_is_refused(text: str, part: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_run(text, Path("runs"))
    assert part in str(refused.value)


@pytest.mark.usefixtures("five")
def test_an_existing_path_wins_over_every_name() -> None:
    for name in ("latest", "base", "20261101"):
        Path(name).mkdir()
        assert find_run(name, Path("runs")) == Path(name)


def test_links_and_other_folders_are_no_runs_and_a_renamed_run_is(made: Made) -> None:
    run = made("20261101T120000Z-a")
    renamed = made("mine")
    os.utime(renamed / "record.json", (0, 0))
    (Path("runs") / "sweep-20261101T120000Z-a").mkdir()
    (Path("runs") / "20261109T120000Z-link").symlink_to(run.absolute())
    (made("20261105T120000Z-b", record=False) / "record.json").symlink_to("/etc/passwd")
    found = [(one.path.name, one.has_record) for one in runs_in(Path("runs"))]
    assert found == [("mine", True), ("20261101T120000Z-a", True), ("20261105T120000Z-b", False)]
    assert named("mine") == "mine"
    assert known_names(Path("runs"))[:2] == ["latest", "20261105T120000Z-b"]


@pytest.mark.parametrize("tag", ["latest", "", "A", "-x", "../x", "a/b", "a\x1b[2J", "x" * 65])
def test_a_tag_that_is_no_slug_or_is_latest_is_refused(made: Made, tag: str) -> None:
    with pytest.raises(UsageError, match="is refused"):
        run_tags.add(made("20261101T120000Z-a"), tag)


def test_writers_at_once_lose_no_tag(made: Made) -> None:
    run = made("20261101T120000Z-a", tags=("t0",))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: run_tags.add(run, f"t{number % 40}"), range(80)))
    assert run_tags.tags_of(run) == tuple(sorted(f"t{number}" for number in range(40)))
    run_tags.remove(run, "t7")
    assert "t7" not in run_tags.tags_of(run)
    with pytest.raises(UsageError, match="has no tag t7"):
        run_tags.remove(run, "t7")


def test_a_link_in_the_place_of_the_tags_is_never_followed(made: Made, tmp_path: Path) -> None:
    run, elsewhere = made("20261101T120000Z-a"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "taken").touch()
    (run / "tags").symlink_to(elsewhere)
    assert run_tags.tags_of(run) == ()
    for change in (run_tags.add, run_tags.remove):
        with pytest.raises(UsageError):
            change(run, "taken")
    with pytest.raises(UsageError):
        run_tags.add(run, "new")
    assert [path.name for path in elsewhere.iterdir()] == ["taken"]


def test_a_bundle_takes_no_tag(made: Made) -> None:
    run = made("20261101T120000Z-a")
    (run / "MANIFEST.json").touch()
    with pytest.raises(UsageError, match="is a bundle"):
        run_tags.add(run, "base")
