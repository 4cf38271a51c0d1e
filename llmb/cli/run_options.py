"""The options of ``llmb run``: the twelve most used, then the groups of ``--help-all``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from llmb.cli import completion, settings
from llmb.cli.amounts import Time
from llmb.cli.help import GroupedOption
from llmb.cli.run_name import RunName
from llmb.config import MOST_WARMUP_STEPS

F = TypeVar("F", bound=Callable[..., Any])


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
#: `llmb verify` refuses more repeats: the interval of more takes too long.
_REPEATS = click.IntRange(min=1, max=64)
#: Names of the options for ranks.
OF_RANKS = (
    *("recipe", "nproc", "scaling", "strong", "dp_replicate", "dp_shard", "zero", "tp"),
    *("sequence_parallel", "loss_parallel", "pp", "schedule", "rank_timeout"),
)

_main = partial(click.option, cls=GroupedOption)
_step = partial(click.option, cls=GroupedOption, group="Step")
_data = partial(click.option, cls=GroupedOption, group="Data and weights")
_ranks = partial(click.option, cls=GroupedOption, group="Ranks")
_seeds = partial(click.option, cls=GroupedOption, group="Seeds and time stamps")
_shapes = partial(click.option, cls=GroupedOption, group="Debug shapes")
_settings = partial(click.option, cls=GroupedOption, group="Settings and tags")
_output = partial(click.option, cls=GroupedOption, group="Output")


def _use_config(ctx: click.Context, _: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and not ctx.resilient_parsing:
        from llmb.supervision.run_settings import CONFIG

        settings.use(ctx, file / CONFIG if file.is_dir() else file)
    return file


def _checked_tags(_: click.Context, __: click.Parameter, tags: tuple[str, ...]) -> tuple[str, ...]:
    from llmb.records.run_tags import checked

    return tuple(map(checked, tags))


_OPTIONS = (
    _main(
        "--preset",
        type=click.Choice(["debug"]),
        help="Tiny model, seconds, unranked [default: none].",
    ),
    _main(
        "--workload",
        default="llama-1.4b",
        metavar="NAME|FILE.json",
        shell_complete=completion.workloads,
        help="Model, of `llmb workload list`, or a file with your own sizes [default: "
        "llama-1.4b, or the largest smaller size that fits --within].",
    ),
    _main(
        "--within",
        type=Time(),
        metavar="TIME",
        help="Longest estimated time of the whole run, such as 90s, 30m or 1h [default: 10m].",
    ),
    _main(
        "--precision",
        metavar="FORMAT",
        help="Number format, such as BF16, FP32 or FP8 [default: the fastest that fits].",
    ),
    _main(
        "--batch-size",
        type=BatchSize(),
        metavar="N|auto",
        help="Sequences per step; auto searches the fastest [default: 1 on a CPU, auto elsewhere].",
    ),
    _main(
        "--device",
        metavar="DEVICE",
        help="torch device, such as cpu [default: the first of the plugin].",
    ),
    _main(
        "--plugin",
        metavar="NAME",
        shell_complete=completion.plugins,
        help="Vendor plugin, of `llmb plugin list` [default: the best here].",
    ),
    _main(
        "-O",
        "--plugin-option",
        "plugin_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Option of the plugin, such as threads=4; repeatable [default: the plugin's].",
    ),
    _main(
        "--repeats",
        type=_REPEATS,
        default=1,
        metavar="N",
        help="Timed windows, each in fresh processes [default: 1].",
    ),
    _main(
        "--nproc",
        type=_COUNT,
        metavar="N",
        help="Ranks on this machine, one per device [default: 1].",
    ),
    _main(
        "--audit",
        type=click.Choice(["quick", "full", "complete", "off"]),
        help="Depth of the audit; off is never ranked [default: full; debug runs quick].",
    ),
    _main(
        "--output-dir",
        type=click.Path(path_type=Path),
        default=Path("runs"),
        metavar="DIR",
        help="Folder for run directories [default: runs].",
    ),
    _step(
        "--mode",
        type=click.Choice(["train", "forward", "generate"]),
        help="Work of one step [default: the workload's own].",
    ),
    _step(
        "--timed-steps",
        type=_COUNT,
        metavar="N",
        help="Steps in the timed window; fewer are a debug run, and so are more than 60 in "
        "training [default: 50; 10 in modes forward and generate].",
    ),
    _step(
        "--warmup-steps",
        type=click.IntRange(min=1, max=MOST_WARMUP_STEPS),
        metavar="N",
        help="Least number of untimed steps [default: 1].",
    ),
    _step(
        "--micro-batch-size",
        type=_COUNT,
        metavar="N",
        help="Sequences per micro-batch; times --accumulate is the batch [default: the batch].",
    ),
    _step(
        "--accumulate",
        type=_COUNT,
        default=1,
        metavar="N",
        help="Micro-batches per step [default: 1; with --pp: the stages].",
    ),
    _step(
        "--mixed-precision/--no-mixed-precision",
        default=None,
        help="Autocast over float32 weights [default: as the workload's original].",
    ),
    _step(
        "--executor",
        type=click.Choice(["eager", "inductor", "thunder"]),
        default="eager",
        help="Executor of the model's Python code [default: eager].",
    ),
    _step(
        "--compile-mode",
        type=click.Choice(
            ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
        ),
        default="default",
        help="Mode of --executor inductor [default: default].",
    ),
    _step(
        "--dynamic/--static",
        default=False,
        help="A new sequence length in every step, or one length [default: static].",
    ),
    _step(
        "--sac-freq",
        metavar="Q/P|op",
        help="Activation checkpointing: the first Q of every P blocks, or op: everything "
        "but matrix products [default: none].",
    ),
    _step(
        "--constant-rate",
        is_flag=True,
        help="Learning rate and first weights of the original, as a debug run [default: "
        "rates are drawn].",
    ),
    _step(
        "--profile",
        is_flag=True,
        help="Trace one more step, after the window, into profile/ [default: no].",
    ),
    _data(
        "--data",
        metavar="PATH",
        help="Tokens from a Megatron .bin/.idx prefix, a weighted list, or a text "
        "[default: random tokens].",
    ),
    _data(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json for --data with a text [default: bytes].",
    ),
    _data(
        "--weights",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Hugging Face checkpoint (safetensors), as a debug run [default: random weights].",
    ),
    _data(
        "--prompt",
        metavar="TEXT",
        help="Mode generate, with --weights: the prompt [default: random tokens].",
    ),
    _data(
        "--prompt-length",
        type=_COUNT,
        metavar="N",
        help="Mode generate: tokens of the prompt [default: 6].",
    ),
    _data(
        "--new-tokens",
        type=click.IntRange(min=2),
        metavar="N",
        help="Mode generate: tokens after the prompt [default: 200].",
    ),
    _data(
        "--scope",
        type=click.Choice(["model", "step"]),
        help="Mode generate: code for the executor, the model or a whole token's step "
        "[default: the workload's own].",
    ),
    _ranks(
        "--recipe",
        metavar="NAME",
        shell_complete=completion.recipes,
        help="A published command for many devices, of `llmb workload recipes`; your "
        "options override [default: none].",
    ),
    _ranks(
        "--scaling",
        metavar="1,2,4",
        help="One run per number of ranks, and the efficiency [default: no].",
    ),
    _ranks(
        "--strong",
        is_flag=True,
        help="With --scaling: the same global batch for every number of ranks [default: "
        "the same batch per rank].",
    ),
    _ranks(
        "--dp-replicate",
        type=_COUNT,
        metavar="N",
        help="Replicas of the model (DDP) [default: all ranks].",
    ),
    _ranks(
        "--dp-shard",
        type=_COUNT,
        metavar="N",
        help="Ranks that shard one replica (FSDP2) [default: 1].",
    ),
    _ranks(
        "--zero",
        type=click.IntRange(0, 3),
        metavar="STAGE",
        help="ZeRO stage: 0 is DDP; 1 and 2 are FSDP2, parameters kept after forward; 3 is "
        "FSDP2, gathered again for backward [default: by the other options].",
    ),
    _ranks(
        "--tp",
        type=_COUNT,
        metavar="N",
        help="Ranks that share each matrix (tensor parallel) [default: 1].",
    ),
    _ranks(
        "--sequence-parallel",
        is_flag=True,
        help="With --tp: shard sequences between the matrices [default: no].",
    ),
    _ranks(
        "--loss-parallel",
        is_flag=True,
        help="With --tp: shard the logits [default: no].",
    ),
    _ranks(
        "--pp",
        type=_COUNT,
        metavar="N",
        help="Pipeline stages [default: 1].",
    ),
    _ranks(
        "--schedule",
        type=click.Choice(
            [
                *("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS"),
                *("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"),
            ]
        ),
        metavar="NAME",
        help="With --pp: GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, "
        "ZBVZeroBubble or DualPipeV [default: 1F1B].",
    ),
    _ranks(
        "--rank-timeout",
        type=click.FloatRange(min=1),
        default=600.0,
        metavar="SECONDS",
        help="Longest wait for another rank [default: 600].",
    ),
    _seeds(
        "--seed",
        type=click.IntRange(min=0, max=2**63 - 1),
        metavar="N",
        help="Seed of weights and tokens [default: drawn afresh].",
    ),
    _seeds(
        "--nonce",
        metavar="HEX",
        help="timing.nonce of a record, to repeat its draws as a debug run [default: drawn "
        "afresh].",
    ),
    _seeds(
        "--seed-commitment",
        type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
        metavar="FILE",
        help="Seed of a third party, who published the hash before; - is standard input "
        "[default: none].",
    ),
    _seeds(
        "--timestamp",
        metavar="URL",
        help="Time-stamping authority (RFC 3161) for START and STOP, such as "
        "https://freetsa.org/tsr [default: none].",
    ),
    _shapes(
        "--sequence-length",
        type=_COUNT,
        metavar="N",
        help="Tokens per sequence [default: the workload's].",
    ),
    _shapes(
        "--hidden-size",
        type=_COUNT,
        metavar="N",
        help="Width of the model [default: the workload's].",
    ),
    _shapes(
        "--intermediate-size",
        type=_COUNT,
        metavar="N",
        help="Width of the feed-forward [default: the workload's].",
    ),
    _shapes(
        "--num-hidden-layers",
        type=_COUNT,
        metavar="N",
        help="Layers [default: the workload's].",
    ),
    _shapes(
        "--num-attention-heads",
        type=_COUNT,
        metavar="N",
        help="Attention heads [default: the workload's].",
    ),
    _settings(
        "--config",
        type=RunName(),
        metavar="FILE|RUN",
        is_eager=True,
        callback=_use_config,
        help="Settings of this file or of this run, such as latest, instead of llmb.toml's "
        "[default: llmb.toml, if there is any].",
    ),
    _settings(
        "--tag",
        "tags",
        multiple=True,
        metavar="NAME",
        callback=_checked_tags,
        shell_complete=completion.tags,
        help="Local name of the run for other commands, such as nightly; repeatable "
        "[default: none].",
    ),
    _output(
        "--json",
        "as_json",
        is_flag=True,
        help="Print the record as JSON [default: a summary].",
    ),
    _output(
        "--quiet",
        "-q",
        "quiet",
        is_flag=True,
        help="Show no progress [default: progress on stderr].",
    ),
)


def run_options(command: F) -> F:
    """Give ``command`` every option of ``llmb run``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
