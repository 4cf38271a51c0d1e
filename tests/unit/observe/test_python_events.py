"""Acts of plugin code are heard of as they happen; those of torch, llmb and Python are nobody's."""

from __future__ import annotations

import importlib.util
import marshal
import sys
import threading
from collections.abc import Callable
from importlib.machinery import SourcelessFileLoader
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
import torch

from llmb.observe.origins import CodeOrigin
from llmb.observe.python_events import BEFORE, PythonEvents
from llmb.records.evidence import Act, Origin

SOURCE = """
import bdb, ctypes, gc, inspect, logging, subprocess, sys, tempfile, threading, traceback, os
from collections import namedtuple
from torch._jit_internal import createResolutionCallbackFromFrame

def frame(): return sys._getframe()
def frame_of_inspect(): return inspect.currentframe()
def frame_of_an_error():
    try: raise ValueError
    except ValueError as error: return error.__traceback__.tb_frame
def frame_of_logging(): return logging.currentframe()
def frame_of_torch(): return createResolutionCallbackFromFrame(1)("sys")
def frame_of_a_debugger():
    try: raise ValueError
    except ValueError as error: return bdb.Bdb().get_stack(None, error.__traceback__)
def profile():
    sys.setprofile(print); sys.setprofile(None)
def trace():
    old = sys.gettrace(); sys.settrace(old)
def hook(): sys.addaudithook(lambda event, arguments: None)
def referrers(): gc.get_referrers(frame)
def process(): subprocess.run([sys.executable, "-c", ""])
def fork():
    if not (child := os.fork()): os._exit(0)
    os.waitpid(child, 0)
def thread(): start(threading.Thread(target=int))
def start(thread): thread.start(); thread.join(); return thread
def address(): ctypes.addressof(ctypes.c_int())
def memory(): open("/proc/self/mem", "rb").close()
def memory_by_two_slashes(): open("//proc/self/mem", "rb").close()
def memory_roundabout(): open(b"/dev/../proc/self/mem", "rb").close()
def memory_in_a_folder():
    folder = os.open("/proc/self", os.O_RDONLY)
    os.close(os.open("mem", os.O_RDONLY, dir_fd=folder))
    os.close(folder)
def memory_by_a_link():
    folder = tempfile.mkdtemp()
    os.symlink("/proc/self/mem", folder + "/data")
    open(folder + "/data", "rb").close()
def in_a_string(): exec("sys._getframe()")
def compiled(text, file): exec(compile(text, file, "exec"), globals()); return look
def built(text, file):
    code = compiled(text, "<string>").__code__.replace(co_filename=file)
    return type(frame)(code, globals())
def exchanged(text, file):
    act.__code__ = built(text, file).__code__
    return act
def act(): pass
def log(): logging.getLogger("acme").error("all is well")
def log_of_an_error():
    try: raise ValueError
    except ValueError: logging.getLogger("acme").exception("all is well")
def text_of_an_error():
    try: raise ValueError
    except ValueError: return traceback.format_exc()
def tuple_of_names(): namedtuple("Acme", "a b")
def file(): open("/proc/self/stat").close()
def call(function): return function()
def many(times):
    for _ in range(times): sys._getframe()
"""


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def plugin(tmp_path: Path) -> Any:
    """Return a module that lies in no package of Python's, torch's or llmb's."""
    path = tmp_path / "acme.py"
    path.write_text(SOURCE)
    module: dict[str, Any] = {"__name__": "acme"}
    exec(compile(SOURCE, str(path), "exec"), module)
    return SimpleNamespace(**module, path=str(path))


def heard(
    events: PythonEvents, path: str, fences: tuple[int, ...] = (10,), origin: Origin = "plugin"
) -> list[Act]:
    """Return the acts of the code in ``path``; the fences are after 0, 10, 20, ... steps."""

    def of(file: str) -> CodeOrigin:
        known = CodeOrigin(origin, "llmb-acme", "acme.py")
        return known if file == path else CodeOrigin("needed", None, file)

    origins: Any = SimpleNamespace(of=of)
    acts, omitted = events.acts(origins, fences, [10 * n for n in range(len(fences))])
    events.end()
    assert omitted == 0
    return list(acts)


@pytest.mark.parametrize(
    ("act", "event"),
    [
        ("frame", "sys._getframe"),
        ("frame_of_inspect", "sys._getframe"),
        ("frame_of_an_error", "read of tb_frame"),
        ("frame_of_logging", "sys._getframe"),
        ("frame_of_torch", "sys._getframe"),
        ("frame_of_a_debugger", "read of tb_frame"),
        ("text_of_an_error", "read of tb_frame"),
        ("in_a_string", "sys._getframe"),
        ("profile", "sys.setprofile"),
        ("hook", "sys.addaudithook"),
        ("referrers", "gc.get_referrers"),
        ("process", "subprocess.Popen"),
        ("fork", "os.fork"),
        ("address", "ctypes.addressof"),
        ("memory", "open of a process's memory"),
        ("memory_by_two_slashes", "open of a process's memory"),
        ("memory_roundabout", "open of a process's memory"),
        ("memory_in_a_folder", "open of a process's memory"),
        ("memory_by_a_link", "open of a process's memory"),
    ],
)
def test_an_act_of_the_plugins_is_heard_of_with_its_line(plugin: Any, act: str, event: str) -> None:
    events = PythonEvents(Clock())
    getattr(plugin, act)()
    found = {one.event: one for one in heard(events, plugin.path)}
    assert event in found
    assert found[event].place.startswith("acme.py:")
    assert found[event].place.endswith(f"in {act}")


