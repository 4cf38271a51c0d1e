"""Processes that the fork server makes are as far from each other as new processes are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from llmb.errors import RunFailedError
from llmb.wire import forking
from llmb.wire.child import Child
from llmb.wire.forking import Forked, ForkServer, NoForkError
from llmb.wire.messages import Phase

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans over")

#: What a process tells of itself, and a mark it leaves in torch.
TELL = """
import json, os, random, sys
import torch
import torch._dynamo  # as any optimizer does; it writes where its cache lies into the environment
from llmb.wire.channel import serve
from llmb.wire.messages import Phase
def work(channel):
    import numpy
    facts = {
        "environment": dict(os.environ),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "inherited": [n for n in range(3, 64) if os.path.exists(f"/proc/self/fd/{n}")
                      and os.get_inheritable(n)],
        "session": os.getsid(0) == os.getpid(),
        "parent": os.getppid(),
        "threads": len(os.listdir("/proc/self/task")),
        "torch_threads": torch.get_num_threads(),
        "random": [random.random(), float(numpy.random.rand()), torch.initial_seed()],
        "marked": hasattr(torch, "marked"),
        "argv": sys.orig_argv[-2],
        "name": __name__,
        "llmb": sorted(n for n in sys.modules if n.startswith("llmb_")),
        "input": os.readlink("/proc/self/fd/0"),
        "shared": [
            line for line in open("/proc/self/maps") if line.split()[1] == "rw-s"
        ],
    }
    torch.marked = True
    print("out")
    print("err", file=sys.stderr)
    channel.send(Phase(name=json.dumps(facts)))
serve(work)
"""
#: Says whether it can write to the memory of the processes it is told of.
OPEN = """
from llmb.wire.channel import serve
from llmb.wire.messages import Phase
def work(channel):
    while True:
        pid = channel.expect(Phase).name
        try:
            open(f"/proc/{pid}/mem", "r+b").close()
            channel.send(Phase(name="open"))
        except PermissionError:
            channel.send(Phase(name="closed"))
serve(work)
"""
#: Says whether a look at torch is at hand, before one is asked for and afterwards.
LOOK = """
from llmb.observe import namespace
from llmb.wire.channel import serve
from llmb.wire.messages import Phase
def work(channel):
    at_hand = [len(namespace._ready)]
    namespace.unreachable_watch()
    channel.send(Phase(name=str([*at_hand, len(namespace._ready)])))
serve(work)
"""
HANG = "import time\ntime.sleep(100)\n"
EXIT = "raise SystemExit(7)\n"


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    texts = {"tell": TELL, "open": OPEN, "look": LOOK, "hang": HANG, "leave": EXIT}
    for name, text in texts.items():
        (folder / f"{name}_child.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def serving(modules: Path) -> Iterator[Callable[[], Any]]:
    """Give a context in which a fork server is at work, which finds the modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(modules))
        patch.setattr(forking, "entry_points", lambda group: ())
        # pytest writes down in its environment which test it is at.
        variables = forking.environment
        patch.setattr(
            forking,
            "environment",
            lambda: {n: v for n, v in variables().items() if not n.startswith("PYTEST_")},
        )
        yield lambda: forking.fork_server("cpu")


@pytest.fixture(scope="module")
def server(serving: Callable[[], Any]) -> Iterator[ForkServer]:
    with serving() as server:
        assert server is not None
        yield server


@pytest.fixture
def log() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as output:
        yield output


def told(log: IO[bytes], wanted: dict[str, str] | None = None) -> dict[str, Any]:
    with Child("tell_child", wanted or {}, log) as child:
        facts: dict[str, Any] = json.loads(child.expect(Phase, 60).name)
        assert facts.pop("pid", child.pid) == child.pid
        return facts


