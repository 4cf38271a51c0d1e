"""``llmb launch``: job files for schedulers; torchrun, mpiexec or srun starts the job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from llmb.errors import UsageError

if TYPE_CHECKING:
    from llmb.parallel.jobs.site import Site

_RANKS_PER_NODE, _MINUTES = 8, 60


class _Needed(NamedTuple):
    """Memory of each rank, and the kind of memory."""

    memory_bytes: int
    #: The run names a processor as its device.
    on_processors: bool


@click.command(
    "launch",
    short_help="Write a job file for many ranks.",
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "--print",
    "scheduler",
    type=click.Choice(["slurm", "pbs", "trainjob", "jobset", "torchrun", "k8s"]),
    required=True,
    help="The kind of job file: slurm; pbs (PBS with PALS, untested); trainjob (Kubeflow Trainer "
    "v2) or jobset, for Kubernetes; torchrun, a script for machines without a scheduler. k8s is "
    "trainjob.",
)
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--ranks-per-node",
    type=click.IntRange(min=1),
    help=f"One a device: the site's number, or {_RANKS_PER_NODE}, unless given.",
)
@click.option(
    "--minutes",
    type=click.IntRange(min=1),
    help=f"Time limit, {_MINUTES} unless given. torchrun has none.",
)
@click.option(
    "--site",
    "site_file",
    type=click.Path(path_type=Path),
    help="A TOML file with account, queue, modules, network and more of a cluster; examples are "
    "in examples/sites.",
)
@click.option("--image", help="Container image with llmb.")
@click.option(
    "--resource",
    help="trainjob, jobset: the cluster's name for a device, such as vendor.example/gpu.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file instead of the terminal.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    scheduler: str,
    nodes: int,
    ranks_per_node: int | None,
    minutes: int | None,
    site_file: Path | None,
    image: str | None,
    resource: str | None,
    output: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Write a ready job file that starts `llmb run` with ARGUMENTS on many ranks.

    ARGUMENTS are options of `llmb run`; a wrong option is refused before a job is queued.
    The ranks must be as many as the options ask for: 4 nodes of 8 go with --dp-shard 32, or with
    --tp 8, which leaves 4 replicas. Only the job looks for the files in ARGUMENTS.

    \b
    llmb launch --print slurm --nodes 4 -- run --dp-shard 32 --precision BF16 > job.sh
    llmb launch --print slurm --site examples/sites/perlmutter.toml -- run --tp 4 > job.sh
    llmb launch --print pbs --nodes 64 --ranks-per-node 12 -- run --tp 12 > job.sh
    llmb launch --print trainjob --image registry.example/llmb:latest \\
        --resource vendor.example/gpu -- run --tp 8 > job.yaml
    llmb launch --print torchrun --nodes 2 -- run --dp-shard 16 > job.sh
    """
    from llmb.parallel.jobs.job import LaunchJob, with_verb
    from llmb.parallel.jobs.kinds import ALIASES, SCHEDULERS

    if scheduler in ALIASES:
        instead = ALIASES[scheduler]
        click.echo(f"llmb: {scheduler} is {instead}, for Kubeflow Trainer v2", err=True)
        scheduler = instead
    kind = SCHEDULERS[scheduler]
    if any(not text.isprintable() for text in arguments):
        raise UsageError("ARGUMENTS: not readable text")
    if minutes is not None and not kind.has_limit:
        raise UsageError(f"--minutes: {scheduler} ends no run after a time; leave it out")
    site = _site(site_file, {"image": image, "resource": resource})
    kind.check(site)
    ranks = ranks_per_node or site.ranks_per_node or _RANKS_PER_NODE
    words = with_verb(arguments)
    needed = _checked(words, nodes * ranks)
    job = LaunchJob(
        nodes, ranks, words, minutes or _MINUTES, site, on_devices=not needed.on_processors
    )
    memory = "memory" if needed.on_processors else "device memory"
    click.echo(
        f"llmb: each rank needs about {needed.memory_bytes / 1e9:.1f} GB of {memory}", err=True
    )
    if "resource" in kind.keys and site.resource is None and not needed.on_processors:
        click.echo("llmb: pods ask for no device; --resource says what to ask for", err=True)
    text = kind.write(job)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.exists():
        raise UsageError(f"--output {output}: it is there already; remove it, or choose another")
    output.write_text(text)
    click.echo(f"written: {output}")


def _site(file: Path | None, options: dict[str, str | None]) -> Site:
    """Return the site file, overridden by ``options`` of the command line.

    Raises:
        UsageError: a key or a value is wrong.
    """
    from llmb.parallel.jobs import site

    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        site.checked({name: value}, "--")
    said = {} if file is None else site.load(file).model_dump(exclude_unset=True)
    return site.checked({**said, **given}, "--site: ")


def _checked(arguments: Sequence[str], world_size: int) -> _Needed:
    """Return the estimated memory of each rank.

    Raises:
        UsageError: the ranks cannot run ``arguments``. click.UsageError: a misspelt option.
    """
    from llmb import workloads
    from llmb.cli import recipe, run
    from llmb.config import BF16, FP32, AuditMode
    from llmb.parallel import checks
    from llmb.supervision.memory import Load, needed_bytes
    from llmb.workloads.checkpointing import recomputed_blocks

    name, *options = arguments
    if name != "run":
        raise UsageError(f"ARGUMENTS: {name!r} has no ranks; a job file starts `llmb run`")
    if {"--help", "--help-all", "-h"} & {*options}:
        raise UsageError("ARGUMENTS: --help starts no ranks; `llmb run --help` shows it")
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
    on_processors = (request.device or request.plugin or "").partition(":")[0] == "cpu"
    load = Load(
        mode,
        recomputed=recomputed_blocks(request.sac_freq, workload.shape.num_hidden_layers),
        parallelism=request.parallelism,
        accumulate=request.accumulate,
        audited=request.audit is not AuditMode.OFF,
        host=on_processors,
    )
    each = size // request.accumulate or 1
    return _Needed(needed_bytes(workload, FP32 if wide else BF16, each, load), on_processors)
