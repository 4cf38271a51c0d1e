"""List the operators inside programs made by ``torch.compile``, with tensor types.

The source is torch's structured trace: the records that ``TORCH_TRACE`` would write to a folder. A
listener in this process reads the records: no environment variable, no file. torch announces a
program both when compiled and when loaded from a cache, and cache keys do not depend on listeners:
a run executes the same programs with and without the listener. Without compilation, the listener
receives nothing and costs nothing.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from torch.fx import graph as fx_graph

from llmb.observe.executed_operators import Call

#: Programs after all passes of the compiler, before code generation. torch 2.8 and 2.9 use the name
#: "after" when compiling, and the other name for a program found in a cache.
_LOWERED = frozenset(("inductor_post_grad_graph", "after_post_grad_graph"))
#: Programs that torch's autograd passes to any compiler.
_CAPTURED = frozenset(("aot_forward_graph", "aot_backward_graph", "aot_inference_graph"))
_TRACED = frozenset(("dynamo_output_graph",))  # before any compiler: Python functions, no operators

_LOGGER = "torch.__trace"
_ANNOTATION = re.compile(r"([a-z][a-z0-9_]{0,30})\[")
_UNNAMEABLE = re.compile(r"^(\s*)class <[^>\n]*>", re.MULTILINE)

#: Key of a compiled frame, from the record's metadata.
_Frame = tuple[str, ...]


class CompiledPrograms(logging.Handler):
    """Keeps the programs announced while listening."""

    def __init__(self) -> None:
        """Start to listen; plugins and the first programs come later."""
        super().__init__()
        #: Number of records of any kind: while the number stays equal, nothing is being compiled.
        self.records = 0
        self._graphs: dict[_Frame, dict[str, list[str]]] = {}
        logging.getLogger(_LOGGER).addHandler(self)

    def close(self) -> None:
        """Stop listening."""
        logging.getLogger(_LOGGER).removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep ``record`` if the record announces a program; never raise: torch is compiling."""
        self.records += 1
        said, text = getattr(record, "metadata", None), getattr(record, "payload", None)
        if not isinstance(said, dict) or not isinstance(text, str) or not text:
            return
        name = _announced(said)
        if name is not None:
            identity = ("compiled_autograd_id", "frame_id", "frame_compile_id")
            graphs = self._graphs.setdefault(tuple(str(said.get(key)) for key in identity), {})
            graphs.setdefault(name, []).append(text)

    @property
    def frames(self) -> int:
        """Number of compiled frames: a frame has a program for each pass, forward and backward."""
        return len(self._graphs)

    def read(self) -> tuple[list[Call], int]:
        """Return the calls in all programs, and the number of frames without readable programs."""
        calls: list[Call] = []
        unread = 0
        for graphs in self._graphs.values():
            texts = _texts(graphs, _LOWERED) or _texts(graphs, _CAPTURED)
            try:
                calls += [call for text in texts for call in parse(text)]
            except (SyntaxError, ValueError, RecursionError):  # an unknown text format
                texts = []
            unread += not texts
        return calls, unread


def _announced(said: dict[str, Any]) -> str | None:
    artifact = said.get("artifact")
    named = str(artifact.get("name")) if isinstance(artifact, dict) else ""
    return next((n for n in (named, *said) if n in _LOWERED | _CAPTURED | _TRACED), None)


def _texts(graphs: dict[str, list[str]], names: frozenset[str]) -> list[str]:
    return [text for name in sorted(names) for text in graphs.get(name, ())]


def parse(text: str) -> Iterator[Call]:
    """Yield the operator calls in a program printed by torch: Python with types as strings.

    Example: ``mm: "bf16[8, 4][4, 1]cpu" = torch.ops.aten.mm.default(a, permute);  a = None``.

    Raises:
        SyntaxError: ``text`` is not Python, for example from a torch with another print format.
    """
    for node in ast.walk(ast.parse(_UNNAMEABLE.sub(r"\1class Graph", text))):
        if isinstance(node, ast.FunctionDef):
            yield from _calls(node)


def _calls(function: ast.FunctionDef) -> Iterator[Call]:
    types = {a.arg: t for a in function.args.args if (t := _type(a.annotation)) is not None}
    for line in function.body:
        if not isinstance(line, ast.Assign | ast.AnnAssign):
            continue
        # A line without a type is, for example, a tuple: elements get types when taken out.
        result = _type(line.annotation) if isinstance(line, ast.AnnAssign) else None
        if isinstance(line.value, ast.Call):
            yield from _call(line.value, types, () if result is None else (result,))
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and result:
            types[line.target.id] = result


def _call(call: ast.Call, types: dict[str, str], results: tuple[str, ...]) -> Iterator[Call]:
    given = [node for part in (*call.args, *call.keywords) for node in ast.walk(part)]
    named = (types[n.id] for n in given if isinstance(n, ast.Name) and n.id in types)
    operands = tuple(dict.fromkeys(named))
    # A higher-order operator names the called operators among the arguments.
    for node in (call.func, *(n for n in given if isinstance(n, ast.Attribute))):
        operator = _operator(node)
        if operator is not None:
            yield Call(operator, operands, results)


def _operator(node: ast.expr) -> str | None:
    """Return ``aten::mm`` for ``torch.ops.aten.mm.default``; None if ``node`` is no operator."""
    parts = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else []
    # Higher-order operators have no overload. Fewer parts belong to a name already seen.
    wanted = 4 if parts[2:3] == ["higher_order"] else 5
    return (
        f"{parts[2]}::{parts[3]}"
        if parts[:2] == ["torch", "ops"] and len(parts) == wanted
        else None
    )


def _type(annotation: ast.expr | None) -> str | None:
    if not isinstance(annotation, ast.Constant) or not isinstance(annotation.value, str):
        return None
    found = _ANNOTATION.match(annotation.value)
    return _torchs_names().get(found.group(1), found.group(1)) if found else None


@cache
def _torchs_names() -> dict[str, str]:
    """Return short name -> torch's name of every type, from the table torch prints with."""
    table = getattr(fx_graph, "dtype_abbrs", {})
    return {short: str(dtype).removeprefix("torch.") for dtype, short in table.items()}
