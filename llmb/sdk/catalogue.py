"""Every check by name, shared by the command line, the report and the vendor's tests.

This module imports neither torch nor a plugin, so listing the checks loads neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One check: the function ``name`` in ``llmb.sdk.checks.<subject>``, and its claim (title)."""

    subject: str
    name: str
    title: str

    @property
    def id(self) -> str:
        """Name of the check in reports and messages. Example: ``device.energy``."""
        return f"{self.subject}.{self.name}"

    @property
    def test_name(self) -> str:
        """Name of the test in ``PluginConformance``: the title as an identifier."""
        return "test_" + "_".join(re.findall(r"[a-z0-9]+", self.title.lower()))


def _of(subject: str, **titles: str) -> tuple[Check, ...]:
    return tuple(Check(subject, name, title) for name, title in titles.items())


#: Run in the process that holds the plugin, in this order: each check takes the plugin a little
#: further through the phases of a run.
IN_PROCESS = (
    *_of(
        "hooks",
        loads="the plugin loads and llmb knows every hook and argument of it",
        marked="every function named like a hook is marked as one",
        sources="the sources of the plugin can be shown",
        options="options have valid names, types and defaults",
        environment_variables="environment variables are the same each time they are asked for",
        environment_takes_effect="environment variables are there before torch is imported",
        patches="every declared patch has a target and a reason",
        helpers="every declared helper thread has a name and a reason",
        native_libraries="every declared native library is there and has a licence",
    ),
    *_of(
        "backend",
        describes_itself="the backend names its device type, step clock and collectives",
        is_available="availability is told as true or false",
        devices="devices have unique names that begin with the type",
        versions="versions are text",
        peak_flops="a peak is positive and has a source, an unknown one is None",
    ),
    *_of(
        "precisions",
        formats="every offered format is one that torch has and has plausible bits",
        refusals="every refused format comes with a reason",
        native="at least one format is native",
    ),
    *_of(
        "answers",
        warmup_steps="the number of warm-up steps is always the same, and 20 at most",
        describe_system="facts about the system are text",
        telemetry="telemetry is finite numbers and quick to read",
    ),
    *_of(
        "permitted",
        importing="importing the plugin changes no setting",
        answering="hooks that only answer change nothing",
    ),
    *_of(
        "device",
        arithmetic="tensors of every offered format can be made and multiplied",
        lacks="what the device lacks is declared",
        synchronize_waits="synchronize waits for the device",
        synchronize_idle="synchronize returns at once when nothing is outstanding",
        step_marks="steps can be marked any number of times",
        memory="memory is positive or None",
        # Before peak_memory: an allocator keeps the memory that peak_memory took and dropped, and
        # takes nothing new from the device until the kept memory is used up.
        available_memory="available memory falls when memory is taken",
        peak_memory="peak memory rises with use and can be started anew",
        energy="energy never falls and rises with work",
    ),
    *_of(
        "model",
        post_processing="the post-processed model returns a finite loss",
        parameter_names="every parameter is found under its canonical name and shape",
        parameter_values="the values after post-processing are those from before",
        parameter_writes="a value written to a parameter is read back",
        gradients="every parameter has a gradient after backward",
        optimizer="the optimizer steps with the chosen kernels",
        program="the program of a step is text",
    ),
    *_of(
        "permitted",
        post_processing="post-processing changes neither the environment nor the tokens",
        training="training changes no setting",
        declared_patches="every replaced callable is declared",
        forbidden_patches="the optimizer, the clocks, builtins and llmb are left alone",
    ),
)

#: Run from outside: a real, tiny run of llmb in every native format.
AS_RUNS = _of(
    "runs",
    agree="llmb and the plugin agree on a run",
    finish="a short run in every native format comes to its end",
    rules="no rule of the audit is broken",
    weights="after post-processing every run has the pristine weights",
    losses="the losses of every run are those of the reference",
    ceiling="the ceiling of the device can be measured",
    figures="memory and energy of a run are positive or not measured",
)

#: The check that is settled before the runs.
AGREE = AS_RUNS[0]

CHECKS = (*IN_PROCESS, *AS_RUNS)


def find(check_id: str) -> Check:
    """Return the check with id ``check_id``, such as ``device.energy``."""
    return next(check for check in CHECKS if check.id == check_id)
