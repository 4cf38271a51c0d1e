"""Makes evidence smaller after all writing processes have ended; the judges' input stays.

Worker, honest run and reference run write full arrays. An array used only for its distance from
another array is replaced here by the distance, and 16-bit numbers are stored in 16 bits. No
plugin's code runs in this process. The run and any later audit judge the rules from the same
reduced files (docs/adr/0057).
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from llmb.audit.canonical_rows import CanonicalRows, is_apart
from llmb.audit.compared_rows import ComparedRows, Rows, stored_calls
from llmb.audit.distance import gap
from llmb.config import Precision
from llmb.endings import is_out_of_space
from llmb.errors import NotEnoughSpaceError, RunFailedError
from llmb.records import arrays, audited, evidence
from llmb.records.arrays import Array, StoredArray
from llmb.records.audited import LedgerEvidence
from llmb.records.draws import Draws
from llmb.records.evidence import WeightsEvidence
from llmb.records.places import plain_row

#: Dtypes that the processes write. A further dtype, for example F64 (a stored distance), is
#: refused: the number would claim a comparison that was never made.
_WRITTEN = {"F32", "I32", "I64"}
#: Format of ``array`` and ``memoryview`` for whole numbers.
_INTEGERS = {"I32": "i", "I64": "q"}
_FILES = (
    *(audited.GRADIENTS, audited.STEP_VALUES, audited.REPLAY),
    *(audited.HONEST, audited.REFERENCE, audited.DEVICE_REFERENCE),
    *(audited.LEDGER_VALUES, audited.REPLAYED, audited.RECOMPUTED),
)
#: Files with samples of judged steps, of which only distances are kept.
_OF_PASSES = (
    *(audited.HONEST, audited.REFERENCE, audited.DEVICE_REFERENCE),
    audited.RECOMPUTED,
)
_READ = (*_FILES, audited.LEDGER, evidence.WEIGHTS)
_LOSS, _TOKENS, _STEP, _HOST, _HEAD = "/loss", "/tokens", "step", "host", "head/"
#: Up to this number of bits in a run's format, gradient sketches are rounded to bfloat16.
_SHORT = 16
#: An array is stored as a difference from the worker's array if the distance between both is at
#: most this share of the length. Example: 0.5 allows a distance of half the length.
_NEAR = 0.5

Arrays = dict[str, StoredArray]


@dataclass(frozen=True)
class EvidenceFacts:
    """The facts of a run that decide how the evidence is reduced."""

    precision: Precision
    trains: bool
    #: Number of steps (of calls, for inference) with a commitment.
    steps: int
    #: The draws of the repeat; None where the worker has left no rows.
    drawn: Draws | None
    #: The judged steps (rule G1).
    judged: Sequence[int] = ()

    @property
    def judged_in_rows(self) -> Sequence[int]:
        """The judged steps with elements in the rows of every step (rule L1)."""
        every = self.drawn is not None and self.drawn.compares_all(self.steps)
        return self.judged if every else ()


def reduced(folder: Path, files: Mapping[str, str], run: EvidenceFacts) -> dict[str, str]:
    """Make the evidence in ``folder`` smaller; return the sha256 of every file by name.

    ``files`` has the digests announced by the processes.

    Raises:
        RunFailedError: a file is missing, differs from its announced digest, or is no evidence.
        NotEnoughSpaceError: the disk is full; the files are unchanged.
    """
    found = {name: _read(folder, name, files[name]) for name in _READ if name in files}
    after = smaller(found, run)
    _replace(folder, after)
    return {**files, **{name: hashlib.sha256(data).hexdigest() for name, data in after.items()}}


def _replace(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put all ``files`` into ``folder``, or none if the disk has no room for a file."""
    parts = {folder / name: folder / f"{name}.part" for name in files}
    try:
        for path, part in parts.items():
            part.write_bytes(files[path.name])
    except OSError as error:
        for part in parts.values():
            part.unlink(missing_ok=True)
        kind = NotEnoughSpaceError if is_out_of_space(error) else RunFailedError
        raise kind(
            f"cannot write {len(files)} files of evidence "
            f"({sum(map(len, files.values())) / 1e6:.1f} MB): {error.strerror}"
        ) from error
    for path, part in parts.items():
        part.replace(path)


