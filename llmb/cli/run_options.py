"""The options of ``llmb run``, in the order in which ``--help`` shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from llmb.cli.amounts import Time
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
#: The options that are about ranks.
OF_RANKS = (
    *("recipe", "nproc", "scaling", "strong", "dp_replicate", "dp_shard", "zero", "tp"),
    *("sequence_parallel", "loss_parallel", "pp", "schedule", "rank_timeout"),
)

_OPTIONS = (
    click.option(
        "--workload",
        default="llama-1.4b",
        show_default=True,
        metavar="NAME|FILE.json",
        help="What to train (llmb workload list), or a file with sizes of your own, debug only. "
        "Left out, it is smaller where the whole run would take longer than --within.",
    ),
    click.option(
        "--within",
        type=Time(),
        metavar="TIME",
        help="Choose the largest official size whose run is estimated to end in TIME, such as 30m "
        "[default: 10m].",
    ),
    click.option(
        "--recipe",
        metavar="NAME",
        help="A document's line for many devices (llmb workload recipes); other options override.",
    ),
    click.option(
        "--mode",
        type=click.Choice(["train", "forward", "generate"]),
        help="What a step does [default: the workload's own].",
    ),
    click.option("--plugin", help="Vendor plugin [default: the best available]."),
    click.option(
        "-O",
        "--plugin-option",
        "plugin_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of the plugin; repeat for more.",
    ),
    click.option("--device", help="Any torch device string [default: the plugin's]."),
    click.option("--precision", help="FP32, TF32, FP16, BF16, ... [default: the best that fits]."),
    click.option(
        "--batch-size",
        type=BatchSize(),
        help="Sequences per step [default: 1 on a CPU, auto elsewhere: in FP16 up to 16,384 tokens "
        "unless the loss is scaled].",
    ),
    click.option(
        "--micro-batch-size", type=_COUNT, help="Sequences at once; times --accumulate a step's."
    ),
    click.option(
        "--accumulate",
        type=_COUNT,
        default=1,
        help="Parts of a step's batch, whose gradients add up [default: 1; --pp: the stages].",
    ),
    click.option(
        "--mixed-precision/--no-mixed-precision",
        default=None,
        help="Autocast over float32 weights [default: as the workload's original].",
    ),
    click.option(
        "--executor",
        type=click.Choice(["eager", "inductor", "thunder"]),
        default="eager",
        show_default=True,
        help="What runs the model's Python code.",
    ),
    click.option(
        "--compile-mode",
        type=click.Choice(
            ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
        ),
        default="default",
        show_default=True,
        help="How --executor inductor compiles.",
    ),
    click.option(
        "--dynamic/--static",
        default=False,
        help="Sequences of another length in each step [default: static].",
    ),
    click.option(
        "--sac-freq",
        metavar="Q/P|op",
        help="Selective activation checkpointing: of P blocks the first Q; op: all but products.",
    ),
    click.option(
        "--scope",
        type=click.Choice(["model", "step"]),
        help="Mode generate: what the executor is given [default: the workload's own].",
    ),
    click.option("--prompt-length", type=_COUNT, help="Mode generate: tokens [default: 6]."),
    click.option("--new-tokens", type=click.IntRange(min=2), help="Mode generate [default: 200]."),
    click.option(
        "--data",
        metavar="PREFIX|LIST|TEXT",
        help="Tokens of files instead of random ones: Megatron's .bin/.idx, a list of them, text.",
    ),
    click.option("--tokenizer", metavar="FILE", help="A tokenizer.json for text [default: bytes]."),
    click.option(
        "--weights",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="A Hugging Face checkpoint of safetensors instead of random weights; debug only.",
    ),
    click.option("--prompt", help="Mode generate: a text, by the tokenizer of --weights."),
    click.option(
        "--seed", type=click.IntRange(min=0, max=2**63 - 1), help="[default: drawn afresh]"
    ),
    click.option(
        "--nonce",
        metavar="HEX",
        help="timing.nonce of a record: the run is done again, as debug [default: drawn afresh].",
    ),
    click.option(
        "--constant-rate",
        is_flag=True,
        help="The original's learning rate and first weights, as debug [default: rates are drawn].",
    ),
    click.option(
        "--seed-commitment",
        type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
        metavar="FILE",
        help="The seed of a third party, who published its hash before; - reads standard input.",
    ),
    click.option(
        "--timestamp",
        metavar="URL",
        help="Have START and STOP stamped by a time-stamping authority (RFC 3161), such as "
        "https://freetsa.org/tsr; docs/time-stamps.md.",
    ),
    click.option(
        "--nproc",
        type=_COUNT,
        metavar="N",
        help="Ranks on this machine, one a device [default: 1].",
    ),
    click.option(
        "--scaling", metavar="1,2,4", help="One run for each number of ranks, and their efficiency."
    ),
    click.option("--strong", is_flag=True, help="With --scaling: ranks share one batch."),
    click.option("--dp-replicate", type=_COUNT, help="Replicas of the model [default: all ranks]."),
    click.option(
        "--dp-shard",
        type=_COUNT,
        help="Ranks that share a replica (FSDP) [default: 1].",
    ),
    click.option(
        "--zero",
        type=click.IntRange(0, 3),
        help="0: replicas; 1, 2: ranks share the parameters; 3: and gather them twice a step.",
    ),
    click.option("--tp", type=_COUNT, help="Ranks that share each matrix [default: 1]."),
    click.option("--sequence-parallel", is_flag=True, help="With --tp: they share sequences, too."),
    click.option("--loss-parallel", is_flag=True, help="With --tp: they share the logits, too."),
    click.option("--pp", type=_COUNT, help="Stages of ranks that share the layers [default: 1]."),
    click.option(
        "--schedule",
        type=click.Choice(
            [
                *("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS"),
                *("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"),
            ]
        ),
        help="With --pp: how stages take the micro-batches of --accumulate [default: 1F1B].",
    ),
    click.option(
        "--rank-timeout",
        type=click.FloatRange(min=1),
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a rank waits for another.",
    ),
    click.option(
        "--warmup-steps",
        type=click.IntRange(min=1, max=MOST_WARMUP_STEPS),
        help="At least this many untimed steps.",
    ),
    click.option(
        "--timed-steps",
        type=_COUNT,
        help="Steps, calls or samples [default: 50, 10, 10]; an official run has no fewer.",
    ),
    click.option("--repeats", type=_COUNT, default=1, show_default=True, help="Fresh processes."),
    click.option(
        "--output-dir",
        type=click.Path(path_type=Path),
        default=Path("runs"),
        show_default=True,
        help="Where run directories go.",
    ),
    click.option(
        "--audit",
        type=click.Choice(["quick", "full", "off"]),
        help="How closely to look [default: full; quick for a debug run]; off is a debug run.",
    ),
    click.option(
        "--preset", type=click.Choice(["debug"]), help="A tiny run in seconds, not official."
    ),
    click.option("--sequence-length", type=_COUNT, help="Debug only."),
    click.option("--hidden-size", type=_COUNT, help="Debug only."),
    click.option("--intermediate-size", type=_COUNT, help="Debug only."),
    click.option("--num-hidden-layers", type=_COUNT, help="Debug only."),
    click.option("--num-attention-heads", type=_COUNT, help="Debug only."),
    click.option(
        "--profile", is_flag=True, help="Trace one more step, untimed: profile/ in the run."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the record, and nothing else."),
    click.option("--quiet", "-q", is_flag=True, help="Show no progress."),
)


def run_options(command: F) -> F:
    """Give ``command`` every option of ``llmb run``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
