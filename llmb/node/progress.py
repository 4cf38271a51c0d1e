"""The saved state of an examination: enough to go on after an interruption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from llmb import __version__
from llmb.config import JsonFile
from llmb.errors import BundleRefusedError, UsageError
from llmb.records import members, strict_json
from llmb.records.bundle import parse_model
from llmb.records.canonical import pretty_bytes
from llmb.records.interconnect import CollectiveRate, HostLinks
from llmb.records.node_report import NodeDevice, NodeStep, Speed

#: Name of the file in the folder of an examination.
PROGRESS = "progress.json"
SCHEMA: Literal["llmb.node-progress/1"] = "llmb.node-progress/1"


class NodeProgress(JsonFile):
    """The options of an examination, and its finished steps."""

    schema_: Literal["llmb.node-progress/1"] = Field(alias="schema", default=SCHEMA)
    llmb_version: str = __version__
    #: ``arguments``: options of ``llmb run`` as given. ``options``: options of ``llmb node`` by
    #: name, as given.
    arguments: tuple[str, ...]
    options: dict[str, Any]
    #: Seconds of all finished steps.
    seconds: float = 0.0
    batch_size: int
    devices: tuple[NodeDevice, ...]
    steps: tuple[NodeStep, ...] = ()
    collectives: tuple[CollectiveRate, ...] = ()
    links: HostLinks | None = None
    ddp: Speed | None = None

    def write(self, folder: Path) -> None:
        """Write the state to ``folder``; an interrupted write leaves the old file unchanged."""
        new = folder / f"{PROGRESS}.new"
        new.write_bytes(pretty_bytes(self))
        os.replace(new, folder / PROGRESS)

    def check_same(self, devices: tuple[NodeDevice, ...], folder: Path) -> None:
        """Check that device names and llmb version are unchanged since the examination began.

        Raises:
            UsageError: names or version have changed: old and new figures are not comparable.
        """
        now, then = (tuple(one.name for one in each) for each in (devices, self.devices))
        differs = ""
        if now != then:
            differs = f"its devices are {', '.join(then)}, and here are {', '.join(now)}"
        elif self.llmb_version != __version__:
            differs = f"llmb {self.llmb_version} began it, and this is llmb {__version__}"
        if differs:
            raise UsageError(f"--resume {folder}: {differs}: begin a new examination")


def read(folder: Path) -> NodeProgress:
    """Return the saved state of the examination in ``folder``.

    Raises:
        UsageError: ``folder`` holds no ``progress.json``.
        BundleRefusedError: the file is damaged, or was written by a newer llmb.
    """
    file = folder / PROGRESS
    if not file.is_file():
        raise UsageError(f"{str(folder)!r} holds no {PROGRESS}: it is no folder of llmb node")
    data = strict_json.loads(members.read_file(file), str(file))
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BundleRefusedError(f"{str(file)!r} is not of schema {SCHEMA}: update llmb?")
    return parse_model(NodeProgress, data, str(file))
