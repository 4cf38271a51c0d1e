"""Lines over a real socket, without processes: split, joined, too long, garbled or ended."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from llmb import clock, errors
from llmb.errors import LlmbError, NotEnoughMemoryError, RunFailedError, UsageError
from llmb.wire import channel as wire
from llmb.wire import child, messages
from llmb.wire.channel import Channel, ChannelClosedError
from llmb.wire.messages import AuditRequest, Failure, Phase, Tick


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """Give one end as a channel, and the other raw."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


def request(seed: int) -> AuditRequest:
    return AuditRequest(seed=seed, last=False)


def line(seed: int) -> bytes:
    return messages.encode(request(seed))


def test_a_message_sent_is_the_message_received() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    ours.send(Tick(index=1, ns=2))
    assert theirs.receive(1) == Tick(index=1, ns=2)
    ours.close()
    theirs.close()


def test_a_line_that_comes_in_pieces_is_one_message(
    pair: tuple[Channel, socket.socket],
) -> None:
    channel, raw = pair
    whole = line(7)
    for piece in (whole[:1], whole[1:9], whole[9:-1]):
        raw.sendall(piece)
        assert channel.receive(0) is None
    raw.sendall(whole[-1:])
    assert channel.receive(0) == request(7)


def test_a_line_that_drips_in_without_end_is_given_up_in_time(
    pair: tuple[Channel, socket.socket],
) -> None:
    channel, raw = pair
    stop = threading.Event()

    def drip() -> None:
        for _ in range(1000):
            if stop.wait(0.02):
                return
            raw.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        assert channel.receive(0.2) is None
        assert thread.is_alive(), "it was still dripping"
    finally:
        stop.set()
        thread.join()


def test_lines_that_come_together_are_handed_out_one_by_one_in_order(
    pair: tuple[Channel, socket.socket],
) -> None:
    channel, raw = pair
    raw.sendall(line(1) + line(2) + line(3)[:5])
    assert [channel.receive(0) for _ in range(3)] == [request(1), request(2), None]
    raw.sendall(line(3)[5:])
    assert channel.receive(0) == request(3)


def test_no_message_within_the_time_is_none(pair: tuple[Channel, socket.socket]) -> None:
    assert pair[0].receive(0) is None


def test_a_message_is_stamped_when_its_bytes_come_in(
    pair: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, raw = pair
    stamps = iter([100, 200])
    monkeypatch.setattr(clock, "now_ns", lambda: next(stamps))
    raw.sendall(line(1))
    channel.receive()
    assert channel.received_ns == 100
    raw.sendall(line(2))
    channel.receive()
    assert channel.received_ns == 200


def test_a_line_longer_than_the_limit_is_refused_before_it_fills_memory(
    pair: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, raw = pair
    monkeypatch.setattr(wire, "_MAX_LINE", 1000)
    raw.sendall(messages.encode(Phase(name="x" * 900)))
    assert channel.receive(0) == Phase(name="x" * 900)
    raw.sendall(b"x" * 1001)
    with pytest.raises(RunFailedError, match=r"longer than .*\(llmb_describe_system"):
        channel.receive(0)


@pytest.mark.parametrize("garbage", [b"\n", b"hello\n", b'{"kind":"nonsense"}\n', b"\xff\xfe\n"])
def test_garbage_is_a_failed_run_and_not_a_crash(
    pair: tuple[Channel, socket.socket], garbage: bytes
) -> None:
    channel, raw = pair
    raw.sendall(garbage)
    with pytest.raises(RunFailedError, match="unreadable message"):
        channel.receive(0)


def test_the_other_end_gone_is_told_from_silence(pair: tuple[Channel, socket.socket]) -> None:
    channel, raw = pair
    raw.sendall(line(1))
    raw.close()
    assert channel.receive(0) == request(1)
    with pytest.raises(ChannelClosedError):
        channel.receive(0)
    with pytest.raises(ChannelClosedError):
        channel.send(request(2))


def test_the_message_expected_is_returned(pair: tuple[Channel, socket.socket]) -> None:
    pair[1].sendall(line(3))
    assert pair[0].expect(AuditRequest, 0) == request(3)


def test_another_message_than_the_one_expected_is_a_failed_run(
    pair: tuple[Channel, socket.socket],
) -> None:
    pair[1].sendall(line(3))
    with pytest.raises(RunFailedError, match="'audit' came where Tick was due"):
        pair[0].expect(Tick, 0)


def test_silence_where_a_message_was_due_is_a_failed_run(
    pair: tuple[Channel, socket.socket],
) -> None:
    with pytest.raises(RunFailedError, match="no Tick came within 0 s"):
        pair[0].expect(Tick, 0)


@pytest.mark.parametrize(
    "kind",
    [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, LlmbError)],
)
def test_an_error_on_purpose_arrives_as_the_same_class_with_the_same_words(
    kind: type[LlmbError],
) -> None:
    error = child._error(Failure(error=kind.__name__, message="why"))
    assert type(error) is kind
    assert str(error) == "why"


@pytest.mark.parametrize("name", ["VendorError", "", "annotations"])
def test_an_error_of_an_unknown_class_is_a_failed_run(name: str) -> None:
    error = child._error(Failure(error=name, message="why"))
    assert type(error) is RunFailedError
    assert str(error) == "why"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Channel]:
    """Give the supervisor's end of the channel that ``serve`` will connect to."""
    ours, theirs = map(Channel, socket.socketpair())
    monkeypatch.setattr(wire, "connect", lambda: theirs)
    yield ours
    ours.close()
    theirs.close()
    gc.unfreeze()


