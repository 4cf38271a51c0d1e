"""How near each number that a rule of the audit measured came to its limit, from a run's own files.

Most numbers are in the words of the findings. E2, P1 and L1 judge many parts, and their findings do
not name the part that is nearest to its limit: for these the run is judged again from its evidence,
and what the judges compared is looked at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmb.audit import outputs, precision
from llmb.audit.judged_steps import ALL, Distance, JudgedSteps
from llmb.audit.step_by_step import OF_A_STEP, StepByStep
from llmb.records import members
from llmb.records.bundle import from_files, parse_model
from llmb.records.run_record import RunRecord
from llmb.submission import layout, rejudge
from tests.builders import with_manifest


@dataclass(frozen=True)
class Margin:
    """A number that a rule measured, and the largest that the rule allows."""

    rule: str
    what: str
    measured: float
    limit: float

    @property
    def ratio(self) -> float:
        """Measured by limit: above 1 the rule is broken. A limit of 0 allows only 0."""
        if self.limit > 0 or math.isnan(self.measured):
            return self.measured / self.limit if self.limit else math.inf
        return math.inf if self.measured > 0 else 0.0


def of_run(directory: Path) -> list[Margin]:
    """Return every number of the run in ``directory``; of several repeats, the findings' own."""
    bundle = from_files(with_manifest(dict(members.read_folder(directory, layout.is_known))))
    record = parse_model(RunRecord, bundle.json("record.json"), "record.json")
    with _noted() as seen:
        audit = rejudge.judge(bundle, record).audit
    found = [
        margin
        for finding in audit.findings
        if finding.status.value in ("pass", "fail", "flag") and finding.measured
        for margin in of_finding(finding.model_dump(mode="json"))
    ]
    return [*found, *(margin for read, what in seen for margin in read(what))]


def of_finding(finding: dict[str, Any]) -> Iterator[Margin]:
    """Yield the numbers in the words of a finding."""
    rule, read = finding["id"], _OF_WORDS.get(finding["id"])
    if read is None:
        return
    texts = (finding[name] for name in ("measured", "honest", "limit"))
    for what, measured, limit in read(*map(_numbers, texts), finding):
        yield Margin(rule, what, measured, limit)


def _numbers(text: str | None) -> list[float]:
    found = re.findall(r"(?<![\w.])-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)\b", text or "")
    return [float(number) for number in found]


_Found = Iterator[tuple[str, float, float]]


def _errors(shown: list[float], honest: list[float], times: list[float], _: Any) -> _Found:
    """E1 and G1: errors of all, and of the worst parameter; of logits there is one alone."""
    names = ("all together", "worst parameter")
    for what, one, own, limit in zip(names, shown, honest, times, strict=False):
        yield what, one, limit * own


def _calls(shown: list[float], honest: list[float], times: list[float], _: Any) -> _Found:
    """L1 where nothing is trained. In training the judge is asked (``_of_steps``)."""
    if len(shown) != 4 or len(honest) != 1 or len(times) != 3:
        return
    of_all, of_each, in_one = times[0] * honest[0], times[1] * honest[0], times[2]
    limits = (of_all, of_each, of_each, in_one)
    names = ("all logits", "worst call", "worst sequence", "one sequence in one call")
    yield from zip(names, shown, limits, strict=True)


def _live(shown: list[float], _: Any, least: list[float], __: Any) -> _Found:
    """E3: the relative error that the fewest bits leave."""
    yield "relative error of a probe, median", 2.0 ** -min(shown), 2.0 ** -least[0]


def _replayed(shown: list[float], _: Any, __: Any, ___: Any) -> _Found:
    """O2: 26 of 26592 elements differ (2 by more than a last place)."""
    differ, of, further = shown[:3]
    if of:
        yield "share of elements a last place off", (differ - further) / of, 0.02
        yield "share of elements further off", further / of, 0.0


def _clocks(shown: list[float], _: Any, limit: list[float], __: Any) -> _Found:
    """T1: +0.1 ms in 4.1 s, limit 0.1 % + 50 ms."""
    yield "clocks apart, ms", abs(shown[0]), limit[0] / 100 * shown[1] * 1000 + limit[1]


def _pace(shown: list[float], _: Any, limit: list[float], finding: dict[str, Any]) -> _Found:
    """T2, where it flags: a share of the time of a step, or seconds of so many."""
    text = finding["measured"]
    if " s of " in text:
        yield text.partition(":")[0] + ", s", shown[0], shown[1]
    elif "%" in text:
        slower = abs(shown[0]) if "half" in text else max(0.0, shown[0])
        yield re.sub(r" [+-].*", ", % slower", text), slower, limit[0]


def _rate(shown: list[float], best: list[float], _: Any, __: Any) -> _Found:
    """K1: TFLOP/s of the model, and of the best product."""
    if best:
        yield "TFLOP/s, of the best product's", shown[0], best[0]


