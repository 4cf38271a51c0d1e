"""``llmb run``: flags -> RunRequest, progress, and the headline."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from llmb.cli import settings
from llmb.cli.help import GroupedCommand
from llmb.cli.run_options import run_options
from llmb.cli.settings import strength
from llmb.cli.text import printable as text_of
from llmb.config import OFFICIAL_WORKLOAD
from llmb.errors import AuditInvalidError, BundleRefusedError, UsageError

if TYPE_CHECKING:
    from llmb.config import Definition, Parallelism, RunRequest, ShapeName
    from llmb.records.seed_commitment import SeedCommitment
    from llmb.workloads import Workload

#: Options of ``--preset debug``: seconds on any machine, labelled debug everywhere. Elementwise
#: operations are too small for several threads: on a busy machine the threads wait.
_DEBUG_PRESET: dict[str, int] = {
    "batch_size": 2,
    "timed_steps": 20,
    "sequence_length": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}

_DEBUG_OF_MODE: dict[str, dict[str, int]] = {
    "forward": {"timed_steps": 10},
    "generate": {"timed_steps": 5, "batch_size": 1, "prompt_length": 6, "new_tokens": 24},
}


_EXAMPLES = """\b
Examples:
  llmb run --preset debug                seconds, to see that everything works
  llmb run                               official, about ten minutes at most
  llmb run --precision BF16 --batch-size auto --repeats 3
  llmb run --nproc 4 --dp-shard 4        four ranks (FSDP2), docs/ranks.md
"""


@click.command(
    "run",
    cls=GroupedCommand,
    short_help="Run the benchmark and leave a run directory.",
    epilog=_EXAMPLES,
)
@run_options
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Run the benchmark and leave a run directory.

    Without options: the benchmark's model, llama-1.4b, on the best device here; on a slow processor
    the largest smaller size whose run ends within ten minutes.
    """
    from llmb import clock, supervisor, workloads
    from llmb.cli import caller, pages, recipe, scaling
    from llmb.cli.progress import Bar, display
    from llmb.cli.remember import remember
    from llmb.cli.summary import print_summary
    from llmb.config import environment
    from llmb.parallel import checks, launch
    from llmb.parallel.place import place_in
    from llmb.records.canonical import pretty_bytes
    from llmb.records.finding import Verdict
    from llmb.supervision.time_authority import TimeAuthority
    from llmb.wire.forking import fork_server

    elsewhere = settings.given_elsewhere(ctx)
    caller.meet()
    within_s = _within_s(ctx, flags)
    recipe.apply(ctx, flags)
    place = place_in(environment())
    if flags["scaling"] is not None:
        if place is not None:
            raise UsageError("--scaling starts the ranks itself: leave torchrun or srun out")
        settings.announce(ctx, elsewhere)
        typed = _arguments(ctx, elsewhere, flags)
        ctx.exit(scaling.run(flags, _batch_size(ctx, flags), typed))
    world_size = place.world_size if place else flags["nproc"] or 1
    request = request_of_ranks(ctx, flags, world_size)
    if place is None and world_size == 1:
        request = request.model_copy(update={"within_s": within_s})
    workload = workloads.of(request)
    checks.check(request, workloads.mode_of(workload, request.mode), workload.shape)
    elsewhere = {name: value for name, value in elsewhere.items() if flags[name] == value}
    if place is None or place.leads:
        settings.announce(ctx, elsewhere)
    if place is None and world_size > 1:
        _foresee(request, workload, world_size, quiet=flags["quiet"])
        typed = _arguments(ctx, elsewhere, flags)
        with caller.ranks():
            ctx.exit(launch.start(world_size, typed, uuid.uuid4().hex))
    if place is not None and not place.leads:
        with fork_server(request.plugin, request.device), display(quiet=True) as shown:
            supervisor.follow(request, place, shown)
        return
    commitment = _commitment(flags)
    authority = None if flags["timestamp"] is None else TimeAuthority.at(flags["timestamp"])
    bar = Bar(before_s=0.0 if place is None else clock.age_s(os.getppid()))
    with (
        fork_server(request.plugin, request.device),
        display(quiet=flags["quiet"], bar=bar) as shown,
    ):
        finished = supervisor.run(
            request,
            flags["output_dir"],
            shown,
            commitment,
            place=place,
            authority=authority,
            tags=flags["tags"],
        )
    page = pages.write_report(finished.path, finished.record)
    remember(finished.path, finished.record, flags["preset"])
    caller.recorded(finished.path)
    if flags["as_json"]:
        click.echo(pretty_bytes(finished.record), nl=False)
    else:
        print_summary(finished.record, lines=_lines_of_screen())
        _print_text(finished.path, flags)
        click.echo(f"\nrun directory: {finished.path}")
        if page is not None:
            click.echo(f"page: {page}")
        if sys.stdout.isatty():
            click.echo(_next(finished.path, official=finished.record.class_ == "official"))
    if finished.record.audit.verdict is Verdict.INVALID:
        raise AuditInvalidError(f"the run is INVALID, see {finished.path / 'audit.json'}")


