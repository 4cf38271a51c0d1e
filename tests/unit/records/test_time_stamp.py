"""Tokens of a real authority: read, bounded, held to its certificate; all else is refused."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from llmb.errors import BundleRefusedError
from llmb.records import time_stamp
from llmb.records.time_stamp import AtStop, Token, authorities, held_to, question, read, said
from tests import authority, needs
from tests.authority import Authority
from tests.builders import make_record

needs.package("rfc3161_client")
MESSAGE = b"what is stamped"


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority.made(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority that gives itself the same name."""
    return authority.made(tmp_path_factory.mktemp("stranger"))


def stamped(of: Authority, message: bytes = MESSAGE, *, certificate: bool = True) -> bytes:
    return of.sign(question(message, with_certificate=certificate))


def why_not(answer: bytes, *files: Path, message: bytes = MESSAGE) -> str | None:
    listed = [one for file in files for one in authorities(file.read_bytes(), file.name)]
    return held_to(read(answer, message), message, listed)


def test_a_token_tells_the_time_within_the_second(clock: Authority) -> None:
    before = datetime.now(timezone.utc)
    token = read(stamped(clock), MESSAGE)
    assert before - timedelta(seconds=1) <= token.time <= datetime.now(timezone.utc)
    assert token.uncertainty_s == 0.5
    assert "Root of Test authority" in token.authority


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (("accuracy = secs:2",), 2.0),
        (("accuracy = secs:1, millisecs:500, microsecs:100",), 1.5001),
        (("accuracy = millisecs:1",), 0.5),
    ],
)
def test_a_time_may_be_off_by_the_stated_accuracy_and_by_a_second_that_was_cut(
    tmp_path: Path, settings: tuple[str, ...], seconds: float
) -> None:
    assert read(stamped(authority.made(tmp_path, *settings)), MESSAGE).uncertainty_s == seconds


def test_a_token_with_its_certificate_is_held_to_the_root_alone(clock: Authority) -> None:
    assert why_not(stamped(clock), clock.root) is None
    assert why_not(stamped(clock), clock.root, clock.own) is None


def test_a_token_without_its_certificate_needs_the_authoritys_own(clock: Authority) -> None:
    answer = stamped(clock, certificate=False)
    assert why_not(answer, clock.root, clock.own) is None
    assert why_not(answer, clock.root)


def test_an_authority_of_the_same_name_is_not_the_one_that_is_listed(
    clock: Authority, stranger: Authority
) -> None:
    assert why_not(stamped(stranger), clock.root)
    assert why_not(stamped(stranger), clock.root, clock.own)


def test_a_changed_token_is_not_of_its_authority(clock: Authority) -> None:
    answer = bytearray(stamped(clock))
    answer[-5] ^= 1
    assert "signature" in (why_not(bytes(answer), clock.root) or "")


@pytest.mark.parametrize("certificate", [True, False])
def test_a_token_with_changed_bytes_is_refused_or_read_and_never_an_error(
    clock: Authority, certificate: bool
) -> None:
    answer = stamped(clock, certificate=certificate)
    listed = authorities(clock.root.read_bytes(), "root")
    for place in range(len(answer)):
        changed = bytearray(answer)
        changed[place] ^= 1 << place % 8
        with suppress(BundleRefusedError):
            held_to(read(bytes(changed), MESSAGE), MESSAGE, listed)


def test_what_was_stamped_must_be_what_is_asked_about(clock: Authority) -> None:
    with pytest.raises(BundleRefusedError, match="over something else"):
        read(stamped(clock), b"another message")


@pytest.mark.parametrize(
    "answer",
    [b"", b"<html>", b"\x30\x03\x02\x01\x00", b"\x30\x80", b"\x30\x84\xff\xff\xff\xff"],
)
def test_what_is_no_answer_is_refused_in_one_line(answer: bytes) -> None:
    with pytest.raises(BundleRefusedError, match="no time stamp that can be read") as told:
        read(answer, MESSAGE)
    assert "\n" not in str(told.value)


def test_the_reason_of_a_refusal_is_told() -> None:
    # Status 2 (rejection), with a text.
    refusal = bytes.fromhex("300c300a02010230050c036e6f21")
    with pytest.raises(BundleRefusedError, match="refused: status 2, no!"):
        read(refusal, MESSAGE)


def test_an_answer_of_any_length_is_not_read() -> None:
    with pytest.raises(BundleRefusedError, match="at most"):
        read(bytes(time_stamp.MAX_BYTES + 1), MESSAGE)


def test_a_list_without_certificates_is_refused() -> None:
    with pytest.raises(BundleRefusedError, match=r"'a\.pem' holds no certificates"):
        authorities(b"nothing", "a.pem")


def at(seconds: float, uncertainty_s: float = 0.5) -> Token:
    time = datetime(2026, 11, 27, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)
    return Token("a" * 64, b"", time, uncertainty_s, "", None)  # type: ignore[arg-type]


def test_the_bound_is_tokens_over_the_longest_time_that_both_may_mean() -> None:
    # Counted by hand: 49 steps of 512 tokens in 34 seconds and one that was cut.
    found = said("http://clock", at(0), at(34), mixed_from=4, tokens=49 * 512)
    assert (found.seconds, found.uncertainty_s) == (34.0, 1.0)
    assert found.tokens_per_second == pytest.approx(716.8)
    assert found.start_utc == "2026-11-27T01:00:00Z"


def test_without_the_second_token_there_is_no_bound() -> None:
    found = said("http://clock", at(0), None, mixed_from=4, tokens=512)
    assert (found.stop_utc, found.seconds, found.tokens_per_second) == (None, None, None)


def test_times_of_one_instant_that_cannot_be_off_bound_nothing() -> None:
    assert said("a", at(0, 0.0), at(0, 0.0), mixed_from=1, tokens=1).tokens_per_second is None


def test_at_stop_everything_of_the_window_is_stamped_and_nothing_after_it() -> None:
    timing = make_record(1).timing.repeats[0]
    known = AtStop.of(timing)
    stop = timing.warmup_steps + timing.timed_steps
    assert known.fence_steps[-1] == stop
    assert len(known.step_ns) == stop
    message = time_stamp.stop_message("1" * 32, 0, "b" * 64, known)
    for name in ("fence_ns", "step_ns", "fence_bits"):
        values = getattr(timing, name)
        changed = timing.model_copy(update={name: (*values[:2], values[0], *values[3:])})
        other = time_stamp.stop_message("1" * 32, 0, "b" * 64, AtStop.of(changed))
        assert other != message, name


def test_each_repeat_of_each_run_has_a_start_of_its_own() -> None:
    runs, nonces = ("1" * 32, "2" * 32), ("3" * 32, "4" * 32)
    messages = {
        time_stamp.start_message(run, n, nonce) for run in runs for n in (0, 1) for nonce in nonces
    }
    assert len(messages) == 8
