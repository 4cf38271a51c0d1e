"""Checks evidence files against the record: all files exist, name the run, and fit the model."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Mapping

from llmb.config import AuditMode, Mode, is_cpu
from llmb.records import arrays, audited, evidence
from llmb.records.arrays import Form
from llmb.records.bundle import Bundle
from llmb.records.draws import Draws, fence_every, state_bytes, why_no_ledger, why_rough
from llmb.records.references import is_up_to
from llmb.records.run_record import OLDER_RULES, RepeatTiming, RunRecord
from llmb.submission import evidence_model, evidence_tensors
from llmb.submission.evidence_model import (
    ExpectedModel,
    StoredParameters,
    judges_steps,
    samples_at_fences,
    stored_parameters,
)
from llmb.submission.rejudge import load

#: The last llmb with older rules.
_LAST_OF = {"2": "0.1", "3": "0.3"}
#: Fields of a repeat's record that rules 2 did not have.
_LATER = ("nonce", "commitments", "fence_bits", "tail", "stops")
#: Most fences after STOP for runs that do not record the number of steps after STOP.
_MOST_AFTER_STOP = 3
_LOSS, _SAMPLES = "loss", "parameters"  # the tensors of fences


def faults(bundle: Bundle, record: RunRecord) -> Iterator[str]:
    """Yield a sentence for each contradiction between evidence and the run in ``record``.

    Raises:
        BundleRefusedError: llmb does not write such a file, or the model is unknown.
    """
    yield from _wrongly_older(record)
    model = ExpectedModel.of(record)
    for n in range(len(record.timing.repeats)):
        missing = [f"{path} is missing" for path in _missing(bundle, n, _always(record, n))]
        yield from missing
        if missing:
            continue
        if names_its_run(record):
            yield from _other_run(bundle, record, n)
            yield from _uncommitted(record, n)
            yield from _other_stops(record, n)
        stored = stored_parameters(bundle, n)
        yield from evidence_model.faults(bundle, record, n, model, stored)
        yield from evidence_tensors.faults(bundle, record, n, model, stored)
        yield from _fences(bundle, record, n, stored)


def absent(bundle: Bundle, record: RunRecord) -> list[str]:
    """Return the paths of missing optional evidence; rules that need the files are not observed."""
    if record.config.audit is AuditMode.OFF:
        return []
    repeats = range(len(record.timing.repeats))
    return [path for n in repeats for path in _missing(bundle, n, _may_lack(record, n))]


def names_its_run(record: RunRecord) -> bool:
    """Tell whether each repeat's evidence names its run (since rules 3)."""
    return record.rules_version not in OLDER_RULES


def _wrongly_older(record: RunRecord) -> Iterator[str]:
    """Yield a sentence if a run claims older rules than its llmb had, or has later fields."""
    rules, version = record.rules_version, record.llmb_version
    last = _LAST_OF.get(rules)
    if last is not None and not is_up_to(version, f"{last}.999"):
        yield f"rules {rules} were those of llmb up to {last}.x, the record is of {version}"
    if names_its_run(record):
        return
    for n, timing in enumerate(record.timing.repeats):
        later = [name for name in _LATER if getattr(timing, name)]
        if later:
            yield f"repeat {n} has {', '.join(later)}, which rules {rules} did not"


def _missing(bundle: Bundle, repeat: int, names: list[str]) -> list[str]:
    paths = (evidence.path(repeat, name) for name in names)
    return [path for path in paths if path not in bundle.files]


def _always(record: RunRecord, repeat: int) -> list[str]:
    """Return the evidence that every run, or every audited run, must have.

    A worker that dies in its audit leaves less: a run without the files has no value for readers.
    """
    config, timing = record.config, record.timing.repeats[repeat]
    names = [evidence.WEIGHTS, evidence.MODEL, evidence.SETTINGS, evidence.PLUGIN, evidence.FENCES]
    names += [evidence.OPTIMIZER] * (config.mode is Mode.TRAIN)
    names += [evidence.REPEAT] * names_its_run(record)
    # Ranks without evidence would multiply the tokens of a step.
    names += [evidence.RANKS] * (names_its_run(record) and record.topology.world_size > 1)
    if config.audit is AuditMode.OFF:
        return names
    names += [evidence.NAMESPACE, evidence.SURROUNDINGS, audited.STEPS, audited.STEP_VALUES]
    names += [audited.GRADIENTS, audited.PROBED]
    names += [evidence.TYPES] * config.audit.has_census
    if timing.commitments:
        names += [audited.LEDGER, audited.LEDGER_VALUES]
    return names