def failing(error: Exception):
    def work(channel: Channel) -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("raised", "name", "message"),
    [
        (UsageError("bad flag"), "UsageError", "bad flag"),
        (NotEnoughMemoryError("too big"), "NotEnoughMemoryError", "too big"),
        (KeyError("x"), "RunFailedError", "KeyError: 'x'"),
        (ValueError("first\nsecond"), "RunFailedError", "ValueError: first"),
        (ValueError(), "RunFailedError", "ValueError: "),
        (MemoryError(), "NotEnoughMemoryError", "MemoryError: "),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"),
            "NotEnoughMemoryError",
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried 9 bytes",
        ),
        (
            RuntimeError("X out of memory."),
            "NotEnoughMemoryError",
            "RuntimeError: X out of memory.",
        ),
        (RuntimeError("shape mismatch"), "RunFailedError", "RuntimeError: shape mismatch"),
        (UsageError("half a \udcff"), "UsageError", "half a \\udcff"),
        (OSError("half a \udcff"), "RunFailedError", "OSError: half a \\udcff"),
        (UsageError("x" * 10**6), "UsageError", "x" * 2000 + "..."),
    ],
    ids=lambda value: repr(value)[:30],
)
@pytest.mark.filterwarnings("default")
def test_whatever_goes_wrong_in_a_child_is_reported_once_in_one_line(
    served: Channel, raised: Exception, name: str, message: str
) -> None:
    wire.serve(failing(raised))
    assert served.receive(0) == Failure(error=name, message=message)
    assert served.receive(0) is None


def test_an_unforeseen_error_leaves_its_traceback_for_the_log(
    served: Channel, capfd: pytest.CaptureFixture[str]
) -> None:
    wire.serve(failing(KeyError("deep")))
    assert "Traceback" in capfd.readouterr().err
    wire.serve(failing(UsageError("on purpose")))
    assert capfd.readouterr().err == ""


def test_a_child_whose_supervisor_is_gone_ends_in_silence(
    served: Channel, capfd: pytest.CaptureFixture[str]
) -> None:
    served.close()
    wire.serve(lambda channel: channel.expect(AuditRequest))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("work", [lambda channel: None, failing(KeyError("x"))])
def test_a_child_that_has_done_its_work_ends_without_looking_for_garbage(
    served: Channel, work: Callable[[Channel], None]
) -> None:
    wire.serve(work)
    assert gc.get_freeze_count() > 0
