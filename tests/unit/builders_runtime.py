"""Small valid values for the tests of one run's machinery: configs, offers, stamps, plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from llmb.config import BF16, FP32, Mode, RunConfig
from llmb.records import ceiling, run_record
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import RepeatTiming
from llmb.records.system import Cpu, HostLoad, HostMemory, SystemDescription
from llmb.wire.messages import Fence, Offer, Readings

TINY = {
    "sequence_length": 8,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def run_config(**changes: Any) -> RunConfig:
    """Return a resolved official run on the CPU, with ``changes``."""
    values: dict[str, Any] = {
        "workload": "llama-1.4b",
        "mode": Mode.TRAIN,
        "plugin": "cpu",
        "plugin_options": {},
        "device": "cpu",
        "precision": BF16,
        "batch_size": 1,
        "seed": 7,
        "warmup_steps": 2,
        "timed_steps": 50,
        "repeats": 1,
    }
    return RunConfig(**{**values, **changes})


def offer(**changes: Any) -> Offer:
    """Return what the CPU plugin offers on a machine with plenty of memory, with ``changes``."""
    values: dict[str, Any] = {
        "plugin": "cpu",
        "distribution": "llmb",
        "version": "0.1.0",
        "available": True,
        "device": "cpu",
        "available_memory_bytes": 10**12,
        "precisions": (BF16, FP32),
        "torch_version": "2.13.0",
    }
    return Offer(**{**values, **changes})


def timing(
    block_ms: Sequence[int] = (1000, 1000, 1000, 1000, 1000),
    *,
    steps_per_block: int = 10,
    warmup_steps: int = 2,
    step_clock: str = "host",
    **changes: Any,
) -> RepeatTiming:
    """Return the stamps of a worker whose fence blocks took ``block_ms``, steps evenly spaced."""
    fences = [0, *accumulate(ms * 1_000_000 for ms in block_ms)]
    steps = [warmup_steps + steps_per_block * i for i in range(len(fences))]
    per_step = [
        ms * 1_000_000 // steps_per_block for ms in block_ms for _ in range(steps_per_block)
    ]
    first = [-1_000_000_000 * i for i in range(warmup_steps - 1, 0, -1)]
    values: dict[str, Any] = {
        "warmup_steps": warmup_steps,
        "timed_steps": steps_per_block * len(block_ms),
        "start_ns": fences[0],
        "stop_ns": fences[-1],
        "fence_ns": tuple(fences),
        "fence_worker_ns": tuple(fences),
        "fence_steps": tuple(steps),
        "step_ns": (*first, 0, *accumulate(per_step)),
        "step_clock": step_clock,
        "starved_steps": 0,
        "loss_first": 10.5,
        "loss_last": 9.5,
        "peak_memory_bytes": 2**30,
        "energy_start_j": None,
        "energy_stop_j": None,
        "cpu_s": 1.0,
    }
    return RepeatTiming(**{**values, **changes})


def workload_facts(tokens_per_step: int = 100, flops_per_token: int = 1000) -> Any:
    """Return what was trained, in round numbers."""
    return run_record.WorkloadFacts(
        name="llama-1.4b",
        mode="train",
        parameters=1,
        flops_per_token=flops_per_token,
        tokens_per_step=tokens_per_step,
        shapes={},
    )


def ceilings(before: float, after: float) -> ceiling.Ceilings:
    """Return two ceilings of so many FLOP/s."""
    first, second = (
        ceiling.Ceiling(
            precision="BF16",
            tokens=1,
            gemms=(),
            flops_per_second=flops,
            memory_bytes_per_second=1.0,
        )
        for flops in (before, after)
    )
    return ceiling.Ceilings(before=first, after=second)


def host_load(**changes: Any) -> HostLoad:
    """Return a quiet host, with ``changes``."""
    values: dict[str, Any] = {
        "load_1min": 0.0,
        "steal_s": 0.0,
        "throttled_periods": 0,
        "frequency_mhz": 2000.0,
    }
    return HostLoad(**{**values, **changes})


def system(
    before: HostLoad | None = None, after: HostLoad | None = None, **cpu: Any
) -> SystemDescription:
    """Return a host of four cores, quiet unless ``before`` and ``after`` say otherwise."""
    cores = {"physical_cores": 4, "logical_cores": 4, "usable_cores": 4}
    return SystemDescription(
        cpu=Cpu(model="CPU", architecture="any", max_frequency_mhz=None, **{**cores, **cpu}),
        memory=HostMemory(total_bytes=2**36, available_bytes=2**35),
        devices=(),
        os="Linux",
        python="3.11.7",
        torch="2.13.0",
        load_before=before or host_load(),
        load_after=after or host_load(),
    )


def fence(steps: int, **changes: Any) -> Fence:
    """Return what a worker says at the fence after ``steps`` steps."""
    values: dict[str, Any] = {
        "worker_ns": steps,
        "loss": 10.0 - steps / 100,
        "bits": "00" * 32,
        "cpu_s": steps / 10,
        "starved_steps": 0,
    }
    return Fence(steps=steps, **{**values, **changes})


def readings(steps: int, **changes: Any) -> Readings:
    """Return what a worker tells of its device after that fence."""
    values: dict[str, Any] = {
        "peak_memory_bytes": 2**20,
        "energy_j": None,
        "energy_source": None,
        "energy_scope": None,
    }
    return Readings(steps=steps, **{**values, **changes})


def finding(
    id_: str = "O1", level: Level = Level.BLOCK, status: Status = Status.PASS, message: str = ""
) -> Finding:
    """Return one observation."""
    return Finding(id=id_, level=level, status=status, observer="test", message=message)


def install(
    site: Path,
    distribution: str,
    entry_points: Mapping[str, str],
    files: Mapping[str, str] | None = None,
    version: str = "1.0",
) -> Path:
    """Install a plugin package into ``site`` by hand: its dist-info folder and its ``files``."""
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = (f"{name} = {module}\n" for name, module in entry_points.items())
    (info / "entry_points.txt").write_text("[llmb]\n" + "".join(lines))
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    for name, text in (files or {}).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return info
