"""``llmb run``: flags -> RunRequest, progress, and the headline."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from llmb.errors import AuditInvalidError, BundleRefusedError, UsageError

if TYPE_CHECKING:
    from llmb.config import Definition, RunRequest
    from llmb.records.seed_commitment import SeedCommitment

#: What ``--preset debug`` sets: seconds on any machine, labelled debug everywhere.
_DEBUG_PRESET: dict[str, int] = {
    "batch_size": 2,
    "timed_steps": 20,
    "sequence_length": 64,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}

#: A name that may be part of a folder's, and the bytes of a file that defines a workload.
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_MOST_DEFINITION = 64 * 1024


class BatchSize(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A positive integer, or ``auto``."""

    name = "integer|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Return ``value`` as an integer or the word auto."""
        if isinstance(value, int):
            return value
        if value == "auto":
            return "auto"
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a whole number nor 'auto'.", param, ctx)
        if number < 1:
            self.fail(f"{number} is not possible: use at least 1, or 'auto'.", param, ctx)
        return number


_COUNT = click.IntRange(min=1)


@click.command("run", short_help="Run the benchmark and leave a run directory.")
@click.option(
    "--workload",
    default="llama-1.4b",
    show_default=True,
    metavar="NAME|FILE.json",
    help="What to train (llmb workload list), or a file with sizes of your own, debug only.",
)
@click.option("--plugin", help="Vendor plugin [default: the best available].")
@click.option(
    "-O",
    "--plugin-option",
    "plugin_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the plugin; repeat for more.",
)
@click.option("--device", help="Any torch device string [default: the plugin's].")
@click.option("--precision", help="FP32, TF32, FP16, BF16, ... [default: the best that fits].")
@click.option(
    "--batch-size",
    type=BatchSize(),
    help="Sequences per step [default: 1 on a CPU, auto elsewhere].",
)
@click.option(
    "--micro-batch-size", type=_COUNT, help="Sequences at once; times --accumulate a step's."
)
@click.option(
    "--accumulate",
    type=_COUNT,
    default=1,
    show_default=True,
    help="Parts of a step's batch, whose gradients add up.",
)
@click.option(
    "--mixed-precision/--no-mixed-precision",
    default=None,
    help="Autocast over float32 weights [default: as the workload's original].",
)
@click.option("--seed", type=click.IntRange(min=0, max=2**63 - 1), help="[default: drawn afresh]")
@click.option(
    "--seed-commitment",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    metavar="FILE",
    help="The seed of a third party, who published its hash before; - reads standard input.",
)
@click.option("--warmup-steps", type=_COUNT, help="At least this many untimed steps.")
@click.option("--timed-steps", type=_COUNT, default=50, show_default=True, help="50 or more count.")
@click.option("--repeats", type=_COUNT, default=1, show_default=True, help="Fresh processes.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where run directories go.",
)
@click.option(
    "--audit",
    type=click.Choice(["quick", "full", "off"]),
    help="How closely to look [default: full; quick for a debug run]; off is a debug run.",
)
@click.option("--preset", type=click.Choice(["debug"]), help="A tiny run in seconds, not official.")
@click.option("--sequence-length", type=_COUNT, help="Debug only.")
@click.option("--hidden-size", type=_COUNT, help="Debug only.")
@click.option("--intermediate-size", type=_COUNT, help="Debug only.")
@click.option("--num-hidden-layers", type=_COUNT, help="Debug only.")
@click.option("--num-attention-heads", type=_COUNT, help="Debug only.")
@click.option("--json", "as_json", is_flag=True, help="Print the record, and nothing else.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Run the benchmark and leave a run directory.

    Without options: the official benchmark on the best device here.

    \b
    llmb run                                     official, about five minutes on four cores
    llmb run --preset debug                      seconds, labelled debug
    llmb run --plugin cpu --precision BF16 --batch-size auto
    llmb run --repeats 3 --output-dir results
    llmb run --workload gpt2-125m --micro-batch-size 4 --accumulate 2
    """
    from llmb import supervisor
    from llmb.cli.progress import display
    from llmb.cli.summary import print_summary
    from llmb.records.canonical import pretty_bytes
    from llmb.records.finding import Verdict

    request, commitment = _request(ctx, flags), _commitment(flags)
    with display(quiet=flags["quiet"]) as shown:
        finished = supervisor.run(request, flags["output_dir"], shown, commitment)
    if flags["as_json"]:
        click.echo(pretty_bytes(finished.record), nl=False)
    else:
        print_summary(finished.record)
        click.echo(f"\nrun directory: {finished.path}")
    if finished.record.audit.verdict is Verdict.INVALID:
        raise AuditInvalidError(f"the run is INVALID, see {finished.path / 'audit.json'}")


def _request(ctx: click.Context, flags: dict[str, Any]) -> RunRequest:
    from llmb.config import RunRequest, ShapeName

    for name, value in flags.items():
        if not all(text.isprintable() for text in _texts(value)):
            raise UsageError(f"--{name.replace('_', '-')} {value!r}: not readable text")
    if flags["preset"] == "debug":
        default = click.core.ParameterSource.DEFAULT
        flags |= {k: v for k, v in _DEBUG_PRESET.items() if ctx.get_parameter_source(k) is default}
    shapes = {name: flags[name] for name in get_args(ShapeName) if flags[name] is not None}
    name, definition = workload_of(flags["workload"])
    same = ["plugin", "device", "precision", "accumulate", "mixed_precision", "seed"]
    same += ["warmup_steps", "timed_steps", "repeats", "audit"]
    return RunRequest(
        workload=name,
        definition=definition,
        batch_size=_batch_size(ctx, flags),
        plugin_options=options_of(flags["plugin_options"]),
        shape_overrides=shapes,
        **{name: flags[name] for name in same},
    )


def _batch_size(ctx: click.Context, flags: Mapping[str, Any]) -> int | Literal["auto"] | None:
    """Return the sequences of a step, however they were given."""
    micro, parts, size = flags["micro_batch_size"], flags["accumulate"], flags["batch_size"]
    if micro is None:
        given = ctx.get_parameter_source("batch_size") is not click.core.ParameterSource.DEFAULT
        # The preset's own size is one to choose freely.
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
    """Return name and definition of the workload that ``text`` names, points to, or spells out."""
    inline = text.lstrip().startswith("{")
    if not inline and not text.endswith(".json"):
        return text, None
    raw = text if inline else _definition_file(Path(text))
    try:
        found = json.loads(raw)
    except ValueError as error:
        raise UsageError(f"--workload {text}: not JSON ({error})") from None
    if not isinstance(found, dict) or any(isinstance(v, (dict, list)) for v in found.values()):
        raise UsageError(
            f"--workload {text}: write an object of family and sizes, "
            'such as {"family": "llama", "hidden_size": 512}'
        )
    name = found.pop("name", "own" if inline else Path(text).stem)
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise UsageError(f"--workload: the name {name!r} may hold letters, digits and . _ - only")
    return name, found


def _definition_file(path: Path) -> str:
    from llmb.records import members

    try:
        return members.read_file(path, _MOST_DEFINITION).decode()
    except BundleRefusedError as error:  # no regular file, or a huge one
        raise UsageError(f"--workload: {error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--workload {path}: not readable text") from None


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
    except BundleRefusedError as error:  # no regular file, or a huge one
        raise UsageError(f"--seed-commitment: {error}") from None
    return seed_commitment.parse(raw, str(path))


def _texts(value: object) -> list[str]:
    return [str(item) for item in (value if isinstance(value, tuple) else (value,))]


def options_of(given: tuple[str, ...]) -> dict[str, str]:
    """Return name -> value of every ``-O name=value``.

    Raises:
        UsageError: one is not written like that.
    """
    options = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"-O {text}: write it as KEY=VALUE, for example -O threads=4")
        options[key] = value
    return options