def smaller(files: Mapping[str, bytes], run: EvidenceFacts) -> dict[str, bytes]:
    """Return the contents of the evidence files that become smaller, by name.

    Raises:
        RunFailedError: a file differs from the format that llmb writes.
    """
    try:
        before = {name: arrays.packed(files[name]) for name in _FILES if name in files}
        for name, own in before.items():
            if odd := {one.dtype for one in own.values()} - _WRITTEN:
                raise ValueError(f"{name} has numbers of type {min(odd)}")
        passes = {
            name: _without_judged(own, run) if name in _OF_PASSES else own
            for name, own in before.items()
        }
        after = _of_passes(passes, run) | _of_steps(before)
        if passes.get(audited.RECOMPUTED) != before.get(audited.RECOMPUTED):
            after[audited.RECOMPUTED] = passes[audited.RECOMPUTED]
        if audited.LEDGER_VALUES in before and audited.LEDGER in files:
            after |= _of_judged(files, before, run)
            after |= _of_rows(files, before, run)
    except (ValueError, LookupError) as error:
        raise RunFailedError(f"evidence is not what llmb writes: {error}") from error
    return {name: arrays.file_of(own) for name, own in after.items()}


def _read(folder: Path, name: str, announced: str) -> bytes:
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise RunFailedError(f"evidence {name} is missing: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != announced:
        raise RunFailedError(f"evidence {name} is not what the worker wrote: it was altered")
    return data


def _of_rows(
    files: Mapping[str, bytes], before: Mapping[str, Arrays], run: EvidenceFacts
) -> dict[str, Arrays]:
    """Return the worker's rows, and the distances from the honest run's rows."""
    ledger = LedgerEvidence.model_validate_json(files[audited.LEDGER])
    form = _form(ledger, files, before, run)
    rows = _short(before[audited.LEDGER_VALUES])
    after = {audited.LEDGER_VALUES: rows}
    if run.drawn is None:
        return after
    if run.trains and evidence.WEIGHTS in files:
        weights = WeightsEvidence.model_validate_json(files[evidence.WEIGHTS])
        if _are_plain(rows, ledger, weights, run.drawn):
            del rows[audited.WHERE]
    if audited.REPLAYED in before:
        again = arrays.values(before[audited.REPLAYED][audited.ROWS])
        after[audited.REPLAYED] = _compared(
            form.rows(arrays.values(rows[audited.ROWS])), form.rows(again), ledger, run
        )
        if audited.RECOMPUTED in before:
            stored = Rows(ledger, again)
            after[audited.REPLAYED][audited.ROWS] = _checked(stored, ledger, run.drawn, run.steps)
    return after


def _form(
    ledger: LedgerEvidence,
    files: Mapping[str, bytes],
    before: Mapping[str, Arrays],
    run: EvidenceFacts,
) -> CanonicalRows:
    """Return the form of rows whose parts are parameters of the model."""
    where = before[audited.LEDGER_VALUES].get(audited.WHERE)
    rough = run.drawn is not None and run.drawn.rough
    apart = is_apart(run.precision, rough=rough)
    if not run.trains or where is None or evidence.WEIGHTS not in files:
        return CanonicalRows.of(ledger, None, None, apart=apart)
    weights = WeightsEvidence.model_validate_json(files[evidence.WEIGHTS])
    places: array[int] = array(_INTEGERS[where.dtype])
    places.frombytes(where.data)
    return CanonicalRows.of(ledger, places, weights, apart=apart)


def _without_judged(own: Arrays, run: EvidenceFacts) -> Arrays:
    judged = {audited.judged_pass(step) for step in run.judged_in_rows}
    return {name: one for name, one in own.items() if name.rpartition("/")[2] not in judged}


def _of_judged(
    files: Mapping[str, bytes], before: Mapping[str, Arrays], run: EvidenceFacts
) -> dict[str, Arrays]:
    """Return the distances of worker and honest runs from the reference in the judged steps.

    Nothing if the reference lacks a step: then no step is judged (rule G1).
    """
    ledger = LedgerEvidence.model_validate_json(files[audited.LEDGER])
    form = _form(ledger, files, before, run)
    # Results of a process without the plugin take the place of the honest run's.
    references = (audited.DEVICE_REFERENCE, audited.RECOMPUTED, audited.REFERENCE)
    known = {name: one for file in references for name, one in before.get(file, {}).items()}
    right = _judged_rows(known, "", run)
    judged = run.judged_in_rows
    if not judged or right is None:
        return {}
    again = form.rows(right, judged, moments=False)
    rows = form.rows(arrays.values(before[audited.LEDGER_VALUES][audited.ROWS])).of_gradients()
    shown = {audited.MEASURED: rows.only(judged)}
    # By ``reference_run`` if the device is the host, else by ``honest_run``.
    own = known | before.get(audited.HONEST, {})
    for suffix in ("", audited.WIDE_LOSS):
        for whose in (audited.HOST, run.precision.name):
            honest = _judged_rows(own, f"{whose}{suffix}/", run)
            if honest is not None:
                found = form.rows(honest, judged, moments=False)
                shown[f"{audited.IS_HONEST}{suffix}"] = found
                break
    distances = Arrays()
    for name, one in shown.items():
        distances |= ComparedRows.of(one, again).stored(name)
    return {audited.JUDGED: distances}


def _judged_rows(own: Arrays, prefix: str, run: EvidenceFacts) -> Array | None:
    """Return the samples of all judged steps, joined; None if a step is missing."""
    names = [f"{prefix}{audited.judged_pass(step)}" for step in run.judged_in_rows]
    if not names or not own.keys() >= {*names}:
        return None
    return [*chain.from_iterable(arrays.values(own[name]) for name in names)]


def _short(own: Arrays) -> Arrays:
    return {name: arrays.as_bfloat16(one) for name, one in own.items()}


# -- evidence of passes ----------------------------------------------------------------------------


def _of_passes(before: Mapping[str, Arrays], run: EvidenceFacts) -> dict[str, Arrays]:
    """Return the files of passes: honest arrays as distances, reference arrays as differences.

    Distances are measured from the reference. A difference is the worker's array before rounding
    minus the reference array. A reader subtracts the difference from the worker's rounded array.
    In this way the distance between worker and reference is unchanged.
    """
    worker = before.get(audited.GRADIENTS)
    if worker is None:
        return {}
    by_host = before.get(audited.REFERENCE)
    by_device = before.get(audited.DEVICE_REFERENCE, {})
    if by_host is None:
        return {audited.GRADIENTS: _rounded(worker, run)}
    merged = {**by_device, **by_host}
    right = {n: arrays.values(one) for n, one in merged.items() if not n.startswith(_HOST)}
    used = {n: one for n, one in worker.items() if not n.startswith(_HEAD) or n in merged}
    after = {
        audited.GRADIENTS: _rounded(used, run),
        audited.REFERENCE: _differences(used, _distances(by_host, right)),
    }
    if by_device:
        # For arrays computed by host and device, keep the device's distance from the host's array.
        both = {n: one for n, one in by_device.items() if n in by_host and _counts(n)}
        own = {n: _distance(one, right[n]) for n, one in both.items()}
        after[audited.DEVICE_REFERENCE] = _differences(used, by_device | own)
    if audited.HONEST in before:
        after[audited.HONEST] = _short(_distances(before[audited.HONEST], right))
    return after


def _counts(item: str) -> bool:
    """Tell whether judges use only the array's distance; a loss, for example, is used as it is."""
    return not item.endswith((_LOSS, _TOKENS)) and not item.startswith(_STEP)


def _rounded(worker: Arrays, run: EvidenceFacts) -> Arrays:
    """Return the worker's passes; gradient sketches of a 16-bit run are rounded to bfloat16."""
    short = run.trains and run.precision.bits <= _SHORT
    return {
        name: arrays.as_bfloat16(one, rounded=short and _counts(name))
        for name, one in worker.items()
    }


def _distances(own: Arrays, right: Mapping[str, Array]) -> Arrays:
    """Return ``own`` with distances in place of arrays, named ``<process>/<pass>/<item>``."""
    found = Arrays()
    for name, one in own.items():
        _, _, item = name.partition("/")
        there = name not in right and item in right and _counts(item)
        found[name] = _distance(one, right[item]) if there else one
    return found


def _distance(one: StoredArray, right: Array) -> StoredArray:
    shown = arrays.values(one)
    whole = len(shown) == len(right) and all(map(math.isfinite, shown))
    return arrays.apart(gap(shown, right).distance if whole else math.inf)


def _differences(worker: Arrays, own: Arrays) -> Arrays:
    """Return ``own`` with a difference in place of each array near the worker's array."""
    found, scales = Arrays(), list[float]()
    for name, one in sorted(own.items()):
        theirs = worker.get(name)
        if theirs is None or one.dtype != "F32" or not _counts(name):
            found[name] = one
            continue
        shown, right = arrays.values(theirs), arrays.values(one)
        far = gap(shown, right)
        if len(shown) == len(right) and far.distance <= _NEAR * far.length < math.inf:
            found[name], scale = arrays.difference(shown, right)
            scales.append(scale)
        else:
            found[name] = one
    if scales:
        found[arrays.SCALES] = arrays.floats((len(scales),), scales)
    return found


# -- evidence of audited steps ---------------------------------------------------------------------


def _of_steps(before: Mapping[str, Arrays]) -> dict[str, Arrays]:
    """Return audited steps and replay; an array equal to the ``/after/`` array is kept once."""
    if audited.STEP_VALUES not in before:
        return {}
    seen = before[audited.STEP_VALUES]
    after = {audited.STEP_VALUES: _once(seen, "/next/", seen)}
    if audited.REPLAY in before:
        after[audited.REPLAY] = _once(before[audited.REPLAY], "/replayed/", seen)
    return after


def _once(own: Arrays, what: str, seen: Arrays) -> Arrays:
    found = _short(own)
    for name, one in own.items():
        if what in name and seen.get(name.replace(what, "/after/")) == one:
            found[name] = arrays.SAME
    return found


# -- rows ------------------------------------------------------------------------------------------


def _are_plain(
    rows: Arrays, ledger: LedgerEvidence, weights: WeightsEvidence, drawn: Draws
) -> bool:
    """Tell whether the rows' indices equal the draws of the nonce for plainly stored parameters."""
    if [one.name for one in ledger.segments] != [one.name for one in weights.pristine]:
        return False
    where, shapes = rows[audited.WHERE], [one.shape for one in weights.pristine]
    kind = _INTEGERS.get(where.dtype)
    if kind is None or len(where.shape) != 2:
        return False
    due = (plain_row(drawn.places(step), shapes) for step in range(where.shape[0]))
    return where.data == array(kind, chain.from_iterable(due)).tobytes()


def _compared(shown: Rows, again: Rows, ledger: LedgerEvidence, run: EvidenceFacts) -> Arrays:
    """Return distances of the worker's rows from the rows of an honest run."""
    if not run.trains:
        return stored_calls(shown, again)
    gradients = again.of_gradients()
    if run.drawn is not None and run.drawn.rough:  # the rule needs more than distances
        size = (len(gradients), len(gradients.every()) // max(1, len(gradients)))
        rows = arrays.floats(size, gradients.every())
        return {audited.ROWS: arrays.as_bfloat16(rows, rounded=True)}
    found = ComparedRows.of(shown.of_gradients(), gradients).stored(audited.OF_GRADIENTS)
    for name in ledger.moments:
        found |= ComparedRows.of(shown.of_moment(name), again.of_moment(name)).stored(name)
    return found


def _checked(again: Rows, ledger: LedgerEvidence, drawn: Draws, made: int) -> StoredArray:
    """Return the gradients of an honest run in the steps that the reference run recomputed."""
    steps = drawn.recomputed(drawn.steps_compared(made))
    checked = [step for step in steps if step < len(again)]
    gradients = again.of_gradients()
    rows = [*chain.from_iterable(gradients.row(step) for step in checked)]
    width = sum(segment.elements for segment in ledger.segments)
    return arrays.as_bfloat16(arrays.floats((len(checked), width), rows))