def _foresee(request: RunRequest, workload: Workload, world_size: int, *, quiet: bool) -> None:
    """Refuse a run that ``world_size`` ranks cannot do here; rank 0 goes on with the bar."""
    from llmb import supervisor
    from llmb.cli.progress import Bar, display
    from llmb.endings import RunProgress
    from llmb.supervision.forecast import Forecast, of_request

    run = of_request(request, workload, RunProgress())
    with display(quiet=quiet, bar=Bar(after_s=run.left_s())) as shown:
        shown.foresee(Forecast(run.parts[:1], start_s=run.start_s))
        shown.phase(f"asking the plugins, before {world_size} ranks start")
        supervisor.foresee(request, world_size)


def _arguments(ctx: click.Context, elsewhere: dict[str, Any], flags: dict[str, Any]) -> list[str]:
    """Return the arguments of ``llmb`` for a rank: everything typed, and no file is read again."""
    typed = sys.argv[1:]
    after = typed[typed.index("run") + 1 :] if "run" in typed else []
    return settings.words_of_ranks(ctx, elsewhere, flags, after)


def _lines_of_screen() -> int | None:
    """Return the lines of a terminal for the summary, without 8 lines for the rest of the output.

    None: stdout is no terminal.
    """
    return shutil.get_terminal_size().lines - 8 if sys.stdout.isatty() else None


def _next(path: Path, *, official: bool) -> str:
    """Return the commands that a user is likely to type after a run."""
    run = quote(str(path))
    debug = "" if official else " --debug"
    return (
        f"next: llmb show {run}\n"
        f"      llmb audit {run}\n"
        f"      llmb compare BASE_RUN_DIR {run}\n"
        f"      llmb package-submission {run} \\\n"
        f"        --submitter ID{debug}"
    )


def request_of_ranks(ctx: click.Context, flags: dict[str, Any], world_size: int) -> RunRequest:
    """Return the request of ``flags`` for ``world_size`` ranks."""
    mesh = mesh_of(flags, world_size)
    if mesh.pp > 1 and _is_default(ctx, "accumulate"):
        flags["accumulate"] = mesh.stages  # fewer micro-batches leave stages without work
    ranks = {"parallelism": mesh, "rank_timeout_s": flags["rank_timeout"]}
    return request_of(ctx, flags).model_copy(update=ranks)


#: Options that settle the model; ``--within`` has no choice then.
_OF_ONE_SIZE = (
    *("workload", "preset", "recipe", "scaling", "mode", "data", "weights", "prompt", "nproc"),
    *("sequence_length", "hidden_size", "intermediate_size", "num_hidden_layers"),
    "num_attention_heads",
)


def _within_s(ctx: click.Context, flags: dict[str, Any]) -> float | None:
    """Return the time limit that chooses the model's size, None if an option names the model.

    Of --within on the command line and a workload in llmb.toml, the command line counts.

    Raises:
        UsageError: both were given in the same place, such as the command line.
    """
    given = strength(ctx, "within")
    if given:
        _drop(ctx, flags, [name for name in _OF_ONE_SIZE if 0 < strength(ctx, name) < given])
    named = next((name for name in _OF_ONE_SIZE if not _is_default(ctx, name)), None)
    if named is not None and strength(ctx, named) > given:
        _drop(ctx, flags, ["within"])
    if named is None:
        from llmb.supervision.sizing import USUAL_WITHIN_S

        return flags["within"] or USUAL_WITHIN_S
    if flags["within"] is not None:
        option = f"--{named.replace('_', '-')}"
        raise UsageError(f"--within chooses the size of the model, and so does {option}: leave one")
    return None


def _drop(ctx: click.Context, flags: dict[str, Any], names: Sequence[str]) -> None:
    """Give options back their defaults: an option from a stronger source excludes them."""
    for name in names:
        flags[name] = OFFICIAL_WORKLOAD if name == "workload" else None
        ctx.set_parameter_source(name, click.core.ParameterSource.DEFAULT)


