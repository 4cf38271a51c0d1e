"""``llmb calibrate``: the ceilings of a device, outside a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmb.errors import UsageError

if TYPE_CHECKING:
    from llmb.config import RunRequest
    from llmb.records.run_record import Ceiling


@click.command("calibrate", short_help="Measure what a device attains on the model's own shapes.")
@click.option("--plugin", help="Vendor plugin [default: the best available].")
@click.option("--device", help="Any torch device string [default: the plugin's].")
@click.option("--precision", help="FP32, TF32, FP16, BF16, ... [default: the best].")
@click.option("--batch-size", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=4.0, show_default=True)
@click.option(
    "--hardware-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also measure collectives, and describe this machine for llmb project.",
)
@click.option("--nproc", type=click.IntRange(min=1), help="Ranks of --hardware-file [all devices].")
@click.option(
    "--network-gbps",
    type=click.FloatRange(min=0.1, max=1e5),
    help="Of one device between nodes, which one node cannot measure, in Gbit/s.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the measurement as JSON.")
def command(
    plugin: str | None,
    device: str | None,
    precision: str | None,
    batch_size: int,
    seconds: float,
    hardware_file: Path | None,
    nproc: int | None,
    network_gbps: float | None,
    as_json: bool,
) -> None:
    """Measure what a device attains on the model's own matrix products, and its memory bandwidth.

    \b
    llmb calibrate
    llmb calibrate --precision FP32 --batch-size 4 --json
    llmb calibrate --hardware-file mine.json --nproc 2 && llmb project --workload llama-1.4b \\
        --hardware mine.json --world-size 2 --global-batch 2
    """
    from llmb import supervisor
    from llmb.config import RunRequest
    from llmb.records.canonical import pretty_bytes

    request = RunRequest(plugin=plugin, device=device, precision=precision, batch_size=batch_size)
    if hardware_file is None:
        given = {"--nproc": nproc, "--network-gbps": network_gbps}
        alone = next((name for name, value in given.items() if value is not None), None)
        if alone is not None:
            raise UsageError(f"{alone} goes with --hardware-file")
        ceiling = supervisor.calibrate(request, seconds)
    else:
        ceiling = _describe(hardware_file, request, seconds, nproc, network_gbps)
    if as_json:
        click.echo(pretty_bytes(ceiling), nl=False)
        return
    click.echo(f"{ceiling.flops_per_second / 1e12:.3f} TFLOP/s in {ceiling.precision}")
    click.echo(f"{ceiling.memory_bytes_per_second / 1e9:.1f} GB/s memory bandwidth (copy)")
    if ceiling.best_product_flops_per_second is not None:
        best = ceiling.best_product_flops_per_second / 1e12
        click.echo(f"{best:.3f} TFLOP/s at best, at any product's size: no run should exceed it")
    for gemm in ceiling.gemms:
        rate = 2 * gemm.m * gemm.k * gemm.n / gemm.best_s / 1e12
        shape = f"{gemm.m} x {gemm.k} x {gemm.n}"
        click.echo(f"  {gemm.name:<20} {gemm.direction:<12} {shape:<20} {rate:8.3f} TFLOP/s")
    for square in ceiling.squares:
        rate = 2 * square.size**3 * square.at_once / square.best_s / 1e12
        shape = f"{square.size} x {square.size} x {square.size}"
        cores = f"  ({square.at_once} x one core)" if square.at_once > 1 else ""
        click.echo(f"  {'square':<20} {square.layout:<12} {shape:<20} {rate:8.3f} TFLOP/s{cores}")


def _describe(
    path: Path,
    request: RunRequest,
    seconds: float,
    nproc: int | None,
    network_gbps: float | None,
) -> Ceiling:
    """Write the description of this machine to ``path``, and return its ceiling."""
    from llmb.node.described import describe
    from llmb.records.canonical import pretty_bytes

    def progress(phase: str) -> None:
        click.echo(f"measuring {phase}", err=True)

    network = None if network_gbps is None else network_gbps * 1e9 / 8
    hardware, ceiling, rates = describe(request, seconds, nproc, network, progress)
    try:
        path.write_bytes(pretty_bytes(hardware))
    except OSError as error:
        raise UsageError(f"--hardware-file {path}: cannot be written: {error.strerror}") from None
    for count, found in rates.items():
        for one in found:
            rate = one.bus_bytes_per_second / 1e9
            size = f"{one.bytes / 2**20:,.3g} MiB"
            click.echo(f"  {count} ranks  {one.kind:<15} {size:>10} {rate:8.2f} GB/s", err=True)
    click.echo(f"described in {path}", err=True)
    return ceiling
