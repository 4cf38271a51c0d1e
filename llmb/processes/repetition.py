"""A worker's steps or calls, repeated from the evidence that the worker left (rule L1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from safetensors.torch import load, save
from torch import Tensor

from llmb.observe.rerun import RerunInputs
from llmb.processes.call_replay import CallReplay
from llmb.processes.evidence_writer import Announcer, apart
from llmb.processes.stream_replay import Overseer, StreamReplay
from llmb.records import audited
from llmb.wire.channel import Channel
from llmb.wire.messages import AuditOrder, Phase, StreamToReplay


class Onlooker(Overseer, Protocol):
    """The object that is called in the pause of each replayed step, and before each call."""

    def look(self, call: int) -> None:
        """Look at the process before the call of this number."""
        ...


def repeat(
    channel: Channel,
    order: AuditOrder,
    inputs: RerunInputs,
    announce: Announcer,
    onlooker: Onlooker,
    finish: Callable[[], None] | None = None,
) -> None:
    """Repeat the steps or calls of ``order``, if any, and write the rows as a file.

    ``finish`` runs the recorded work of a lazy device, and is None for other devices. A repetition
    that fails is reported, and leaves no file.

    Raises:
        RunFailedError: the worker's evidence was altered.
    """
    if order.stream is not None:
        with apart(channel, "the repetition of the steps"):
            rows = _steps(channel, order.stream, inputs, onlooker, finish)
            if rows is not None:
                announce.write_bytes(audited.REPLAYED, save({audited.ROWS: rows}))
    if order.calls is not None:
        with apart(channel, "the repetition of the calls"):
            channel.send(Phase(name=f"{len(order.calls.calls)} calls again"))
            read = load(inputs.read(audited.LEDGER_VALUES))[audited.ROWS]
            rows = CallReplay(order.config, order.calls, read, onlooker.look).rows()
            announce.write_bytes(audited.REPLAYED, save({audited.ROWS: rows}))


def _steps(
    channel: Channel,
    stream: StreamToReplay,
    inputs: RerunInputs,
    onlooker: Onlooker,
    finish: Callable[[], None] | None,
) -> Tensor | None:
    """Return the rows of the worker's steps, repeated from the first step; None without steps."""
    steps = audited.StepsEvidence.model_validate_json(inputs.read(audited.STEPS))
    if not steps.steps:
        return None
    channel.send(Phase(name=f"{len(stream.token_seeds)} steps again"))
    where = load(inputs.read(audited.LEDGER_VALUES))[audited.WHERE]
    ledger = audited.LedgerEvidence.model_validate_json(inputs.read(audited.LEDGER))
    kernel = steps.steps[0]
    return StreamReplay(inputs.config, stream, where, ledger, kernel, onlooker, finish).rows()
