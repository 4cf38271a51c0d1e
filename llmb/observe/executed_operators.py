"""List the torch operators that a function runs, with tensor types.

The source is torch's execution trace observer, which stands beside the dispatcher and changes
nothing. A ``TorchDispatchMode`` would make ``torch.compile`` fall back to eager
(torch/_dynamo/convert_frame.py, "non-infra torch dispatch mode present"): the observed program
would differ from the timed program. The observer sees all threads of the process, the backward
pass, operators called by compiled code, and operators inside an operator written in Python. The
observer misses everything that bypasses the dispatcher: a compiler's own kernels, extensions, graph
replays.
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

#: C++ names of types that differ from torch's names.
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
_TENSOR = re.compile(r"Tensor\(([\w:<> ]+)\)")  # one type, or several in a "GenericList[...]"
_NOT_A_NAME = re.compile(r"[^a-z0-9_]+")
_LONGEST_NAME = 40


class UnobservableError(Exception):
    """Torch's observer is unavailable; the message gives the reason."""


@dataclass(frozen=True)
class Call:
    """A call of an operator: name, and types of the input and output tensors.

    Each type is listed once, in the order of the arguments.
    """

    operator: str
    operands: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Nested:
    """A call, and the numbers of the calls around the call, the innermost first."""

    call: Call
    within: tuple[int, ...]


def watch(work: Callable[[], object]) -> dict[int, Nested]:
    """Run ``work`` and return all operator calls of ``work``, by number.

    Raises:
        UnobservableError: torch has no observer available, or the trace file cannot be read.
        Exception: any exception of ``work``.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        observer = ExecutionTraceObserver().register_callback(str(path))
        # A process has a single observer: a second registration silently uses the first's file.
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
        # Plugins may put any bytes into names and string arguments.
        nodes = json.loads(path.read_bytes().decode(errors="replace"), strict=False)["nodes"]
        parents: dict[int, int] = {node["id"]: node["ctrl_deps"] for node in nodes}
        calls = {node["id"]: _call(node) for node in nodes if _is_operator(node)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnobservableError(
            f"torch's execution trace cannot be read: {type(error).__name__}"
        ) from error
    return {number: Nested(call, _within(number, parents, calls)) for number, call in calls.items()}


def _is_operator(node: Mapping[str, Any]) -> bool:
    # Autograd's nodes and ranges marked by user code have no schema.
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
