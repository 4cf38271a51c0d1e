"""The options of ``llmb.run``, and the same options as words of the command ``llmb run``."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from llmb.errors import UsageError

if TYPE_CHECKING:
    from llmb.config import CompileMode, Executor, GenerateScope, OptionValue, Schedule

    PathText = str | os.PathLike[str]
    #: The name of a workload, a file, or a model's family and sizes.
    WorkloadChoice = PathText | Mapping[str, int | float | str | None]


class RunOptions(TypedDict, total=False):
    """The further options of ``llmb.run``, by the names of ``llmb run --help-all``.

    An option that is left out has the value of the command. ``micro_batch_size=4`` is
    ``--micro-batch-size 4``.
    """

    #: Work of one step. The workload's own unless given.
    mode: Literal["train", "forward", "generate"]
    #: Steps in the timed window; fewer than 50 (10 in modes forward and generate) are a debug run.
    timed_steps: int
    #: Least number of untimed steps, 1 to 20 (default 1).
    warmup_steps: int
    #: Sequences per micro-batch; times ``accumulate`` is the batch size.
    micro_batch_size: int
    #: Micro-batches per step (default 1, with ``pp`` the number of stages).
    accumulate: int
    #: Autocast over float32 weights (default as the workload's original).
    mixed_precision: bool
    #: Executor of the model's Python code (default eager).
    executor: Executor
    #: Mode of the executor inductor.
    compile_mode: CompileMode
    #: A new sequence length in every step.
    dynamic: bool
    #: Activation checkpointing of the first q of every p blocks ("q/p"), or "op".
    sac_freq: str
    #: Learning rate and first weights of the original, as a debug run.
    constant_rate: bool
    #: Trace one more step, after the window, into ``profile/`` of the run directory.
    profile: bool
    #: Tokens from a Megatron .bin/.idx prefix, a weighted list, or a text (default random tokens).
    data: PathText
    #: tokenizer.json for ``data`` with a text (default bytes).
    tokenizer: PathText
    #: Hugging Face checkpoint (safetensors), as a debug run (default random weights).
    weights: PathText
    #: The prompt of mode generate, with ``weights``.
    prompt: str
    #: Tokens of the prompt in mode generate (default 6).
    prompt_length: int
    #: Tokens after the prompt in mode generate (default 200).
    new_tokens: int
    #: The code for the executor in mode generate, the model or a whole token's step.
    scope: GenerateScope
    #: A published command for many devices, of ``llmb workload recipes``; other options override.
    recipe: str
    #: Replicas of the model (DDP) (default all ranks).
    dp_replicate: int
    #: Ranks that shard one replica (FSDP2).
    dp_shard: int
    #: ZeRO stage, 0 to 3.
    zero: int
    #: Ranks that share each matrix (tensor parallel).
    tp: int
    #: Shard sequences between the matrices of ``tp``.
    sequence_parallel: bool
    #: Shard the logits of ``tp``.
    loss_parallel: bool
    #: Pipeline stages.
    pp: int
    #: The order of micro-batches with ``pp`` (default 1F1B).
    schedule: Schedule
    #: Longest wait for another rank, in seconds (default 600).
    rank_timeout: float
    #: Seed of weights and tokens, 0 to 2^63 - 1 (default drawn afresh).
    seed: int
    #: ``timing.nonce`` of a record, 32 hexadecimal digits, to repeat its draws as a debug run.
    nonce: str
    #: File with the seed of a third party, who published the hash before.
    seed_commitment: PathText
    #: Address of a time-stamping authority (RFC 3161) for START and STOP.
    timestamp: str
    #: Settings of a file, such as ``config.toml`` of a run directory, instead of ``llmb.toml``.
    config: PathText
    #: Local names of the run for other commands, such as ["nightly"].
    tags: Sequence[str]
    #: Tokens per sequence, as a debug run.
    sequence_length: int
    #: Width of the model, as a debug run.
    hidden_size: int
    #: Width of the feed-forward, as a debug run.
    intermediate_size: int
    #: Layers, as a debug run.
    num_hidden_layers: int
    #: Attention heads, as a debug run.
    num_attention_heads: int


#: Words of options with a name of their own for "no"; all other options are left out for False.
_NEGATED = {"mixed_precision": "--no-mixed-precision", "dynamic": "--static"}


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Return ``options`` as words of ``llmb run``; None and a False flag are left out.

    Example: ``{"nproc": 2, "profile": True}`` gives ``["--nproc=2", "--profile"]``.

    Raises:
        UsageError: a value has no form on a command line, such as a NUL character.
    """
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if name == "plugin_options":
            words += [f"-O{key}={_option(setting)}" for key, setting in value.items()]
        elif name == "tags":
            words += [f"--tag={tag}" for tag in value]
        elif isinstance(value, bool):
            words += [flag] if value else [_NEGATED[name]] if name in _NEGATED else []
        else:
            words.append(f"{flag}={_text(name, value)}")
    for word in words:
        if not _is_passable(word):
            name, _, value = word.partition("=")
            raise UsageError(f"{name} {value!r}: not readable text")
    return words


def _text(name: str, value: object) -> str:
    if name == "workload" and isinstance(value, Mapping):
        return json.dumps(dict(value))
    if name == "within" and isinstance(value, (int, float)) and math.isfinite(value):
        return f"{math.ceil(value)}s"
    if name == "seed_commitment" and os.fspath(value) == "-":  # type: ignore[call-overload]
        raise UsageError("seed_commitment '-': give a file, standard input belongs to the caller")
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _is_passable(word: str) -> bool:
    """Tell whether a process can be started with ``word``: no NUL, no broken character."""
    try:
        return b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def _option(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
