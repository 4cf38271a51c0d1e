"""The figure of one part: errors against the reference, of the run and of an honest run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from llmb.records import arrays, audited
from llmb.reproduction.one_part import Repeated, compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL_IN, _HEIGHT_IN = 4.6, 4.4
#: Okabe and Ito's blue and vermilion. https://jfly.uni-koeln.de/color/
_HONEST, _MEASURED = "#0072B2", "#D55E00"
#: Number of plotted elements per tensor, evenly spaced.
_MOST = 400
_TITLES = {
    audited.INPUT: "input of the module",
    audited.OUTPUT: "output of the module",
    audited.GRADIENT: "gradient of the parameter",
}


def draw(repeated: Repeated, tensors: Path) -> bytes:
    """Return the figure of ``repeated`` as SVG; the file ``tensors`` has the compared tensors."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(
        {"svg.hashsalt": "llmb", "text.parse_math": False, "font.family": "DejaVu Sans"}
    ):
        shown = [what for what in _TITLES if what in repeated.bits]
        figure = Figure(figsize=(_PANEL_IN * max(1, len(shown)), _HEIGHT_IN), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        stored = arrays.stored(tensors)
        for axes, what in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            three = compared(stored, repeated.pass_name, what, _MOST)
            assert three is not None  # ``bits`` has the tensor
            _panel(axes, three)
            measured, honest = repeated.bits[what]
            axes.set_title(
                f"{_TITLES[what]}\nmeasured {measured:.2f} bits, honest {honest:.2f}", fontsize=10
            )
        axes.legend(fontsize="small", loc="lower right")
        verdict = "pass" if repeated.finding.kept else "FAIL"
        figure.suptitle(f"{repeated.rule} in {repeated.parameter}: {verdict}", fontsize=11)
        buffer = io.BytesIO()
        canvas.print_figure(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _panel(axes: Axes, three: tuple[arrays.Array, arrays.Array, arrays.Array]) -> None:
    """Draw error over reference value per element, on log scales; exact elements are left out."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    measured, honest, right = three
    for values, colour, marker, label in (
        (measured, _MEASURED, "o", "measured"),
        (honest, _HONEST, "x", "honest run"),
    ):
        pairs = [(abs(r), abs(v - r)) for v, r in zip(values, right, strict=True) if r and v != r]
        if pairs:
            sizes, errors = zip(*pairs, strict=True)
            axes.scatter(sizes, errors, s=9, c=colour, marker=marker, label=label, linewidths=0.7)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=5))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    axes.set(xlabel="size of the element in the reference", ylabel="distance from the reference")
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