def _print_text(path: Path, flags: dict[str, Any]) -> None:
    """Print prompt and generated text of the last sample."""
    from llmb.inputs.prompt import PromptTokenizer
    from llmb.records import arrays, audited, evidence

    file = path / evidence.path(0, audited.GRADIENTS)
    if flags["prompt"] is None or not file.exists():
        return
    tokens = [int(token) for token in arrays.read(file.read_bytes()).get("live/tokens", ())]
    text = PromptTokenizer(flags["weights"], max(tokens, default=0) + 1).decode(tokens)
    click.echo(f"\n{text_of(flags['prompt'] + text)}")


def mesh_of(flags: Mapping[str, Any], world_size: int) -> Parallelism:
    """Return how ``world_size`` ranks share a step.

    Raises:
        UsageError: the sizes multiply to another number of ranks.
    """
    from llmb.config import Parallelism

    sizes = {name: flags[name] or 1 for name in ("tp", "pp")}
    stage, left = flags["zero"], max(1, world_size // math.prod(sizes.values()))
    sizes["dp_shard"] = flags["dp_shard"] or 1
    if stage and flags["dp_shard"] is None:
        sizes["dp_shard"] = max(1, left // (flags["dp_replicate"] or 1))
    if stage == 0 and sizes["dp_shard"] > 1:
        raise UsageError(f"--zero 0 and --dp-shard {sizes['dp_shard']}: leave one of them out")
    sizes["dp_replicate"] = flags["dp_replicate"] or max(1, left // sizes["dp_shard"])
    mesh = Parallelism(
        **sizes,
        reshard_after_forward=stage is None or stage == 3,
        sequence_parallel=flags["sequence_parallel"],
        loss_parallel=flags["loss_parallel"],
        **({"schedule": flags["schedule"]} if flags["schedule"] else {}),
    )
    if flags["schedule"] and mesh.pp == 1:
        raise UsageError(
            f"--schedule {flags['schedule']} is about the stages of --pp: give --pp 2 or more"
        )
    if mesh.world_size != world_size:
        product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        raise UsageError(
            f"{product} makes {mesh.world_size} ranks, and there are {world_size}: "
            f"start {mesh.world_size}, or let these options make {world_size}"
        )
    return mesh


def request_of(ctx: click.Context, flags: dict[str, Any]) -> RunRequest:
    """Return the request of the ``flags`` of ``llmb run``.

    Raises:
        LlmbError: a flag, or the named file, cannot be used.
    """
    from llmb.config import NONCE, RunRequest, ShapeName

    for name, value in flags.items():
        if not all(text.isprintable() for text in _texts(value)):
            raise UsageError(f"--{name.replace('_', '-')} {value!r}: not readable text")
    name, definition = workload_of(flags["workload"])
    if flags["preset"] == "debug":
        preset = _preset(name, definition, flags["mode"])
        for key, size in preset.items():
            if strength(ctx, key) < max(1, strength(ctx, "preset")):
                flags[key] = size
                ctx.set_parameter_source(key, click.core.ParameterSource.DEFAULT)
    if flags["nonce"] is not None and not re.fullmatch(NONCE, flags["nonce"]):
        raise UsageError(
            f"--nonce {flags['nonce']!r} is not what a record has: 32 digits from 0 to f, such as "
            "timing.nonce in record.json"
        )
    shapes = {name: flags[name] for name in get_args(ShapeName) if flags[name] is not None}
    same = ["mode", "plugin", "device", "precision", "accumulate", "mixed_precision", "seed"]
    same += ["nonce", "constant_rate"]
    same += ["executor", "compile_mode", "dynamic", "sac_freq", "new_tokens"]
    same += ["warmup_steps", "timed_steps", "repeats", "audit", "profile"]
    return RunRequest(
        workload=name,
        definition=definition,
        batch_size=_batch_size(ctx, flags),
        plugin_options=options_of(flags["plugin_options"]),
        shape_overrides=shapes,
        generate_scope=flags["scope"],
        **{"prompt_length": flags["prompt_length"], **_given(name, definition, shapes, flags)},
        **{name: flags[name] for name in same},
    )


def _is_default(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.DEFAULT


def _given(
    name: str, definition: Definition | None, shapes: Mapping[ShapeName, int], flags: dict[str, Any]
) -> dict[str, Any]:
    """Return the inputs from outside: tokens, weights and a prompt."""
    found: dict[str, Any] = {}
    if flags["data"] is not None:
        from llmb.inputs.contents import describe

        found["data"] = describe(flags["data"], flags["tokenizer"])
    elif flags["tokenizer"] is not None:
        raise UsageError("--tokenizer: only with --data, for text")
    if flags["prompt"] is not None and flags["weights"] is None:
        raise UsageError("--prompt needs the tokenizer of a checkpoint: give --weights DIR, too")
    if flags["weights"] is None:
        return found
    from llmb import workloads
    from llmb.config import WeightsSource
    from llmb.inputs.checkpoint import open_checkpoint

    folder, shape = flags["weights"].resolve(), workloads.find(name, shapes, definition).shape
    checkpoint = open_checkpoint(folder, shape)
    for note in checkpoint.notes:
        click.echo(f"llmb: --weights: {note}", err=True)
    found["weights"] = WeightsSource(path=str(folder), sha256=checkpoint.digest)
    if flags["prompt"] is not None:
        from llmb.inputs.prompt import PromptTokenizer

        tokens = PromptTokenizer(folder, shape.vocab_size).encode(flags["prompt"])
        found |= {"prompt_tokens": tuple(tokens), "prompt_length": len(tokens)}
    return found


def _preset(name: str, definition: Definition | None, asked: str | None) -> dict[str, int]:
    """Return the options of ``--preset debug`` for a workload and a mode."""
    from llmb import workloads
    from llmb.config import Mode

    workload = workloads.find(name, {}, definition)
    mode = workloads.mode_of(workload, None if asked is None else Mode(asked))
    return _DEBUG_PRESET | _DEBUG_OF_MODE.get(mode.value, {})


def _batch_size(ctx: click.Context, flags: Mapping[str, Any]) -> int | Literal["auto"] | None:
    """Return the sequences per step, from the batch size or from micro-batches."""
    micro, parts, size = flags["micro_batch_size"], flags["accumulate"], flags["batch_size"]
    if micro is None:
        given = not _is_default(ctx, "batch_size")
        # The preset's size is no given batch size.
        wanted: int | Literal["auto"] | None = size
        return wanted if given or not isinstance(wanted, int) else wanted * parts
    whole = micro * parts
    given = ctx.get_parameter_source("batch_size") is click.core.ParameterSource.COMMANDLINE
    if given and size != whole:
        raise UsageError(
            f"--batch-size {size}: --micro-batch-size {micro} times --accumulate {parts} is "
            f"{whole}; leave one of them out"
        )
    return int(whole)


def workload_of(text: str) -> tuple[str, Definition | None]:
    """Return name and definition of a workload: ``text`` is a name, a file, or JSON."""
    inline = text.lstrip().startswith("{")
    if not inline and not text.endswith(".json"):
        return text, None
    from llmb.workloads import definition as definition_file

    raw = text if inline else definition_file.read_text(Path(text))
    try:
        found = definition_file.entries(raw)
    except ValueError as error:
        raise UsageError(f"--workload {text}: not JSON ({error})") from None
    if any(isinstance(entry.value, (dict, list)) for entry in found):
        raise UsageError(
            f"--workload {text}: write an object of family and sizes, "
            'such as {"family": "llama", "hidden_size": 512}'
        )
    for fault in definition_file.repeated(found):
        raise UsageError(f"--workload {text}: {fault.text}: leave one of the two out")
    stated = {entry.key: entry.value for entry in found}
    if stated.get("schema", definition_file.SCHEMA) != definition_file.SCHEMA:
        raise UsageError(
            f"--workload {text}: schema {stated['schema']!r}: this llmb reads "
            f"{definition_file.SCHEMA}"
        )
    name = stated.get("name", "own" if inline else Path(text).stem)
    if not isinstance(name, str) or not re.fullmatch(definition_file.NAME, name, re.ASCII):
        raise UsageError(f"--workload: the name {name!r} may hold letters, digits and . _ - only")
    return name, definition_file.definition_of(found)


def _commitment(flags: dict[str, Any]) -> SeedCommitment | None:
    from llmb.records import members, seed_commitment

    path = flags["seed_commitment"]
    if path is None:
        return None
    if flags["seed"] is not None:
        raise UsageError("--seed and --seed-commitment: leave --seed out, the file holds the seed")
    limit = seed_commitment.MAX_BYTES
    if str(path) == "-":
        raw = sys.stdin.buffer.read(limit + 1)
        return seed_commitment.parse(raw, "standard input")
    try:
        raw = members.read_file(path, limit)
    except BundleRefusedError as error:  # no regular file, or a huge file
        raise UsageError(f"--seed-commitment: {error}") from None
    return seed_commitment.parse(raw, str(path))


def _texts(value: object) -> list[str]:
    return [str(item) for item in (value if isinstance(value, tuple) else (value,))]


def options_of(given: tuple[str, ...]) -> dict[str, str]:
    """Return name -> value of every ``-O name=value``.

    Raises:
        UsageError: a text is not ``name=value``.
    """
    options = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"-O {text}: write it as KEY=VALUE, for example -O threads=4")
        options[key] = value
    return options