@pytest.fixture(scope="module")
def pair(server: ForkServer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give what a forked process and a spawned one tell of themselves."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as log:
        fork = told(log)
        patch.setattr(forking, "_servers", [])
        new = told(log, dict(server._variables))
        for facts in (fork, new):
            facts["environment"].pop("PYTEST_CURRENT_TEST", None)
        log.seek(0)
        assert sorted(log.read().split()) == [b"err", b"err", b"out", b"out"]
    return fork, new


def test_a_fork_is_what_a_new_process_is(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    fork, new = ({k: v for k, v in facts.items() if k != "random"} for facts in pair)
    assert fork == new
    assert fork["parent"] == os.getpid()
    assert (fork["session"], fork["threads"], fork["shared"]) == (True, 1, [])
    assert fork["llmb"] == fork["inherited"] == []


def test_a_fork_draws_other_numbers_than_a_new_process(
    pair: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    for drawn, other in zip(*(facts["random"] for facts in pair), strict=True):
        assert drawn != other


def test_what_one_does_to_torch_and_what_it_draws_is_no_others(
    server: ForkServer, log: IO[bytes]
) -> None:
    first, second = told(log), told(log)
    assert not first["marked"]
    assert not second["marked"]
    for one, other in zip(first["random"], second["random"], strict=True):
        assert one != other


@pytest.mark.parametrize("wanted", [{}, {"ACME": "1"}], ids=["forked", "spawned"])
def test_a_process_opens_neither_the_servers_memory_nor_the_supervisors(
    server: ForkServer, log: IO[bytes], wanted: dict[str, str]
) -> None:
    """Not even as root, who may trace every process: a process of a run has given that up."""
    with Child("open_child", wanted, log) as child:
        for pid, state in ((server.pid, "closed"), (os.getpid(), "closed"), (child.pid, "open")):
            child.send(Phase(name=str(pid)))
            assert child.expect(Phase, 60).name == state, pid


@pytest.mark.parametrize(
    ("wanted", "at_hand"),
    [
        pytest.param({}, "[1, 0]", id="forked"),
        pytest.param({"ACME": "1"}, "[0, 0]", id="spawned", marks=pytest.mark.full),
    ],
)
def test_every_fork_has_the_servers_look_at_torch_until_it_takes_it(
    server: ForkServer, log: IO[bytes], wanted: dict[str, str], at_hand: str
) -> None:
    for _ in range(2):
        with Child("look_child", wanted, log) as child:
            assert child.expect(Phase, 60).name == at_hand


def test_an_exit_status_is_told(server: ForkServer, log: IO[bytes]) -> None:
    child = Child("leave_child", {}, log)
    with pytest.raises(RunFailedError, match="leave_child ended early with exit status 7"):
        child.begin()
    child.end()


def test_a_process_that_hangs_ends_with_its_context(server: ForkServer, log: IO[bytes]) -> None:
    child = Child("hang_child", {}, log)
    assert isinstance(child._process, Forked)
    with pytest.raises(subprocess.TimeoutExpired):
        child._process.wait(0.05)
    child.end()
    assert child._process.poll() == -signal.SIGKILL


def test_a_process_with_variables_of_its_own_is_spawned(server: ForkServer, log: IO[bytes]) -> None:
    with forking.noted() as starts:
        assert told(log, {"ACME": "1"})["environment"]["ACME"] == "1"
    assert starts == {"tell_child": "spawned: the plugin sets ACME"}


def test_one_that_wants_the_servers_variables_is_forked(server: ForkServer, log: IO[bytes]) -> None:
    with forking.noted() as starts:
        told(log, dict(server._variables))
    assert starts == {"tell_child": "forked"}


def test_a_changed_environment_is_not_forked_but_how_threads_wait_is(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert server.refuses({}) is None
    monkeypatch.setenv("ACME", "1")
    assert server.refuses({}) == "the environment has changed"


def test_a_server_inside_another_is_the_outer_one(
    server: ForkServer, serving: Callable[[], Any]
) -> None:
    with serving() as inner:
        assert inner is server
    assert server.refuses({}) is None


@pytest.mark.full
def test_without_its_server_a_process_is_spawned(
    serving: Callable[[], Any], log: IO[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that kills the server gains nothing: the next process is a new one."""
    monkeypatch.setattr(forking, "_servers", [])
    with serving() as server, forking.noted() as starts:
        os.kill(server.pid, signal.SIGKILL)
        assert told(log)["marked"] is False
        assert told(log)["marked"] is False
        with pytest.raises(NoForkError):
            server.fork("tell_child", log)
    assert starts["tell_child"].startswith("spawned: the fork server is gone")


def test_the_server_ends_with_its_context_and_hands_nothing_over_any_more(
    serving: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "_servers", [])
    with serving() as server:
        pid = server.pid
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()
    script = "import subprocess, time; p = subprocess.Popen(['sleep', '9']); print(p.pid)"
    orphan = int(subprocess.run([sys.executable, "-c", script], capture_output=True).stdout)
    time.sleep(0.05)
    status = Path(f"/proc/{orphan}/status").read_text()
    os.kill(orphan, signal.SIGKILL)
    assert f"PPid:\t{os.getpid()}\n" not in status


@pytest.mark.parametrize(("autoload", "there"), [(None, True), ("1", True), ("0", False)])
def test_a_torch_that_imports_a_vendors_package_makes_no_clean_process(
    monkeypatch: pytest.MonkeyPatch, autoload: str | None, *, there: bool
) -> None:
    monkeypatch.setattr(forking, "_servers", [])
    monkeypatch.setattr(forking, "entry_points", lambda group: ("torch_acme",))
    if autoload is None:
        monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    else:
        monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", autoload)
    assert forking._imports_with_torch() is there


def test_elsewhere_than_on_linux_everything_is_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_servers", [])
    monkeypatch.setattr(sys, "platform", "darwin")
    with forking.fork_server(None) as server:
        assert server is None
