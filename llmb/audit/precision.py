"""Rules E2, E3 and P1 from the isolating probes: bits of each branch, and the precision class."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from llmb.audit.distance import Gap, chance, effective, gaps
from llmb.audit.rule import PartFinding, compared, not_observed
from llmb.config import Precision
from llmb.families import FAMILIES
from llmb.formats import NARROW_BITS, UNKNOWN, PrecisionClass, narrower
from llmb.records.arrays import Array, Arrays
from llmb.records.audited import WIDE_LOSS
from llmb.records.finding import Finding, Status
from llmb.records.run_record import PrecisionBits

PROBES = ("branches", "head")
#: Bits that a class may fall below the class's floor where the host's honest run has as few bits.
_LEEWAY = 2.0
#: Gains and biases of LayerNorm, and the two rows of BERT's token types: the gradients are sums
#: over all tokens, in which much cancels (gpt2-125m, 1024 tokens in pure BF16: 3.0 bits; token
#: types of 256 tokens in the probe of the head: 4.97).
_SUM = re.compile(r"(\.bias|(ln|ln_\w|LayerNorm|token_type_embeddings)\.weight)$")
#: Gains of norms. Ranks that share a model add up the gradient of a norm's output in 16 bits, and
#: the honest run does not: an honest gain was 0.91 bits short.
_GAIN = re.compile(r"(norm|ln|ln_\w|LayerNorm)\.weight$")
#: Bits by which a device's honest run may fall short of the host's, in the median of all parts:
#: int8 weights have 1.3 bits less than BF16.
_ROUGHER = 0.75
#: Share of parts that may be too rough in every honest run. At debug sizes c_attn of layer 0 of
#: gpt2-125m was too rough in one of about twenty runs: 2.5 bits in pure BF16, 4.9 under autocast.
_MOST_UNTOLD = 0.1
ROUGH = "what should be an honest run on the device is rougher than one: nothing to compare with"
ROUGH_ON_HOST = (
    "an honest run on the host, without the plugin, has too few bits with these weights, too: "
    "nothing to compare with. Has the training become unstable (try fewer steps), or is the format "
    "too rough for this model?"
)
#: Names of out-projections, through which branches write, for all model families.
_OUT_PROJECTIONS = tuple(
    {one.matrices[kind].rpartition("{}.")[2] for one in FAMILIES.values() for kind in ("o", "down")}
)
#: Names of heads in the probe ``head``; tied heads last: a model with another head may have such an
#: embedding, too.
_HEADS = tuple(
    f"head/{one.matrices['head']}" for one in sorted(FAMILIES.values(), key=lambda one: one.tied)
)
#: An effective element counts for two elements (of random numbers it counts for three), and a part
#: for 28 or more: its slack is 1.5 times the usual at most (``_deciding``).
_OF_EFFECTIVE, _LEAST_ELEMENTS = 2, 28
#: Bits of the widest formats with such a slack: FP32 and TF32 have none.
_SIXTEEN = 16
#: Most non-zero elements of an output in BF16 that gets such a slack: in models with one or two
#: channels a branch. In the committed bundles an output has 237 (llama-45m) to 1,019 (llama-1.4b).
_SMALL = 64
#: Fewest bits that the wider slack of such a part allows: an error of 0.95, as in rules E1 and G1.
#: A part without any gradient has 0 bits.
_SOMETHING = -math.log2(0.95)
#: The name of a parameter's layer, such as ``model.layers.6``.
_LAYER = re.compile(r"(?:out/)?(.+?\.\d+)\.")
#: Median bits below which a pass is unrelated to the weights and tokens.
_UNRELATED = 1.5
#: In FP16, as in rules E1 and G1: whoever lets gradients overflow gets no verdict.
OVERFLOWED_IN_PROBE = (
    "{count} of {all} parts are not finite, such as {part}: the scaled gradients overflowed in the "
    "probe. llmb scales the loss of a probe in FP16 already: scale it less in the plugin "
    "(docs/plugins.md)"
)
UNDERFLOW = (
    "an honest run in this format has as few bits: does the format lack a scale, or do too many "
    "elements share one (a smaller block helps)?"
)
TOO_ROUGH = "the numbers of this format are so few that work and no work look alike"


@dataclass(frozen=True)
class Bits:
    """Bits of every branch and parameter in both probes, by ``<probe>/<item>``."""

    by_name: Mapping[str, float]

    @property
    def forward(self) -> float:
        """Fewest bits of the forward pass: input and output of out-projections, and logits."""
        return min(v for k, v in self.by_name.items() if self._is_forward(k))

    @property
    def gradient(self) -> float:
        """Fewest bits of all other items, the gradients."""
        return min(v for k, v in self.by_name.items() if not self._is_forward(k))

    def _is_forward(self, name: str) -> bool:
        head = next((head for head in _HEADS if head in self.by_name), None)
        return name == head or name.endswith(_OUT_PROJECTIONS)


def bits(shown: Arrays, reference: Arrays, probes: Sequence[str] = PROBES) -> Bits:
    """Return the bits of every item of ``probes`` with a non-zero reference."""
    found: dict[str, float] = {}
    for probe in probes:
        every: Mapping[str, Gap] = gaps(shown, reference, f"{probe}/")
        found |= {f"{probe}/{name}": one.bits for name, one in every.items()}
    return Bits(found)


def of_class(honest: Arrays, name: str) -> dict[str, Array]:
    """Return the arrays of class ``name``, by the names in a worker's evidence."""
    prefix = f"{name}/"
    return {k.removeprefix(prefix): v for k, v in honest.items() if k.startswith(prefix)}


