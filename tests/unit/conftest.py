"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Before torch is imported anywhere: models this small are slower on more threads, and several
#: workers of pytest share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
_TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Put back what signals do to pytest: a command line takes them, and leaves them ignored."""
    before = {number: signal.getsignal(number) for number in _TAKEN}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder first on ``sys.path``; whatever is imported from it is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    yield folder
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
