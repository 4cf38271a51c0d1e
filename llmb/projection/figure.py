"""The figure of a projection: parts of the step time, and tokens/s over the number of devices."""

from __future__ import annotations

import io
from collections.abc import Sequence

from llmb.projection.job import Job
from llmb.projection.projected import Projection
from llmb.projection.step_time import step_time

FORMATS = ("svg", "png")
_SIZE_IN, _DPI = (11.0, 5.0), 150
#: Okabe and Ito's palette for colour-blind readers, and two greys.
#: https://jfly.uni-koeln.de/color/
_COLOURS = (
    *("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"),
    *("#CC79A7", "#F0E442", "#999999", "#000000", "#CCCCCC"),
)
#: A part below 0.2 % of every step is not drawn.
_LEAST = 0.002


def draw(found: Projection, jobs: Sequence[Job], kind: str) -> bytes:
    """Return the figure of ``jobs``: the job of ``found`` on growing numbers of devices.

    ``kind`` is the file format, ``svg`` or ``png``.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    hardware, constants = found.hardware, found.basis.constants
    times = [step_time(job, hardware, constants) for job in jobs]
    rates = [job.tokens / time.total for job, time in zip(jobs, times, strict=True)]
    labels = [f"{job.devices:,}" for job in jobs]
    with mpl.rc_context({"svg.hashsalt": "llmb", "text.parse_math": False}):
        figure = Figure(figsize=_SIZE_IN, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        bottom = [0.0] * len(jobs)
        for part, colour in zip(times[0].parts(), _COLOURS, strict=True):
            values = [time.parts()[part] for time in times]
            if max(v / t.total for v, t in zip(values, times, strict=True)) < _LEAST:
                continue
            left.bar(labels, values, bottom=bottom, color=colour, label=part.replace("_", " "))
            bottom = [b + v for b, v in zip(bottom, values, strict=True)]
        left.set(xlabel="devices", ylabel="seconds of a step", title="where the time goes")
        left.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
        devices = [job.devices for job in jobs]
        right.plot(devices, rates, marker="o", color=_COLOURS[0], label="projected")
        ideal = [rates[0] * n / devices[0] for n in devices]
        right.plot(devices, ideal, linestyle="--", color="#777777", label="as many times the first")
        right.set_xscale("log", base=2)
        right.set_yscale("log")
        right.set_xticks(devices, labels)
        right.minorticks_off()
        right.yaxis.set_major_formatter("{x:,.0f}")
        right.set(xlabel="devices", ylabel="tokens/s", title="with more replicas, each as busy")
        right.legend(fontsize="small")
        title = f"{found.workload.name} on {hardware.name}: projected, not measured"
        if found.fits == "no":
            needed, there = found.memory.total / 1e9, hardware.memory_bytes / 1e9
            title = f"does not fit: {needed:,.1f} GB of {there:,.0f} GB. {title}"
        figure.suptitle(title)
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        canvas.print_figure(buffer, format=kind, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()