def ways(arrays: Arrays, whose: str) -> list[dict[str, Array]]:
    """Return the honest runs of ``whose`` (a format or ``host``), each as arrays by name.

    The first run computes everything in the format. Formats of 16 bits have a second run with the
    loss in float32: the two runs round differently (docs/adr/0027). Older evidence has only the
    first run.
    """
    other = of_class(arrays, f"{whose}{WIDE_LOSS}")
    return [of_class(arrays, whose), *([other] if other else [])]


def fewest_bits(
    runs: Iterable[Arrays], reference: Arrays, probes: Sequence[str] = PROBES
) -> dict[str, float]:
    """Return the bits of every item of ``probes`` in the roughest of honest ``runs``."""
    found: dict[str, float] = {}
    for shown in runs:
        if any(key.startswith(f"{probes[0]}/") for key in shown):
            for name, value in bits(shown, reference, probes).by_name.items():
                found[name] = min(value, found.get(name, value))
    return found


def _of_host(reference: Arrays) -> dict[str, float]:
    """Return the bits of the host's honest runs; the probe ``head`` may be missing."""
    runs = ways(reference, "host")
    made = [one for one in PROBES if any(key.startswith(f"{one}/") for key in runs[0])]
    return fewest_bits(runs, reference, made) if made else {}


def _deciding(reference: Arrays, known: PrecisionClass) -> dict[str, float]:
    """Return the number of elements that decide the error of each item of the probes.

    The number is the effective number of the reference's elements, or the smallest of the outputs
    of the item's layer if smaller. In a small model a branch writes into one or two channels, and
    all errors of the branch are those of a few products. Only the workload, its weights and its
    tokens count: no number of a vendor's run. Example: an honest v_proj of 12 layers with 64
    channels in NVFP4 lacked 1.0 bits, and the output of its layer has 14 elements.

    Parts in FP16 have such a number, too: BF16 is three bits below, and FP16 cannot hold a faint
    branch. An honest gain of 12 layers with 128 channels lacked 0.84 bits. In BF16 only small
    outputs have such a number, each from its own elements: an honest output of 12 layers with 64
    channels lacked 0.94 bits, and a single element was most of the error.
    """
    own = {
        name: effective(array)
        for name, array in reference.items()
        if name.startswith(tuple(f"{probe}/" for probe in PROBES))
    }
    if known.bits > NARROW_BITS and known.dtype != "float16":
        outputs = {
            name: count
            for name, count in own.items()
            if "/out/" in name and sum(map(bool, reference[name])) <= _SMALL
        }
        return {name: max(_LEAST_ELEMENTS, _OF_EFFECTIVE * n) for name, n in outputs.items()}
    fewest: dict[str, float] = {}
    for name, count in own.items():
        layer = _layer_of(name) if "/out/" in name else None
        if layer is not None:
            fewest[layer] = min(count, fewest.get(layer, count))
    return {
        name: max(
            _LEAST_ELEMENTS, _OF_EFFECTIVE * min(count, fewest.get(_layer_of(name) or "", count))
        )
        for name, count in own.items()
    }


