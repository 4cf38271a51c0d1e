"""What a run writes to the disk of its run directory, before anything of it is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from llmb.config import AuditMode, Mode, RunConfig
from llmb.errors import NotEnoughSpaceError
from llmb.supervision.memory import compares_all
from llmb.workloads import Workload
from llmb.workloads.arithmetic import parameter_count

#: Files of whole weights that lie beside each other while a training is audited: those of the
#: last step, and of two steps that the honest run has replayed.
_LIVE, _REPLAYED = 1, 2
#: Samples and sketches of a run before they are made smaller, for each repeat: 13 MB were measured
#: of gpt2-125m (148 parameters, 56 steps).
_EVIDENCE_BYTES = 20 * 10**6
#: Of models with fewer parameters less is counted, in proportion: they are for tests.
_SMALL = 10**7


def needed_bytes(config: RunConfig, workload: Workload) -> int:
    """Return how many bytes a run of ``config`` has on the disk at once, at most, nearly.

    Example: 8.6 GB of llama-1.4b in BF16, of which 3 MB stay.
    """
    if config.audit is AuditMode.OFF:
        return 0  # some hundred KB
    parameters = parameter_count(workload.shape)
    evidence = min(1.0, parameters / _SMALL) * _EVIDENCE_BYTES
    copies = _LIVE
    if config.mode is Mode.TRAIN:
        copies += _REPLAYED if compares_all(config, workload) else _REPLAYED + 1
    weights = copies * config.precision.bytes_per_value * parameters
    return int(weights + evidence * config.repeats)


def check_space(output: Path, config: RunConfig, workload: Workload) -> None:
    """Refuse a run for which ``output`` has too little room.

    A quota that the file system does not tell of is met later.

    Raises:
        NotEnoughSpaceError: there is too little.
    """
    needed, free = needed_bytes(config, workload), shutil.disk_usage(output).free
    if needed > free:
        raise NotEnoughSpaceError(
            f"--output-dir {output}: {free / 1e9:.3f} GB are free, and the run needs "
            f"{needed / 1e9:.3f} GB while it is audited, mostly for whole weights: make room, or "
            "choose another folder"
        )
