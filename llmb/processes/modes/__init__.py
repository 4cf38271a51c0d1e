"""The modes of a run: the timed work of a step, the samples of the audit, and the repetition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
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

#: Takes the results of a step, from which a lazy device has yet to make a program.
Show = Callable[[Sequence[Tensor]], None]


class Task(Protocol):
    """The work of one worker in its mode."""

    #: Name of the phase, for messages.
    phase: str
    sampler_class: type
    ledger_class: type

    @property
    def ledger(self) -> StepLedger | None:
        """The object that samples every step, if steps can be repeated."""
        ...

    @property
    def sampler(self) -> Observer:
        """The object that looks at audited steps."""
        ...

    def steps(self, stream: StepStream, show: Show) -> Iterator[StepDone]:
        """Do the steps of ``stream``, and yield after each; ``show`` the first step's results."""
        ...

    def told(self) -> FencePayload:
        """Return the mode's values for a fence."""
        ...

    def write(self, writer: EvidenceWriter, baseline: OptimizerBaseline, steps: int) -> None:
        """Write down the state of the optimizer after ``steps`` steps, if any."""
        ...

    def whole_step(self) -> None:
        """Repeat the latest step for a trace: no audit comes afterwards."""
        ...

    def be_audited(
        self, writer: EvidenceWriter, stream: StepStream, before: TamperBaseline | None
    ) -> None:
        """Write the files that honest run and reference run need."""
        ...


def module_of(mode: Mode) -> ModuleType:
    """Return the module with the loop of ``mode``, loaded here if not before."""
    return import_module(f"{__name__}.{'training' if mode is Mode.TRAIN else 'inference'}")


def begin(stage: Stage) -> Task:
    """Return the work for the mode of ``stage``.

    Raises:
        UsageError: the plugin's model does not support the options.
    """
    if stage.config.mode is Mode.TRAIN:
        from llmb.processes.modes.training import Training

        return Training(stage)
    from llmb.processes.modes.inference import Forward, Generation

    return Forward(stage) if stage.config.mode is Mode.FORWARD else Generation(stage)