def _may_lack(record: RunRecord, repeat: int) -> list[str]:
    """Return optional evidence: files of honest run and reference run (may fail), and the recipe.

    Without the probe of products (``pairs.json``) a run has no measured recipe of precision.
    """
    trains = record.config.mode is Mode.TRAIN
    names = [audited.HONEST, audited.HONEST_NAMESPACE, audited.PRISTINE, audited.REFERENCE]
    names += [audited.REPLAY] * trains
    names += [evidence.PAIRS] * (trains and names_its_run(record))
    if record.timing.repeats[repeat].commitments:
        names += [audited.REPLAYED]
        # On a CPU the reference run replays the steps itself.
        names += [audited.RECOMPUTED] * (trains and not is_cpu(record.config.device))
    names += [audited.JUDGED] * bool(record.timing.repeats[repeat].stops)
    return names


def _other_run(bundle: Bundle, record: RunRecord, repeat: int) -> Iterator[str]:
    """Yield a sentence for each name in the evidence of ``repeat`` that contradicts the record."""
    timing = record.timing.repeats[repeat]
    right = evidence.RepeatEvidence(
        run_id=record.run_id,
        repeat=repeat,
        seed=record.config.seed,
        nonce=timing.nonce,
        warmup_steps=timing.warmup_steps,
        timed_steps=timing.timed_steps,
        plugin=record.plugin.name,
        plugin_sha256=evidence.plugin_digest(record.plugin.files),
    )
    named = load(bundle, repeat, evidence.REPEAT, evidence.RepeatEvidence)
    for (name, theirs), (_, ours) in zip(named, right, strict=True):
        if theirs != ours:
            path = evidence.path(repeat, evidence.REPEAT)
            yield f"{path} is of {name} {theirs!r}, the record of {ours!r}"


def _uncommitted(record: RunRecord, repeat: int) -> Iterator[str]:
    """Yield a sentence if replayable steps have no commitment (rule L1)."""
    timing = record.timing.repeats[repeat]
    if record.config.audit is AuditMode.OFF or not _is_committed(record, timing):
        return
    made = len(timing.commitments)
    if timing.tail is None:
        due = made or 1  # the worker ended early, but not before its first step
    else:  # plus the step during whose pause the stream ended
        due = timing.warmup_steps + timing.timed_steps + timing.tail.steps + 1
    if made != due:
        yield f"repeat {repeat} has commitments to {made} steps, and made {due}"


def _is_committed(record: RunRecord, timing: RepeatTiming) -> bool:
    """Tell whether the worker commits to each step of the repeat (rule L1)."""
    facts, precision = record.workload, record.config.precision
    why = why_no_ledger(
        facts.mode,
        precision,
        mesh=record.config.parallelism,
        state=state_bytes(facts.parameters, precision, facts.optimizer),
    )
    # Rules 3 and older replayed no step that no process can repeat exactly.
    dropout = bool(facts.shapes.get("dropout"))
    rough = record.config.mode is Mode.TRAIN and why_rough(precision, dropout=dropout) is not None
    return timing.nonce is not None and why is None and (not rough or judges_steps(record))


def _other_stops(record: RunRecord, repeat: int) -> Iterator[str]:
    """Yield a sentence if the clock stopped in other steps than the nonce draws (rule G1)."""
    timing = record.timing.repeats[repeat]
    due: tuple[int, ...] = ()
    if timing.nonce is not None and judges_steps(record):
        begin, end = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
        drawn = Draws.of_run(
            record.config,
            record.workload.optimizer,
            timing.nonce,
            ledger=_is_committed(record, timing),
            dropout=bool(record.workload.shapes.get("dropout")),
        )
        due = drawn.judged(range(begin, end), len(timing.commitments))
    stopped = tuple(stop.step for stop in timing.stops)
    if stopped != due:
        numbers = [", ".join(map(str, steps)) or "none" for steps in (stopped, due)]
        yield f"repeat {repeat} stopped its clock in steps {numbers[0]}, drawn were {numbers[1]}"
        return
    stamps = dict(zip(timing.fence_steps, timing.fence_ns, strict=False))
    for stop in timing.stops:
        before = max((ns for step, ns in stamps.items() if step <= stop.step), default=stop.at_ns)
        after = min((ns for step, ns in stamps.items() if step > stop.step), default=stop.at_ns)
        if not before <= stop.at_ns <= after:
            yield f"the clock of repeat {repeat} stopped in step {stop.step}, outside of the step"


