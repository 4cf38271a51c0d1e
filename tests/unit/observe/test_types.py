"""Rule P2's observer: what a step runs and what was compiled, each seen without changing it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ExecutionTraceObserver, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from llmb.observe import types
from llmb.observe.compiled_operators import parse
from llmb.observe.executed_operators import Call, watch
from llmb.observe.types import TypeCensus
from llmb.plugin.discovery import torch_extensions
from llmb.records.evidence import OperatorTypes, TypesEvidence

# The compiler imports parts of torch that torch itself has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

FLOAT8 = torch.float8_e4m3fn


def nothing_compiled() -> None:
    """Forget what was compiled in this process, by other tests as well."""
    torch._dynamo.reset()  # torch imports its compiler when it is first asked for it: seconds
    torch._dynamo.utils.counters.clear()


def counted(kind: str, name: str) -> int:
    return torch._dynamo.utils.counters[kind][name]


@pytest.fixture
def census() -> Iterator[TypeCensus]:
    nothing_compiled()
    made = TypeCensus()
    yield made
    made.close()


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler that has compiled nothing yet, with an empty cache."""
    import torch._inductor.config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    nothing_compiled()
    # Which vector instructions there are it finds out by compiling for minutes, on a busy machine.
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):
        yield


def mlp(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"bias": False, "dtype": dtype}
    return nn.Sequential(nn.Linear(32, 32, **sizes), nn.SiLU(), nn.Linear(32, 32, **sizes))


def step(model: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.bfloat16) -> Any:
    x = torch.ones(16, 32, dtype=dtype)
    return lambda: model(x).sum().backward()


def brief(entries: tuple[OperatorTypes, ...], kind: str = "product") -> dict[str, int]:
    return {f"{e.operator}({', '.join(e.operands)})": e.calls for e in entries if e.kind == kind}


