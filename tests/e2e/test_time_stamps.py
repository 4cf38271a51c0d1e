"""``llmb run --timestamp``: a real authority bounds a run, and who writes the files cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmb.records import evidence, members, time_stamp
from llmb.records.bundle import parse_record
from llmb.records.run_record import RepeatTiming
from llmb.records.time_stamp import START, STOP, AtStop
from llmb.submission.manifest import zip_bytes
from tests import authority, builders, needs
from tests.authority import Authority
from tests.builders import with_manifest
from tests.cheats.conftest import files_of
from tests.e2e import harness
from tests.e2e.conftest import Once
from tests.e2e.harness import Ended

needs.package("rfc3161_client")
Files = dict[str, bytes]
FLAGS = (*harness.TINY_RUN, "--precision=BF16", "--device=cpu", "--plugin=cpu", "--seed=7")
FIRST, SECOND = (evidence.path(0, name) for name in (START, STOP))


@pytest.fixture(scope="session")
def ran(once: Once) -> Ended:
    """A tiny run with the stamps of an authority whose keys lie beside it."""

    def make(folder: Path) -> Ended:
        with authority.serving(authority.made(folder / "keys")) as clock:
            return harness.run(folder / "out", *FLAGS, f"--timestamp={clock.url}", quiet=False)

    return once("time-stamped", make)


@pytest.fixture
def keys(ran: Ended) -> Authority:
    return Authority(ran.output.parent / "keys")


@pytest.fixture
def honest(ran: Ended) -> Files:
    return files_of(ran)


def checks(files: Files, folder: Path, *flags: object) -> dict[str, tuple[bool, str]]:
    """Return what ``llmb verify`` says of a bundle of ``files``: name -> sound, message."""
    path = folder / "bundle.zip"
    path.write_bytes(zip_bytes(with_manifest(files)))
    (found,) = json.loads(harness.call("verify", path, "--json", *flags).stdout)
    assert found["checks"], found["reason"]
    return {one["name"]: (one["ok"], one["message"]) for one in found["checks"]}


def stamps(files: Files) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files["record.json"])["timing"]["repeats"][0]["time_stamps"]
    return found


def rewritten(files: Files, **changes: Any) -> Files:
    """Return ``files`` with other time stamps in the record."""
    record = json.loads(files["record.json"])
    for timing in (record["timing"], *record["timing"]["repeats"]):
        timing["time_stamps"] |= changes
    return files | {"record.json": json.dumps(record).encode()}


def timing_of(files: Files) -> tuple[str, RepeatTiming]:
    record = parse_record(files["record.json"], "record")
    return record.run_id, record.timing.repeats[0]


def test_a_run_is_bounded_by_a_foreign_clock_and_anybody_can_check_it(
    ran: Ended, honest: Files, keys: Authority, tmp_path: Path
) -> None:
    assert ran.finished, ran.stderr
    said = stamps(honest)
    # A clock of whole seconds, and a window of one: the bound is far below, and that is said.
    assert 0 < said["tokens_per_second"] < ran.record["result"]["tokens_per_second"]
    assert any("times as long, by a larger batch" in warning for warning in ran.record["warnings"])
    found = checks(honest, tmp_path, "--authorities", keys.root, "--recompute", "full")
    assert all(ok for ok, _ in found.values()), found
    assert f"at least {said['tokens_per_second']:,.1f} tokens/s" in found["time stamps"][1]
    assert "which is listed" in found["time stamps"][1]
    ok, message = checks(honest, tmp_path)["time stamps"]
    assert ok
    assert "--authorities FILE would say" in message


def test_the_clock_of_a_stranger_does_not_count(
    honest: Files, keys: Authority, tmp_path: Path
) -> None:
    # Cheapest lie: an authority of one's own, with any time, and the same name.
    other = authority.made(tmp_path / "own")
    found = checks(honest, tmp_path, "--authorities", other.root)
    ok, message = found["time stamps"]
    assert not ok
    assert "is not listed" in message


def test_times_that_the_tokens_do_not_tell_are_refused(honest: Files, tmp_path: Path) -> None:
    ok, message = checks(rewritten(honest, seconds=0.5), tmp_path)["time stamps"]
    assert not ok
    assert "time_stamps.seconds of repeat 0 is 0.5" in message


def test_steps_that_do_not_follow_from_the_token_cannot_be_counted(
    honest: Files, keys: Authority, tmp_path: Path
) -> None:
    # Computed at leisure, and stamped afterwards: the steps do not follow from this token.
    run_id, timing = timing_of(honest)
    message = time_stamp.start_message(run_id, 0, timing.nonce or "")
    new = keys.sign(time_stamp.question(message, with_certificate=True))
    token = time_stamp.read(new, message)
    forged = honest | {FIRST: new}
    forged = rewritten(forged, start_sha256=token.sha256, start_utc=token.utc)
    run_id, timing = timing_of(forged)
    known = time_stamp.stop_message(run_id, 0, token.sha256, AtStop.of(timing))
    last = keys.sign(time_stamp.question(known, with_certificate=True))
    stop = time_stamp.read(last, known)
    said = timing.time_stamps
    assert said is not None
    tokens = time_stamp.tokens_after(timing, said.mixed_from, ran_tokens(forged))
    right = time_stamp.said(said.authority, token, stop, mixed_from=said.mixed_from, tokens=tokens)
    forged = rewritten(forged | {SECOND: last}, **right.model_dump())
    found = checks(forged, tmp_path, "--authorities", keys.root)
    assert found["time stamps"][0], found["time stamps"]
    assert not found["audit"][0]
    assert "was not made with the tokens of seed and nonce" in found["audit"][1]


def ran_tokens(files: Files) -> int:
    found: int = json.loads(files["record.json"])["workload"]["tokens_per_step"]
    return found


def test_stamps_of_a_faster_run_are_not_what_was_stamped(honest: Files, tmp_path: Path) -> None:
    record = json.loads(honest["record.json"])
    for timing in (record["timing"], *record["timing"]["repeats"]):
        timing["fence_ns"] = [ns // 2 for ns in timing["fence_ns"]]
    forged = honest | {"record.json": json.dumps(record).encode()}
    ok, message = checks(forged, tmp_path)["time stamps"]
    assert not ok
    assert f"{SECOND}: the time stamp is over something else" in message


def test_the_second_token_cannot_be_asked_for_later_without_a_lower_bound(
    honest: Files, keys: Authority
) -> None:
    run_id, timing = timing_of(honest)
    said = timing.time_stamps
    assert said is not None
    known = time_stamp.stop_message(run_id, 0, said.start_sha256, AtStop.of(timing))
    later = keys.sign(time_stamp.question(known, with_certificate=True))
    start = time_stamp.start_message(run_id, 0, timing.nonce or "")
    tokens = (time_stamp.read(honest[FIRST], start), time_stamp.read(later, known))
    counted = time_stamp.tokens_after(timing, said.mixed_from, ran_tokens(honest))
    right = time_stamp.said("a", *tokens, mixed_from=said.mixed_from, tokens=counted)
    assert right.tokens_per_second is not None
    assert said.tokens_per_second is not None
    assert right.tokens_per_second < said.tokens_per_second


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_token_cannot_be_left_out(honest: Files, tmp_path: Path, name: str) -> None:
    forged = {path: content for path, content in honest.items() if path != name}
    ok, message = checks(forged, tmp_path)["time stamps"]
    assert not ok
    assert f"{name} is missing" in message


def test_a_stamped_run_cannot_pass_for_one_without_stamps(honest: Files, tmp_path: Path) -> None:
    record = json.loads(honest["record.json"])
    for timing in (record["timing"], *record["timing"]["repeats"]):
        timing["time_stamps"] = None
    kept = {path: content for path, content in honest.items() if path not in (FIRST, SECOND)}
    forged = kept | {"record.json": json.dumps(record).encode()}
    assert not checks(forged, tmp_path)["audit"][0]


def test_a_token_of_which_the_record_says_nothing_is_refused(honest: Files, tmp_path: Path) -> None:
    found = checks(rewritten(honest, stop_utc=None), tmp_path)
    assert f"{SECOND} is there, and the record does not speak of it" in found["time stamps"][1]


def test_an_authority_that_does_not_answer_leaves_an_ordinary_run_and_a_note(
    tmp_path: Path,
) -> None:
    url = "http://127.0.0.1:9/tsr"
    ended = harness.run(tmp_path, *FLAGS, f"--timestamp={url}", harness.UNAUDITED, quiet=False)
    assert ended.code == 0
    (note,) = (one for one in ended.record["warnings"] if "time stamps" in one)
    assert note.startswith(f"the run has no time stamps: {url} does not answer")
    assert note in ended.stderr
    assert ended.record["timing"]["time_stamps"] is None
    assert not list(ended.directory.rglob("*.tsr"))


def test_an_address_that_is_none_ends_before_anything_starts(tmp_path: Path) -> None:
    ended = harness.run(tmp_path, *FLAGS, "--timestamp=freetsa.org")
    assert ended.code == 2
    assert "give the address of a time-stamping authority" in ended.stderr


def test_a_leaderboard_shows_the_bound_of_a_listed_authority_alone(
    honest: Files, keys: Authority, tmp_path: Path
) -> None:
    place = tmp_path / "acme" / "box" / "work" / "run"
    builders.write(place, with_manifest(honest))

    def marks() -> list[str]:
        ended = harness.call("report", tmp_path, "--json", env={"XDG_CACHE_HOME": str(tmp_path)})
        (row,) = json.loads(ended.stdout)["apart"]
        return [mark for mark in row["marks"] if "foreign clock" in mark]

    assert marks() == []
    (tmp_path / "authorities.pem").write_bytes(members.read_file(keys.root))
    bound = stamps(honest)["tokens_per_second"]
    assert marks() == [f"at least {bound:,.1f} tokens/s by a foreign clock"]
