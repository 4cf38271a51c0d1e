"""The measured precision recipe, from the probe ``pairs`` and closed-form FLOPs.

The recipe is no rule and changes no verdict. The probe uses pairs of units that are equal in exact
arithmetic (``llmb.observe.pairs``). The remaining difference is the rounding of one operand of the
product: 2^-(m + 1.6) for a significand of m explicit bits. Example: m = 7 for BF16. Products that
no pair showed are "not measured".
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from llmb.audit.bench import Bench
from llmb.audit.physics import shape_of
from llmb.audit.rule import Evidence
from llmb.audit.settings import LITMUS
from llmb.config import Mode, Precision
from llmb.families import family_of
from llmb.formats import NARROW_BITS
from llmb.records import evidence
from llmb.records.precision_recipe import (
    FORWARD,
    INPUT,
    PV,
    QK,
    WEIGHT,
    Direction,
    FormatShare,
    PairSeen,
    PairsEvidence,
    PrecisionRecipe,
    RecipeRow,
    StateRow,
)
from llmb.reference.shapes import Shape
from llmb.workloads.arithmetic import gemms

PAIRS = Evidence(evidence.PAIRS, PairsEvidence.model_validate_json)

#: Bits that a pair shows beyond the explicit bits of the significand. Measured for E2M1 to float32
#: at three model sizes: within 2 bits of this value.
_MORE = 1.6
#: Smallest explicit bits of BF16, of TF32 or FP16, of FP32, and of FP8: halfway between neighbours,
#: except for FP32, which has room.
_BF16, _TF32, _FP32, _FP8 = 5.0, 8.5, 13.5, 1.5
#: A layer this little below ``_BF16`` tells nothing alone. QK^T of 1 in 12 layers of two honest
#: BF16 runs showed 4.9 and 5.0 bits, all other layers more than 5.
_DOUBT = 1.0
#: torch's dtype -> explicit bits of the operands; and the widest format that operands can show.
_SIGNIFICANDS, _MOST = {"bfloat16": 7.0, "float16": 10.0}, 23.0
_WIDEST = {"bfloat16": "BF16", "float16": "FP16"}
#: Allowed explicit bits of a declared narrow format: this many below and above the format's own.
_BELOW, _ABOVE = 1.3, 1.5
#: Widest first, to find the lowest of several formats.
_ORDER = ("FP32", "TF32", "FP16", "BF16", "FP8", "FP4")
#: Reason for products in attention without a pair: the backward pass has two products for each.
_NO_PAIR = "no probe isolates it"
_NOTHING = "nothing of it was seen: too few key/value heads in too few layers, or no gradient"
_OTHER_LAYERS = "seen in other layers: there are too few heads or channels to show all in each"
_COVERED = "narrow operands of the products around it cover it"
_BETWEEN = "between two formats; the other layers show the wider format"
#: The product out of attention, in each family.
_OUT = ("o", "attn.c_proj", "attention.output.dense")
#: Product -> other products on the path of the pair that differ between the two units: a narrow
#: product on the path enlarges a small difference. Names of all families.
_AROUND: dict[tuple[str, Direction], tuple[tuple[str, Direction], ...]] = {
    (PV, FORWARD): tuple((name, WEIGHT) for name in _OUT),
    (QK, FORWARD): (
        *((name, FORWARD) for name in ("q", "k", "attn.c_attn", "query", "key", PV)),
        *((name, WEIGHT) for name in _OUT),
    ),
    # Outputs that differ give gradients that differ: by 2^-12, below a narrow format's rounding.
    **{(name, INPUT): ((name, FORWARD),) for name in (*_OUT, "down", "mlp.c_proj", "output.dense")},
}
_MOST_LAYERS = 10_000
#: Layers within this many bits of each other may have the same format.
_ALIKE = 5.0


@dataclass(frozen=True)
class ProductCost:
    """A kind of product in one direction: FLOPs per token in one layer, and number of layers."""

    name: str
    direction: Direction
    flops: int
    layers: int


def products(shape: Shape) -> tuple[ProductCost, ...]:
    """Return every matrix product of a training step; FLOPs add up to ``flops_per_token``."""
    found = []
    for name, size, layers in _forward(shape):
        every: tuple[Direction, ...] = (FORWARD, INPUT, WEIGHT)
        found += [ProductCost(name, direction, 2 * size, layers) for direction in every]
    width, layers = shape.num_attention_heads * shape.head_dim, shape.num_hidden_layers
    for name in (QK, PV):
        one = 2 * shape.sequence_length * width
        found.append(ProductCost(name, FORWARD, one, layers))
        found.append(ProductCost(name, INPUT, 2 * one, layers))  # of both factors
    return tuple(found)


def _forward(shape: Shape) -> Iterator[tuple[str, int, int]]:
    for gemm in gemms(shape):
        names = [name.strip() for name in gemm.name.split(",")]
        for name in names:
            yield (
                family_of(shape).recipe_name(name),
                gemm.k * gemm.n,
                gemm.count // len(names),
            )


def recipe_of(bench: Bench) -> PrecisionRecipe | None:
    """Return the recipe of a run, from the bench of the first repeat.

    None where no repeat has evidence of the probe (older runs, other modes), or where the record
    states no shape.
    """
    facts, workload = bench.facts, bench.facts.workload
    every = [bench.of(n).read(PAIRS) for n in range(len(facts.repeats))]
    known = [one for one in every if one is not None]
    if workload.mode != Mode.TRAIN.value or not known:
        return None
    shape = shape_of(workload)
    if shape is None:
        return None
    why = next((one.obstacle for one in known if one.obstacle is not None), None)
    if len(known) < len(every):
        why = "a repeat was not looked at"
    if shape.num_hidden_layers > _MOST_LAYERS:  # a hostile record may claim any number
        why = f"more than {_MOST_LAYERS:,} layers"
    rows = tuple(_rows(shape, [] if why else [one.seen for one in known], facts.precision, why))
    shares = _shares(rows)
    seen = [row.format for row in rows if row.format is not None]
    first = next((share.format for share in shares if share.format is not None), None)
    return PrecisionRecipe(
        rows=rows,
        shares=shares,
        lowest=max(seen, key=_place, default=None),
        largest=first,
        state=tuple(_state(bench, known)),
    )


def _place(name: str) -> int:
    """Return the rank of a format, widest first; narrow formats rank by the bits in the name."""
    if name in _ORDER:
        return 10 * _ORDER.index(name)
    return 10 * _ORDER.index("FP8") + (5 if "4" in name or "6" in name else 1)


def _rows(
    shape: Shape, seen: Sequence[Sequence[PairSeen]], precision: Precision, why: str | None
) -> Iterator[RecipeRow]:
    """Yield the rows in the order of a step; layers with equal measurements share a row."""
    bits = _significands(seen)
    every = products(shape)
    total = sum(product.flops * product.layers for product in every)
    own = _SIGNIFICANDS.get(precision.dtype, _MOST)
    names = {product.name for product in every}
    for product in every:
        share, alike = product.flops / total, defaultdict[_Told, list[float]](list)
        found = [] if why is not None else _formats(bits, product, precision, names)
        for layer, told in enumerate(found):
            alike[told].append(bits.get((product.name, product.direction, layer), math.nan))
        # A range, not a list: a hostile record may claim any number of layers.
        unknown: dict[_Told, Sequence[float]] = {(None, why): range(product.layers)}
        for (name, reason), values in (unknown if why is not None else alike).items():
            yield RecipeRow(
                product=product.name,
                direction=product.direction,
                format=name,
                layers=len(values),
                flops_share=len(values) * share,
                significand_bits=round(min([*values, own]), 1) if name is not None else None,
                why=reason,
            )


_Key = tuple[str, str, int]
#: The format of a product in a layer, or the reason for no measurement.
_Told = tuple[str | None, str | None]


def _significands(seen: Sequence[Sequence[PairSeen]]) -> dict[_Key, float]:
    """Return the explicit bits that each product showed, the fewest over the repeats.

    Products missing in any repeat are left out.
    """
    per_repeat = []
    for pairs in seen:
        found: dict[_Key, float] = {}
        for pair in pairs:
            if pair.length > 0:
                key = (pair.product, pair.direction, pair.layer)
                found[key] = min(_explicit(pair), found.get(key, math.inf))
        per_repeat.append(found)
    if not per_repeat:
        return {}
    first, *others = per_repeat
    common = [key for key in first if all(key in found for found in others)]
    return {key: min(found[key] for found in per_repeat) for key in common}


def _explicit(pair: PairSeen) -> float:
    error = pair.difference / pair.length
    return min(_MOST, -math.log2(error) - _MORE) if error > 0 else _MOST


def _formats(
    bits: Mapping[_Key, float], product: ProductCost, precision: Precision, names: Set[str]
) -> list[_Told]:
    """Return for each layer the format of a product, or the reason for no measurement.

    ``names`` are the names of all products of the model. Layers narrower than the run's own
    operands are classified by the median of these layers: the bits of a single layer may fit a
    format with 4 bits less or more equally well.
    """
    name, direction = product.name, product.direction
    shown = [bits.get((name, direction, layer)) for layer in range(product.layers)]
    # In 16 bits the probe's weights are exact: fewer bits than this mean a format below BF16.
    exact = direction != WEIGHT and name not in (QK, PV)
    least = _TF32 if exact and precision.dtype in _WIDEST else _BF16
    least = least if precision.dtype in _WIDEST else _FP32
    wide = [value for value in shown if value is not None and value >= least]
    narrow = [value for value in shown if value is not None and value < least]
    usual = statistics.median(narrow) if narrow else 0.0
    # In a layer that does not show a product, the product may be as narrow as in any other layer.
    around = {
        key: min((value for (*at, _), value in bits.items() if tuple(at) == key), default=0.0)
        for key in _AROUND.get((name, direction), ())
        if key[0] in names
    }
    alike = bool(narrow) and max(narrow) - min(narrow) <= _ALIKE
    found = list[_Told]()
    for layer, value in enumerate(shown):
        if value is None:
            no_pair = _NO_PAIR if (name, direction) in ((QK, INPUT), (PV, INPUT)) else _NOTHING
            seen = any(one is not None for one in shown)
            found.append((None, _OTHER_LAYERS if seen else no_pair))
        elif value >= least:
            found.append((format_of(_MOST, precision), None))
        elif (direction == FORWARD or value >= _BF16) and any(
            bits.get((*key, layer), least_of) < _BF16 for key, least_of in around.items()
        ):
            found.append((None, _COVERED))
        elif least == _BF16 and value >= _BF16 - _DOUBT and len(wide) > len(narrow):
            found.append((None, _BETWEEN))
        else:
            found.append((format_of(usual if alike else value, precision), None))
    return found


def format_of(bits: float, precision: Precision) -> str:
    """Return the format of an operand with ``bits`` explicit bits, in a run in ``precision``.

    Formats with equal explicit bits look alike: the declared format's name is preferred if the bits
    fit. A run with operands of 16 bits cannot show any wider format.
    """
    if bits >= _BF16:
        widest = _WIDEST.get(precision.dtype)
        if widest == "BF16":
            return widest
        if bits >= _TF32:
            return widest or ("FP32" if bits >= _FP32 else "TF32")
        return "BF16"
    known = precision.judged_as
    data = known.format if known is not None and known.bits <= NARROW_BITS else None
    if known is not None and data is not None:
        own = data.forward.mantissa_bits
        if own - _BELOW <= bits <= own + _ABOVE:
            return known.name
    return "FP8" if bits >= _FP8 else "FP4"


def _shares(rows: Iterable[RecipeRow]) -> tuple[FormatShare, ...]:
    """Return the share of each format, the largest first, the unmeasured share last."""
    found: dict[str | None, float] = defaultdict(float)
    for row in rows:
        found[row.format] += row.flops_share
    ordered = sorted(found.items(), key=lambda item: (item[0] is None, -item[1], item[0] or ""))
    return tuple(FormatShare(format=name, flops_share=share) for name, share in ordered)


def _state(bench: Bench, known: Sequence[PairsEvidence]) -> Iterator[StateRow]:
    """Yield rows that are not products: dtypes shown by torch, and unmeasured quantities."""
    weights = _types(one.weights for one in known)
    yield _typed("weights", weights)
    yield _typed("gradients", _types(one.gradients for one in known))
    yield _typed("moments", _types(one.moments for one in known))
    if bench.facts.precision.master_weights:
        yield _typed("master weights", weights)
    else:
        yield StateRow(
            name="master weights", value="none", how="the stored weights are stepped (O1, O2)"
        )
    sums = bench.read(LITMUS)
    if sums is None:
        yield StateRow(name="accumulation", value=None, how="no honest run took the litmus")
    else:
        wide = int(sums.big).bit_length()
        text = f"{wide} bits or more" if sums.kept == 1 else f"under {wide} bits"
        yield StateRow(
            name="accumulation",
            value=text,
            how="products of the device's own library (P3); not of the plugin's kernels",
        )
    yield StateRow(name="norms", value=None, how=_NO_PAIR)
    yield StateRow(name="softmax", value=None, how=_NO_PAIR)
    if bench.facts.parallelism.world_size == 1:
        yield StateRow(name="between ranks", value="nothing", how="there is one rank")
    else:
        yield StateRow(
            name="between ranks", value=None, how="calls and bytes are counted, types are not"
        )


def _types(each: Iterable[Sequence[str]]) -> str:
    return ", ".join(sorted({name for names in each for name in names}))


def _typed(name: str, types: str) -> StateRow:
    how = "the type of torch's tensors" if types else "the worker showed none"
    return StateRow(name=name, value=types or None, how=how)
