"""Which types the matrix products of a training step have (rule P2).

Two views that do not disturb the program: what one untimed step asks of torch's dispatcher, and
what the programs hold that torch.compile made. A product that a compiler fused into a kernel of its
own shows in the second only, one outside compiled code in the first only.
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

#: By the last part of a name: torch has dozens of products, and every version more.
_PRODUCT = re.compile(
    r"(?:^|_)(?:addmm|addmv|addbmm|baddbmm|bmm|mm|mv|dot|vdot|gemm|einsum|attention|convolution"
    r"|q?(?:matmul|linear|conv(?:_transpose)?[123]d))(?:_|$)"
)
_CAST = re.compile(r"(?:^|_)(?:to|copy|convert|cast|quantize)(?:_|$)")
#: The namespaces of operators that come with torch, the late ones included.
_TORCHS = re.compile(
    r"_?(?:aten|prims?|higher_order|sparse|native|export|profiler|prepacked|xnnpack|static_runtime"
    r"|quantized(?:_decomposed)?|quantization|mkl|mkldnn(?:_prepacked)?|onednn|onnx(?:_symbolic)?"
    r"|c10d(?:_functional(?:_autograd)?)?|dtensor|symm_mem|fsdp|streams|inductor(?:_prims)?|flex_lib"
    r"|cplib|rngprims|debugprims|debug_mode_ops)"
)
_ATTEMPTS = 3
_MOST_KINDS = 500  # listed, of each view
_LONGEST_NAME = 100
_MOST_TYPES = 64
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.:]")


class TypeCensus:
    """Counts operators by type; made before the plugin comes in, and used after training."""

    def __init__(self) -> None:
        """Begin to listen for compiled programs."""
        self._programs = CompiledPrograms()

    def close(self) -> None:
        """Stop listening."""
        self._programs.close()

    def step(self, forward_backward: Callable[[], object]) -> TypesEvidence:
        """Do ``forward_backward`` under observation and return what it and the compiler showed.

        It runs as it does unobserved, compiled code included. After training it runs once; again,
        as often as three times, while something is still being compiled, whose tracing of programs
        must not be taken for running them. It leaves gradients behind. A step that fails is no
        observation, and no failure of the run.
        """
        executed: list[Call] = []
        obstacle = None
        try:
            executed = self._settled(forward_backward)
        except UnobservableError as error:
            obstacle = str(error)
        except Exception as error:  # a vendor's model, and the run is over
            first = next(iter(str(error).splitlines()), "")
            obstacle = f"the observed step failed: {type(error).__name__}: {first}"[:300]
        compiled, unread = self._programs.read()
        frames = max(self._programs.frames, int(compilations.torchs_own().get("compilations", 0)))
        ran, held = _counted(executed), _counted(compiled)
        return TypesEvidence(
            executed=ran[:_MOST_KINDS],
            compiled=held[:_MOST_KINDS],
            compiled_frames=frames,
            # Frames that torch counts and nobody announced: somebody stopped the listening.
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
    if not _TORCHS.fullmatch(namespace) or "kernel_wrapper" in name:  # the latter: Triton's
        return "foreign"
    if _PRODUCT.search(name):
        return "product"
    narrow = any((bits_of_numbers(result) or 9) <= 8 for result in call.results)
    wide = any((bits_of_numbers(operand) or 0) > 8 for operand in call.operands)
    return "cast" if narrow and wide and _CAST.search(name) else None


def _outstanding(calls: dict[int, Nested]) -> Iterator[Call]:
    """Yield the calls that are of a kind, each once though operators call one another.

    Of products within products the one with the narrowest operands counts, the innermost of equals:
    autocast narrows on the way in, an emulated 8-bit product widens. Of casts the outermost.
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
    """Return the bits of the narrowest operand; many where none has numbers."""
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
