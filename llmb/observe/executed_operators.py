"""Which of torch's operators a piece of work runs, with the types of their tensors.

Seen by torch's own execution trace observer, which stands beside the dispatcher and changes
nothing. A ``TorchDispatchMode`` would: it makes ``torch.compile`` fall back to eager
(torch/_dynamo/convert_frame.py, "non-infra torch dispatch mode present"), so that another program
would be seen than the one that is timed. The observer sees all threads of the process, the backward
pass, the operators that compiled code calls, and those inside an operator written in Python. It
does not see what goes past the dispatcher: a compiler's own kernels, extensions, graph replays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import ExecutionTraceObserver

#: The names that C++ compilers have for the types that are not called by torch's own name.
_CPP_TYPES = {
    "c10::half": "float16",
    "float": "float32",
    "double": "float64",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "short int": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "long long int": "int64",
}
_TENSOR = re.compile(r"Tensor\(([\w:<> ]+)\)")  # one, or several in a "GenericList[...]"
_NOT_A_NAME = re.compile(r"[^a-z0-9_]+")
_LONGEST_NAME = 40


class UnobservableError(Exception):
    """Torch's observer cannot be had; the message says why."""


@dataclass(frozen=True)
class Call:
    """One call of an operator: its name and the types of the tensors it took and gave.

    Every type once, in the order of the arguments.
    """

    operator: str
    operands: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Nested:
    """A call, and the calls it was made from, the nearest first."""

    call: Call
    within: tuple[int, ...]


def watch(work: Callable[[], object]) -> dict[int, Nested]:
    """Do ``work`` and return, by number, every call of an operator that it made.

    Raises:
        UnobservableError: torch has no observer to give, or what it wrote cannot be read.
        Exception: whatever ``work`` raises.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        observer = ExecutionTraceObserver().register_callback(str(path))
        # A process has one: asked for a second, torch says yes and writes to the first's file.
        if not path.exists():
            raise UnobservableError("torch's execution trace observer is in use")
        try:
            observer.start()
            work()
        finally:
            observer.unregister_callback()  # stops, and finishes the file
        return _read(path)


def _read(path: Path) -> dict[int, Nested]:
    try:
        # Names and string arguments are whatever a plugin wrote there.
        nodes = json.loads(path.read_bytes().decode(errors="replace"), strict=False)["nodes"]
        parents: dict[int, int] = {node["id"]: node["ctrl_deps"] for node in nodes}
        calls = {node["id"]: _call(node) for node in nodes if _is_operator(node)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnobservableError(
            f"torch's execution trace cannot be read: {type(error).__name__}"
        ) from error
    return {number: Nested(call, _within(number, parents, calls)) for number, call in calls.items()}


def _is_operator(node: Mapping[str, Any]) -> bool:
    # Autograd's nodes and the ranges that anybody may mark by any name have no schema.
    return any(a["name"] == "op_schema" and a["value"] for a in node.get("attrs", ()))


def _call(node: Mapping[str, Any]) -> Call:
    return Call(node["name"], _types(node["inputs"]["types"]), _types(node["outputs"]["types"]))


def _types(texts: list[str]) -> tuple[str, ...]:
    found = (_torchs_name(name) for text in texts for name in _TENSOR.findall(text))
    return tuple(dict.fromkeys(found))


def _torchs_name(cpp: str) -> str:
    cpp = cpp.lower()
    return _CPP_TYPES.get(cpp) or _NOT_A_NAME.sub("_", cpp.removeprefix("c10::"))[:_LONGEST_NAME]


def _within(number: int, parents: Mapping[int, int], calls: Mapping[int, Call]) -> tuple[int, ...]:
    above: list[int] = []
    seen = {number}
    while (number := parents.get(number, number)) not in seen:
        seen.add(number)
        if number in calls:
            above.append(number)
    return tuple(above)
