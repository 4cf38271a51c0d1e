"""A store that gives no answer, as of a host that is cut off, holds nobody up."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from llmb.parallel.lookout import Lookout

LIMIT = timedelta(seconds=60)


@pytest.fixture
def port():
    """The port of a store that is there."""
    store = TCPStore("127.0.0.1", 0, 2, True, LIMIT, wait_for_workers=False)
    yield store.port
    del store


def client(port):
    return TCPStore("127.0.0.1", port, 2, False, LIMIT, wait_for_workers=False)


class Line:
    """A client's way to a store, on which nothing comes through any more once it is cut."""

    def __init__(self, port, held):
        listening = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port, self.is_cut = listening.getsockname()[1], False
        self._to, self._listening, self._held = port, listening, held
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        near = self._held.enter_context(self._listening.accept()[0])
        far = self._held.enter_context(socket.create_connection(("127.0.0.1", self._to)))
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one, other):
        with suppress(OSError):  # closed, at the end of the test
            while said := one.recv(2**16):
                if not self.is_cut:
                    other.sendall(said)


@pytest.fixture
def line(port):
    with ExitStack() as held:
        yield Line(port, held)


def test_who_is_silent_is_gone_and_the_first_word_of_a_failure_counts(port):
    said = []
    lookout = Lookout(0, 2, client(port), said.append)
    try:
        assert lookout.gone() == [1]
    finally:
        assert lookout.fail("rank 1 is gone") == "rank 1 is gone"
    assert Lookout(1, 2, client(port), said.append).fail("me too") == "rank 1 is gone"


def test_a_store_that_does_not_answer_is_asked_once_and_no_more(line):
    store = client(line.port)
    store.set("alive/0", "1 there.py:1, work")
    lookout = Lookout(1, 2, store, lambda reason: None)
    assert lookout.where(0) == "there.py:1, work"
    line.is_cut = True
    assert lookout.gone() is None
    assert lookout.where(0) == ""
    assert lookout.fail("no more") == "no more"
