"""``llmb launch``: job files for schedulers. It starts nothing: torchrun, mpiexec and srun do."""

from __future__ import annotations

import re
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
    if "--nproc" in job.arguments:
        raise UsageError("--nproc: the scheduler starts the ranks; use --ranks-per-node")
    text = SCHEDULERS[scheduler](job)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.exists():
        raise UsageError(f"--output {output}: it is there already; remove it, or choose another")
    output.write_text(text)
    click.echo(f"written: {output}")