def _loss(shown: list[float], honest: list[float], limit: list[float], _: Any) -> _Found:
    """K2: 10.37 to 10.38, honest 10.37 to 13.39 (weights in FP16: or more), limit 0.39 beyond."""
    most = honest[1] if len(honest) > 1 else math.inf
    beyond = max(honest[0] - shown[0], shown[1] - most, 0.0)
    yield "loss beyond what is expected", beyond, limit[0]


_OF_WORDS: dict[str, Callable[..., _Found]] = {
    "E1": _errors,
    "L1": _calls,
    "E3": _live,
    "O2": _replayed,
    "T1": _clocks,
    "T2": _pace,
    "K1": _rate,
    "K2": _loss,
}


def _of_steps(steps: StepByStep) -> Iterator[Margin]:
    """Yield L1's numbers of a training: the distance of the parts that are nearest to a limit.

    Two steps are the honest run's own beside the reference run's; of a worker there are more.
    """
    honest, whose = steps._honest, "honest run: " * (len(steps.steps) <= 2 and not steps._of)
    limit = honest.limit_of_all
    yield Margin("L1", f"{whose}{steps._together} together", steps.together()[0], limit)
    whose += steps._of
    worst, largest = steps._worst(steps.lengths())
    yield Margin("L1", f"{whose}worst parameter", largest, steps.limit(worst))
    if medians := steps._medians():
        rough, median = steps._worst(medians, steps._limit_of_element)
        limit = steps._limit_of_element(rough)
        yield Margin("L1", f"{whose}median element of a parameter", median, limit)
    in_one = steps._oddest_step()[0]
    yield Margin("L1", f"{whose}worst parameter in one step", in_one, OF_A_STEP)


def _of_judged(judged: JudgedSteps) -> Iterator[Margin]:
    """Yield G1's numbers of judged steps: of all, of the worst kind, and of the worst parameter."""
    worst: dict[str, Distance] = {}
    for one in judged.distances():
        name = "all together" if one.of == ALL else "worst parameter"
        name = "worst kind of parameter" if ".*." in one.of else name
        if name not in worst or one.ratio > worst[name].ratio:
            worst[name] = one
    for name, one in worst.items():
        yield Margin("G1", f"judged steps, {name}", one.measured, one.times * one.honest)


def _of_probes(probes: precision.Probes) -> Iterator[Margin]:
    """Yield E2's numbers: bits that the worst part lacks, and all parts in their mean."""
    border, shown = probes._declared, probes._shown
    if border is None:
        return
    allowed = {item: border.known.slack * (1 + item.endswith(".bias")) for item in shown.by_name}
    lacks = {
        item: allowed[item] + max(border.limit(item), border.floor(item)) - value
        for item, value in shown.by_name.items()
    }
    worst = max(lacks, key=lambda item: lacks[item] / allowed[item])
    yield Margin("E2", "bits that the worst part lacks", lacks[worst], allowed[worst])
    if math.isfinite(border.known.slack_of_mean):
        mean, limit = border.lack(shown), border.known.slack_of_mean
        yield Margin("E2", "bits that parts lack in the mean", mean, limit)


def _of_logits(judged: outputs.Outputs) -> Iterator[Margin]:
    """Yield P1's number where nothing is trained: bits that the worst logits lack."""
    if not judged._is_plausible() or judged._known is None:
        return
    own, honest = (
        judged._bits(arrays) for arrays in (judged._seen, judged._classes[judged._precision.name])
    )
    lack = max(honest[item] - own[item] for item in own)
    yield Margin("P1", "bits that the worst logits lack", lack, judged._known.slack)


_ASKED: tuple[tuple[Any, str, Callable[[Any], Iterator[Margin]]], ...] = (
    (StepByStep, "faults", _of_steps),
    (precision.Probes, "branches", _of_probes),
    (JudgedSteps, "furthest", _of_judged),
    (outputs.Outputs, "findings", _of_logits),
)


@contextmanager
def _noted() -> Iterator[list[tuple[Callable[[Any], Iterator[Margin]], Any]]]:
    """Note whom the judges ask for what they find, and how to read that one's numbers."""
    seen: list[tuple[Callable[[Any], Iterator[Margin]], Any]] = []
    before = [getattr(kind, method) for kind, method, _ in _ASKED]

    def noting(asked: Callable[..., Any], read: Callable[[Any], Iterator[Margin]]) -> Any:
        def noted(self: Any) -> Any:
            seen.append((read, self))
            return asked(self)

        return noted

    try:
        for (kind, method, read), asked in zip(_ASKED, before, strict=True):
            setattr(kind, method, noting(asked, read))
        yield seen
    finally:
        for (kind, method, _), asked in zip(_ASKED, before, strict=True):
            setattr(kind, method, asked)
