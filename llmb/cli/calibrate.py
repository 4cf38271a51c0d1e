"""``llmb calibrate``: the ceilings of a device, outside a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli import completion
from llmb.cli.amounts import Amount
from llmb.errors import UsageError

if TYPE_CHECKING:
    from llmb.config import RunRequest
    from llmb.node.described import Described, Rates
    from llmb.records.ceiling import Ceiling

#: Options that need --hardware-file.
_OF_FILES = ("nproc", "network_gbps", "memory_gb")


@click.command("calibrate", short_help="Measure a device's ceilings on the model's own shapes.")
@click.option(
    "--plugin",
    metavar="NAME",
    shell_complete=completion.plugins,
    help="Vendor plugin [default: the best here].",
)
@click.option("--device", help="Any torch device string [default: the plugin's].")
@click.option("--precision", help="FP32, TF32, FP16, BF16, ... [default: the best].")
@click.option("--batch-size", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seconds", type=Amount(min=0.1), default=4.0, show_default=True)
@click.option(
    "--hardware-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also measure collectives, and describe this machine for llmb project.",
)
@click.option("--nproc", type=click.IntRange(min=1), help="Ranks of --hardware-file [all devices].")
@click.option(
    "--network-gbps",
    type=Amount(min=0.1, max=1e5),
    help="Of one device between nodes, which one node cannot measure, in Gbit/s.",
)
@click.option(
    "--memory-gb",
    type=Amount(min=0.1, max=1e5),
    help="Of one device (of a processor: of one rank) [default: as its plugin says].",
)
@click.option("--json", "as_json", is_flag=True, help="Print the measurement as JSON.")
def command(**flags: Any) -> None:
    """Measure the ceilings of a device: the model's matrix products, and the memory bandwidth.

    With --hardware-file also collectives and messages of ranks, in groups of 2, 4, ... and all
    ranks, over message sizes.

    \b
    llmb calibrate
    llmb calibrate --precision FP32 --batch-size 4 --json
    llmb calibrate --hardware-file mine.json --nproc 2 && llmb project job --workload llama-1.4b \\
        --hardware mine.json --world-size 2 --global-batch 2
    """
    from llmb import supervisor
    from llmb.config import RunRequest
    from llmb.records.canonical import as_json

    request = RunRequest(
        **{name: flags[name] for name in ("plugin", "device", "precision", "batch_size")}
    )
    if flags["hardware_file"] is None:
        alone = next((name for name in _OF_FILES if flags[name] is not None), None)
        if alone is not None:
            raise UsageError(f"--{alone.replace('_', '-')} goes with --hardware-file")
        ceiling = supervisor.calibrate(request, flags["seconds"])
        rates: Rates = {}
        found = as_json(ceiling)
    else:
        described = _described(request, flags)
        ceiling, rates = described.ceiling, described.rates
        found = as_json(ceiling) | {
            "collectives": [
                {"ranks": n, **as_json(one)} for n, some in rates.items() for one in some
            ],
            "hardware": as_json(described.hardware),
        }
    if flags["as_json"]:
        click.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    _print(ceiling, rates)
    if flags["hardware_file"] is not None:
        click.echo(f"described in {flags['hardware_file']}")


def _print(ceiling: Ceiling, rates: Rates) -> None:
    from llmb.measure.link_words import size_of

    click.echo(f"{ceiling.flops_per_second / 1e12:.3f} TFLOP/s in {ceiling.precision}")
    click.echo(f"{ceiling.memory_bytes_per_second / 1e9:.1f} GB/s memory bandwidth (copy)")
    best = ceiling.best_product_flops_per_second
    if best is not None:
        attained = f"{best / 1e12:.3f} TFLOP/s at best"
        click.echo(f"{attained}, at any product's size: no run should exceed it")

    def line(name: str, how: str, sizes: tuple[int, ...], rate: float, more: str = "") -> None:
        shape = " x ".join(map(str, sizes))
        share = "" if best is None else f"{rate / best:7.1%} of that"
        click.echo(f"  {name:<20} {how:<12} {shape:<20} {rate / 1e12:8.3f} TFLOP/s{share}{more}")

    for gemm in ceiling.gemms:
        sizes = gemm.m, gemm.k, gemm.n
        line(gemm.name, gemm.direction, sizes, 2 * math.prod(sizes) / gemm.best_s)
    held, share = ceiling.sustained, ceiling.sustained_share
    if held is not None and share is not None:
        how = f"for {held.seconds:.1f} s, {share:.1%} of its best burst"
        held_rate = f"{held.flops_per_second / 1e12:.3f} TFLOP/s"
        click.echo(f"  {held.name} {held.direction} without a gap: {held_rate} {how}")
    for square in ceiling.squares:
        sizes = (square.size,) * 3
        rate = 2 * math.prod(sizes) * square.at_once / square.best_s
        cores = f"  ({square.at_once} x one core)" if square.at_once > 1 else ""
        line("square", square.layout, sizes, rate, cores)
    for count, found in rates.items():
        for one in found:
            size, rate = size_of(one.bytes), one.bus_bytes_per_second / 1e9
            ranks, took = f"{count} ranks", f"{one.seconds * 1e6:12,.1f} us"
            click.echo(f"  {ranks:<20} {one.kind:<14} {size:>8} {took} {rate:10.3f} GB/s")


def _described(request: RunRequest, flags: Mapping[str, Any]) -> Described:
    """Write the description of this machine to --hardware-file, and return the measurements."""
    from llmb.node.described import Told, describe
    from llmb.records.canonical import pretty_bytes

    path, gbps, memory = flags["hardware_file"], flags["network_gbps"], flags["memory_gb"]
    if path.suffix != ".json":
        raise UsageError(f"--hardware-file {path}: its name must end in .json")
    if not path.parent.is_dir():
        raise UsageError(f"--hardware-file {path}: there is no folder {path.parent}")
    told = Told(
        memory_bytes=None if memory is None else int(memory * 1e9),
        network_bytes_per_second=None if gbps is None else gbps * 1e9 / 8,
    )
    described = describe(
        request,
        flags["seconds"],
        flags["nproc"],
        told,
        lambda phase: click.echo(f"measuring {phase}", err=True),
    )
    try:
        path.write_bytes(pretty_bytes(described.hardware))
    except OSError as error:
        raise UsageError(f"--hardware-file {path}: cannot be written: {error.strerror}") from None
    return described
