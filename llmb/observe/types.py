"""Find the tensor types of the matrix products of a training step (rule P2).

Two views that do not disturb the program: operators that an untimed step calls in torch's
dispatcher, and operators in the programs made by torch.compile. A product that a compiler fused
into a kernel shows in the second view only, a product outside compiled code in the first only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

from llmb.observe import compilations
from llmb.observe.compiled_operators import CompiledPrograms
from llmb.observe.executed_operators import Call, Nested, UnobservableError, watch
from llmb.records.evidence import OperatorTypes, TypesEvidence, bits_of_numbers

Kind = Literal["product", "cast", "foreign"]

#: Matched by the last part of a name: torch has dozens of products, and every version adds more.
_PRODUCT = re.compile(
    r"(?:^|_)(?:addmm|addmv|addbmm|baddbmm|bmm|mm|mv|dot|vdot|gemm|einsum|attention|convolution"
    r"|q?(?:matmul|linear|conv(?:_transpose)?[123]d))(?:_|$)"
)
_CAST = re.compile(r"(?:^|_)(?:to|copy|convert|cast|quantize)(?:_|$)")
#: The namespaces of operators that come with torch, including namespaces loaded late.
_TORCHS = re.compile(
    r"_?(?:aten|prims?|higher_order|sparse|native|export|profiler|prepacked|xnnpack|static_runtime"
    r"|quantized(?:_decomposed)?|quantization|mkl|mkldnn(?:_prepacked)?|onednn|onnx(?:_symbolic)?"
    r"|c10d(?:_functional(?:_autograd)?)?|dtensor|symm_mem|fsdp|streams|inductor(?:_prims)?|flex_lib"
    r"|cplib|rngprims|debugprims|debug_mode_ops)"
)
_ATTEMPTS = 3
_MOST_KINDS = 500  # listed per view
_LONGEST_NAME = 100
_MOST_TYPES = 64
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.:]")


class TypeCensus:
    """Counts operators by type; created before the plugin is loaded, used after training."""

    def __init__(self) -> None:
        """Start to listen for compiled programs."""
        self._programs = CompiledPrograms()

    def close(self) -> None:
        """Stop listening."""
        self._programs.close()

    def step(self, forward_backward: Callable[[], object]) -> TypesEvidence:
        """Run ``forward_backward`` under observation; return the operators of both views.

        The function runs as in training, compiled code included. It runs once, or up to three times
        while torch is still compiling: tracing a program must not count as running the program. The
        run leaves gradients behind. If the observed step fails, the observation is missing, but the
        benchmark run does not fail.
        """
        executed: list[Call] = []
        obstacle = None
        try:
            executed = self._settled(forward_backward)
        except UnobservableError as error:
            obstacle = str(error)
        except Exception as error:  # a vendor's model may fail, and the run is over
            first = next(iter(str(error).splitlines()), "")
            obstacle = f"the observed step failed: {type(error).__name__}: {first}"[:300]
        compiled, unread = self._programs.read()
        frames = max(self._programs.frames, int(compilations.torchs_own().get("compilations", 0)))
        ran, held = _counted(executed), _counted(compiled)
        return TypesEvidence(
            executed=ran[:_MOST_KINDS],
            compiled=held[:_MOST_KINDS],
            compiled_frames=frames,
            # Frames counted by torch but not announced: the listener was removed.
            unread_frames=unread + frames - self._programs.frames,
            obstacle=obstacle,
            omitted=len(ran[_MOST_KINDS:]) + len(held[_MOST_KINDS:]),
        )

    def _settled(self, forward_backward: Callable[[], object]) -> list[Call]:
        for _ in range(_ATTEMPTS):
            before = self._programs.records
            calls = watch(forward_backward)
            if self._programs.records == before:
                return list(_outstanding(calls))
        raise UnobservableError("every step was compiled anew")


def _kind(call: Call) -> Kind | None:
    namespace, _, name = call.operator.rpartition("::")
    if not _TORCHS.fullmatch(namespace) or "kernel_wrapper" in name:  # kernel_wrapper: Triton
        return "foreign"
    if _PRODUCT.search(name):
        return "product"
    narrow = any((bits_of_numbers(result) or 9) <= 8 for result in call.results)
    wide = any((bits_of_numbers(operand) or 0) > 8 for operand in call.operands)
    return "cast" if narrow and wide and _CAST.search(name) else None


def _outstanding(calls: dict[int, Nested]) -> Iterator[Call]:
    """Yield the calls of a known kind; of calls nested in each other, a single call.

    For products within products, the product with the narrowest operands counts, the innermost of
    equals: autocast narrows on the way in, an emulated 8-bit product widens. For casts within
    casts, the outermost cast counts.
    """
    kinds = {number: _kind(nested.call) for number, nested in calls.items()}
    dropped: set[int] = set()
    for number, kind in kinds.items():
        for outer in calls[number].within:
            if kind is None or kinds[outer] != kind:
                continue
            if kind == "product" and _width(calls[number].call) <= _width(calls[outer].call):
                dropped.add(outer)
            elif kind != "foreign":
                dropped.add(number)
    yield from (calls[n].call for n, kind in kinds.items() if kind and n not in dropped)


def _width(call: Call) -> int:
    """Return the bits of the narrowest operand; 999 if no operand has a number type."""
    return min((bits_of_numbers(operand) or 999 for operand in call.operands), default=999)


def _counted(calls: Iterable[Call]) -> tuple[OperatorTypes, ...]:
    """Return the calls by kind and types, products first, the most frequent first."""
    counts = Counter((kind, call) for call in calls if (kind := _kind(call)) is not None)
    order = {kind: place for place, kind in enumerate(get_args(Kind))}
    ranked = sorted(counts, key=lambda key: (order[key[0]], -counts[key], key[1].operator))
    return tuple(
        OperatorTypes(
            kind=kind,
            operator=_UNUSUAL.sub("_", call.operator)[:_LONGEST_NAME] or "_",
            operands=call.operands[:_MOST_TYPES],
            results=call.results[:_MOST_TYPES],
            calls=counts[kind, call],
        )
        for kind, call in ranked
    )
