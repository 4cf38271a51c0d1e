"""Folders: links, devices, half-written ones; and what is no bundle at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from llmb.records import members
from tests.attacks.kinds import (
    ATTACKS,
    MANIFEST,
    RECORD,
    Attack,
    link_of,
    unpacked,
)


def outside(folder: Path) -> None:
    """Replace a file by a link to the very same content."""
    (folder / "sources.diff").rename(folder.parent / "sources.diff")
    (folder / "sources.diff").symlink_to(folder.parent / "sources.diff")


def listen(folder: Path) -> None:
    """Put a socket into a folder."""
    here = Path.cwd()
    os.chdir(folder)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("door")
    finally:
        os.chdir(here)


def sparse(folder: Path) -> None:
    """Make a member a terabyte long, at no cost."""
    os.truncate(folder / "sources.diff", 2**40)


def crowd(folder: Path) -> None:
    """Fill a folder with more entries than anybody looks at."""
    for number in range(members._MAX_ENTRIES + 1):
        (folder / f"d{number}").mkdir()


def unspeakable(folder: Path) -> None:
    """Make a file whose name is no text."""
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.txt")).touch()


unpacked("link to the right content", "is a link", outside)
unpacked("link to a secret", "is a link", link_of("sources.diff", "/etc/passwd"))
unpacked("link to the folder itself", "is a link", link_of("loop", "."))
unpacked("link that leads nowhere", "is a link", link_of("sources.diff", "nowhere"))
unpacked("link to an endless device", "is a link", link_of("sources.diff", "/dev/zero"))
unpacked("link for the manifest", "is a link", link_of(MANIFEST, "/proc/self/environ"))
unpacked("fifo nobody writes to", "fifo or socket", lambda folder: os.mkfifo(folder / "pipe"))
unpacked("socket", "fifo or socket", listen)
unpacked("file of a terabyte", "bytes, more than", sparse)
unpacked(
    "folders without end", "nested deeper", lambda f: (f / "/".join("d" * 30)).mkdir(parents=True)
)
unpacked("more entries than may be", r"more than \d+ entries", crowd)
unpacked("name that is no text", "control, bidi", unspeakable)
unpacked("no manifest yet", "this is not a bundle", lambda folder: (folder / MANIFEST).unlink())
unpacked("no record yet", "missing from the bundle", lambda folder: (folder / RECORD).unlink())
unpacked("half a manifest", "not strict JSON", lambda folder: os.truncate(folder / MANIFEST, 500))
unpacked("half a record", "not the file", lambda folder: os.truncate(folder / RECORD, 500))
unpacked("left-over of a writer", "not in the manifest", lambda f: (f / ".log.txt.new").touch())


def named(name: str, reason: str, make: Callable[[Path], Path], code: int) -> None:
    """Add something that is no bundle of any kind."""
    ATTACKS[name] = Attack(lambda folder, files: make(folder), reason, code)


def loop(folder: Path) -> Path:
    """Return a link to itself."""
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


def pipe(folder: Path) -> Path:
    """Return a fifo."""
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


named("nothing there", "cannot read", lambda folder: folder / "nothing", 2)
named("path of 300 letters", "cannot read", lambda folder: folder / ("a" * 300), 2)
named("path of 5,000 letters", "cannot read", lambda folder: folder / ("a/" * 2500), 2)
named("link to itself", "cannot read", loop, 2)
named("file as a folder", "cannot read", lambda folder: Path("/etc/passwd/x"), 2)
named("endless device", "not a regular file", lambda folder: Path("/dev/zero"), 6)
named("folder that may not be listed", "cannot read", lambda folder: Path("/proc/1/fd/x"), 2)
named("fifo", "not a regular file", pipe, 6)
named("file of the kernel", "", lambda folder: Path("/proc/self/maps"), 6)


def empty(folder: Path) -> Path:
    """Return an empty folder."""
    (folder / "empty").mkdir()
    return folder / "empty"


named("empty folder", "this is not a bundle", empty, 6)
