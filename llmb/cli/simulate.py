"""``llmb simulate``: executes single ranks of a huge job, without memory and without peers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from llmb.cli import completion
from llmb.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from llmb.config import Parallelism
    from llmb.simulation.rank import Simulated
    from llmb.workloads import Workload

_COUNT = click.IntRange(min=1, max=10**7)
#: Most ranks: torch needs half a minute for the groups of a million ranks.
_RANKS = click.IntRange(min=1, max=10**6)
_PIPED_WIDTH = 160


@click.command("simulate", short_help="Execute ranks of a huge job without its memory.")
@click.option(
    "--workload",
    metavar="NAME|FILE.json",
    shell_complete=completion.workloads,
    required=True,
    help="llmb workload list.",
)
@click.option("--world-size", type=_RANKS, help="Ranks [default: the original's].")
@click.option("--tp", type=_COUNT, help="Ranks that share a layer [default: the original's].")
@click.option("--pp", type=_COUNT, help="Stages of layers [default: the original's].")
@click.option(
    "--zero",
    type=click.IntRange(0, 3),
    default=0,
    show_default=True,
    help="ZeRO stage, as in llmb run: 0 is DDP, 2 and 3 are FSDP2.",
)
@click.option("--schedule", default="1F1B", show_default=True, help="Of a pipeline.")
@click.option("--sequence-parallel", is_flag=True, help="With --tp.")
@click.option("--loss-parallel", is_flag=True, help="With --tp.")
@click.option("--micro-batch-size", type=_COUNT, default=1, show_default=True, help="Sequences.")
@click.option("--accumulate", type=_COUNT, help="Micro-batches of a step [default: --pp].")
@click.option("--sac-freq", metavar="Q/P|op", help="Checkpointed blocks, as in llmb run.")
@click.option("--mixed-precision", is_flag=True, help="Float32 weights, gathered in BF16.")
@click.option("--whole-step", is_flag=True, help="All micro-batches by the schedule itself: slow.")
@click.option("--rank", "ranks", type=click.IntRange(min=0), multiple=True, help="Several times.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**flags: Any) -> None:
    """Execute the real parallelised model for some ranks of a job, on tensors without memory.

    Shows, per rank, memory (parameters, weights, gradients, moments and activations in bytes, and
    the share of each at the peak) and work (FLOPs, collectives by kind and mesh dimension). Of a
    pipeline the first, the second and the last rank are shown; --rank selects others. Nothing is
    sent, and no number is computed.

    \b
    Examples:
      llmb simulate --workload alcf-1t --world-size 12288 --accumulate 512 --sac-freq 1/1
      llmb simulate --workload llama-3.1-8b --world-size 8 --zero 3 --micro-batch-size 2 --json
      llmb simulate --workload llama-3.1-8b --world-size 8 --zero 3 --mixed-precision --sac-freq op
    """
    from llmb.cli.run import workload_of
    from llmb.workloads import find

    name, definition = workload_of(flags["workload"])
    workload = find(name, {}, definition)
    how = _mesh(workload, flags)
    ranks = flags["ranks"] or _telling(how)
    beyond = next((rank for rank in ranks if rank >= how.world_size), None)
    if beyond is not None:
        raise UsageError(f"--rank {beyond}: there are {how.world_size:,}, from 0 on")
    try:
        from llmb.simulation.rank import simulate
    except ImportError as error:
        raise UnavailableError(
            f"this torch cannot simulate ranks ({error}): install a build with torch.distributed"
        ) from error

    from rich.console import Console
    from rich.progress import track

    shown_ranks = track(
        ranks,
        description=f"simulating {len(ranks)} of {how.world_size:,} ranks",
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    found = [
        simulate(
            workload,
            how,
            rank,
            micro_batch=flags["micro_batch_size"],
            micro_batches=flags["accumulate"] or how.stages,
            sac_freq=flags["sac_freq"],
            whole_step=flags["whole_step"],
            mixed_precision=flags["mixed_precision"],
        )
        for rank in shown_ranks
    ]
    if flags["as_json"]:
        shown = [{**asdict(one), "peak_bytes": one.peak_bytes} for one in found]
        about = {"workload": workload.name, "parallelism": how.model_dump(), "ranks": shown}
        click.echo(json.dumps(about, indent=1))
        return
    _print(workload, how, found)


def _mesh(workload: Workload, flags: dict[str, Any]) -> Parallelism:
    from pydantic import ValidationError

    from llmb.config import Parallelism

    ranks = flags["world_size"] or workload.world_size
    if ranks is None:
        raise UsageError(f"{workload.name!r} names no devices: say how many with --world-size")
    tp, pp = flags["tp"] or workload.tp, flags["pp"] or workload.pp
    replicas, rest = divmod(ranks, tp * pp)
    if rest or not replicas:
        raise UsageError(
            f"--tp {tp} x --pp {pp} does not divide {ranks:,} ranks: use another --world-size"
        )
    shares = flags["zero"] > 0
    try:
        return Parallelism(
            dp_replicate=1 if shares else replicas,
            dp_shard=replicas if shares else 1,
            tp=tp,
            pp=pp,
            reshard_after_forward=flags["zero"] in (0, 3),
            sequence_parallel=flags["sequence_parallel"],
            loss_parallel=flags["loss_parallel"],
            schedule=flags["schedule"],
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"--{first['loc'][0]} {first['input']}: {first['msg']}") from None


def _telling(how: Parallelism) -> tuple[int, ...]:
    """Return the first rank of the first, second and last place in a pipeline.

    One of the three is the fullest: of all ranks with two neighbours, the second has the most
    micro-batches in flight.
    """
    each = how.world_size // how.pp
    last = how.stages - 1
    places = sorted({how.rank_of(stage) for stage in (0, min(1, last), last)})
    return tuple(place * each for place in places)


def _print(workload: Workload, how: Parallelism, found: Sequence[Simulated]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    sizes = f"pp {how.pp} x dp {how.replicas} x tp {how.tp}"
    console.print(Text(f"{workload.name} on {how.world_size:,} ranks: {sizes}", "bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("of one rank")
    for one in found:
        stages = f", stage {', '.join(map(str, one.stages))}" if one.stages else ""
        table.add_column(f"rank {one.rank:,}{stages}", justify="right")
    cells = [_cells(one) for one in found]
    for title in cells[0]:
        table.add_row(title, *(each[title] for each in cells))
    said = [{(t.kind, t.group): t for t in one.collectives} for one in found]
    for kind, group in sorted({key for each in said for key in each}):
        row = (each.get((kind, group)) for each in said)
        cells_of_row = (f"{t.calls:,} x, {_gb(t.bytes)}" if t else "" for t in row)
        table.add_row(f"{kind} ({group})", *cells_of_row)
    console.print(table)
    console.print(
        Text(
            "activations are what a forward pass leaves to the backward pass; what libraries and "
            "kernels need for themselves and an allocator's slack are not counted",
            "dim",
        )
    )


def _cells(one: Simulated) -> dict[str, str]:
    return {
        "parameters": f"{one.parameters:,}",
        "weights": _gb(one.weights_bytes),
        "gradients": _gb(one.gradients_bytes),
        "moments": _gb(one.optimizer_bytes),
        "activations of a micro-batch": _gb(one.activations_bytes),
        "micro-batches on their way": f"{one.in_flight:,}",
        **_of_schedule(one),
        "peak": _gb(one.peak_bytes),
        **{f"  {what}": _gb(size) for what, size in one.peak.items()},
        "FLOPs of a micro-batch": f"{one.flops:.4g}",
    }


def _of_schedule(one: Simulated) -> dict[str, str]:
    if one.schedule_activations_bytes is None:
        return {}
    return {"activations of a step, at most": _gb(one.schedule_activations_bytes)}


def _gb(count: int) -> str:
    return f"{count / 1e9:,.3f} GB"