def _tells_of_threads() -> bool:
    """Tell whether this Python has an event for a new thread: 3.11 has none."""
    told: list[str] = []
    sys.addaudithook(lambda event, arguments: told.append(event) if "thread" in event else None)
    threading.Thread(target=int).start()
    return bool(told)


@pytest.mark.skipif(not _tells_of_threads(), reason="this Python does not tell of new threads")
def test_the_line_that_starts_a_thread_is_heard_of_and_the_thread_is_its(plugin: Any) -> None:
    events = PythonEvents(Clock())
    thread = plugin.start(threading.Thread(target=int))
    (act,) = heard(events, plugin.path)
    assert act.event.startswith("_thread.start_")
    assert events.starter(thread) == plugin.path


@pytest.mark.parametrize("made", ["compiled", "built", "exchanged"])
@pytest.mark.parametrize("file", [torch.nn.functional.__file__, threading.__file__, "<string>"])
def test_code_is_its_makers_whatever_file_it_names(plugin: Any, file: str, made: str) -> None:
    """A plugin names a file of torch, and lets llmb or torch call the code."""
    events = PythonEvents(Clock())
    look = getattr(plugin, made)("def look(): return sys._getframe()", file)
    called: dict[str, Any] = {}
    code = compile("def call(function): return function()", torch.nn.modules.__file__, "exec")
    exec(code, called)  # by a test: torch's, as far as the listener knows
    called["call"](look)
    assert events.file_of(look.__code__) == plugin.path
    assert [one.event for one in heard(events, plugin.path)] == ["sys._getframe"]


def test_code_inside_of_a_module_that_names_another_file_is_the_modules(tmp_path: Path) -> None:
    """Python does not compare the names of files in a module's byte code."""
    text = "import sys\ndef look(): return sys._getframe()"
    (tmp_path / "acme_code.py").write_text(text)
    path = str(tmp_path / "acme_code.py")
    whole = compile(text, path, "exec")
    inside = [
        part.replace(co_filename=torch.__file__) if type(part) is CodeType else part
        for part in whole.co_consts
    ]
    (tmp_path / "acme_code.pyc").write_bytes(
        importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(whole.replace(co_consts=(*inside,)))
    )
    events = PythonEvents(Clock())
    loader = SourcelessFileLoader("acme_code", str(tmp_path / "acme_code.pyc"))
    spec = importlib.util.spec_from_loader("acme_code", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert events.file_of(module.look.__code__) == path
    module.look()
    assert [one.event for one in heard(events, path)] == ["sys._getframe"]


@pytest.mark.parametrize("act", ["log", "log_of_an_error", "tuple_of_names", "file"])
def test_what_python_does_for_its_own_ends_is_no_act_of_its_callers(plugin: Any, act: str) -> None:
    events = PythonEvents(Clock())
    getattr(plugin, act)()
    assert heard(events, plugin.path) == []


def test_acts_of_others_are_nobodys(plugin: Any) -> None:
    events = PythonEvents(Clock())
    plugin.frame()
    assert heard(events, plugin.path, origin="needed") == []


def test_a_tracer_that_a_thread_of_nobodys_sets_is_of_unknown_origin(plugin: Any) -> None:
    events, before = PythonEvents(Clock()), threading.getprofile()
    threading.setprofile(lambda *_: None)
    try:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    finally:
        threading.setprofile(before)  # type: ignore[arg-type]
    assert "sys.setprofile" in [one.event for one in heard(events, "", origin="unknown")]


def test_acts_are_told_by_the_block_between_fences_in_which_they_were_done(plugin: Any) -> None:
    clock = Clock()
    events = PythonEvents(clock)
    for clock.now in (5, 15, 16, 35):
        plugin.frame()
    (act,) = heard(events, plugin.path, fences=(10, 20, 30, 40))
    assert (act.count, act.blocks) == (4, (BEFORE, 0, 20))


def test_what_comes_after_the_end_of_the_stream_is_left_out(plugin: Any) -> None:
    clock = Clock()
    events = PythonEvents(clock)
    clock.now = 50
    plugin.frame()
    assert heard(events, plugin.path, fences=(10, 20)) == []


def test_acts_of_which_no_time_was_kept_may_lie_in_any_block_between(plugin: Any) -> None:
    clock = Clock()
    events = PythonEvents(clock)
    for clock.now, times in ((15, 20), (35, 20)):
        plugin.many(times)
    (act,) = heard(events, plugin.path, fences=(10, 20, 30, 40))
    assert (act.count, act.blocks) == (40, (0, 10, 20))


def test_more_lines_than_are_kept_are_counted(tmp_path: Path) -> None:
    path, source = tmp_path / "acme.py", "\n".join(["sys._getframe()"] * 60)
    events = PythonEvents(Clock())
    exec(compile(source, str(path), "exec"), {"sys": sys})
    origins: Any = SimpleNamespace(of=lambda file: CodeOrigin("plugin", None, "acme.py"))
    acts, omitted = events.acts(origins, (10,), (0,))
    assert (len(acts), omitted) == (50, 10)


def ask(read: Callable[[], object]) -> object:
    """Ask a plugin for its readings, as llmb does."""
    return read()


def test_what_llmb_asks_for_is_told_apart(plugin: Any) -> None:
    events = PythonEvents(Clock(), (ask.__code__,))
    ask(plugin.frame)
    plugin.frame()
    assert sorted(act.invited for act in heard(events, plugin.path)) == [False, True]


def test_nobody_invites_himself(plugin: Any) -> None:
    events = PythonEvents(Clock(), (ask.__code__,))
    plugin.call(lambda: ask(plugin.frame))
    (act,) = heard(events, plugin.path)
    assert not act.invited