class Through8Bits(torch.autograd.Function):
    """Exact on the way forward, through an 8-bit type on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.to(FLOAT8).to(grad.dtype)


def narrowed(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: model(x.to(FLOAT8).to(x.dtype))


# ---- what runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_products_forward_and_backward_are_counted_with_the_types_of_their_operands(
    census: TypeCensus, dtype: torch.dtype
) -> None:
    seen = census.step(step(mlp(dtype), dtype))
    # Two forward; for the weights of both and the input of the second backward.
    assert brief(seen.executed) == {f"aten::mm({str(dtype).removeprefix('torch.')})": 5}
    assert (seen.compiled, seen.compiled_frames, seen.obstacle, seen.omitted) == ((), 0, None, 0)


def test_autocast_is_seen_by_what_it_casts_to_and_every_product_once(census: TypeCensus) -> None:
    model = mlp(torch.float32)

    def under_autocast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    seen = census.step(step(under_autocast, torch.float32))
    assert brief(seen.executed) == {"aten::mm(bfloat16)": 5}


def test_attention_kernels_are_products(census: TypeCensus) -> None:
    q = torch.ones(1, 2, 8, 16, dtype=torch.bfloat16, requires_grad=True)
    seen = census.step(
        lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    )
    attention = brief(seen.executed)
    assert len(attention) == 2
    assert all("attention" in name and "bfloat16" in name for name in attention)


@pytest.mark.parametrize("narrow", [FLOAT8, torch.float8_e5m2, torch.int8])
def test_a_cast_to_an_8_bit_type_is_seen_once_whatever_becomes_of_it(
    census: TypeCensus, narrow: torch.dtype
) -> None:
    model = mlp()
    seen = census.step(step(lambda x: model(x.to(narrow).to(x.dtype))))
    assert brief(seen.executed, "cast") == {"aten::to(bfloat16)": 1}
    cast = next(e for e in seen.executed if e.kind == "cast")
    assert cast.results == (str(narrow).removeprefix("torch."),)


def test_a_cast_in_the_backward_pass_alone_is_seen(census: TypeCensus) -> None:
    model = mlp()
    seen = census.step(step(lambda x: Through8Bits.apply(model(x))))
    assert brief(seen.executed, "cast") == {"aten::to(bfloat16)": 1}


def test_a_copy_into_an_8_bit_buffer_is_a_cast(census: TypeCensus) -> None:
    buffer = torch.empty(4, dtype=FLOAT8)

    def fill() -> None:
        buffer.copy_(torch.ones(4))

    seen = census.step(fill)
    assert brief(seen.executed, "cast") == {"aten::copy_(float8_e4m3fn, float32)": 1}


def test_views_masks_and_indices_are_no_casts(census: TypeCensus) -> None:
    def harmless() -> None:
        x = torch.ones(4, dtype=torch.bfloat16)
        x.view(torch.uint8)
        (x > 0).to(torch.uint8)
        torch.empty_like(x, dtype=torch.int8)
        x.argmax()

    assert census.step(harmless).executed == ()


def test_an_8_bit_product_counts_as_that_though_the_cpu_computes_it_in_float32(
    census: TypeCensus,
) -> None:
    a, scale = torch.ones(16, 16).to(FLOAT8), torch.ones(())

    def product() -> None:
        torch._scaled_mm(a, a.t(), scale, scale, out_dtype=torch.bfloat16)

    seen = census.step(product)
    assert brief(seen.executed) == {"aten::_scaled_mm(float8_e4m3fn, float32)": 1}


def test_products_of_another_thread_are_seen(census: TypeCensus) -> None:
    work = step(mlp())

    def elsewhere() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert brief(census.step(elsewhere).executed) == {"aten::mm(bfloat16)": 5}


def test_a_range_marked_with_an_operators_name_is_no_operator(census: TypeCensus) -> None:
    def pretend() -> None:
        with record_function("aten::mm"):
            pass

    assert census.step(pretend).executed == ()


@pytest.fixture(scope="module")
def low_product() -> Any:
    """An operator of a library that is not torch: bfloat16 outside, 8 bits inside."""

    @torch.library.custom_op("llmb_tests::low_product", mutates_args=())
    def low_product(a: Tensor, b: Tensor) -> Tensor:
        return (a.to(FLOAT8).float() @ b.to(FLOAT8).float()).to(a.dtype)

    low_product.register_fake(lambda a, b: a.new_empty(a.shape[0], b.shape[1]))
    low_product.register_autograd(
        lambda ctx, grad: (grad @ ctx.saved_tensors[1].t(), None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return low_product


def test_an_operator_of_another_library_is_named_and_if_it_is_python_its_inside_seen(
    census: TypeCensus, low_product: Any
) -> None:
    weight = torch.ones(32, 32, dtype=torch.bfloat16)
    model = nn.Linear(32, 32, dtype=torch.bfloat16)
    seen = census.step(step(lambda x: low_product(model(x), weight)))
    assert brief(seen.executed, "foreign") == {"llmb_tests::low_product(bfloat16)": 1}
    assert brief(seen.executed, "cast") == {"aten::to(bfloat16)": 2}
    assert "aten::mm(float32)" in brief(seen.executed)


def test_the_observed_step_computes_what_it_computes_unobserved(census: TypeCensus) -> None:
    model = mlp()
    step(model)()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    census.step(step(model))
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(found) == len(expected) == 2
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_step_runs_once_where_nothing_is_compiled(census: TypeCensus) -> None:
    ran = []
    census.step(lambda: ran.append(1))
    assert ran == [1]


# ---- what cannot be observed ---------------------------------------------------------------------


def test_a_step_that_fails_is_no_observation_and_no_error(census: TypeCensus) -> None:
    def fail() -> None:
        raise RuntimeError("first line\nsecond line " + "x" * 1000)

    seen = census.step(fail)
    assert seen.executed == ()
    assert seen.obstacle == "the observed step failed: RuntimeError: first line"
    assert census.step(step(mlp())).obstacle is None, "the next one is observed"


def test_where_somebody_else_uses_torchs_observer_the_step_is_not_seen(
    census: TypeCensus, tmp_path: Path
) -> None:
    taken = ExecutionTraceObserver().register_callback(str(tmp_path / "theirs.json"))
    try:
        seen = census.step(step(mlp()))
    finally:
        taken.unregister_callback()
    assert (seen.executed, seen.obstacle) == ((), "torch's execution trace observer is in use")


def test_a_step_that_is_compiled_every_time_anew_is_given_up(census: TypeCensus) -> None:
    ran = []

    def recompile() -> None:
        ran.append(1)
        logging.getLogger("torch.__trace").debug("", extra={"metadata": {}, "payload": None})

    assert census.step(recompile).obstacle == "every step was compiled anew"
    assert len(ran) == 3


def test_of_very_many_kinds_of_call_the_most_frequent_products_are_listed(
    census: TypeCensus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(types, "_MOST_KINDS", 1)
    model = mlp()
    seen = census.step(step(narrowed(model)))
    assert brief(seen.executed) == {"aten::mm(bfloat16)": 5}
    assert (len(seen.executed), seen.omitted) == (1, 1)


def test_names_that_a_file_should_not_hold_are_made_harmless() -> None:
    odd = Call("a b\x1b::" + "x" * 500, ("bfloat16",), ())
    (entry,) = types._counted([odd])
    assert entry.operator.startswith("a_b_::x")
    assert len(entry.operator) == 100


# ---- what is compiled ----------------------------------------------------------------------------


class Names(TorchDispatchMode):
    """The mode that must not be used: what torch.compile does under it is not what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
