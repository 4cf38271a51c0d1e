"""Checks the model shown by evidence against the workload that the record names.

A plugin may store parameters in its own form: wrapped, fused, transposed, padded. Hence two sets
of names: the model's own names, equal for every plugin, and the stored names in ``model.json``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmb.config import AuditMode, Mode
from llmb.errors import BundleRefusedError
from llmb.records import audited, evidence
from llmb.records.bundle import Bundle
from llmb.records.finding import JUDGED_SINCE, JUDGED_VERSIONS, Status
from llmb.records.run_record import RunRecord
from llmb.submission.official import MATRICES, Parameters, parameters_of
from llmb.submission.rejudge import load

#: The side of a sketch; the number of parameters up to which every sketch has the full side.
_SIDE, _AT_FULL_SIDE = 32, 160
#: Elements that a fence reads of each parameter.
_OF_FENCES = 16
_SHOWN = 100  # characters shown of a name from an untrusted bundle
#: The parameters of a module, at the end of the module's line in ``model.json``.
_OWN = re.compile(r"\) (\w+\[[\d, ]*\]:\w+(?:, \w+\[[\d, ]*\]:\w+)*)$")
_ONE = re.compile(r"(\w+)\[([\d, ]*)\]:(\w+)")


@dataclass(frozen=True)
class ExpectedModel:
    """The model that follows from a record's workload."""

    parameters: Parameters
    #: Sizes of the model that are integers, by name. Example: "hidden_size".
    sizes: Mapping[str, int]
    family: str
    #: The name of the workload, for messages.
    name: str
    #: torch's name of the stored type of weights in the declared precision, such as "bfloat16".
    dtype: str

    @classmethod
    def of(cls, record: RunRecord) -> ExpectedModel:
        """Return the model of ``record``.

        Raises:
            BundleRefusedError: the workload is unknown.
        """
        facts = record.workload
        sizes = {name: size for name, size in facts.shapes.items() if isinstance(size, int)}
        try:
            parameters = parameters_of(facts.family, sizes)
        except (KeyError, ZeroDivisionError):
            raise BundleRefusedError(
                f"the shapes in the record are not those of a model of family {facts.family!r}"
            ) from None
        return cls(
            parameters=parameters,
            sizes=sizes,
            family=facts.family,
            name=facts.name,
            dtype=record.config.precision.stored_dtype,
        )

    @property
    def elements(self) -> int:
        """Number of elements of all parameters."""
        return sum(map(math.prod, self.parameters.values()))

    def sketch(self, what: str) -> tuple[int, int] | None:
        """Return the least and greatest number of elements of sketch ``what``; None: no sketch.

        ``what`` is a parameter, ``loss``, or ``out/`` and the output matrix of a branch.
        """
        fit = math.isqrt(_SIDE * _SIDE * _AT_FULL_SIDE // len(self.parameters))
        most = min(_SIDE, max(1, fit)) ** 2
        if what == "loss":
            return 1, 1
        if what.startswith("out/"):
            matrix, layers = what.removeprefix("out/"), max(1, self.sizes["num_hidden_layers"])
            if matrix not in self.parameters or not matrix.endswith(MATRICES[self.family].outputs):
                return None
            width = self.sizes["hidden_size"] // (4 * layers)
            count = min(most, width * self.sizes["vocab_size"])
            # A tied head's sketch has only the words that are not in the input.
            return (0 if MATRICES[self.family].tied else count), count
        if what not in self.parameters:
            return None
        count = min(most, math.prod(self.parameters[what]))
        return count, count


@dataclass(frozen=True)
class StoredParameters:
    """The parameters as stored after post-processing, by stored name."""

    forms: Mapping[str, tuple[tuple[int, ...], str]]
    #: Every parameter is named once: no two modules share a parameter, and the number is known.
    apart: bool
    #: Parameters that may have no gradient: with padding, or not trained (breaks rule W1).
    untrained: frozenset[str]
    #: Parameters of the model that were not found (breaks rule W1, too).
    missing: frozenset[str]

    def size(self, name: str) -> int:
        """Return the number of elements of the stored parameter ``name``."""
        return math.prod(self.forms[name][0])


def stored_parameters(bundle: Bundle, repeat: int) -> StoredParameters:
    """Return the model's parameters after post-processing, from ``model.json``."""
    tree = load(bundle, repeat, evidence.MODEL, evidence.ModelEvidence)
    weights = load(bundle, repeat, evidence.WEIGHTS, evidence.WeightsEvidence)
    forms = {name: (shape, dtype) for name, shape, dtype in _in_tree(tree.after)}
    every = sum(math.prod(shape) for shape, _ in forms.values())
    untrained = frozenset((*weights.padding, *weights.frozen))
    apart = every == weights.stored_elements
    return StoredParameters(forms, apart, untrained, frozenset(weights.missing))


def samples_at_fences(stored: StoredParameters, *, one_rank: bool) -> tuple[int, int]:
    """Return the least and greatest number of elements that a fence reads of all parameters.

    If ranks share parameters, a fence reads the first rank's shard only.
    """
    most = sum(_OF_FENCES if shape else 1 for shape, _ in stored.forms.values() if 0 not in shape)
    return (most if one_rank and stored.apart else 1), most


def faults(
    bundle: Bundle, record: RunRecord, repeat: int, model: ExpectedModel, stored: StoredParameters
) -> Iterator[str]:
    """Yield a sentence for weights or modules of ``repeat`` that do not fit the model.

    Raises:
        BundleRefusedError: a file is missing, or llmb does not write such a file.
    """
    right, typed = model.parameters, dict.fromkeys(model.parameters, model.dtype)
    weights = load(bundle, repeat, evidence.WEIGHTS, evidence.WeightsEvidence)
    path = evidence.path(repeat, evidence.WEIGHTS)
    found = [(p.name, p.shape, p.dtype) for p in weights.pristine]
    yield from _other_parameters(f"{path} (pristine)", found, model, typed)
    tree = load(bundle, repeat, evidence.MODEL, evidence.ModelEvidence)
    before = f"{evidence.path(repeat, evidence.MODEL)} (before)"
    yield from _other_parameters(before, _in_tree(tree.before), model, typed)
    if any(f.id == "W1" and f.status is Status.FAIL for f in record.audit.findings):
        return  # the run is INVALID by rule W1
    found = [(p.name, p.shape, p.dtype) for p in weights.processed]
    yield from _other_parameters(f"{path} (processed)", found, model, None)
    if weights.canonical_elements not in (None, model.elements):
        shown = weights.canonical_elements
        yield f"{path} is of {shown} elements, {model.name} has {model.elements}"
    shown = sum(map(stored.size, stored.forms))
    if weights.stored_elements is not None and weights.stored_elements > shown:
        yield f"{path} is of {weights.stored_elements} stored elements, model.json shows {shown}"
    if evidence.path(repeat, audited.PRISTINE) in bundle.files:
        made = load(bundle, repeat, audited.PRISTINE, audited.PristineEvidence)
        found = [(p.name, p.shape, p.dtype) for p in made.parameters]
        types = {name: typed[name] for name in right} | {p.name: p.dtype for p in weights.processed}
        path = evidence.path(repeat, audited.PRISTINE)
        yield from _other_parameters(path, found, model, types)


def _other_parameters(
    where: str,
    found: Sequence[tuple[str, tuple[int, ...], str]],
    model: ExpectedModel,
    types: Mapping[str, str] | None,
) -> Iterator[str]:
    """Yield a sentence if ``found`` (name, shape, dtype) does not fit ``model``'s parameters."""
    right, names = model.parameters, {name for name, *_ in found}
    if len(names) < len(found):
        yield f"{where} names a parameter twice"
    if extra := sorted(names - right.keys()):
        yield f"{where} has {named(extra)}, which {model.name} has not"
    if gone := [name for name in right if name not in names]:
        yield f"{where} lacks {named(gone)} of {model.name}"
    known = [one for one in found if one[0] in right]
    if wrong := [(name, shape) for name, shape, _ in known if shape != right[name]]:
        name, shape = wrong[0]
        yield f"{where}: {name} has shape {list(shape)}, in {model.name} {list(right[name])}"
    if types is None:
        return
    if odd := [(name, dtype) for name, _, dtype in known if dtype != types[name]]:
        name, dtype = odd[0]
        yield f"{where}: {name} is {dtype[:_SHOWN]!r}, and not {types[name]}"


def _in_tree(tree: Mapping[str, str]) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and dtype of all parameters of a module tree in ``model.json``."""
    found = []
    for path, line in tree.items():
        own = _OWN.search(line)
        prefix = "" if path == "(model)" else f"{path}."
        for name, sizes, dtype in _ONE.findall(own.group(1)) if own else ():
            shape = tuple(int(size) for size in sizes.split(",") if size.strip())
            found.append((prefix + name, shape, dtype))
    return found


def judges_steps(record: RunRecord) -> bool:
    """Tell whether the rules of ``record`` judge drawn steps: of trainings, since rules 4 (G1)."""
    trains = record.config.mode is Mode.TRAIN and record.config.audit is not AuditMode.OFF
    known = record.rules_version in JUDGED_VERSIONS  # of others the check ``audit`` tells
    return trains and known and int(record.rules_version) >= JUDGED_SINCE


def named(names: Sequence[str]) -> str:
    """Return the first of ``names``, and the number of further names."""
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0][:_SHOWN]!r}{more}"
