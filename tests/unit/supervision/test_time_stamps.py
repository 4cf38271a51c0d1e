"""Time stamps of a stream: when they are asked for, what follows from them, and what is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmb.errors import UnavailableError, UsageError
from llmb.records import time_stamp
from llmb.records.draws import Draws
from llmb.records.seeds import Stamp, nonce_at, token_seed
from llmb.records.time_stamp import START, STOP, AtStop
from llmb.supervision import time_authority
from llmb.supervision.time_authority import Asked, TimeAuthority
from llmb.supervision.time_stamps import RepeatStamps
from tests import authority, needs
from tests.authority import Authority
from tests.unit.supervision.test_stream import (
    CONFIG,
    NONCE,
    OPTIMIZER,
    Worker,
    committing,
    ending_at,
    planned,
    run,
)

needs.package("rfc3161_client")
RUN_ID = "7" * 32
TOKENS = 64


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority.made(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def clock(keys: Authority) -> Iterator[Authority]:
    with authority.serving(Authority(keys.folder)) as served:
        yield served


class Prompt(RepeatStamps):
    """Stamps whose first token is there five steps later: this stream takes no time of its own."""

    def mixed(self, step: int) -> Stamp | None:
        if self._start is not None and self.mixed_from is None:
            asked_in = getattr(self, "asked_in", None)
            if asked_in is None:
                self.asked_in = step
            elif step >= asked_in + 5:
                self._start.wait()
                return super().mixed(step)
        return None


def prompt(clock: Authority) -> Prompt:
    return Prompt(TimeAuthority(clock.url), RUN_ID, 0)


@pytest.mark.parametrize("secret", range(4))
def test_what_is_drawn_after_the_token_has_come_follows_from_it(
    clock: Authority, secret: int
) -> None:
    window, stamps = planned(CONFIG, secret), prompt(clock)
    worker = Worker(ending_at(window))
    streamed = run(worker, window=window, ledger=True, stamps=stamps)
    said = stamps.said(streamed.timing, TOKENS)
    assert said is not None
    first = said.mixed_from
    assert window.start < first < window.stop
    stamp = Stamp(said.start_sha256, first)
    plain, drawn = (Draws(NONCE, OPTIMIZER, ledger=True, stamp=one) for one in (None, stamp))
    for order in worker.sent:
        nonce = nonce_at(NONCE, stamp, order.index)
        assert (nonce == NONCE) == (order.index < first)
        assert order.seed == token_seed(CONFIG.seed, 0, order.index, nonce)
    assert worker.draws.keys() == worker.answers.keys()
    for step, draw in worker.draws.items():
        assert draw.places == drawn.places(step)
        assert (draw.places == plain.places(step)) == (step < first)
        assert draw.rate == plain.rate(step)


def test_the_second_token_is_over_all_that_was_known_at_stop(clock: Authority) -> None:
    stamps = prompt(clock)
    streamed = run(Worker(committing), ledger=True, stamps=stamps)
    timing = streamed.timing
    said = stamps.said(timing, TOKENS)
    assert said is not None
    assert said.tokens_per_second is not None
    message = time_stamp.stop_message(RUN_ID, 0, said.start_sha256, AtStop.of(timing))
    answers = stamps.answers
    assert set(answers) == {START, STOP}
    first = time_stamp.read(answers[START], time_stamp.start_message(RUN_ID, 0, NONCE))
    second = time_stamp.read(answers[STOP], message)
    assert (first.sha256, second.utc) == (said.start_sha256, said.stop_utc)


@pytest.mark.parametrize("secret", range(4))
def test_at_each_fence_where_start_or_stop_may_lie_an_authority_is_asked(
    clock: Authority, secret: int
) -> None:
    window, stamps = planned(CONFIG, secret), prompt(clock)
    streamed = run(Worker(), window=window, stamps=stamps)
    stamps.said(streamed.timing, TOKENS)
    for one in stamps._others:
        one.wait()
    passed = [steps for steps in (*window.starts, *window.stops) if steps <= window.end]
    assert len(clock.asked) == len(passed)
    # A worker's host sees as many questions up to the first STOP wherever START lies.
    assert len(passed) == 3 + (window.start == window.second_fence)
    assert len(set(clock.asked)) == len(passed)


def test_no_step_waits_for_an_answer(clock: Authority) -> None:
    clock.delay_s = 1.0
    began, stamps = time.monotonic(), RepeatStamps(TimeAuthority(clock.url), RUN_ID, 0)
    streamed = run(Worker(), stamps=stamps)
    assert time.monotonic() - began < 1.0
    assert stamps.said(streamed.timing, TOKENS) is None
    (note,) = stamps.notes(streamed.timing, None, TOKENS)
    assert "did not answer before the window ended" in note
    assert stamps.answers == {}


def test_a_token_that_comes_after_stop_changes_nothing(clock: Authority) -> None:
    clock.delay_s = 0.3
    worker, stamps = Worker(), RepeatStamps(TimeAuthority(clock.url), RUN_ID, 0)
    run(worker, stamps=stamps)
    for order in worker.sent:
        assert order.seed == token_seed(CONFIG.seed, 0, order.index, NONCE)


def test_without_the_second_token_the_first_is_kept_and_nothing_is_bounded(
    clock: Authority,
) -> None:
    stamps, worker = prompt(clock), Worker()
    window = planned(CONFIG, 0)

    def answer(question: bytes) -> tuple[int, bytes]:
        return (500, b"") if worker.done >= window.stop else (200, clock.sign(question))

    clock.answer = answer
    timing = run(worker, window=window, stamps=stamps).timing
    said = stamps.said(timing, TOKENS)
    assert said is not None
    assert (said.stop_utc, said.tokens_per_second) == (None, None)
    assert set(stamps.answers) == {START}
    (note,) = stamps.notes(timing, said, TOKENS)
    assert "no time stamp at STOP" in note
    assert "answers 500" in note


def test_a_bound_far_below_the_figure_is_told_with_what_to_do(clock: Authority) -> None:
    stamps = prompt(clock)
    timing = run(Worker(), stamps=stamps).timing  # a window of 50 ms, and a clock of seconds
    (note,) = stamps.notes(timing, stamps.said(timing, TOKENS), TOKENS)
    assert "times as long, by a larger batch" in note


# -- asking ---------------------------------------------------------------------------------


def test_an_authority_is_tried_before_the_run(clock: Authority) -> None:
    assert TimeAuthority(clock.url).tried() == TimeAuthority(clock.url)


def test_one_whose_chain_cannot_be_read_is_asked_for_no_certificate(tmp_path: Path) -> None:
    # OpenSSL sends the root first, and rfc3161-client wants certificates sorted.
    with authority.serving(authority.made(tmp_path, f"certs = {tmp_path}/root.pem")) as odd:
        way = TimeAuthority(odd.url).tried()
        assert way in (TimeAuthority(odd.url), TimeAuthority(odd.url, with_certificate=False))
        time_stamp.read(way.ask(b"message"), b"message")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b"", "answers 404"),
        (200, b"<html>welcome</html>", "no time stamp that can be read"),
        (200, b"", "no time stamp that can be read"),
        (200, bytes(100_000), "at most 65536"),
        (302, b"", "answers 302"),
    ],
)
def test_what_does_not_answer_as_an_authority_is_named_with_the_reason(
    clock: Authority, status: int, body: bytes, words: str
) -> None:
    clock.answer = lambda question: (status, body)
    with pytest.raises(UnavailableError, match=words) as told:
        TimeAuthority(clock.url).tried()
    assert clock.url in str(told.value)


def test_an_answer_to_another_question_is_none(clock: Authority) -> None:
    old = TimeAuthority(clock.url).ask(b"old")
    clock.answer = lambda question: (200, old)
    asked = Asked(TimeAuthority(clock.url), b"new")
    assert asked.wait() is None
    assert asked.failure == "the time stamp is over something else"


def test_nobody_there_is_told_and_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        TimeAuthority("http://127.0.0.1:9/tsr").tried()


def test_one_that_hangs_is_left(clock: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_authority, "PATIENCE_S", 0.2)
    clock.delay_s = 1.0
    with pytest.raises(UnavailableError, match="does not answer: timed out"):
        TimeAuthority(clock.url).tried()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("freetsa.org/tsr", "give the address"),
        ("file:///etc/passwd", "give the address"),
        ("ftp://host/tsr", "give the address"),
        ("http://", "give the address"),
        ("http://host:port/", "give the address"),
        ("http://host/a b", "give the address"),
        ("http://me:secret@host/tsr", "without user, password"),
        ("https://host/tsr?key=1", "without user, password"),
    ],
)
def test_an_address_that_is_none_is_refused_before_the_run(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as told:
        TimeAuthority.at(url)
    assert "secret" not in str(told.value)