def _layer_of(item: str) -> str | None:
    """Return probe and layer of ``item``; None outside layers."""
    probe, _, name = item.partition("/")
    found = _LAYER.match(name)
    return f"{probe}/{found[1]}" if found else None


@dataclass(frozen=True)
class Border:
    """Bits of an honest run in a class, and the limits for a run to reach the class."""

    known: PrecisionClass
    honest: Bits
    #: Bits of the host's honest run by item, computed without the device.
    host: Mapping[str, float] = field(default_factory=dict)
    #: Number of compared elements by item; unknown: many.
    elements: Mapping[str, int] = field(default_factory=dict)
    #: Number of elements that decide an item's error, where there are fewer of them.
    deciding: Mapping[str, float] = field(default_factory=dict)
    #: Ranks share the worker's model.
    shared: bool = False

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.known.name

    def floor(self, item: str) -> float:
        """Return the fewest bits of ``item``, independent of the device's honest run.

        Weights trained at a high learning rate leave fewer bits to any run. In such a case the
        limit comes from the host's honest run, which uses no vendor's code.
        """
        fixed = self.known.floor
        if _SUM.search(item):
            fixed -= _LEEWAY
        if item not in self.host:
            return fixed
        least = self._widened(item, self.host[item] - self._slack(item))
        return max(min(fixed, least), fixed - _LEEWAY)

    def _slack(self, item: str) -> float:
        """Return the bits that ``item`` may lack: of 16 elements twice as many as of 64 or more."""
        return self.known.slack * chance(self.elements.get(item))

    def _widened(self, item: str, limit: float) -> float:
        """Return ``limit``, or less if few elements decide the error of ``item``.

        Example: 1.51 bits of slack instead of 1 where 12 of 64 elements hold most of the length.
        """
        if item not in self.deciding:
            return limit
        wider = limit + self._slack(item) - self.known.slack * chance(self.deciding[item])
        return min(limit, max(wider, _SOMETHING))

    @cached_property
    def untold(self) -> frozenset[str]:
        """Items with bits on the host below every floor: no honest run gets these items right.

        Example: 2.5 bits in BF16, with a floor of 5 that may fall to 3. A sum may have no bits at
        all: torch adds up the gradient of a LayerNorm in BF16 on a CPU (0.8 bits of 1,024 tokens).
        """
        found = set[str]()
        for item, value in self.host.items():
            is_sum = _SUM.search(item) is not None
            floor = self.known.floor - _LEEWAY * (2 if is_sum else 1)
            if value < floor and (is_sum or value > _UNRELATED):
                found.add(item)
        return frozenset(found)

    def limit(self, item: str) -> float:
        """Return the fewest bits allowed for ``item``.

        The median item caps the limit: some items are far more exact than most by nature, and
        another order of sums makes them ordinary. The gradient of a bias is a sum in which much
        cancels, and gets twice the slack. So does the gradient of a norm's gain if ranks share the
        model.
        """
        is_sum = item.endswith(".bias") or (self.shared and _GAIN.search(item))
        slack = self._slack(item) * (2 if is_sum else 1)
        return self._widened(item, min(self.honest.by_name[item], self._usual) - slack)

    @cached_property
    def _usual(self) -> float:
        return statistics.median(self.honest.by_name.values())

    def __str__(self) -> str:
        """Return the name and the fewest bits, forward and of gradients."""
        forward, gradient = self.honest.forward, self.honest.gradient
        slack = self.known.slack
        return f"{self.name}: {forward - slack:.2f}, {gradient - slack:.2f}"

    def lack(self, shown: Bits) -> float:
        """Return the mean of the bits that parts of ``shown`` lack, each at least 0.

        Single parts of honest runs may differ as much as two formats do; the mean separates the
        formats. Parts better than honest do not compensate for worse parts. The gradient of a bias
        is a sum in which much cancels, and is left out.
        """
        lacks = [
            max(0.0, self.honest.by_name[item] - value)
            for item, value in shown.by_name.items()
            if item.startswith("branches/") and not item.endswith(".bias")
        ]
        return statistics.fmean(lacks) if lacks else 0.0

    def distance(self, shown: Bits) -> float:
        """Return the distance in bits between the means of ``shown`` and the honest run."""
        own = self.honest.by_name
        return abs(statistics.fmean(own[item] - value for item, value in shown.by_name.items()))

    def is_reached(self, shown: Bits) -> bool:
        """Tell whether ``shown`` reaches the class, in each part and in the mean."""
        return not self.short(shown) and self.lack(shown) <= self.known.slack_of_mean

    def short(self, shown: Bits) -> dict[str, float]:
        """Return the items of ``shown`` that do not reach the class, with the missing bits."""
        told = {i: value for i, value in shown.by_name.items() if i not in self.untold}
        lacks = {item: self.limit(item) - value for item, value in told.items()}
        lacks = {i: max(lack, self.floor(i) - shown.by_name[i]) for i, lack in lacks.items()}
        return {item: lack for item, lack in lacks.items() if not lack <= 0}


