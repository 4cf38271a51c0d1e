"""All private parts of torch that a simulation uses, such as fake process groups.

A fake process group returns from every collective at once and leaves the tensors unchanged. A fake
tensor has shape, dtype and device, and no memory. Tried with torch 2.13; the test of this file
shows which part breaks with another torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import flop_registry, register_flop_formula

from llmb.errors import UnavailableError

#: Matrix products of attention: two forward; five backward, which recomputes the scores. Each has
#: B h T^2 d multiply-adds, two FLOPs each. Masked blocks of the T x T scores are counted too.
_FORWARD, _BACKWARD = 2, 5
#: Tensor subclasses around a plain tensor; each operation is called again on the plain tensor.
WRAPPERS = (AsyncCollectiveTensor, DTensor)
_DEVICE = torch.ops.prim.device.default


@contextmanager
def fake_ranks(rank: int, world_size: int) -> Iterator[None]:
    """Act as rank ``rank`` of ``world_size``, in a context; no other rank exists.

    Raises:
        UnavailableError: this torch has no fake process group.
    """
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        raise _unavailable(error) from error
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        _forget()


def _forget() -> None:
    """Clear DTensor's caches, which take a later mesh of the same sizes for the same mesh."""
    from torch.distributed.tensor import _redistribute, debug

    _redistribute._gen_transform_infos.cache_clear()
    debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


