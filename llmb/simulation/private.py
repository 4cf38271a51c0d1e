"""What of torch is private and a simulation needs: here alone, with what it is known to work with.

A fake process group answers every collective at once with what was there; a fake tensor has shape,
dtype and device, and no memory. Tried with torch 2.13; the test of this file says where it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import flop_registry, register_flop_formula

from llmb.errors import UnavailableError

#: Two products of attention forward, five backward, which computes the scores once more: in
#: multiples of B h T^2 d multiply-adds, each two FLOPs. Whole squares, masked or not.
_FORWARD, _BACKWARD = 2, 5
#: Tensors that stand for others, with which each operation is then done.
WRAPPERS = (AsyncCollectiveTensor, DTensor)
_DEVICE = torch.ops.prim.device.default


@contextmanager
def fake_ranks(rank: int, world_size: int) -> Iterator[None]:
    """Be rank ``rank`` of ``world_size`` for the while, none of which is there.

    Raises:
        UnavailableError: this torch has no such process group.
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
    """Let DTensor forget what it did with these ranks: another mesh of the same sizes is equal."""
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
    """Return torch's schedule ``name`` over this rank's ``stages`` of ``count``.

    No other is there to say what it hands over: ``states`` are the input and the output of a
    micro-batch, by stage, and their gradients are alike.
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
        """Ranks vote on whether all know what is handed over; the others are not there to."""
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    schedule._warmup_p2p = agreed
    return schedule


def _gradient(state: Tensor) -> Any:
    """Return what goes back for ``state``; torch takes one for all or none, as a tuple."""
    return (torch.empty_like(state).detach() if state.requires_grad else None,)


def group_name(args: tuple[Any, ...]) -> str | None:
    """Return torch's name of the ranks that a collective called with ``args`` is between."""
    for value in args:
        if isinstance(value, torch.ScriptObject):
            with suppress(RuntimeError):  # its other argument of the kind is what is done: a sum
                return str(dist.ProcessGroup.unbox(value).group_name)
    return next((value for value in reversed(args) if isinstance(value, str)), None)


def fake_tensors() -> AbstractContextManager[Any]:
    """Return a context in which tensors that are made have no memory.

    Raises:
        UnavailableError: this torch has none.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as error:
        raise _unavailable(error) from error
    return FakeTensorMode(allow_non_fake_inputs=True)


def real_tensors() -> AbstractContextManager[Any]:
    """Return a context within ``fake_tensors`` in which tensors are as ever."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


@contextmanager
def resizing(told: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Tell of every storage that gets another size for the while.

    FSDP2 so gives back what it has gathered, and takes room for it again: no operation shows it.
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


def replica(make: Callable[[], Any], group: dist.ProcessGroup) -> Any:
    """Return what ``make`` makes, a replica in DDP or anything else, though none of ``group`` is.

    Replicas would read of each other that they have the same model, and wait for their sums.
    """
    torch_distributed: Any = dist
    plain = torch_distributed._verify_params_across_processes
    torch_distributed._verify_params_across_processes = lambda *_: None
    try:
        made = make()
    finally:
        torch_distributed._verify_params_across_processes = plain
    if isinstance(made, DistributedDataParallel):
        made.register_comm_hook(None, lambda state, bucket: _summed(bucket, group))
    return made


def _summed(whole: Any, group: dist.ProcessGroup) -> torch.futures.Future[Tensor]:
    """Sum in buckets as from the second step on: of a megabyte, and of 25, the last layers first.

    In the first step DDP has one bucket for all, which is ``whole``.
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
    """Tell whether autograd is on its way back."""
    return bool(torch._C._current_graph_task_id() != -1)


def device_asked_for(func: Any, args: tuple[Any, ...]) -> torch.device | None:
    """Return the device of a fake tensor where ``func`` asks for nothing else: it need not call."""
    found: torch.device | None = args[0].fake_device if func is _DEVICE else None
    return found


def bare(value: Tensor) -> Tensor:
    """Return ``value`` without what waits for its collective."""
    return value.elem if isinstance(value, AsyncCollectiveTensor) else value


def flop_formulas() -> dict[Any, Callable[..., int]]:
    """Return torch's FLOPs by operator, with attention's kernels for processors."""
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