def test_a_compiled_step_stays_compiled_where_a_dispatch_mode_would_see_another_program(
    census: TypeCensus,
) -> None:
    work = step(torch.compile(mlp()))
    work()
    observed = {nested.call.operator for nested in watch(work).values()}
    with Names() as mode:
        work()
    assert "aten::silu" in mode.seen, "the trap: eager code, silently"
    assert "aten::silu" not in observed
    seen = census.step(work)
    assert brief(seen.executed) == {"aten::mm(bfloat16)": 5}
    assert counted("stats", "unique_graphs") == 1


def compiled_mlp(
    census: TypeCensus, model: Callable[[Tensor], Tensor], **how: Any
) -> TypesEvidence:
    work = step(torch.compile(model, **how))
    work()
    return census.step(work)


@pytest.mark.usefixtures("compiler")
def test_compiled_programs_are_read_forward_and_backward_from_the_cache_as_well(
    census: TypeCensus,
) -> None:
    first = compiled_mlp(census, mlp())
    assert brief(first.compiled) == {"aten::mm(bfloat16)": 5}
    assert (first.compiled_frames, first.unread_frames) == (1, 0)
    nothing_compiled()
    again = TypeCensus()
    try:
        second = compiled_mlp(again, mlp())
    finally:
        again.close()
    assert counted("inductor", "fxgraph_cache_hit") == 2
    assert second == first


@pytest.mark.usefixtures("compiler")
def test_a_program_that_was_cached_while_nobody_listened_is_read_as_well() -> None:
    step(torch.compile(mlp()))()
    nothing_compiled()
    census = TypeCensus()
    try:
        seen = compiled_mlp(census, mlp())
    finally:
        census.close()
    assert counted("inductor", "fxgraph_cache_hit") == 2
    assert brief(seen.compiled) == {"aten::mm(bfloat16)": 5}


@pytest.mark.usefixtures("compiler")
def test_a_cast_that_is_fused_into_a_kernel_shows_in_the_compiled_program(
    census: TypeCensus,
) -> None:
    seen = compiled_mlp(census, narrowed(mlp()))
    assert brief(seen.executed, "cast") == {}, "the kernel that casts is past the dispatcher"
    assert brief(seen.compiled, "cast") == {"prims::convert_element_type(bfloat16)": 1}