@dataclass(frozen=True)
class Measured:
    """Effective precision: the reached class; None: no class was reached."""

    effective: str | None
    bits: PrecisionBits


class Probes:
    """Judges the probes of one worker."""

    def __init__(
        self,
        seen: Arrays,
        honest: Arrays,
        reference: Arrays,
        precision: Precision,
        evidence: tuple[str, ...],
        *,
        shared: bool = False,
    ) -> None:
        """Compare ``seen`` with the ``reference``, beside honest runs of each class.

        ``shared``: ranks share the worker's model.
        """
        self._precision, self._evidence = precision, evidence
        self._shown = bits(seen, reference)
        #: Items that are not finite in FP16.
        self._overflowed = [
            name
            for name in self._shown.by_name
            if precision.dtype == "float16" and not all(map(math.isfinite, seen.get(name, ())))
        ]
        host = _of_host(reference)
        elements = {name: len(array) for name, array in reference.items()}
        known = self._known = precision.judged_as
        few = {} if known is None or known.bits > _SIXTEEN else _deciding(reference, known)
        self._below = () if known is None else narrower(known)
        self._borders = [
            Border(one, Bits(shown), host if one is known else {}, elements, few, shared)
            for one in (*([known] if known is not None else []), *self._below)
            if (shown := fewest_bits(ways(honest, one.name), reference))
        ]
        self._declared = next((b for b in self._borders if b.known is known), None)

    def _overflow(self, rule: str) -> Finding | None:
        """Return ``rule`` as not observed where scaled gradients overflowed, else None."""
        if not self._overflowed:
            return None
        message = OVERFLOWED_IN_PROBE.format(
            count=len(self._overflowed),
            all=len(self._shown.by_name),
            part=_readable(self._overflowed[0]),
        )
        return not_observed(rule, message, self._evidence)

    def honest_is_honest(self) -> bool:
        """Tell whether the honest run itself reaches the declared class.

        A run by a tampered library must not set the limits.
        """
        if self._declared is None:
            return False
        declared = self._declared
        device, host, untold = declared.honest.by_name, declared.host, declared.untold
        if len(untold) > math.ceil(_MOST_UNTOLD * len(device)):
            return False
        short = [host[item] - device[item] for item in host] or [0.0]
        told = [item for item in device if item not in untold]
        enough = all(device[item] >= declared.floor(item) for item in told)
        return enough and statistics.median(short) <= _ROUGHER

    @property
    def why_rough(self) -> str:
        """Return why the honest run shows no limits; used if ``honest_is_honest`` is false."""
        if self._known is None:
            return UNKNOWN
        host = self._declared.host.values() if self._declared is not None else ()
        rough = sum(value < self._known.floor for value in host)
        return ROUGH_ON_HOST if rough > _MOST_UNTOLD * len(host) else ROUGH

    def measured(self) -> Measured:
        """Return the reached class, and the bits behind the result."""
        honest = self._declared.honest if self._declared else None
        return Measured(
            self._effective(),
            PrecisionBits(
                forward_min=round(self._shown.forward, 3),
                gradient_min=round(self._shown.gradient, 3),
                honest_forward_min=round(honest.forward, 3) if honest else None,
                honest_gradient_min=round(honest.gradient, 3) if honest else None,
            ),
        )

    def _effective(self) -> str | None:
        reached = [border for border in self._borders if border.is_reached(self._shown)]
        if self._declared in reached:
            return self._precision.name
        if reached:  # the nearest class: neighbouring narrow formats differ by half a bit
            return min(reached, key=lambda border: border.distance(self._shown)).name
        if len(self._borders) > 1:  # every narrower class was measured, and none was reached
            return None
        fewest = min(self._shown.forward, self._shown.gradient)
        # Floors cannot tell FP16 from BF16, nor formats of 8 bits or fewer from each other. The
        # narrower name claims less, and is therefore the safe answer.
        if self._known is None or self._known.bits <= NARROW_BITS:
            return None
        return next((one.name for one in self._below if fewest >= one.floor), None)

    def branches(self) -> Finding:
        """Return E2."""
        if (overflow := self._overflow("E2")) is not None:
            return overflow
        border = self._declared
        if border is None:
            return not_observed(
                "E2", "no honest run shows what its branches must be like", self._evidence
            )
        short = border.short(self._shown)
        worst = max(short, key=lambda item: short[item], default=None)
        fewest = min(self._shown.by_name, key=lambda item: self._shown.by_name[item])
        item = worst or fewest
        lack, most = border.lack(self._shown), border.known.slack_of_mean
        if worst is None and not lack <= most:
            message = (
                f"all {len(self._shown.by_name)} parts together are too rough: on average "
                f"{lack:.2f} bits less than honest (limit {most})"
            )
        elif worst is None:
            message = f"each of {len(self._shown.by_name)} parts computes as an honest one does"
        else:
            message = (
                f"{len(short)} of {len(self._shown.by_name)} parts are wrong or too rough: "
                f"{_readable(worst)} has {_said(self._shown.by_name[worst])} bits, "
                f"honest {_said(border.honest.by_name[worst])}, limit {border.limit(worst):.2f}"
            )
        return compared(
            "E2",
            border.is_reached(self._shown),
            message,
            self._evidence,
            measured=f"{_said(self._shown.by_name[item])} bits ({_readable(item)})",
            honest=f"{border.honest.by_name[item]:.2f} bits",
            limit=f"{border.limit(item):.2f} bits",
        )

    def parts(self, *, classes: bool) -> Iterator[PartFinding]:
        """Yield for each parameter the item that lacks most bits, as judged by E2.

        ``classes``: add the format that each item reaches, as P1 does. Example: ``7.12 bits
        (BF16)``.
        """
        border = self._declared
        assert border is not None  # checked by ``honest_is_honest``
        short = [(one.name, one.short(self._shown)) for one in self._borders]
        lacks = {
            item: max(border.limit(item), border.floor(item)) - value
            for item, value in self._shown.by_name.items()
        }
        worst: dict[str, str] = {}
        for item in sorted(lacks, key=lambda item: -lacks[item]):
            worst.setdefault(item.partition("/")[2].removeprefix("out/"), item)
        for parameter, item in worst.items():
            value = self._shown.by_name[item]
            reached = [name for name, missed in short if item not in missed]
            if not reached and not self._borders[1:]:  # the audit was quick
                reached = [one.name for one in self._below if value >= one.floor]
            of_class = f" ({(*reached, 'no known format')[0]})" if classes else ""
            yield PartFinding(
                part=parameter,
                what=_readable(item) if "/out/" in item else f"gradient of {_readable(item)}",
                measured=f"{_said(value)} bits{of_class}",
                honest=f"{_said(border.honest.by_name[item])} bits",
                limit=f"{_said(value + lacks[item])} bits",
                kept=item not in short[0][1],
                badness=lacks[item],
            )

    def live(self) -> Finding:
        """Return E3; not observed where a plugin's format leaves an honest run as few bits.

        Example: without a scale the gradients of a loss that is a mean underflow.
        """
        if (overflow := self._overflow("E3")) is not None:
            return overflow
        medians, known, border = _medians(self._shown), self._known, self._declared
        found = live_weights(medians, self._evidence, known)
        if found.status is not Status.FAIL or known is None or border is None or not known.declared:
            return found
        honest = _medians(border.honest)
        if any(medians[probe] < known.least_live <= honest[probe] for probe in PROBES):
            return found
        return not_observed("E3", UNDERFLOW, self._evidence)

    def effective(self) -> Finding:
        """Return P1."""
        if (overflow := self._overflow("P1")) is not None:
            return overflow
        if not self.honest_is_honest():
            return self._by_floor()
        measured, declared = self.measured(), self._precision.name
        effective = measured.effective
        seen = measured.bits
        if effective == declared:
            message = f"computes in {declared}, forward and backward"
        else:
            message = f"declared {declared}, computes in {effective or 'no known format'}"
            if self._declared is not None and self._declared.short(self._shown):
                worst = max(self.parts(classes=False), key=lambda one: one.badness)
                message += f": {worst.what} has {worst.measured}, honest {worst.honest}"
                message += " (a sum in a narrow type does this, too)"
        return compared(
            "P1",
            effective == declared,
            message,
            self._evidence,
            measured=f"forward {seen.forward_min} bits, gradients {seen.gradient_min}",
            honest=f"forward {seen.honest_forward_min} bits, gradients {seen.honest_gradient_min}",
            limit="; ".join(map(str, self._borders)),
        )

    def _by_floor(self) -> Finding:
        """Return P1 without an honest run to compare with: the floors can only convict."""
        if self._known is None:
            return not_observed("P1", UNKNOWN, self._evidence)
        shown = self._shown.by_name
        border = self._declared or Border(self._known, self._shown)
        # The host's honest run, without any vendor's code, may be as rough in a small model.
        told = {i: v for i, v in shown.items() if border.host.get(i, math.inf) >= border.floor(i)}
        reached = all(value >= border.floor(item) for item, value in told.items())
        if reached or self._known.declared:
            return not_observed("P1", self.why_rough, self._evidence)
        fewest = min(shown.values())
        return compared(
            "P1",
            False,
            f"declared {self._known.name}, computes in less",
            self._evidence,
            measured=f"{fewest:.2f} bits",
            honest="not measured",
            limit=f"{self._known.floor} bits",
            basis="fixed",
        )

    def without_yardstick(self, *rules: str) -> list[Finding]:
        """Return ``rules`` as not observed, for lack of an honest run to compare with."""
        return [not_observed(rule, self.why_rough, self._evidence) for rule in rules]


