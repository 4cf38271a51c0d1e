"""Who comes to a process after the census is written down, with whose it is."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from llmb.observe.surroundings import ProcessCensus
from llmb.plugin import NativeLibrary
from llmb.records.evidence import Presence
from tests.unit.builders_runtime import install

HOOKS = """
import functools, threading, time
from concurrent.futures import ThreadPoolExecutor

ended = threading.Event()

def work():
    ended.wait()

@functools.lru_cache(1)
def cached():
    return ThreadPoolExecutor(1)

class Holder:
    def __init__(self):
        self.pool = ThreadPoolExecutor(1)

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None

def watch(*arguments):
    return None
"""


@pytest.fixture
def plugin(site: Path) -> Iterator[ModuleType]:
    install(site, "llmb-acme", {"acme": "acme_llmb"}, {"acme_llmb.py": HOOKS})
    module = importlib.import_module("acme_llmb")
    yield module
    module.ended.set()


def found(census: ProcessCensus, *declared: NativeLibrary) -> list[Presence]:
    return list(census.evidence("acme_llmb", "llmb-acme", declared).found)


def test_where_nobody_came_nothing_is_written_down(plugin: ModuleType) -> None:
    assert found(ProcessCensus()) == []


def test_a_thread_of_the_plugin_is_its(plugin: ModuleType) -> None:
    census = ProcessCensus()
    threading.Thread(target=plugin.work, name="helper", daemon=True).start()
    (seen,) = found(census)
    assert (seen.kind, seen.origin, seen.distribution) == ("thread", "plugin", "llmb-acme")
    assert seen.name.startswith("helper in ")


def test_a_thread_that_has_ended_is_gone(plugin: ModuleType) -> None:
    census = ProcessCensus()
    thread = threading.Thread(target=len, args=("",))
    thread.start()
    thread.join()
    assert found(census) == []


def test_a_thread_that_runs_pythons_own_code_is_nobodys(plugin: ModuleType) -> None:
    census, ended = ProcessCensus(), threading.Event()
    threading.Thread(target=ended.wait, daemon=True).start()
    (seen,) = found(census)
    ended.set()
    assert (seen.kind, seen.origin) == ("thread", "unknown")


def as_global(plugin: ModuleType) -> ThreadPoolExecutor:
    plugin.pool = ThreadPoolExecutor(1)  # type: ignore[attr-defined]
    return plugin.pool


def in_a_cache(plugin: ModuleType) -> ThreadPoolExecutor:
    return plugin.cached()


def in_an_object(plugin: ModuleType) -> ThreadPoolExecutor:
    plugin.kept = plugin.Holder()  # type: ignore[attr-defined]
    return plugin.kept.pool


@pytest.mark.parametrize("make", [as_global, in_a_cache, in_an_object])
def test_an_idle_thread_of_a_pool_is_whose_the_pool_is(
    plugin: ModuleType, make: Callable[[ModuleType], ThreadPoolExecutor]
) -> None:
    census, pool = ProcessCensus(), make(plugin)
    pool.submit(len, "").result()
    (seen,) = found(census)
    pool.shutdown()
    assert (seen.kind, seen.origin, seen.distribution) == ("thread", "plugin", "llmb-acme")


def test_an_idle_thread_of_torchs_pool_is_torchs(plugin: ModuleType) -> None:
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.pool.cache_clear()
    census, pool = ProcessCensus(), AsyncCompile.pool()
    pool.submit(len, "").result()
    seen = found(census)
    pool.shutdown()
    AsyncCompile.pool.cache_clear()
    del pool
    assert [(p.kind, p.origin) for p in seen] == [("thread", "needed")]


def test_a_child_process_that_runs_no_script_of_a_package_is_nobodys(plugin: ModuleType) -> None:
    census = ProcessCensus()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (seen,) = found(census)
    finally:
        child.kill()
        child.wait()
    assert (seen.kind, seen.origin) == ("process", "unknown")
    assert "time.sleep(60)" in seen.name


def test_a_child_process_that_runs_torchs_script_is_torchs_and_so_are_its_own(
    plugin: ModuleType, site: Path
) -> None:
    import torch.utils.collect_env as script

    script_file = script.__file__
    assert script_file is not None
    code = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', "
        "'import time; time.sleep(60)'], stdout=subprocess.DEVNULL).pid, flush=True); "
        "import time; time.sleep(60)"
    )
    census = ProcessCensus()
    child = subprocess.Popen(
        [sys.executable, "-c", code, script_file], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        seen = found(census)
        os.kill(grandchild, 9)
    finally:
        child.kill()
        child.communicate()
    assert [(p.kind, p.origin) for p in seen] == [("process", "needed")] * 2


def test_a_child_that_was_there_before_is_not_written_down(plugin: ModuleType) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert found(ProcessCensus()) == []
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def native(tmp_path: Path) -> Path:
    """A native library in a place that no package owns."""
    import _ctypes

    return Path(shutil.copy(_ctypes.__file__, tmp_path / "libfast.so")).resolve()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells what is mapped")
def test_a_library_from_a_place_of_its_own_is_nobodys_unless_declared(
    plugin: ModuleType, native: Path
) -> None:
    census = ProcessCensus()
    library = ctypes.CDLL(str(native))
    (seen,) = found(census)
    assert (seen.kind, seen.name, seen.origin) == ("library", "libfast.so", "unknown")
    declared = NativeLibrary(path=str(native), licence="EULA", where_to_get="acme.example")
    (seen,) = found(census, declared)
    assert seen.origin == "plugin"
    assert library is not None


def test_code_of_a_file_that_no_package_owns_is_heard_of_though_it_is_gone(
    plugin: ModuleType, tmp_path: Path
) -> None:
    census = ProcessCensus()
    exec(compile("x = 1", str(tmp_path / "elsewhere.py"), "exec"), {})
    exec(compile("x = 1", "<string>", "exec"), {})
    (seen,) = found(census)
    assert (seen.kind, seen.origin) == ("code", "unknown")
    assert seen.name.endswith("elsewhere.py")
    assert found(ProcessCensus()) == []


def test_code_of_packages_is_not_written_down(plugin: ModuleType) -> None:
    census = ProcessCensus()
    importlib.reload(plugin)
    importlib.reload(importlib.import_module("keyword"))
    assert found(census) == []


def test_an_import_hook_of_the_plugin_is_its(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    census = ProcessCensus()
    monkeypatch.setattr(sys, "meta_path", [plugin.Finder, *sys.meta_path])
    monkeypatch.setattr(sys, "path_hooks", [plugin.watch, *sys.path_hooks])
    seen = found(census)
    assert {(p.kind, p.origin) for p in seen} == {("import hook", "plugin")}
    assert [p.name for p in seen] == ["acme_llmb.Finder", "acme_llmb.watch"]


def test_a_callback_of_the_collector_is_written_down(plugin: ModuleType) -> None:
    census = ProcessCensus()
    gc.callbacks.append(plugin.watch)
    try:
        (seen,) = found(census)
    finally:
        gc.callbacks.remove(plugin.watch)
    assert (seen.kind, seen.name) == ("gc callback", "acme_llmb.watch")


def test_a_profiler_is_written_down(plugin: ModuleType) -> None:
    census, before = ProcessCensus(), sys.getprofile()
    sys.setprofile(plugin.watch)
    try:
        seen = found(census)
    finally:
        sys.setprofile(before)
    assert [(p.kind, p.name) for p in seen] == [("tracer", "acme_llmb.watch")]


def test_the_collectors_state_is_written_down(plugin: ModuleType) -> None:
    census, before = ProcessCensus(), gc.get_freeze_count()
    gc.disable()
    gc.freeze()
    try:
        evidence = census.evidence("acme_llmb", "llmb-acme")
    finally:
        gc.unfreeze()
        gc.enable()
    assert evidence.collecting == (True, False)
    assert evidence.frozen_objects[0] == before < evidence.frozen_objects[1]


#: What puts libraries before all others: the dynamic linkers of Linux (two ways) and of macOS.
PRELOADS = ("LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES")


@pytest.mark.parametrize("variable", PRELOADS)
def test_libraries_that_a_variable_preloads_are_written_down_as_they_were_at_the_beginning(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for each in PRELOADS:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(variable, "/usr/lib/libtcmalloc.so.4:/tmp/slow.so")
    census = ProcessCensus()
    monkeypatch.delenv(variable)
    preloaded = census.evidence("acme_llmb", "llmb-acme").preloaded
    assert [(p.name, p.origin) for p in preloaded] == [
        ("libtcmalloc.so.4", "system"),
        ("slow.so", "unknown"),
    ]


def test_native_threads_are_only_counted(plugin: ModuleType) -> None:
    evidence = ProcessCensus().evidence("acme_llmb", "llmb-acme")
    if evidence.native_threads is not None:
        before, after = evidence.native_threads
        assert 1 <= before <= after + 8