@pytest.mark.usefixtures("compiler")
def test_what_is_compiled_during_the_observed_step_is_not_taken_for_what_runs(
    census: TypeCensus,
) -> None:
    seen = census.step(step(torch.compile(mlp())))
    assert brief(seen.executed) == brief(seen.compiled) == {"aten::mm(bfloat16)": 5}
    assert {entry.kind for entry in seen.executed} == {"product"}


@pytest.mark.usefixtures("compiler")
def test_of_a_step_that_is_compiled_in_part_the_whole_is_seen(
    census: TypeCensus, low_product: Any
) -> None:
    eager, weight = mlp(torch.float32), torch.ones(32, 32, dtype=torch.bfloat16)
    compiled = torch.compile(lambda x: low_product(x, weight))
    work = step(lambda x: eager(compiled(x).float()))
    work()
    seen = census.step(work)
    assert brief(seen.executed)["aten::mm(float32)"] >= 5
    assert brief(seen.compiled, "foreign") == {"llmb_tests::low_product(bfloat16)": 1}
    assert "llmb_tests::low_product(bfloat16)" in brief(seen.executed, "foreign")


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("backend", "unread"), [("eager", 1), ("aot_eager", 0)])
def test_of_another_compiler_the_program_it_is_given_is_read_where_there_is_one(
    census: TypeCensus, backend: str, unread: int
) -> None:
    seen = compiled_mlp(census, mlp(), backend=backend)
    assert (seen.compiled_frames, seen.unread_frames) == (1, unread)
    assert brief(seen.compiled) == ({} if unread else {"aten::mm(bfloat16)": 5})
    assert brief(seen.executed) == {"aten::mm(bfloat16)": 5}


@pytest.mark.usefixtures("compiler")
def test_changed_settings_of_the_compiler_and_of_its_logging_do_not_end_the_listening(
    census: TypeCensus,
) -> None:
    torch._logging.set_logs()
    with torch._inductor.config.patch(post_grad_custom_post_pass=None, fx_graph_cache=False):
        seen = compiled_mlp(census, mlp())
    assert brief(seen.compiled) == {"aten::mm(bfloat16)": 5}


@pytest.mark.usefixtures("compiler")
def test_programs_that_were_compiled_while_the_listening_was_stopped_are_known_to_be_missing(
    census: TypeCensus,
) -> None:
    census.close()
    seen = compiled_mlp(census, mlp(), backend="aot_eager")
    assert (seen.compiled, seen.compiled_frames, seen.unread_frames) == ((), 1, 1)