def _fences(
    bundle: Bundle, record: RunRecord, repeat: int, stored: StoredParameters
) -> Iterator[str]:
    """Yield a sentence for each contradiction between values read at fences and the record."""
    path, timing = evidence.path(repeat, evidence.FENCES), record.timing.repeats[repeat]
    first = record.config.warmup_steps
    stop = timing.warmup_steps + timing.timed_steps
    every, count = fence_every(record.config.mode.value), len(timing.fence_steps)
    # Counted before listing: an untrusted record may claim a window of any length.
    due = _fences_until(stop, first, timing.timed_steps, every)
    if due != count or [*timing.fence_steps] != _listed(stop, first, timing.timed_steps, every):
        each = "a fence each" if every == 1 else f"a fence after {first} and every {every} more"
        yield f"the fences of repeat {repeat} are not those of {stop} steps with {each}"
        return
    least = most = count
    if timing.tail is not None:
        least = most = _fences_until(stop + timing.tail.steps, first, timing.timed_steps, every)
    else:  # rules 2, or a worker that ended early
        most += _MOST_AFTER_STOP
    one_rank = record.topology.world_size == 1
    try:
        forms = arrays.forms(bundle.files[path])
    except ValueError as error:
        yield f"{path}: {error}"
        return
    fault = _other_form(forms, (least, most), stored, one_rank)
    if fault is not None:
        yield f"{path} {fault}"
        return
    values = arrays.read(bundle.files[path])
    losses, samples = values[_LOSS], values[_SAMPLES]
    if not all(map(math.isfinite, losses)):
        yield f"{path} has a loss that is no number: no run goes on after one"
    if record.config.mode is Mode.TRAIN:
        for name, step in (("loss_first", timing.warmup_steps), ("loss_last", stop)):
            said, read = getattr(timing, name), dict(zip(timing.fence_steps, losses)).get(step)  # noqa: B905
            if read != said:
                yield f"{name} of repeat {repeat} is {said}, read after step {step} was {read}"
    if names_its_run(record):
        yield from _bits(path, losses, samples, timing)


def _other_form(
    found: Mapping[str, Form], fences: tuple[int, int], stored: StoredParameters, one_rank: bool
) -> str | None:
    """Return the fault of the fences' tensors, None if correct."""
    if found.keys() != {_LOSS, _SAMPLES} or any(form.dtype != "F32" for form in found.values()):
        return f"has other tensors than {_LOSS} and {_SAMPLES}, both F32"
    loss, samples = found[_LOSS].shape, found[_SAMPLES].shape
    if len(loss) != 1 or not fences[0] <= loss[0] <= fences[1]:
        return f"has losses {list(loss)}, the stream had {fences[1]} fences"
    least, most = samples_at_fences(stored, one_rank=one_rank)
    if len(samples) != 2 or samples[0] != loss[0] or not least <= samples[1] <= most:
        return f"has samples {list(samples)}, not {most} elements at each of {loss[0]} fences"
    return None


def _bits(
    path: str, losses: arrays.Array, samples: arrays.Array, timing: RepeatTiming
) -> Iterator[str]:
    """Yield a sentence if bits differ from the bits that the worker sent at a fence."""
    if len(timing.fence_bits) != len(timing.fence_steps):
        has, due = len(timing.fence_bits), len(timing.fence_steps)
        yield f"the record has the bits of {has} fences, there were {due}"
        return
    width = len(samples) // len(losses)
    for n, (step, told) in enumerate(zip(timing.fence_steps, timing.fence_bits, strict=True)):
        row = samples[n * width : (n + 1) * width]
        read = struct.pack(f"<{1 + width}f", losses[n], *row)
        if hashlib.sha256(read).hexdigest() != told:
            yield f"{path} has other bits of the fence after step {step} than the worker told there"
            return


def _listed(end: int, first: int, timed: int, every: int) -> list[int]:
    """Return the steps up to ``end`` that are followed by a fence."""
    if every == 1:  # each call, and each sample, has a fence
        return [*range(1, end + 1)]
    return sorted({*range(first, end + 1, every), *_doubles(end, first, timed, every)})


def _fences_until(end: int, first: int, timed: int, every: int) -> int:
    if every == 1:
        return end
    regular = max(0, (end - first) // every + 1)
    return regular + sum((step - first) % every > 0 for step in _doubles(end, first, timed, every))


def _doubles(end: int, first: int, timed: int, every: int) -> set[int]:
    """Return the two steps after which STOP may be: each step is followed by a fence."""
    return {step for step in (first + timed, first + every + timed) if step <= end}
