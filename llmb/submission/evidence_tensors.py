"""Checks names, counts and types of the tensors in evidence files against the record's workload.

Values read from stored parameters are checked against ``model.json``, all else against the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from llmb.config import Mode
from llmb.errors import BundleRefusedError
from llmb.records import arrays, audited, evidence
from llmb.records.arrays import Form
from llmb.records.bundle import Bundle
from llmb.records.draws import why_rough
from llmb.records.places import fewer, of_judged
from llmb.records.run_record import OLDER_RULES, RunRecord
from llmb.submission.evidence_model import (
    ExpectedModel,
    StoredParameters,
    judges_steps,
    named,
)
from llmb.submission.rejudge import load

#: Elements read per parameter (or sequence): for the replay of the optimizer's step, and in every
#: step. With many parameters, fewer per parameter (``fewer``). By rules 3 and older there were
#: 1,024 of a gradient in every format (``of_judged``).
_OF_STATES, _OF_LEDGER = 257, 64
_OF_EARLIER = 1024
#: The size of a replayed sample is a multiple of 64, or the full parameter.
_VECTOR = 64
#: Sampled logits: positions of one sequence, and words at each position.
_POSITIONS, _WORDS = 64, 1024
#: Blind sample, read before the worker knows whether a step is audited: 64 elements of 16
#: gradients, or 8 of each gradient.
_GLANCED, _GLANCED_OF_EACH = 16 * 64, 8
_MOST_RECOMPUTED = 2

_LIVE, _STEP, _PROBES = "live", "step", ("branches", "head")
#: Groups: ``who`` (absent for the worker's own passes), ``pass``, and ``what`` (the tensor).
#: Examples: "live/loss", "BF16/branches/logits", "host/step-7".
_OF_PASS = re.compile(
    r"(?:(?P<who>[^/]+)/)?(?P<pass>live|branches|head|step(?:-\d+)?)(?:/(?P<what>.+))?"
)
_OF_A_PASS = re.compile(r"(?:^|/)step(?:-\d+)?(?:/|$)")
_OF_PASSES = (audited.GRADIENTS, audited.HONEST, audited.REFERENCE, audited.DEVICE_REFERENCE)
_KINDS = ("value", "exp_avg", "exp_avg_sq")
#: Tensors that an audited training step may have; the second tuple lists the required tensors.
_OF_STEP = {
    *("replay/gradient", "replay/unclipped"),
    *(f"{when}/{kind}" for when in ("before", "after", "next") for kind in _KINDS),
}
_ALWAYS_OF_A_STEP = ("replay/gradient", "before/value", "after/value")
_ASKED = ("asked", "asked before", "asked after", "asked again")
_NUMBERS, _INDICES = ("F32",), ("I32", "I64")
#: Since rules 3, 16-bit numbers may be stored in 16 bits (docs/adr/0057). A tensor that stands for
#: an array has a type of its own: F64 a distance, I8 a difference, U8 "same as another array".
_SHORT, _APART, _DIFFERENCE, _SAME = ("F32", "BF16"), "F64", "I8", "U8"
#: A parameter of a layer, such as "model.layers.3.mlp": the probe ``head`` runs without layers.
_OF_A_LAYER = re.compile(r"\.(?:layers|h|layer)\.\d+\.")
#: Embeddings of positions, by the ends of their names: BERT's and GPT-2's.
_POSITIONS_OF = ("position_embeddings.weight", "wpe.weight")
#: Honest runs beside which rule G1 judges; a run in FP32 has the first alone.
_HONEST_WAYS = (audited.IS_HONEST, f"{audited.IS_HONEST}{audited.WIDE_LOSS}")
#: Numbers of rule L1 per parameter and step, per parameter over all steps, and per sequence.
_OF_STEP_ROWS, _OF_ALL_ROWS, _OF_CALL_ROWS = 3, 2, 2
#: Least and greatest number of elements of a tensor; None: the model has no such tensor.
_Size: TypeAlias = "tuple[int, int] | None"
#: Size by a tensor's name; size by the shown quantity and the pass.
_Expected: TypeAlias = "Callable[[str], _Size]"
_Due: TypeAlias = "Callable[[str | None, str], _Size]"


def faults(
    bundle: Bundle, record: RunRecord, repeat: int, model: ExpectedModel, stored: StoredParameters
) -> Iterator[str]:
    """Yield a sentence for each tensor or segment of ``repeat`` that does not fit the model.

    Raises:
        BundleRefusedError: a file is missing, or llmb does not write such a file.
    """
    if evidence.path(repeat, audited.STEPS) not in bundle.files:
        return  # the audit was switched off
    checks = _Tensors(bundle, record, repeat, model, stored)
    yield from checks.of_training() if record.config.mode is Mode.TRAIN else checks.of_outputs()


class _Tensors:
    """Checks the safetensors files of one repeat, and the JSON files that list the tensors."""

    def __init__(
        self,
        bundle: Bundle,
        record: RunRecord,
        repeat: int,
        model: ExpectedModel,
        stored: StoredParameters,
    ) -> None:
        self._bundle, self._repeat, self._model, self._stored = bundle, repeat, model, stored
        #: Whether the exact number of sampled elements per parameter is known; runs of rules 2 may
        #: have sampled the same number for any number of parameters.
        self._is_exact = stored.apart and record.rules_version not in OLDER_RULES
        self._is_reduced = record.rules_version not in OLDER_RULES
        self._config = record.config
        dropout = bool(record.workload.shapes.get("dropout"))
        self._is_rough = why_rough(record.config.precision, dropout=dropout) is not None
        self._judged_steps = len(record.timing.repeats[repeat].stops)
        self._steps = load(bundle, repeat, audited.STEPS, audited.StepsEvidence).steps
        self._probed = load(bundle, repeat, audited.PROBED, audited.ProbedEvidence)
        self._ledger = None
        if self._path(audited.LEDGER) in bundle.files:
            self._ledger = load(bundle, repeat, audited.LEDGER, audited.LedgerEvidence)
        #: By pass, the steps whose gradient elements, or logits, all processes compare: since rules
        #: 4 each judged step of a training, and else one audited step.
        kept = [step for step in self._steps if step.weights_kept]
        self._judges_steps = judges_steps(record)
        self._kept = {
            audited.judged_pass(s.index) if self._judges_steps else _STEP: s for s in kept
        }

    def of_training(self) -> Iterator[str]:
        """Yield the faults of a training run."""
        yield from self._optimizer()
        for step in self._steps:
            yield from self._segments(step)
        yield from self._columns()
        yield from self._positions()
        yield from self._passes(self._gradient)
        yield from self._of_steps()
        yield from self._rows()

    def of_outputs(self) -> Iterator[str]:
        """Yield the faults of a run without training."""
        logits = self._logits()
        for step in self._steps:
            shown = [one.name for one in step.segments]
            count = sum(one.gradients for one in step.segments)
            if shown != [audited.LOGITS] or not _is_in(count, logits):
                where, most = f"{self._path(audited.STEPS)}: step {step.index}", logits[1]
                yield f"{where} shows other logits than the {most} that are looked at"
        yield from self._sequences()
        yield from self._passes(self._output)
        yield from self._of_calls()
        yield from self._rows()

    def _path(self, name: str) -> str:
        return evidence.path(self._repeat, name)

    def _forms(self, name: str) -> dict[str, Form] | None:
        path = self._path(name)
        if path not in self._bundle.files:
            return None
        try:
            return arrays.forms(self._bundle.files[path])
        except ValueError as error:
            raise BundleRefusedError(f"{path}: {error}") from None

    # -- statements of steps and ledger on stored parameters --------------------------------------

    def _optimizer(self) -> Iterator[str]:
        seen = load(self._bundle, self._repeat, evidence.OPTIMIZER, evidence.OptimizerEvidence)
        most = len(self._stored.forms)
        least = most - len(self._stored.untrained) if self._is_known() else 1
        if not least <= seen.trainable <= most:
            path = self._path(evidence.OPTIMIZER)
            yield f"{path} is of {seen.trainable} parameters, the model has {most}"

    def _is_known(self) -> bool:
        """Tell whether every stored parameter is known, and is on the first rank."""
        return self._stored.apart and self._config.parallelism.world_size == 1

    def _segments(self, step: audited.AuditedStep) -> Iterator[str]:
        where = f"{self._path(audited.STEPS)}: step {step.index}"
        stored, names = self._stored, [one.name for one in step.segments]
        yield from self._other_names(where, names, step.without_gradient)
        bits = self._config.precision.bits
        of_gradients = of_judged(bits) if self._judges_steps else _OF_EARLIER
        of_states = _OF_STATES
        if self._is_exact:
            of_gradients = fewer(of_gradients, len(stored.forms))
            of_states = max(_VECTOR, fewer(of_states, len(stored.forms)))
        if step.states > of_states or (self._is_exact and step.states != of_states):
            yield f"{where} reads {step.states} values of each parameter, not {of_states}"
        for one in step.segments:
            if one.name not in stored.forms:
                continue
            size, dtype = stored.size(one.name), stored.forms[one.name][1]
            whole = size if size <= step.states else size - size % _VECTOR
            for what, count, due in (
                ("its gradient", one.gradients, min(size, of_gradients)),
                ("its states", one.states, min(whole, step.states)),
            ):
                if count > due or (self._is_exact and count != due):
                    yield f"{where} shows {count} elements of {what} of {one.name}, not {due}"
            if one.dtype != dtype:
                yield f"{where}: {one.name} is {named([one.dtype])}, in model.json {dtype}"

    def _columns(self) -> Iterator[str]:
        if self._ledger is None:
            return
        where, segments = self._path(audited.LEDGER), self._ledger.segments
        yield from self._other_names(where, [one.name for one in segments], ())
        most = fewer(_OF_LEDGER, len(segments))
        for one in segments:
            due = min(most, self._stored.size(one.name)) if one.name in self._stored.forms else 0
            if due and one.elements != due:
                yield f"{where} has {one.elements} elements of {one.name}, not {due}"
            if due and one.shape not in (None, self._stored.forms[one.name][0]):
                yield f"{where} has {one.name} in shape {list(one.shape or ())}, unlike model.json"

    def _positions(self) -> Iterator[str]:
        """Yield a sentence if sequences as long as the model allows left positions unused.

        Parameters of models for 512 and for 2,048 tokens have equal shapes; the gradient of a
        position that no sequence has is 0.
        """
        sizes, step = self._model.sizes, next(iter(self._kept.values()), None)
        whole = sizes["sequence_length"] == sizes.get("max_position_embeddings")
        whole = whole and self._config.precision.dtype != "float16"  # small gradients underflow
        values = self._bundle.files.get(self._path(audited.STEP_VALUES))
        if not whole or step is None or values is None:
            return
        try:
            shown = arrays.read(values).get(f"{step.index}/gradient", ())
        except ValueError as error:
            raise BundleRefusedError(f"{self._path(audited.STEP_VALUES)}: {error}") from None
        begin = 0
        for one in step.segments:
            own = shown[begin : begin + one.gradients]
            begin += one.gradients
            used = sum(value != 0 for value in own)
            if one.name.endswith(_POSITIONS_OF) and 2 * used < len(own):
                where = f"{self._path(audited.STEP_VALUES)}: step {step.index}"
                length = sizes["sequence_length"]
                yield f"{where} has {used} of {len(own)} positions used by {length} tokens"

    def _other_names(
        self, where: str, names: Sequence[str], without: Sequence[str]
    ) -> Iterator[str]:
        shown, stored = {*names}, self._stored
        if len(shown) < len(names):
            yield f"{where} names a parameter twice"
        if extra := sorted((shown | {*without}) - stored.forms.keys()):
            yield f"{where} has {named(extra)}, which model.json does not show"
        filled = (name for name in stored.forms if stored.size(name))
        gone = [n for n in filled if n not in {*shown, *without, *stored.untrained}]
        if gone and stored.apart:
            yield f"{where} lacks {named(gone)}"

    def _sequences(self) -> Iterator[str]:
        """Yield the faults of the ledger's sequences, and of the tokens drawn in the sequences."""
        if self._ledger is None:
            return
        config, sizes = self._config, self._model.sizes
        count, new = config.batch_size, config.new_tokens
        positions = sizes["sequence_length"] if new is None else new
        each = min(fewer(_OF_LEDGER, count), positions * sizes["vocab_size"])
        right = [(f"sequence {n}", each) for n in range(count)]
        if new is not None:
            right += [(audited.TOKENS, count * new), (audited.NOISE, audited.SEED_PARTS)]
        if [(one.name, one.elements) for one in self._ledger.segments] != right:
            yield f"{self._path(audited.LEDGER)} is not of {count} sequences, {each} logits each"

    # -- tensors of passes ------------------------------------------------------------------------

    def _gradient(self, what: str | None, name: str) -> _Size:
        """Return the number of elements of ``what`` in pass ``name`` of a training run."""
        if _OF_A_PASS.search(name):
            size = self._of_kept(what, name)
            return None if size is None else (size, size)
        return self._model.sketch(what) if what is not None else None

    def _of_kept(self, what: str | None, name: str) -> int | None:
        """Return the number of elements of a step, or of honest steps with dropout."""
        if name not in self._kept:
            return None
        segments = self._kept[name].segments
        shown = sum(one.gradients for one in segments)
        names = {None: shown, audited.DROPPED: shown, audited.DROPPED_ALIKE: shown}
        names[audited.DROPPED_APART] = audited.MASKS * len(segments)
        return names.get(what)

    def _output(self, what: str | None, name: str) -> _Size:
        """Return the number of elements of ``what`` in pass ``name`` of a run without training."""
        if name not in (_LIVE, *_PROBES, *self._kept):
            return None
        new = self._config.new_tokens
        if what == "tokens" and new is not None:
            return new, new
        return self._logits() if what == audited.LOGITS else None

    def _logits(self) -> tuple[int, int]:
        """Return the least and greatest number of sampled logits."""
        new, sizes = self._config.new_tokens, self._model.sizes
        positions = min(_POSITIONS, sizes["sequence_length"] if new is None else new)
        words = min(_WORDS, sizes["vocab_size"])
        return words * (1 if self._config.dynamic else positions), words * positions

    def _passes(self, due: _Due) -> Iterator[str]:
        """Yield the faults of files with passes of worker, honest run and reference."""
        files = {file: found for file in _OF_PASSES if (found := self._forms(file)) is not None}
        # The worker's passes have no owner in the name; an honest run's passes name a format.
        of_somebody = {audited.GRADIENTS: False, audited.HONEST: True}
        for file, found in files.items():

            def expected(name: str, file: str = file) -> _Size:
                parts = _OF_PASS.fullmatch(name)
                if parts is None or of_somebody.get(file) is (parts["who"] is None):
                    return None
                return due(parts["what"], parts["pass"])

            yield from self._odd_tensors(file, found, expected)
        whole = files.get(audited.GRADIENTS, {})
        yield from self._whole_passes(whole, trains=due == self._gradient)
        yield from self._yardsticks(whole, files)

    def _yardsticks(
        self, whole: Mapping[str, Form], files: Mapping[str, Mapping[str, Form]]
    ) -> Iterator[str]:
        """Yield tensors that the worker shows, but the honest run or the reference lacks.

        In the probe ``head``, without layers, both lack tensors of layers; neither draws tokens.
        """
        due = {n for n in whole if not n.startswith("head/") and not n.endswith("/tokens")}
        prefix = f"{self._config.precision.name}/"
        honest = {
            n.removeprefix(prefix) for n in files.get(audited.HONEST, ()) if n.startswith(prefix)
        }
        right = {*files.get(audited.REFERENCE, ()), *files.get(audited.DEVICE_REFERENCE, ())}
        there = {audited.HONEST: honest, audited.REFERENCE: right}
        for file, names in there.items():
            # An honest run in an unknown format shows no tensors.
            if file in files and names and (lost := sorted(due - names)):
                yield f"{self._path(file)} lacks {named(lost)}, which the worker shows"

    def _whole_passes(self, found: Mapping[str, Form], *, trains: bool) -> Iterator[str]:
        """Yield tensors that the worker's own passes lack."""
        probed = self._probed
        if wrong := [one for one in probed.passes if one not in (_LIVE, *_PROBES)]:
            yield f"{self._path(audited.PROBED)} has a pass {named(wrong)}"
        every = (name for name in self._model.parameters if name not in self._stored.missing)
        items = ["loss", *every] if trains else [audited.LOGITS]
        due = {
            f"{name}/{what}"
            for name in probed.passes
            for what in items
            if not (self._is_reduced and name == "head" and _OF_A_LAYER.search(what))
        }
        lacks = sorted(due - found.keys() - {*probed.missing})
        if lacks:
            yield f"{self._path(audited.GRADIENTS)} lacks {named(lacks)}"

    # -- tensors of steps -------------------------------------------------------------------------

    def _of_steps(self) -> Iterator[str]:
        by_index = {str(step.index): step for step in self._steps}
        glanced = max(_GLANCED, _GLANCED_OF_EACH * len(self._stored.forms))
        last = self._probed.last_step

        def expected(name: str) -> _Size:
            number, _, what = name.partition("/")
            step = by_index.get(number)
            if what in _ASKED and (step is not None or number == str(last)):
                return 0, glanced
            if step is None:
                return None
            if what in ("gradient", "where") and step.weights_kept:
                return (sum(one.gradients for one in step.segments),) * 2
            count = sum(one.states for one in step.segments)
            return (count, count) if what in _OF_STEP else None

        found = self._forms(audited.STEP_VALUES) or {}
        yield from self._odd_tensors(audited.STEP_VALUES, found, expected)
        always = [f"{n}/{what}" for n in by_index for what in _ALWAYS_OF_A_STEP]
        lacks = [name for name in always if name not in found]
        if lacks:
            yield f"{self._path(audited.STEP_VALUES)} lacks {named(lacks)}"
        replayed = self._forms(audited.REPLAY)
        if replayed is None:
            return
        counts = {n: sum(one.states for one in step.segments) for n, step in by_index.items()}
        due = {f"{n}/replayed/{k}": (c, c) for n, c in counts.items() for k in _KINDS}
        yield from self._odd_tensors(audited.REPLAY, replayed, due.get)

    def _of_calls(self) -> Iterator[str]:
        last, numbers = str(self._probed.last_step), {str(step.index) for step in self._steps}

        def expected(name: str) -> _Size:
            number, _, what = name.partition("/")
            if what in _ASKED and number in {*numbers, last}:
                return 0, _GLANCED
            return self._output(what, _LIVE) if number in numbers else None

        found = self._forms(audited.STEP_VALUES) or {}
        yield from self._odd_tensors(audited.STEP_VALUES, found, expected)

    def _rows(self) -> Iterator[str]:
        """Yield the faults in the rows of ledger and reference, and in the rows' distances."""
        ledger, values = self._ledger, self._forms(audited.LEDGER_VALUES)
        if ledger is None or values is None:
            return
        counts = [one.elements for one in ledger.segments]
        gradients = sum(counts)
        length = gradients + bool(ledger.moments) * sum(map(audited.half_of, counts))
        rows = next(iter(values[audited.ROWS].shape), 0) if audited.ROWS in values else 0
        trains = self._config.mode is Mode.TRAIN
        own = {audited.ROWS: (rows, length)}
        if trains and not (audited.WHERE not in values and self._is_plain(ledger)):
            own[audited.WHERE] = (rows, gradients)
        yield from self._compared_rows(ledger, rows)
        yield from self._judged(ledger)
        shown = {
            audited.LEDGER_VALUES: own,
            audited.RECOMPUTED: {audited.ROWS: (_MOST_RECOMPUTED, gradients)},
        }
        for file, due in shown.items():
            found = self._forms(file)
            if found is None:
                continue
            if found.keys() != due.keys():
                yield f"{self._path(file)} has other tensors than {', '.join(due)}"
                continue
            for name, (most, width) in due.items():
                shape = found[name].shape
                exact = file == audited.LEDGER_VALUES
                kinds = _INDICES if name == audited.WHERE else _SHORT
                fits = len(shape) == 2 and shape[1] == width and found[name].dtype in kinds
                if not fits or (shape[0] != most if exact else shape[0] > most):
                    form = f"{found[name].dtype} {list(shape)}"
                    yield f"{self._path(file)}: {name} is {form}, not {most} rows of {width}"

    def _is_plain(self, ledger: audited.LedgerEvidence) -> bool:
        """Tell whether rows hold the model's own parameters; the sampled indices are known then."""
        parameters = self._model.parameters
        most = fewer(_OF_LEDGER, len(parameters))
        due = [(name, min(most, math.prod(shape))) for name, shape in parameters.items()]
        return [(one.name, one.elements) for one in ledger.segments] == due

    def _parts(self, ledger: audited.LedgerEvidence, distances: Form | None) -> int:
        """Return the number of parameters in ``distances``, as far as the ledger tells.

        A stored parameter with several parameters of the model has a distance for each. The places
        of the elements tell how many: rule L1 reads the places.
        """
        least = len(ledger.segments)
        if self._is_plain(ledger) or distances is None or len(distances.shape) < 2:
            return least
        return max(least, distances.shape[1])

    def _compared_rows(self, ledger: audited.LedgerEvidence, rows: int) -> Iterator[str]:
        """Yield the faults in the distances of rows from the honest run's rows."""
        found, path = self._forms(audited.REPLAYED), self._path(audited.REPLAYED)
        if found is None:
            return
        due = dict[str, tuple[int, ...]]()
        if self._config.mode is not Mode.TRAIN:
            others = (audited.TOKENS, audited.NOISE)
            count = sum(one.name not in others for one in ledger.segments)
            calls = next(iter(found[audited.LOGITS].shape), 0) if audited.LOGITS in found else 0
            steps, due[audited.LOGITS] = calls, (calls, count, _OF_CALL_ROWS)
            if self._config.mode is Mode.GENERATE:
                due[audited.TOKENS] = (calls, count)
        else:
            first = found.get(audited.OF_GRADIENTS)
            count = self._parts(ledger, first)
            steps = next(iter(first.shape), 0) if first is not None else 0
            turns = len(ledger.moments)
            kinds = {audited.OF_GRADIENTS: steps}
            kinds |= {one: len(range(n, steps, turns)) for n, one in enumerate(ledger.moments)}
            of_rows = next(iter(found[audited.ROWS].shape), 0) if audited.ROWS in found else 0
            gradients = sum(one.elements for one in ledger.segments)
            if self._is_rough:  # the rows themselves, because directions are compared
                steps, kinds = of_rows, {}
                due[audited.ROWS] = (of_rows, gradients)
            elif audited.ROWS in found or self._forms(audited.RECOMPUTED) is not None:
                due[audited.ROWS] = (min(of_rows, _MOST_RECOMPUTED), gradients)
            for kind, made in kinds.items():
                due[kind] = (made, count, _OF_STEP_ROWS)
                due[f"{kind}{audited.OF_ALL_STEPS}"] = (count, _OF_ALL_ROWS)
        if found.keys() != due.keys():
            yield f"{path} has other tensors than {', '.join(due)}"
            return
        if steps > rows:
            yield f"{path} is of {steps} rows, the worker shows {rows}"
        for name, shape in due.items():
            kinds_of = _SHORT if name == audited.ROWS else _NUMBERS
            if found[name].shape != shape or found[name].dtype not in kinds_of:
                form = f"{found[name].dtype} {list(found[name].shape)}"
                yield f"{path}: {name} is {form}, not {list(shape)}"

    def _judged(self, ledger: audited.LedgerEvidence) -> Iterator[str]:
        """Yield the faults in the distances of the judged steps (rule G1)."""
        found, path = self._forms(audited.JUDGED), self._path(audited.JUDGED)
        if found is None:
            return
        count = self._parts(ledger, found.get(audited.MEASURED))
        due = dict[str, tuple[int, ...]]()
        for kind in (audited.MEASURED, *(one for one in _HONEST_WAYS if one in found)):
            due[kind] = (self._judged_steps, count, _OF_STEP_ROWS)
            due[f"{kind}{audited.OF_ALL_STEPS}"] = (count, _OF_ALL_ROWS)
        if found.keys() != due.keys():
            yield f"{path} has other tensors than {', '.join(due)}"
            return
        for name, shape in due.items():
            if found[name].shape != shape or found[name].dtype not in _NUMBERS:
                form = f"{found[name].dtype} {list(found[name].shape)}"
                yield f"{path}: {name} is {form}, not {list(shape)}"

    def _odd_tensors(
        self, file: str, found: Mapping[str, Form], expected: _Expected
    ) -> Iterator[str]:
        """Yield a sentence for unexpected tensors, and for tensors of another size or type."""
        path = self._path(file)
        short = [name for name, form in found.items() if form.dtype == _DIFFERENCE]
        if self._is_reduced and arrays.SCALES in found:
            scales = found[arrays.SCALES]
            if scales != Form("F32", (len(short),)) or not short:
                yield f"{path}: {arrays.SCALES} is not {len(short)} numbers of F32"
            found = {name: form for name, form in found.items() if name != arrays.SCALES}
        due = {name: expected(name) for name in found}
        if strange := sorted(name for name, size in due.items() if size is None):
            yield f"{path} has {named(strange)}, of which {self._model.name} has nothing"
        for name, size in due.items():
            form = found[name]
            if size is None or self._stands_for_array(file, name, form, size):
                continue
            if not _is_in(form.elements, size):
                yield f"{path}: {name} has {form.elements} elements, and not {size[1]}"
            kinds = _SHORT if self._is_reduced else _NUMBERS
            kinds = _INDICES if name.endswith("/where") else kinds
            if form.dtype not in kinds:
                yield f"{path}: {name} is of {form.dtype}, and not {kinds[0]}"

    def _stands_for_array(self, file: str, name: str, form: Form, size: tuple[int, int]) -> bool:
        """Tell whether a tensor validly stands for an array (rules 3).

        An honest run and a device's probe have a distance. A correct value (reference) has a
        difference from the worker's. The optimizer's side has "same as after the step".
        """
        if not self._is_reduced:
            return False
        is_right = file in (audited.REFERENCE, audited.DEVICE_REFERENCE)
        counts = not name.endswith(("/loss", "/tokens")) and not _OF_A_PASS.search(name)
        if form.dtype == _APART:
            honest = file == audited.HONEST or (is_right and name.startswith("host"))
            probe = file == audited.DEVICE_REFERENCE and name.startswith("branches/")
            return counts and (honest or probe) and form.shape == (1,)
        if form.dtype == _DIFFERENCE:
            whole = counts and is_right and not name.startswith("host")
            return whole and len(form.shape) == 1 and _is_in(form.elements, size)
        known = {audited.STEP_VALUES: "/next/", audited.REPLAY: "/replayed/"}
        return form == Form(_SAME, (0,)) and known.get(file, "//") in name


def _is_in(count: int, size: tuple[int, int]) -> bool:
    return size[0] <= count <= size[1]