@pytest.mark.usefixtures("compiler")
def test_a_program_in_an_unknown_form_is_known_to_be_missing(
    census: TypeCensus, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("torch.__trace")
    said = {"aot_forward_graph": {}, "frame_id": 0, "frame_compile_id": 0}
    logger.debug("", extra={"metadata": said, "payload": "graph { not python }"})
    seen = census.step(lambda: None)
    assert (seen.compiled, seen.compiled_frames, seen.unread_frames) == ((), 1, 1)


# ---- how a program is written ----------------------------------------------------------------


def calls(
    *lines: str, name: str = "GraphModule", arguments: str = 'a: "bf16[8, 4][4, 1]cpu"'
) -> Any:
    body = "\n".join(f"        {line}" for line in lines)
    return list(
        parse(f"class {name}(torch.nn.Module):\n    def forward(self, {arguments}):\n{body}")
    )


MM = 'mm: "f32[8, 8]" = torch.ops.aten.mm.default(a, b);  a = b = None'
TWO = 'a: "bf16[8, 4][4, 1]cpu", b: "f8e4m3fn[4, 8]"'


@pytest.mark.parametrize("name", ["GraphModule", "<lambda>"])
def test_types_are_found_by_name_whatever_the_class_of_the_program_is_called(name: str) -> None:
    assert calls(MM, name=name, arguments=TWO) == [
        Call("aten::mm", ("bfloat16", "float8_e4m3fn"), ("float32",))
    ]


def test_a_program_within_a_program_has_names_of_its_own() -> None:
    inner = 'class <lambda>(torch.nn.Module):\n    def forward(self, a: "i8[4]"):\n        ' + MM
    outer = (
        "class GraphModule(torch.nn.Module):\n    def forward(self, b: 'f16[4]'):\n        " + MM
    )
    found = list(parse(outer + "\n    " + inner.replace("\n", "\n    ")))
    assert {call.operands for call in found} == {("float16",), ("int8",)}


def test_parts_of_a_tuple_have_the_types_that_are_written_at_them() -> None:
    lines = (
        "split = torch.ops.aten.split.Tensor(a, 2)",
        'getitem: "f8e5m2[4]" = split[0]',
        'mm: "f32[8, 8]" = torch.ops.aten.mm.default(getitem, getitem)',
    )
    assert calls(*lines)[-1] == Call("aten::mm", ("float8_e5m2",), ("float32",))


def test_an_operator_among_the_arguments_of_another_is_a_call_too() -> None:
    line = (
        "auto = torch.ops.higher_order.auto_functionalized("
        "torch.ops.vendor.scale.default, x = a, names = [a])"
    )
    assert calls(line) == [
        Call("higher_order::auto_functionalized", ("bfloat16",), ()),
        Call("vendor::scale", ("bfloat16",), ()),
    ]


def test_kernels_of_the_users_own_are_operators_whose_inside_does_not_show() -> None:
    line = (
        "triton = torch.ops.higher_order.triton_kernel_wrapper_mutation("
        "kernel_idx = 0, grid = [(1, 1, 1)], kwargs = {'x': a})"
    )
    (entry,) = types._counted(calls(line))
    assert (entry.kind, entry.operands) == ("foreign", ("bfloat16",))


def test_types_that_torch_has_no_short_name_for_are_kept_as_they_are_written() -> None:
    assert calls(MM, arguments='a: "f6new[4]", b: "Sym(s0)"')[0].operands == ("f6new",)


@pytest.mark.parametrize(
    "name",
    [
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "linear", "mv", "dot", "einsum"),
        *("_scaled_mm", "_scaled_mm_v2", "_scaled_grouped_mm", "_grouped_mm", "_int_mm", "addmm_"),
        *("_weight_int8pack_mm", "_addmm_activation", "linear_backward", "convolution", "conv2d"),
        *("_convolution", "convolution_backward", "conv_transpose1d", "_linear_pointwise"),
        *("_scaled_dot_product_flash_attention", "_efficient_attention_backward", "flex_attention"),
        *("_scaled_dot_product_cudnn_attention", "qlinear_pointwise", "_cslt_sparse_mm"),
    ],
)
def test_products_are_known_by_name(name: str) -> None:
    assert types._kind(Call(f"aten::{name}", ("bfloat16",), ("bfloat16",))) == "product"


@pytest.mark.parametrize(
    "name",
    ["linspace", "upsample_linear1d", "silu", "_fused_sdp_choice", "dropout", "comm", "gemma"],
)
def test_other_operators_are_no_products(name: str) -> None:
    assert types._kind(Call(f"aten::{name}", ("bfloat16",), ("bfloat16",))) is None


@pytest.mark.skipif(bool(torch_extensions()), reason="what torch loads by itself has its own")
def test_no_operator_of_torch_is_foreign() -> None:
    import torch._inductor.compile_fx
    import torch.distributed.tensor

    registered = {name.split("::")[0] for name in torch._C._dispatch_get_all_op_names()}
    # Other tests of this process have registered theirs, and packages that they imported.
    registered -= {name for name in registered if name.startswith("llmb_") or name in sys.modules}
    assert {"aten", "prims", "mkldnn"} <= registered
    # The last is a mark of torch's pipelines, which never runs.
    known = {"_test", "_inductor_test", "pippy"}
    assert {n for n in registered if not types._TORCHS.fullmatch(n)} <= known
