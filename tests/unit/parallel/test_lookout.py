"""A store that gives no answer, as of a host that is cut off, holds nobody up."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from llmb.parallel.lookout import Lookout

SERVER = """
import sys
from datetime import timedelta
from torch._C._distributed_c10d import TCPStore
store = TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=60), wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server():
    """A process that serves a store, and its port."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def client(port):
    limit = timedelta(seconds=60)
    return TCPStore("127.0.0.1", port, 2, False, limit, wait_for_workers=False)


def test_who_is_silent_is_gone_and_the_first_word_of_a_failure_counts(server):
    _, port = server
    said = []
    lookout = Lookout(0, 2, client(port), said.append)
    try:
        assert lookout.gone() == [1]
    finally:
        assert lookout.fail("rank 1 is gone") == "rank 1 is gone"
    assert Lookout(1, 2, client(port), said.append).fail("me too") == "rank 1 is gone"


def test_a_store_that_does_not_answer_is_asked_once_and_no_more(server):
    process, port = server
    lookout = Lookout(1, 2, client(port), lambda reason: None)
    process.send_signal(signal.SIGSTOP)
    assert lookout.gone() is None
    assert lookout.where(0) == ""
    assert lookout.fail("no more") == "no more"
