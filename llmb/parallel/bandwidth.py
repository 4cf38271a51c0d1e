"""Bus bandwidth of collectives and messages between the ranks, as nccl-tests defines it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import get_args

import torch
import torch.distributed as dist
from torch import Tensor

from llmb import clock
from llmb.errors import RunFailedError
from llmb.parallel.ranks import Ranks
from llmb.plugin.backend import Backend, memory_of
from llmb.records.interconnect import CollectiveKind, CollectiveRate

#: Sizes in bytes: the smallest shows latency, the largest shows the bandwidth of a link.
_SIZES_OF_HOSTS = (64, 64 * 2**10, 2**20, 16 * 2**20)
_SIZES_OF_DEVICES = (64, 2**20, 16 * 2**20, 256 * 2**20)
_ROUNDS, _SLOW_ROUNDS = 5, 3
_SLOW_S = 0.4  # calls that take longer are slow
_ROUND_S = 0.04  # target seconds for a round of calls
_FIRST = 2  # calls that decide how many calls a round has
_MOST = 100  # calls of a round
#: Seconds of a call that are too long: a slow network is measured at fewer sizes.
_MOST_S = 2.0
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


def measure(
    backend: Backend,
    device: str,
    ranks: Ranks,
    kinds: Sequence[CollectiveKind] = get_args(CollectiveKind),
) -> Iterator[CollectiveRate]:
    """Yield the rate of each collective of ``kinds`` at up to four sizes: collective calls.

    A size is left out if its buffers do not fit into an eighth of the free memory, or if a call
    would take more than 2 s. Example: no 16 MiB over a network of 5 MB/s.

    Raises:
        RunFailedError: a collective gives a wrong result, or another rank failed.
    """
    world_size = ranks.place.world_size
    on_host = torch.device(device).type == "cpu"
    sizes = _SIZES_OF_HOSTS if on_host else _SIZES_OF_DEVICES
    free = memory_of(backend).available_bytes
    room = min((own for own in ranks.gather(free) if own is not None), default=None)
    for kind in kinds:
        before: CollectiveRate | None = None
        for wanted in sizes:
            too_large = room is not None and wanted > room // _MEMORY_SHARE
            # A call of 64 bytes takes time for latency, and says nothing of larger sizes.
            longest = 0.0
            if before is not None and before.bytes > sizes[0]:
                longest = before.seconds * wanted / before.bytes
            if too_large or longest > _MOST_S:
                continue
            count = max(1, wanted // 4 // world_size) * world_size  # ranks have equal parts
            call, result = _collective(kind, count, device, ranks)
            call()
            backend.synchronize()
            _check(kind, result, ranks)
            calls, rounds_s = _rounds(call, backend, ranks)
            before = rate_of(kind, 4 * count, world_size, calls, rounds_s)
            yield before


def rate_of(
    kind: CollectiveKind, size: int, ranks: int, calls: int, rounds_s: Sequence[float]
) -> CollectiveRate:
    """Return the rate of rounds of ``calls`` calls each; ``rounds_s`` are the seconds of a call."""
    seconds = median(rounds_s)
    return CollectiveRate(
        kind=kind,
        bytes=size,
        seconds=seconds,
        bus_bytes_per_second=bus_bytes_per_second(kind, size, ranks, seconds),
        bytes_per_second=size / seconds,
        rounds_s=tuple(rounds_s),
        calls=calls,
    )


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
        # torch 2.13 renamed the function, and warns of the old name.
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        return lambda: gather(whole, mine), whole
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


def _rounds(
    call: Callable[[], object], backend: Backend, ranks: Ranks
) -> tuple[int, tuple[float, ...]]:
    """Return the calls of a round, and the seconds of a call in each round, on the slowest rank."""
    once = min(_rows_s(call, backend, ranks, 1, _FIRST))
    calls = min(_MOST, max(1, math.ceil(_ROUND_S / once)))
    rounds = _ROUNDS if once < _SLOW_S else _SLOW_ROUNDS
    return calls, _rows_s(call, backend, ranks, calls, rounds)


def _rows_s(
    call: Callable[[], object], backend: Backend, ranks: Ranks, calls: int, rounds: int
) -> tuple[float, ...]:
    """Return the seconds of a call in each of ``rounds`` rounds of ``calls`` calls."""
    every = ranks.gather([_row_s(call, backend, calls) for _ in range(rounds)])
    return tuple(max(each) for each in zip(*every, strict=True))


def _row_s(call: Callable[[], object], backend: Backend, calls: int) -> float:
    begin = clock.now_ns()
    for _ in range(calls):
        call()
    backend.synchronize()
    return (clock.now_ns() - begin) / 1e9 / calls
