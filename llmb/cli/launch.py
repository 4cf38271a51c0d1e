"""``llmb launch``: job files for schedulers. It starts nothing: torchrun, mpiexec and srun do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from llmb.errors import UsageError


@click.command(
    "launch",
    short_help="Write a job file for many ranks.",
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "--print",
    "scheduler",
    type=click.Choice(["slurm", "pbs", "k8s"]),
    required=True,
    help="The scheduler to write for.",
)
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--ranks-per-node",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="One a device.",
)
@click.option(
    "--minutes", type=click.IntRange(min=1), default=60, show_default=True, help="Time limit."
)
@click.option("--image", help="k8s: a container image with llmb in it.")
@click.option("--resource", help="k8s: what the cluster calls a device, vendor.example/gpu.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file instead of the terminal.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    scheduler: str,
    nodes: int,
    ranks_per_node: int,
    minutes: int,
    image: str | None,
    resource: str | None,
    output: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Write a ready job file that starts `llmb run` with ARGUMENTS on many ranks.

    ARGUMENTS are read as `llmb run` reads them, so a wrong one is refused before a job is queued.
    The ranks must be as many as the options ask for: 4 nodes of 8 go with --dp-shard 32, or with
    --tp 8, which leaves 4 replicas. Files that ARGUMENTS name are looked for by the job alone.

    \b
    llmb launch --print slurm --nodes 4 -- run --dp-shard 32 --precision BF16 > job.sh
    llmb launch --print pbs --nodes 64 --ranks-per-node 12 -- run --tp 12
    llmb launch --print k8s --resource vendor.example/gpu -- run --tp 8 > job.yaml
    """
    from llmb.parallel.jobs import SCHEDULERS, LaunchJob, with_output

    given = {"image": image, "resource": resource}
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen and scheduler != "k8s":
        raise UsageError(f"--{next(iter(chosen))}: {scheduler} knows that itself; leave it out")
    if any(not text.isprintable() for text in (*arguments, *chosen.values())):
        raise UsageError("ARGUMENTS: not readable text")
    if resource is not None and not re.fullmatch(r"[a-z0-9./-]+", resource):
        raise UsageError(f"--resource {resource}: write it as vendor.example/gpu")
    job = LaunchJob(nodes, ranks_per_node, with_output(arguments), minutes)
    job = replace(job, **chosen)  # type: ignore[arg-type]
    needed = _checked(job.arguments, nodes * ranks_per_node)
    click.echo(f"llmb: each rank needs about {needed / 1e9:.1f} GB of device memory", err=True)
    text = SCHEDULERS[scheduler](job)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.exists():
        raise UsageError(f"--output {output}: it is there already; remove it, or choose another")
    output.write_text(text)
    click.echo(f"written: {output}")


def _checked(arguments: Sequence[str], world_size: int) -> int:
    """Return the bytes that each rank needs of its device, nearly.

    Raises:
        UsageError: so many ranks cannot run ``arguments``; click's own where they are misspelt.
    """
    from llmb import workloads
    from llmb.cli import recipe, run
    from llmb.config import BF16, FP32, AuditMode, Mode
    from llmb.parallel import checks
    from llmb.supervision.memory import Load, needed_bytes
    from llmb.workloads.checkpointing import recomputed_blocks

    name, *options = arguments
    if name != "run":
        raise UsageError(f"ARGUMENTS: {name!r} has no ranks; a job file starts `llmb run`")
    ctx = run.command.make_context("llmb run", options)
    flags = ctx.params
    for option, instead in (("nproc", "--ranks-per-node"), ("scaling", "a job for each number")):
        if flags[option] is not None:
            raise UsageError(f"--{option}: the scheduler starts the ranks; use {instead}")
    recipe.apply(ctx, flags)
    flags |= dict.fromkeys(("data", "tokenizer", "weights", "prompt"))
    request = run.request_of_ranks(ctx, flags, world_size)
    workload = workloads.of(request)
    mode = workloads.mode_of(workload, request.mode)
    checks.check(request, mode, workload.shape)
    wide = request.precision in ("FP32", "TF32") or request.mixed_precision
    size = request.batch_size if isinstance(request.batch_size, int) else 1
    load = Load(
        mode,
        recomputed=recomputed_blocks(request.sac_freq, workload.shape.num_hidden_layers),
        parallelism=request.parallelism,
        accumulate=request.accumulate,
        audited=request.audit is not AuditMode.OFF,
        copied=mode is Mode.TRAIN,
        host=(request.device or "").startswith("cpu"),
    )
    return needed_bytes(workload, FP32 if wide else BF16, size // request.accumulate or 1, load)