def schedule_alone(
    name: str,
    stages: Mapping[int, nn.Module],
    count: int,
    micro_batches: int,
    states: Mapping[int, tuple[Tensor, Tensor]],
    group: dist.ProcessGroup,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Any:
    """Return torch's schedule ``name`` over the rank's ``stages`` of ``count``.

    No neighbouring rank exists to infer shapes from: ``states`` gives example input and output of
    a micro-batch per stage, such as ``{0: (ids, hidden)}``. Gradients have the same shapes.
    """
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining._utils import InferenceMode
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

    made = [
        PipelineStage(
            stage,
            number,
            count,
            torch.device("cpu"),
            input_args=states[number][0],
            output_args=states[number][1],
            input_grads=_gradient(states[number][0]),
            output_grads=_gradient(states[number][1]),
            group=group,
        )
        for number, stage in stages.items()
    ]
    kind: Any = get_schedule_class(name)
    several = issubclass(kind, PipelineScheduleMulti)
    schedule = kind(made if several else made[0], micro_batches, loss, scale_grads=False)

    def agreed(stages: list[Any], has_backward: bool, p2p_done: bool) -> None:
        """Skip the vote of all ranks on shapes, and mark the shapes as static."""
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    schedule._warmup_p2p = agreed
    return schedule


def _gradient(state: Tensor) -> Any:
    """Return an example gradient of ``state`` in a tuple; ``(None,)``: no gradient needed."""
    return (torch.empty_like(state).detach() if state.requires_grad else None,)


def group_name(args: tuple[Any, ...]) -> str | None:
    """Return torch's name of the process group in ``args``, the arguments of a collective."""
    for value in args:
        if isinstance(value, torch.ScriptObject):
            with suppress(RuntimeError):  # the other script object is the operation: a sum
                return str(dist.ProcessGroup.unbox(value).group_name)
    return next((value for value in reversed(args) if isinstance(value, str)), None)


def fake_tensors() -> AbstractContextManager[Any]:
    """Return a context in which new tensors have no memory.

    Raises:
        UnavailableError: this torch has no fake tensors.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as error:
        raise _unavailable(error) from error
    return FakeTensorMode(allow_non_fake_inputs=True)


def real_tensors() -> AbstractContextManager[Any]:
    """Return a context, for use within ``fake_tensors``, in which new tensors are real."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


@contextmanager
def resizing(told: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Call ``told`` for every resized storage within the context.

    FSDP2 frees and allocates gathered parameters by resizing; no operation shows the change.
    """
    plain = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> None:
        plain(storage, size)
        told(storage)

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = plain  # type: ignore[method-assign]


@contextmanager
def trying(pause: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Surround DTensor's trials with ``pause()`` within the context.

    DTensor asks for the shape of a result by the operation on fake tensors of full size. A run's
    trials take no memory, so that a simulation's must not count. Loss parallelism tries each time.
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    plain = ShardingPropagator._propagate_tensor_meta_non_cached

    def tried(self: ShardingPropagator, op_schema: Any) -> Any:
        with pause():
            return plain(self, op_schema)

    ShardingPropagator._propagate_tensor_meta_non_cached = tried  # type: ignore[method-assign]
    try:
        yield
    finally:
        ShardingPropagator._propagate_tensor_meta_non_cached = plain  # type: ignore[method-assign]


def hold_gradients(stage: nn.Module) -> None:
    """Let FSDP2 keep whole weights and gradients in ``stage``, as torch's schedules do."""
    if isinstance(stage, FSDPModule):
        stage.set_is_last_backward(False)
        stage.set_reshard_after_backward(False)
        stage.set_requires_gradient_sync(False)


def sum_gradients(stage: nn.Module) -> None:
    """Let replicas of ``stage`` sum their gradients, as torch's schedules do after a step."""
    from torch.distributed.pipelining import PipelineStage

    PipelineStage.perform_reduce_grad(SimpleNamespace(submod=stage), 1)  # type: ignore[arg-type]


def whole_gradients(model: nn.Module) -> Iterator[Tensor]:
    """Yield gradients that FSDP2 has not summed over ranks yet, each of full size."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for held in group.fsdp_params:
                    found = getattr(held, "_unsharded_param", None)
                    for value in (held.unsharded_accumulated_grad, getattr(found, "grad", None)):
                        if value is not None:
                            yield value


def replica(make: Callable[[], Any], group: dist.ProcessGroup) -> Any:
    """Return the result of ``make``, such as a DDP model, as the only rank in ``group``.

    DDP's constructor compares the parameters of all replicas; the check is off here. A
    communication hook sends the gradients of a DDP model, in place of the hook that ``make``
    registers.
    """
    torch_distributed: Any = dist
    replicated: Any = DistributedDataParallel
    plain = torch_distributed._verify_params_across_processes
    builtin = replicated._register_builtin_comm_hook
    torch_distributed._verify_params_across_processes = lambda *_: None
    replicated._register_builtin_comm_hook = lambda made, _: made.register_comm_hook(
        None, lambda state, bucket: _summed(bucket, group)
    )
    try:
        return make()
    finally:
        torch_distributed._verify_params_across_processes = plain
        replicated._register_builtin_comm_hook = builtin


def _summed(whole: Any, group: dist.ProcessGroup) -> torch.futures.Future[Tensor]:
    """All-reduce in DDP's buckets of the second step: 1 MiB, then 25 MiB each, last layers first.

    In the first step, DDP has one bucket for all gradients: ``whole``.
    """
    library: Any = dist
    limits = [library._DEFAULT_FIRST_BUCKET_BYTES, 25 * 2**20]
    last_first, rest = [*reversed(whole.parameters())], whole.buffer()
    for bucket in library._compute_bucket_assignment_by_size(last_first, limits)[0]:
        part, rest = rest.tensor_split([sum(last_first[index].numel() for index in bucket)])
        dist.all_reduce(part, group=group)
    found: torch.futures.Future[Tensor] = torch.futures.Future()
    found.set_result(whole.buffer())
    return found


def goes_backward() -> bool:
    """Tell whether autograd runs a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def device_asked_for(func: Any, args: tuple[Any, ...]) -> torch.device | None:
    """Return the fake tensor's device if ``func`` asks for the device; None for other operators."""
    found: torch.device | None = args[0].fake_device if func is _DEVICE else None
    return found


def bare(value: Tensor) -> Tensor:
    """Return the plain tensor in ``value``, without the wrapper of an asynchronous collective."""
    return value.elem if isinstance(value, AsyncCollectiveTensor) else value


def flop_formulas() -> dict[Any, Callable[..., int]]:
    """Return torch's FLOP formulas by operator, and formulas for attention on CPUs."""
    aten = torch.ops.aten
    for name, formula in (
        ("_scaled_dot_product_flash_attention_for_cpu", _attention_forward),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
    ):
        operator = getattr(aten, name, None)
        if operator is not None and operator not in flop_registry:
            register_flop_formula(operator)(formula)
    return dict(flop_registry)


def _attention_forward(query: Any, key: Any, *rest: Any, **named: Any) -> int:
    return _FORWARD * _square(query, key)


def _attention_backward(gradient: Any, query: Any, key: Any, *rest: Any, **named: Any) -> int:
    return _BACKWARD * _square(query, key)


def _square(query: Any, key: Any) -> int:
    batch, heads, length, width = query
    return int(2 * batch * heads * length * key[-2] * width)


def _unavailable(error: ImportError) -> UnavailableError:
    return UnavailableError(
        f"this torch ({torch.__version__}) cannot simulate ranks ({error}): use 2.13"
    )
