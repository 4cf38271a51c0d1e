"""What is timed in each mode, what is looked at of it, and how the same is done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from torch import Tensor

from llmb.config import Mode
from llmb.observe.ledger import StepLedger
from llmb.observe.optimizer import OptimizerBaseline
from llmb.processes.evidence_writer import EvidenceWriter
from llmb.processes.modes.stage import Stage
from llmb.processes.step_stream import FencePayload, Observer, StepStream
from llmb.processes.tamper_baseline import TamperBaseline
from llmb.reference.train_loop import StepDone

#: Takes the results of a step while a lazy device has not computed them: its program is in them.
Show = Callable[[Sequence[Tensor]], None]


class Task(Protocol):
    """The work of one worker in its mode."""

    #: What it is called while it lasts.
    phase: str
    sampler_class: type
    ledger_class: type

    @property
    def ledger(self) -> StepLedger | None:
        """What reads something of every step, where steps can be repeated."""
        ...

    @property
    def sampler(self) -> Observer:
        """What looks at its steps."""
        ...

    def steps(self, stream: StepStream, show: Show) -> Iterator[StepDone]:
        """Do the steps of ``stream``, and yield after each; ``show`` the first one's results."""
        ...

    def told(self) -> FencePayload:
        """Return what a fence tells of this mode."""
        ...

    def write(self, writer: EvidenceWriter, baseline: OptimizerBaseline, steps: int) -> None:
        """Write down what became of the optimizer in ``steps`` steps, if there is one."""
        ...

    def whole_step(self) -> None:
        """Do the latest step again, to be traced: nothing is looked at after it."""
        ...

    def be_audited(
        self, writer: EvidenceWriter, stream: StepStream, before: TamperBaseline | None
    ) -> None:
        """Leave what honest and reference run need."""
        ...


def begin(stage: Stage) -> Task:
    """Return the work that the mode of ``stage`` asks for.

    Raises:
        UsageError: the plugin's model cannot be run as the options want.
    """
    if stage.config.mode is Mode.TRAIN:
        from llmb.processes.modes.training import Training

        return Training(stage)
    from llmb.processes.modes.inference import Forward, Generation

    return Forward(stage) if stage.config.mode is Mode.FORWARD else Generation(stage)