def _medians(shown: Bits) -> dict[str, float]:
    """Return the median bits of each probe."""
    return {
        probe: statistics.median(v for k, v in shown.by_name.items() if k.startswith(f"{probe}/"))
        for probe in PROBES
    }


def allowed_of_sum(name: str, known: PrecisionClass) -> float:
    """Return the allowed relative error of an honest gradient that is a sum over all tokens.

    Zero for a gradient of another kind, whose limit is in errors of the host. Example: 0.125 for a
    bias in BF16.
    """
    return 2.0 ** -(known.floor - _LEEWAY) if _SUM.search(name) else 0.0


def live_weights(
    medians: Mapping[str, float],
    evidence: tuple[str, ...],
    known: PrecisionClass | None,
) -> Finding:
    """Return E3 from the bits of each probe: unrelated numbers agree in no bits.

    In an unknown format few bits may be honest. In a format without a significand few bits are
    honest.
    """
    limit = _UNRELATED if known is None else known.least_live
    stale = [probe for probe, value in medians.items() if not value >= limit]
    if known is None and stale:
        return not_observed("E3", UNKNOWN, evidence)
    if known is not None and known.is_too_rough:
        return not_observed("E3", TOO_ROUGH, evidence)
    message = "written weights and new tokens in the same memory were computed with"
    if stale:
        message = (
            "the model does not compute from its present weights and input "
            f"(probe {', '.join(stale)})"
        )
    return compared(
        "E3",
        not stale,
        message,
        evidence,
        measured=", ".join(f"{probe} {_said(value)} bits" for probe, value in medians.items()),
        honest="several bits",
        limit=f"{limit} bits",
        basis="fixed",
    )


def _said(bits: float) -> str:
    return f"{round(bits, 2) + 0.0:.2f}"  # never "-0.00"


def _readable(item: str) -> str:
    probe, _, name = item.partition("/")
    name = name.removesuffix(".weight").removeprefix("model.")
    if name.startswith("out/"):
        return f"output of {name.removeprefix('out/').removeprefix('model.')}"
    return f"{name} in probe {probe}"
