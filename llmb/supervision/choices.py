"""The mode-dependent choices of a run: allowed combinations and defaults."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from llmb import workloads
from llmb.config import THUNDER, Choices, Executor, Mode, Precision, RunRequest
from llmb.errors import UnavailableError, UsageError
from llmb.families import family_of
from llmb.formats import NARROW_BITS
from llmb.reference.shapes import Shape
from llmb.workloads import Workload, checkpointing
from llmb.workloads.workload import NEW_TOKENS, PROMPT_LENGTH

#: Untimed steps until an executor has finished compiling. Example: inductor needs the first step,
#: the second step with the optimizer's state, and two more steps to capture graphs.
_WARMUP_STEPS = {"eager": 1, "inductor": 4, "thunder": 3}


def check_installed(executor: Executor) -> None:
    """Refuse an executor that is not installed, before any process is started.

    Raises:
        UnavailableError: the executor is missing; the message names the package to install.
    """
    if executor == "thunder" and find_spec("thunder") is None:
        raise UnavailableError(f"--executor thunder: it is not installed; {THUNDER}")


def settle(request: RunRequest, workload: Workload, precision: Precision) -> dict[str, Any]:
    """Return the fields of a ``RunConfig`` that depend on the mode.

    Raises:
        UsageError: two choices exclude each other, for example ``--prompt`` in mode train.
    """
    mode = workloads.mode_of(workload, request.mode)
    _check_executor(request, workload, precision)
    if mode is not Mode.TRAIN:
        _check_nothing_is_trained(request, mode)
    if request.executor == "thunder" and mode is not Mode.GENERATE and _is_grouped(workload.shape):
        raise UsageError(
            f"--executor thunder: lightning-thunder 0.2.6 does not know the shared key-value heads "
            f"of {workload.name}: use eager or inductor"
        )
    if request.dynamic and (mode is Mode.GENERATE or not family_of(workload.shape).causal):
        raise UsageError("--dynamic: only in modes train and forward, of llama and gpt2")
    if request.prompt_tokens and mode is not Mode.GENERATE:
        raise UsageError("--prompt: only in mode generate")
    return {
        **{name: getattr(request, name) for name in Choices.model_fields},
        "mode": mode,
        "warmup_steps": request.warmup_steps or _WARMUP_STEPS[request.executor],
        "timed_steps": request.timed_steps or mode.official_steps,
        **_generation(request, workload, mode),
    }


def _is_grouped(shape: Shape) -> bool:
    """Tell whether query heads share key-value heads (grouped-query attention)."""
    return family_of(shape).key_value_heads(shape) < shape.num_attention_heads


def _check_executor(request: RunRequest, workload: Workload, precision: Precision) -> None:
    if request.compile_mode != "default" and request.executor != "inductor":
        raise UsageError(
            f"--compile-mode {request.compile_mode} is for --executor inductor, not for "
            f"{request.executor}"
        )
    if request.sac_freq is not None:
        checkpointing.parse(request.sac_freq)
        if request.executor == "thunder":
            raise UsageError(
                "--sac-freq: thunder decides itself what it computes again; leave it out, or use "
                "--executor inductor"
            )
    narrow = precision.bits <= NARROW_BITS
    if narrow and workload.document == "llm-train-bench":
        if request.executor != "eager":
            raise UsageError(
                f"--executor {request.executor} with {precision.name}: the document of "
                f"{workload.name} has FP8 without compilation only; leave one of them out"
            )
        if request.sac_freq is not None:
            raise UsageError(
                f"--sac-freq with {precision.name}: the document of {workload.name} has FP8 "
                "without activation checkpointing only; leave one of them out"
            )


def _check_nothing_is_trained(request: RunRequest, mode: Mode) -> None:
    for given, flag in (
        (request.sac_freq is not None, "--sac-freq"),
        (request.accumulate > 1, "--accumulate"),
        (bool(request.mixed_precision), "--mixed-precision"),
    ):
        if given:
            raise UsageError(f"{flag} is about training: leave it out in mode {mode.value}")


def _generation(request: RunRequest, workload: Workload, mode: Mode) -> dict[str, Any]:
    given = {
        "--scope": request.generate_scope,
        "--prompt-length": request.prompt_length,
        "--new-tokens": request.new_tokens,
    }
    if mode is not Mode.GENERATE:
        for flag, value in given.items():
            if value is not None:
                raise UsageError(f"{flag} {value}: only in mode generate")
        return {}
    prompt = request.prompt_length or PROMPT_LENGTH
    new, longest = request.new_tokens, workload.shape.sequence_length
    if new is None:
        new = min(NEW_TOKENS, max(2, longest - prompt))
    if prompt + new > longest:
        raise UsageError(
            f"--prompt-length {prompt} and --new-tokens {new} are {prompt + new} together, and the "
            f"model's sequences have {longest}: use fewer, or --sequence-length"
        )
    return {
        "generate_scope": request.generate_scope or workload.scope,
        "prompt_length": prompt,
        "new_tokens": new,
    }
