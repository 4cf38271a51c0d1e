"""What is fuzzed: the reader of bundles and every check of ``llmb verify``, on bytes in memory.

An input is one byte that chooses, and content: 0 is a whole zip; n is the n-th file of an honest
bundle, put in its place under a sound manifest. Whatever it is, it is verified or refused: no other
exception, no file written, no process started.
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmb.errors import BundleRefusedError, UsageError
from llmb.records import strict_json, zip_members
from llmb.records.bundle import from_files
from llmb.submission import recompute_time
from llmb.submission.manifest import zip_bytes
from llmb.submission.verify import UNFORESEEN, verify_bundle
from tests.builders import with_manifest

#: The interval is drawn 5,000 times: with a tenth of a percent of that, 100 inputs a second.
FEW_RESAMPLES = 5
MANIFEST = "MANIFEST.json"
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events (sys.addaudithook) of acts that no reader has to do.
_FORBIDDEN = (
    "os.chdir", "os.chmod", "os.exec", "os.fork", "os.kill", "os.link", "os.mkdir",
    "os.posix_spawn", "os.putenv", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.system",
    "os.truncate", "pickle.find_class", "shutil.", "socket.connect", "subprocess.Popen",
    "tempfile.",
)  # fmt: skip


class Watch:
    """Notes every forbidden act while it is on; an audit hook cannot be taken away again."""

    def __init__(self) -> None:
        self.on, self.acts = False, list[str]()
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            _, mode, flags = arguments
            if flags & _WRITING or (isinstance(mode, str) and set(mode) & set("wax+")):
                self.acts.append(f"opened {arguments[0]!r} for writing")
        elif event.startswith(_FORBIDDEN):
            self.acts.append(f"{event} {arguments!r:.200}")


class Target:
    """Holds the honest files and judges what becomes of each input."""

    def __init__(self, honest: Mapping[str, bytes]) -> None:
        self.files = {name: raw for name, raw in honest.items() if name != MANIFEST}
        self.names = sorted(self.files)
        self.watch = Watch()
        self.verified = self.refused = 0
        recompute_time._RESAMPLES = FEW_RESAMPLES
        sys.dont_write_bytecode = True  # of what is imported late

    def seeds(self, longest: int) -> dict[str, bytes]:
        """Return name -> input of the honest bundle as a zip and of each file of it."""
        found = {"small zip": b"\0" + zip_bytes(with_manifest(self._small()))}
        whole = b"\0" + zip_bytes(with_manifest(self.files))
        if len(whole) < longest:
            found["zip"] = whole
        for number, name in enumerate(self.names, start=1):
            if len(self.files[name]) < longest:
                found[name.replace("/", "_")] = bytes([number]) + self.files[name]
        return found

    def _small(self) -> dict[str, bytes]:
        return {name: raw[:300] for name, raw in self.files.items()}

    def one(self, data: bytes) -> None:
        """Verify one input.

        Raises:
            AssertionError: it was neither verified nor refused in one line.
        """
        refusal = ""
        self.watch.acts.clear()
        self.watch.on = True
        try:
            self._verify(data)
            self.verified += 1
        except (BundleRefusedError, UsageError) as error:
            refusal = str(error)
            self.refused += 1
        finally:
            self.watch.on = False
        assert not self.watch.acts, self.watch.acts
        assert "\n" not in refusal, f"a refusal of several lines: {refusal}"
        assert len(refusal) < 5000, f"a refusal of {len(refusal)} characters"

    def _verify(self, data: bytes) -> None:
        choice = data[0] if data else 0
        if choice == 0 or choice > len(self.names):
            try:
                files = zip_members.read_bytes(data[1:], "input")
            except BundleRefusedError:
                return
            bundle = from_files(files)
        else:
            changed = {**self.files, self.names[choice - 1]: data[1:]}
            bundle = from_files(with_manifest(changed))
        for check in verify_bundle(bundle).checks:
            said = f"{check.name}: {check.message}"
            assert UNFORESEEN not in said, said
            assert "\n" not in said, f"a refusal of several lines: {said}"
            assert len(said) < 5000, f"a refusal of {len(said)} characters"


# -- changes that keep the form, so that more than a parser is reached ------------------------

VALUES: tuple[Any, ...] = (
    0, 1, -1, 2**31, 2**63, -(2**63), 10**19, 99999999999999999999, 0.0, -0.0, 0.5, 1e308, -1e308,
    5e-324, 1e-9, True, False, None, "", "x", "\x1b[2J", "../../x", "<b>", "\u202e", "x" * 400, [],
    {}, [[]], [None], {"a": 1}, [0] * 100, ["x"] * 100,
)  # fmt: skip


def mutate(data: bytes, longest: int, seed: int, plain: Callable[[bytes, int], bytes]) -> bytes:
    """Return ``data`` with one change: of a JSON value, a number of a zip, or as ``plain`` does."""
    draw = random.Random(seed)
    if len(data) < 2 or draw.random() < 0.3:
        return plain(data, longest)
    head, content = data[:1], data[1:]
    try:
        if content.startswith(b"PK"):
            changed = _other_number(content, draw)
        elif content[:1] in (b"{", b"["):
            changed = _other_json(content, draw)
        else:
            changed = _other_header(content, draw)
    except (ValueError, struct.error, zipfile.BadZipFile, RecursionError):
        return plain(data, longest)
    return (head + changed)[:longest]


def plain(data: bytes, longest: int) -> bytes:
    """Return ``data`` with one byte changed: what is done without a fuzzer."""
    draw = random.Random(data)
    place = draw.randrange(len(data) + 1)
    return (data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :])[:longest]


def _other_json(content: bytes, draw: random.Random) -> bytes:
    value = json.loads(content)
    places: list[tuple[Any, Any]] = []

    def walk(item: Any) -> None:
        keys = item if isinstance(item, dict) else range(len(item))
        for key in keys:
            places.append((item, key))
            if isinstance(item[key], (dict, list)):
                walk(item[key])

    if isinstance(value, (dict, list)):
        walk(value)
    if not places:
        return json.dumps(draw.choice(VALUES)).encode()
    item, key = draw.choice(places)
    act = draw.randrange(6)
    if act == 0:
        del item[key]
    elif act == 1:
        other, there = draw.choice(places)
        item[key] = json.loads(json.dumps(other[there]))
    elif act == 2 and isinstance(item, list):
        item.append(item[key])
    elif act == 3 and isinstance(item[key], (int, float)) and not isinstance(item[key], bool):
        item[key] = draw.choice((item[key] * 2, -item[key], item[key] + 1, item[key] / 3))
    else:
        item[key] = draw.choice(VALUES)
    return json.dumps(value, indent=draw.choice((None, 1)), ensure_ascii=False).encode(
        errors="replace"
    )


def _other_number(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    signature = draw.choice((b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"))
    places = [n for n in range(len(changed)) if changed.startswith(signature, n)]
    place = draw.choice(places or [0]) + draw.randrange(46)
    form = draw.choice(("<B", "<H", "<L"))
    most = 256 ** struct.calcsize(form) - 1
    value = draw.choice((0, 1, most, most // 2, draw.randrange(most)))
    struct.pack_into(form, changed, min(place, len(changed) - 4), value)
    return bytes(changed)


def _other_header(content: bytes, draw: random.Random) -> bytes:
    """Change the header of a safetensors file, which is JSON behind its length, or a value."""
    (length,) = struct.unpack_from("<Q", content)
    if draw.random() < 0.3 and len(content) > 8 + length + 4:
        changed = bytearray(content)
        place = draw.randrange(8 + length, len(content) - 4)
        numbers = (0.0, float("nan"), float("inf"), -1e38, 1e-45)
        struct.pack_into("<f", changed, place // 4 * 4, draw.choice(numbers))
        return bytes(changed)
    header = _other_json(content[8 : 8 + length], draw)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def honest_files(path: Path) -> dict[str, bytes]:
    """Return the files of the honest bundle in folder ``path``, small ones only."""
    from llmb.records import members

    return members.read_folder(path)


def same_json(raw: bytes) -> None:
    """Hold strict JSON against the library: what it takes means the same."""
    try:
        value = strict_json.loads(raw, "x")
    except BundleRefusedError:
        return
    assert strict_json.same(value, json.loads(raw))
