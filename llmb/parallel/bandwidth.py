"""Bus bandwidth of collectives and messages between the ranks, as nccl-tests defines it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import torch
import torch.distributed as dist
from torch import Tensor

from llmb.errors import RunFailedError
from llmb.measure import clock
from llmb.parallel.ranks import Ranks
from llmb.plugin.backend import Backend, memory_of
from llmb.records.node_report import CollectiveKind, CollectiveRate

#: Sizes in bytes: the smallest shows latency, the largest shows the bandwidth of a link.
_SIZES_OF_HOSTS = (64, 64 * 2**10, 2**20, 16 * 2**20)
_SIZES_OF_DEVICES = (64, 2**20, 16 * 2**20, 256 * 2**20)
_ROW_S = 0.2  # target seconds for a timed row of calls
_FEWEST, _MOST = 3, 200
_MEMORY_SHARE = 8  # the (at most two) buffers take at most 2/8 of the free memory


def bus_bytes_per_second(kind: CollectiveKind, size: int, ranks: int, seconds: float) -> float:
    """Return the bus bandwidth of a collective of ``size`` bytes, in bytes a second.

    The bus bandwidth is size / seconds, times the share of the bytes on each link: 2(n-1)/n for
    an all-reduce, (n-1)/n for all-gather and reduce-scatter, 1 for a broadcast and for messages
    in a ring. Source: nccl-tests, doc/PERFORMANCE.md ("Bus bandwidth"), and sendrecv.cu.
    Example: an all-reduce of 4 MB over 4 ranks in 1 ms has a bus bandwidth of 6 GB/s.
    """
    share = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "send_receive": 1.0}
    return size / seconds * share.get(kind, (ranks - 1) / ranks)


def measure(backend: Backend, device: str, ranks: Ranks) -> tuple[CollectiveRate, ...]:
    """Return the rate of each collective at a few sizes: a collective call.

    Raises:
        RunFailedError: a collective gives a wrong result, or another rank failed.
    """
    world_size = ranks.place.world_size
    on_host = torch.device(device).type == "cpu"
    sizes = _SIZES_OF_HOSTS if on_host else _SIZES_OF_DEVICES
    free = memory_of(backend).available_bytes
    room = min((own for own in ranks.gather(free) if own is not None), default=None)
    found = []
    for kind in get_args(CollectiveKind):
        for wanted in sizes:
            if room is not None and wanted > room // _MEMORY_SHARE:
                continue
            count = max(1, wanted // 4 // world_size) * world_size  # ranks have equal parts
            call, result = _collective(kind, count, device, ranks)
            call()
            backend.synchronize()
            _check(kind, result, ranks)
            seconds = _slowest_s(call, backend, ranks)
            rate = bus_bytes_per_second(kind, 4 * count, world_size, seconds)
            found.append(
                CollectiveRate(
                    kind=kind, bytes=4 * count, seconds=seconds, bus_bytes_per_second=rate
                )
            )
    return tuple(found)


def _collective(
    kind: CollectiveKind, count: int, device: str, ranks: Ranks
) -> tuple[Callable[[], object], Tensor]:
    """Return a collective over ``count`` float32 numbers, and the tensor of its first result."""
    rank, part = ranks.place.rank, count // ranks.place.world_size
    whole = torch.full((count,), float(rank + 1), device=device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole), whole
    if kind == "broadcast":
        return lambda: dist.broadcast(whole, src=0), whole
    if kind == "send_receive":
        got = torch.empty_like(whole)
        return lambda: _pass_on(whole, got, ranks), got
    mine = torch.full((part,), float(rank + 1), device=device)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, mine), whole
    return lambda: dist.reduce_scatter_tensor(mine, whole), mine


def _pass_on(mine: Tensor, got: Tensor, ranks: Ranks) -> None:
    """Send ``mine`` to the next rank; receive ``got`` from the previous rank of the ring."""
    rank, n = ranks.place.rank, ranks.place.world_size
    there = dist.P2POp(dist.isend, mine, (rank + 1) % n)
    here = dist.P2POp(dist.irecv, got, (rank - 1) % n)
    for work in dist.batch_isend_irecv([there, here]):
        work.wait()


def _check(kind: CollectiveKind, result: Tensor, ranks: Ranks) -> None:
    """Compare the first result with the expected values: rank r contributed r + 1."""
    n = ranks.place.world_size
    values = {"broadcast": 1.0, "send_receive": float((ranks.place.rank - 1) % n + 1)}
    due = torch.full_like(result, values.get(kind, n * (n + 1) / 2))
    if kind == "all_gather":
        parts = torch.arange(1.0, n + 1, device=result.device)
        due = parts.repeat_interleave(result.numel() // n)
    wrong = int((result != due).sum())
    if wrong:
        raise RunFailedError(
            f"{kind} of {result.numel()} numbers gave {wrong} wrong ones on rank "
            f"{ranks.place.rank}: the connection or its library is faulty"
        )


def _slowest_s(call: Callable[[], object], backend: Backend, ranks: Ranks) -> float:
    """Return the seconds of a call: the mean over a row of calls, on the slowest rank."""
    once: float = max(ranks.gather(_row_s(call, backend, 1)))
    calls = min(_MOST, max(_FEWEST, math.ceil(_ROW_S / once)))
    slowest: float = max(ranks.gather(_row_s(call, backend, calls)))
    return slowest


def _row_s(call: Callable[[], object], backend: Backend, calls: int) -> float:
    begin = clock.now_ns()
    for _ in range(calls):
        call()
    backend.synchronize()
    return (clock.now_ns() - begin) / 1e9 / calls
