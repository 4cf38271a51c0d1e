"""``llmb calibrate``: the ceilings of a device, outside a run."""

from __future__ import annotations

import click


@click.command("calibrate", short_help="Measure what a device attains on the model's own shapes.")
@click.option("--plugin", help="Vendor plugin [default: the best available].")
@click.option("--device", help="Any torch device string [default: the plugin's].")
@click.option("--precision", help="FP32, TF32, FP16, BF16, ... [default: the best].")
@click.option("--batch-size", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=4.0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the measurement as JSON.")
def command(
    plugin: str | None,
    device: str | None,
    precision: str | None,
    batch_size: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure what a device attains on the model's own matrix products, and its memory bandwidth.

    \b
    llmb calibrate
    llmb calibrate --precision FP32 --batch-size 4 --json
    """
    from llmb import supervisor
    from llmb.config import RunRequest
    from llmb.records.canonical import pretty_bytes

    request = RunRequest(plugin=plugin, device=device, precision=precision, batch_size=batch_size)
    ceiling = supervisor.calibrate(request, seconds)
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
