"""``llmb run``: flags -> RunRequest, progress, and the headline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from llmb.errors import AuditInvalidError, BundleRefusedError, UsageError

if TYPE_CHECKING:
    from llmb.config import RunRequest
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
@click.option("--workload", default="llama-1.4b", show_default=True, help="What to train.")
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
    same = ["workload", "plugin", "device", "precision", "batch_size", "seed"]
    same += ["warmup_steps", "timed_steps", "repeats", "audit"]
    return RunRequest(
        plugin_options=options_of(flags["plugin_options"]),
        shape_overrides=shapes,
        **{name: flags[name] for name in same},
    )


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
