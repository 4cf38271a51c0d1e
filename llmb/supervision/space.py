"""Disk space needed by a run, estimated before the run writes any file."""

from __future__ import annotations

import shutil
from pathlib import Path

from llmb.config import AuditMode, Mode, RunConfig, is_cpu
from llmb.errors import NotEnoughSpaceError
from llmb.measure.duration import judged_steps
from llmb.workloads import Workload
from llmb.workloads.arithmetic import parameter_count

#: Number of files with full weights on the disk at the same time during the audit of a training:
#: a file of the last step, and on a device files of two steps that the honest run replays. Files
#: of judged steps come on top (rule G1).
_LIVE, _REPLAYED = 1, 2
#: Bytes of samples and sketches per repeat, before evidence is reduced. Example: 13 MB were
#: measured for gpt2-125m (148 parameters, 56 steps).
_EVIDENCE_BYTES = 20 * 10**6
#: Models with fewer parameters (test models) count in proportion.
_SMALL = 10**7


def needed_bytes(config: RunConfig, workload: Workload) -> int:
    """Return the approximate largest number of bytes that a run of ``config`` has on the disk.

    Example: 11 GB for llama-1.4b in BF16 on a CPU; 3 MB stay after the run.
    """
    if config.audit is AuditMode.OFF:
        return 0  # some hundred KB
    parameters = parameter_count(workload.shape)
    evidence = min(1.0, parameters / _SMALL) * _EVIDENCE_BYTES
    copies = _LIVE
    if config.mode is Mode.TRAIN:
        copies += judged_steps(workload.shape, config)[1]
        copies += 0 if is_cpu(config.device) else _REPLAYED
    weights = copies * config.precision.bytes_per_value * parameters
    return int(weights + evidence * config.repeats)


def check_space(output: Path, config: RunConfig, workload: Workload) -> None:
    """Refuse a run if the disk of ``output`` has too little room.

    A quota that the file system does not report, for example on a network disk, is met later.

    Raises:
        NotEnoughSpaceError: the disk has too little room.
    """
    needed, free = needed_bytes(config, workload), shutil.disk_usage(output).free
    if needed > free:
        raise NotEnoughSpaceError(
            f"--output-dir {output}: {free / 1e9:.3f} GB are free, and the run needs "
            f"{needed / 1e9:.3f} GB while it is audited, mostly for whole weights: make room, or "
            "choose another folder"
        )
