"""The numbers of a finding, placed between the honest value and the limit of the rule.

A finding has its numbers in words (``llmb.records.finding.Finding``), and so have the bundles of
every earlier version: this module reads the words. Words of another form have no scale. Example of
rule E1: "0.018 of all, worst 0.0241", honest "0.0184 of all, worst 0.0228", limit "1.5 and 2.0
times honest": the gradients are at 0.018 where 0.0184 is honest and 0.0276 is the limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llmb.records.finding import Finding, Status
from llmb.report.drawing import Area, Axis, Drawing, Stroke

_N = r"([-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?)"
#: Rows of pixels in the drawing of a scale.
_HEIGHT = 26
#: A measured value is drawn up to this many times the distance from the honest value to the limit.
_FURTHEST = 12.0


@dataclass(frozen=True)
class Scale:
    """One measured number (or range) of a finding, with the honest range and the limits.

    Beyond ``low`` or ``high`` is cheating; None: no limit on that side.
    """

    what: str
    unit: str
    measured: tuple[float, float]
    honest: tuple[float, float] | None
    low: float | None
    high: float | None

    @property
    def is_kept(self) -> bool:
        """Whether the measured range lies within the limits; False for a NaN."""
        least, most = self.measured
        above = self.low is None or least >= self.low
        return above and (self.high is None or most <= self.high) and not math.isnan(least + most)

    def words(self) -> tuple[tuple[str, str], ...]:
        """Return name and text of measured, honest and limit. Example: ``("limit", "6.01 bits")``.

        A limit on both sides is "-25 to 25 %".
        """
        limits = [limit for limit in (self.low, self.high) if limit is not None]
        return (
            ("measured", self._range(self.measured)),
            ("honest", self._range(self.honest) if self.honest else "no number"),
            ("limit", self._range((limits[0], limits[-1]))),
        )

    def _range(self, ends: tuple[float, float]) -> str:
        texts = dict.fromkeys(f"{end:,.4g}" for end in ends)
        return f"{' to '.join(texts)} {self.unit}".strip()

    def drawing(self) -> Drawing:
        """Return the honest range, the cheating ranges, and a mark for the measured value."""
        axis = self._axis()
        low = 0.0 if self.low is None else axis.place(self.low)
        high = 100.0 if self.high is None else axis.place(self.high)
        areas = [Area(low, 9, high - low, 8, "zone-honest")]
        areas += [Area(0, 9, low, 8, "zone-cheat")] if self.low is not None else []
        areas += [Area(high, 9, 100 - high, 8, "zone-cheat")] if self.high is not None else []
        strokes = [Stroke(x, 6, x, 20, "mark-limit") for x in (low, high) if 0 < x < 100]
        if self.honest is not None:
            begin, end = sorted(map(axis.place, self.honest))
            areas.append(Area(begin, 11, end - begin, 4, "span-honest"))
            strokes += [Stroke(x, 6, x, 20, "mark-honest") for x in {begin, end}]
        shown = "mark-kept" if self.is_kept else "mark-broken"
        begin, end = sorted(map(axis.place, self._shown()))
        left = min(max(0.0, (begin + end) / 2 - 0.6), 98.8) if end - begin < 1.2 else begin
        areas.append(Area(left, 2, max(1.2, end - begin), 22, shown))
        said = ", ".join(f"{name} {text}" for name, text in self.words())
        return Drawing(f"{self.what}: {said}", _HEIGHT, tuple(areas), tuple(strokes))

    @property
    def is_clipped(self) -> bool:
        """Whether the measured value lies beyond the end of the drawing."""
        return not all(map(self._axis().holds, self.measured))

    def _shown(self) -> tuple[float, float]:
        """Return the measured range; a NaN is as far beyond the limit as can be drawn."""
        axis = self._axis()
        furthest = axis.high if self.high is not None else axis.low
        least, most = (furthest if math.isnan(value) else value for value in self.measured)
        return least, most

    def _axis(self) -> Axis:
        """Return the axis: honest range and limits, with room on the cheating sides."""
        limits = [limit for limit in (self.low, self.high) if limit is not None]
        honest = self.honest or self._unmeasured()
        span = max(abs(limit - end) for limit in limits for end in honest)
        span = max(span, max(map(abs, limits)) / 10, 1e-12)
        ends = [*honest, *limits]
        ends += [self.low - span / 2] if self.low is not None else []
        ends += [self.high + span / 2] if self.high is not None else []
        room = Axis(min(ends) - _FURTHEST * span, max(ends) + _FURTHEST * span)
        ends += [value for value in self.measured if room.holds(value)]
        found = Axis.around(ends, 0.06)
        return Axis(max(0.0, found.low), found.high) if min(ends) >= 0 else found

    def _unmeasured(self) -> tuple[float, float]:
        """Return a range in place of an honest value that nobody measured."""
        if self.low is None:
            return 0.0, 0.0
        least = [value for value in self.measured if value >= self.low]
        return self.low, max(least, default=2 * self.low)


def scales(finding: Finding) -> tuple[Scale, ...]:
    """Return the scales of ``finding``; empty: its words have no numbers to draw.

    A scale that contradicts a kept rule was misread, and is left out.
    """
    read = _READERS.get(finding.id)
    if read is None or finding.measured is None or finding.limit is None:
        return ()
    words = _Words(finding.measured, finding.honest or "", finding.limit, finding.message)
    try:
        found = tuple(read(words))
    except ValueError:
        return ()
    broken = finding.status in (Status.FAIL, Status.FLAG)
    return tuple(one for one in found if _is_drawable(one) and (broken or one.is_kept))


@dataclass(frozen=True)
class _Words:
    measured: str
    honest: str
    limit: str
    message: str


def _is_drawable(scale: Scale) -> bool:
    known = (*(scale.honest or ()), *(x for x in (scale.low, scale.high) if x is not None))
    return bool(known) and all(abs(number) < 1e30 for number in known)


Reader = Callable[[_Words], Iterator[Scale]]


def _numbers(pattern: str, text: str) -> tuple[float, ...]:
    """Return the groups of ``pattern`` in ``text`` as numbers.

    Raises:
        ValueError: the text has another form.
    """
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"not of the form {pattern!r}")
    return tuple(float(group.replace(",", "")) for group in match.groups())


def _errors(words: _Words) -> Iterator[Scale]:
    """Read E1 and G1: relative errors, at most some times honest (modes without training: one)."""
    if " of all" not in words.measured:
        (value,), (own,) = (_numbers(f"^{_N}$", text) for text in (words.measured, words.honest))
        (times,) = _numbers(f"^{_N} times honest$", words.limit)
        yield _at_most("all logits together", value, own, times * own)
        return
    shown, right = (
        _numbers(f"^{_N} of all, worst {_N}$", text) for text in (words.measured, words.honest)
    )
    limits = _numbers(f"^{_N} and {_N} times honest$", words.limit)
    names = ("all gradients together", "the parameter furthest off")
    for what, value, own, times in zip(names, shown, right, limits, strict=True):
        yield _at_most(what, value, own, times * own)


def _at_most(what: str, value: float, honest: float | None, limit: float) -> Scale:
    own = None if honest is None else (honest, honest)
    return Scale(f"{what}, relative error", "", (value, value), own, None, limit)


def _at_least(what: str, value: float, honest: float | None, limit: float) -> Scale:
    own = None if honest is None else (honest, honest)
    return Scale(what, "bits", (value, value), own, limit, None)


def _bits(words: _Words) -> Iterator[Scale]:
    """Read E2: bits of the part nearest to its limit."""
    texts = (words.measured, words.honest, words.limit)
    value, own, least = (_numbers(f"^{_N} bits", text)[0] for text in texts)
    part = re.search(r"\((.+)\)$", words.measured)
    yield _at_least(part.group(1) if part else "the worst part", value, own, least)


def _live(words: _Words) -> Iterator[Scale]:
    """Read E3: bits of each probe, in the median."""
    (least,) = _numbers(f"^{_N} bits$", words.limit)
    for probe, value in re.findall(rf"(\w+) {_N} bits", words.measured):
        yield _at_least(f"probe {probe}", float(value), None, least)


def _precision(words: _Words) -> Iterator[Scale]:
    """Read P1: bits forward and of gradients, at least those of the declared format."""
    form = f"^forward {_N} bits, gradients {_N}$"
    shown, right = _numbers(form, words.measured), _numbers(form, words.honest)
    limits = _numbers(f"^[^:;]+: {_N}, {_N}", words.limit)
    yield _at_least("forward", shown[0], right[0], limits[0])
    yield _at_least("gradients", shown[1], right[1], limits[1])


def _replayed(words: _Words) -> Iterator[Scale]:
    """Read L1 of training: gradients and moments of all replayed steps, and the oddest step.

    A broken limit is in the message. A kept one may be wider than the times of the honest error:
    ``scales`` then leaves out the scale.
    """
    if words.measured.startswith("cosine "):
        yield from _directions(words)
        return
    (own,) = _numbers(f"^{_N} of all", words.honest)
    form = rf"^{_N} times honest \(moments: {_N}\), {_N} in one step"
    times, of_moments, of_a_step = _numbers(form, words.limit)
    worker = words.measured.partition("; the honest run's own ")[0]
    for part in worker.split("; "):
        value, step = _numbers(f"{_N} of all, worst .*?in one step {_N}", part)
        moment = re.match(r"exp_avg\w*", part)
        what = moment.group() if moment else "all gradients"
        limit = (of_moments if moment else times) * own
        told = re.search(rf"{what} together are \S+ off \(limit {_N}\)", words.message)
        if told is not None or value <= limit:
            limit = float(told.group(1)) if told else limit
            yield _at_most(f"{what}, all replayed steps", value, own, limit)
        if moment is None:
            yield _at_most("gradients of the oddest step", step, None, of_a_step)


def _directions(words: _Words) -> Iterator[Scale]:
    """Read L1 where directions are compared: cosines of gradients, and the least allowed."""
    shown = _numbers(rf"^cosine {_N} in the mean, {_N} in step \d+$", words.measured)
    (own,) = _numbers(f"^{_N} in judged steps$", words.honest)
    low = _numbers(f"^{_N} in the mean, {_N} in each step$", words.limit)
    for what, one, least in zip(("all steps", "the worst step"), shown, low, strict=True):
        yield Scale(f"cosine, {what}", "", (one, one), (own, own), least, None)


def _clocks(words: _Words) -> Iterator[Scale]:
    """Read T1: the difference of two clocks, in milliseconds."""
    apart_ms, window_s = _numbers(f"^{_N} ms in {_N} s$", words.measured)
    percent, more_ms = _numbers(rf"^{_N} % \+ {_N} ms$", words.limit)
    most = percent / 100 * window_s * 1000 + more_ms
    yield Scale("worker's clock minus llmb's", "ms", (apart_ms, apart_ms), (0.0, 0.0), -most, most)


def _pace(words: _Words) -> Iterator[Scale]:
    """Read T2: a change of pace in per cent, or seconds after the window."""
    after = re.search(rf"^(.+): {_N} s of {_N} s$", words.measured)
    if after is not None:
        took, most = float(after.group(2)), float(after.group(3))
        yield Scale(after.group(1), "s", (took, took), None, None, most)
        return
    (value,), (most,) = (
        _numbers(f"{_N}% time a step", words.measured),
        _numbers(f"^{_N}% ", words.limit),
    )
    low = -most if "either way" in words.limit else None
    what = "the second half's time a step" if low is not None else "time of audited steps"
    yield Scale(what, "%", (value, value), (0.0, 0.0), low, most)


def _physics(words: _Words) -> Iterator[Scale]:
    """Read K1: FLOP/s, at most 1.05 of the best product or a datasheet's peak."""
    (value,) = _numbers(f"^{_N} TFLOP/s", words.measured)
    (best,) = _numbers(f"{_N} TFLOP/s", words.honest)
    peak = re.match(rf"{_N} TFLOP/s \(datasheet\)", words.limit)
    limit = float(peak.group(1)) if peak else _numbers(f"^{_N} of the best", words.limit)[0] * best
    yield Scale("model FLOP/s", "TFLOP/s", (value, value), (0.0, best), None, max(limit, best))


def _loss(words: _Words) -> Iterator[Scale]:
    """Read K2: losses at START and STOP."""
    form = f"^{_N} to {_N}"
    least, most = _numbers(form, words.measured)
    low, high = _numbers(form, words.honest)
    (beyond,) = _numbers(f"^{_N} beyond$", words.limit)
    yield Scale("loss", "", (least, most), (low, high), low - beyond, high + beyond)


_READERS: dict[str, Reader] = {
    "E1": _errors,
    "G1": _errors,
    "E2": _bits,
    "E3": _live,
    "P1": _precision,
    "L1": _replayed,
    "T1": _clocks,
    "T2": _pace,
    "K1": _physics,
    "K2": _loss,
}
