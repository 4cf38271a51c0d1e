"""A trace of one more step, for users who want to see the time of each operator; never timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch.profiler import profile as torch_profile
from torch.profiler import supported_activities

from llmb.plugin.backend import Backend

TRACE, TABLE = "trace.json", "operators.txt"
_ROWS = 40


def profile(step: Callable[[], None], backend: Backend, folder: Path) -> None:
    """Do ``step`` under torch's profiler; leave a Chrome trace and a table of operators.

    The step is done once before, to keep compilation out of the trace.
    """
    step()
    backend.synchronize()
    kinds = supported_activities()  # type: ignore[no-untyped-call]
    with torch_profile(activities=kinds, record_shapes=True) as trace:
        step()
        backend.synchronize()
    folder.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(folder / TRACE))
    table = trace.key_averages().table(sort_by="self_cpu_time_total", row_limit=_ROWS)
    (folder / TABLE).write_text(table, encoding="utf-8")
