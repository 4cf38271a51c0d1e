"""Evidence is the record's own: its run, its fences, its model; anything else is named."""

from __future__ import annotations

import json
import math
import struct

import pytest

from llmb.config import AuditMode
from llmb.records import audited, evidence, references
from llmb.records.bundle import from_files, read_bundle
from llmb.records.canonical import pretty_bytes
from llmb.records.draws import Draws
from llmb.records.finding import RULES_VERSION
from llmb.records.run_record import Stop
from llmb.submission import evidence_files
from llmb.submission.evidence_model import ExpectedModel
from llmb.submission.verify import verify_bundle
from tests import builders, committed
from tests.builders import with_manifest
from tests.builders_evidence import tensors

FOLDER = "evidence/repeat-0/"
RECORD = builders.make_record(repeats=1)
MODEL = ExpectedModel.of(RECORD)
KINDS = ("value", "exp_avg", "exp_avg_sq")


def step(index=9, most=256, states=257):
    """Return an audited step whose weights were kept, of all parameters."""
    sizes = {name: math.prod(shape) for name, shape in MODEL.parameters.items()}
    segments = tuple(
        audited.Segment(
            name=name,
            dtype="bfloat16",
            gradients=min(most, size),
            states=min(states, size if size <= states else size - size % 64),
        )
        for name, size in sizes.items()
    )
    return audited.AuditedStep(
        index=index,
        token_seed=1,
        seed=2,
        weights_kept=True,
        steps_before=8.0,
        foreach=None,
        fused=None,
        capturable=False,
        states=states,
        segments=segments,
    )


def with_step(one):
    """Return the evidence of ``one`` step, as JSON and tensors."""
    gradients, states = (sum(getattr(s, n) for s in one.segments) for n in ("gradients", "states"))
    shapes = {f"{when}/{kind}": states for when in ("before", "after") for kind in KINDS}
    shapes |= {"replay/gradient": states, "gradient": gradients, "asked": 1024}
    found = audited.StepsEvidence(steps=(one,), pause_ns=1, longest_pause_ns=1)
    replayed = {f"{one.index}/replayed/{kind}": (states,) for kind in KINDS}
    return {
        FOLDER + audited.STEPS: pretty_bytes(found),
        FOLDER + audited.STEP_VALUES: tensors(
            {f"{one.index}/{what}": (count,) for what, count in shapes.items()}
        ),
        FOLDER + audited.REPLAY: tensors(replayed),
    }


HONEST = builders.run_files(RECORD) | with_step(step())


def faults(files, record=RECORD):
    return list(evidence_files.faults(from_files(with_manifest(files)), record))


def edited(name, edit):
    """Return the honest files with JSON evidence ``name`` after ``edit`` has changed its data."""
    data = json.loads(HONEST[FOLDER + name])
    edit(data)
    return HONEST | {FOLDER + name: json.dumps(data).encode()}


def of_fences(losses=None, width=16 * 111, **more):
    """Return the honest files with other tensors of fences: zeros where nothing is given."""
    count = len(RECORD.timing.fence_steps)
    losses = [0.0] * count if losses is None else losses
    shapes = {"loss": (len(losses),), "parameters": (len(losses), width), **more}
    values = {"loss": struct.pack(f"<{len(losses)}f", *losses)}
    return HONEST | {FOLDER + evidence.FENCES: tensors(shapes, values)}


def test_honest_evidence_has_no_fault():
    assert faults(HONEST) == []


@pytest.mark.parametrize(
    "name",
    ["fences.safetensors", "repeat.json", "gradients.safetensors", "probed.json", "steps.json"],
)
def test_what_every_audited_worker_leaves_is_required(name):
    (found,) = faults({n: c for n, c in HONEST.items() if n != FOLDER + name})
    assert found == f"{FOLDER}{name} is missing"


def test_what_may_be_missing_is_named_and_no_fault():
    bundle = from_files(with_manifest(builders.run_files(RECORD)))
    (check,) = (c for c in verify_bundle(bundle).checks if c.name == "evidence")
    assert check.ok
    assert f"not observed: {FOLDER}honest.safetensors, " in check.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_id", "f" * 32),
        ("repeat", 1),
        ("seed", 8),
        ("nonce", "aa" * 16),
        ("warmup_steps", 12),
        ("timed_steps", 60),
        ("plugin", "slow"),
        ("plugin_sha256", "0" * 64),
    ],
)
def test_evidence_that_names_something_else_is_found(field, value):
    (found,) = faults(edited(evidence.REPEAT, lambda data: data.update({field: value})))
    assert found.startswith(f"{FOLDER}repeat.json is of {field} {value!r}, the record of ")


# -- the model --------------------------------------------------------------------------------


def rename(data, part):
    data[part][5]["name"] = "model.layers.99.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: rename(d, "pristine"), "(pristine) has 'model.layers.99.mlp.up_proj.weight'"),
        (lambda d: rename(d, "processed"), "(processed) has 'model.layers.99.mlp.up_proj.weight'"),
        (lambda d: d["pristine"].pop(), "(pristine) lacks 'lm_head.weight' of llama-1.4b"),
        (lambda d: d["pristine"].append(d["pristine"][0]), "names a parameter twice"),
        (lambda d: d["pristine"][0].update(shape=[8, 3200]), "has shape [8, 3200], in llama-1.4b"),
        (lambda d: d["pristine"][0].update(dtype="float8"), "is 'float8', and not bfloat16"),
        (lambda d: d.update(canonical_elements=5), "is of 5 elements, llama-1.4b has 1433680000"),
        (lambda d: d.update(stored_elements=2**40), "stored elements, model.json shows 1433680000"),
    ],
)
def test_weights_of_another_model_are_found(edit, words):
    assert any(words in found for found in faults(edited(evidence.WEIGHTS, edit)))


def test_a_module_tree_of_another_model_is_found():
    def narrower(data):
        data["before"]["lm_head"] = "Module() weight[32000, 64]:bfloat16"

    (found,) = faults(edited(evidence.MODEL, narrower))
    assert found.endswith("lm_head.weight has shape [32000, 64], in llama-1.4b [32000, 3200]")


def test_parameters_that_a_plugin_has_fused_are_no_fault():
    tree = json.loads(HONEST[FOLDER + evidence.MODEL])
    names = [f"model.layers.0.self_attn.{one}_proj" for one in "qkv"]
    for name in names:
        del tree["after"][name]
    fused = "model.layers.0.self_attn.qkv"
    tree["after"][fused] = "acme.Fused() weight[9600, 3200]:bfloat16"
    one = step()
    size = {"gradients": 256, "states": 257}
    more = audited.Segment(name=f"{fused}.weight", dtype="bfloat16", **size)
    left = tuple(s for s in one.segments if s.name.removesuffix(".weight") not in names)
    one = one.model_copy(update={"segments": (*left, more)})
    optimizer = json.loads(HONEST[FOLDER + evidence.OPTIMIZER])
    optimizer["trainable"] = 109
    files = (
        HONEST
        | with_step(one)
        | {
            FOLDER + evidence.MODEL: json.dumps(tree).encode(),
            FOLDER + evidence.OPTIMIZER: json.dumps(optimizer).encode(),
        }
    )
    # What is read at fences has fewer samples, of fewer parameters; so its bits are others.
    assert [found for found in faults(files) if "fences" not in found] == []


def segment(**changes):
    one = step()
    first = one.segments[0].model_copy(update=changes)
    return with_step(one.model_copy(update={"segments": (first, *one.segments[1:])}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gradients": 1025}, "shows 1025 elements of its gradient of model.embed_tokens.weight"),
        ({"gradients": 3}, "shows 3 elements of its gradient of model.embed_tokens.weight"),
        ({"states": 258}, "shows 258 elements of its states of model.embed_tokens.weight"),
        (
            {"name": "model.extra.weight"},
            "has 'model.extra.weight', which model.json does not show",
        ),
        ({"dtype": "float32"}, "model.embed_tokens.weight is 'float32', in model.json bfloat16"),
    ],
)
def test_a_segment_of_another_parameter_or_length_is_found(changes, words):
    assert any(words in found for found in faults(HONEST | segment(**changes)))


def test_more_values_of_each_parameter_than_are_read_are_found():
    assert any("reads 300 values" in f for f in faults(HONEST | with_step(step(states=300))))


def test_an_optimizer_of_fewer_parameters_is_found():
    files = edited(evidence.OPTIMIZER, lambda data: data.update(trainable=21))
    assert faults(files) == [f"{FOLDER}optimizer.json is of 21 parameters, the model has 111"]


def ledger(elements=64, rows=3, width=None):
    counts = [min(elements, math.prod(shape)) for shape in MODEL.parameters.values()]
    segments = [
        audited.LedgerSegment(name=n, elements=c)
        for n, c in zip(MODEL.parameters, counts, strict=True)
    ]
    length = sum(counts) if width is None else width
    found = audited.LedgerEvidence(segments=tuple(segments))
    # 32-bit indices have the form of 32-bit numbers.
    raw = tensors({"rows": (rows, length), "where": (rows, sum(counts))})
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["where"]["dtype"] = "I32"
    text = json.dumps(header).encode()
    values = len(text).to_bytes(8, "little") + text + raw[8 + size :]
    return {FOLDER + audited.LEDGER: pretty_bytes(found), FOLDER + audited.LEDGER_VALUES: values}


def test_rows_of_the_ledger_are_held_to_its_segments_and_those_to_the_model():
    assert faults(HONEST | ledger()) == []
    (found,) = faults(HONEST | ledger(width=5))
    assert "rows is F32 [3, 5], not 3 rows of 7104" in found
    assert any("has 65 elements of model.embed_tokens" in f for f in faults(HONEST | ledger(65)))


@pytest.mark.parametrize(
    ("name", "shapes", "words"),
    [
        ("honest", {"BF16/live/lm_head.bias": (8,)}, "has 'BF16/live/lm_head.bias', of which"),
        ("honest", {"live/lm_head.weight": (1024,)}, "has 'live/lm_head.weight', of which"),
        ("honest", {"BF16/live/lm_head.weight": (8,)}, "has 8 elements, and not 1024"),
        ("reference", {"step-9": (8,)}, "step-9 has 8 elements, and not "),
        ("reference", {"step-7": (8,)}, "has 'step-7', of which"),
        ("reference", {"step": (8,)}, "has 'step', of which"),
        ("honest", {"BF16/step-9/dropped": (8,)}, "dropped has 8 elements, and not "),
        ("reference", {"live/loss": (1,)}, "lacks 'live/lm_head.weight' (and 110 more), which the"),
        ("replay", {"9/replayed/velocity": (8,)}, "has '9/replayed/velocity', of which"),
        ("gradients", {"tail/loss": (1,)}, "lacks 'live/lm_head.weight' (and 111 more)"),
        ("steps", {"9/before/value": (8,)}, "lacks '9/replay/gradient' (and 1 more)"),
    ],
)
def test_a_tensor_that_no_process_writes_of_this_model_is_found(name, shapes, words):
    changed = HONEST | {f"{FOLDER}{name}.safetensors": tensors(shapes)}
    assert any(words in found for found in faults(changed)), faults(changed)


def test_a_file_of_tensors_that_is_none_is_found():
    changed = HONEST | {f"{FOLDER}honest.safetensors": b"\x08\0\0\0\0\0\0\0nothing!"}
    (check,) = (
        c for c in verify_bundle(from_files(with_manifest(changed))).checks if c.name == "evidence"
    )
    assert "honest.safetensors: not a safetensors file" in check.message


# -- fences -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            HONEST | {FOLDER + evidence.FENCES: b"junk"},
            "fences.safetensors: not a safetensors file",
        ),
        (of_fences(losses=[0.0] * 5), "has losses [5], the stream had 9 fences"),
        (of_fences(losses=[0.0] * 12), "has losses [12], the stream had 9 fences"),
        (of_fences(width=16 * 21), "has samples [6, 336], not 1776 elements at each of 6 fences"),
        (of_fences(more=(1,)), "has other tensors than loss and parameters"),
        (of_fences(losses=[math.nan] * 6), "has a loss that is no number"),
        (of_fences(), "loss_first of repeat 0 is 10.9375, read after step 2 was 0.0"),
        (of_fences(), "has other bits of the fence after step 2 than the worker told there"),
    ],
)
def test_fences_of_something_else_are_found(files, words):
    assert any(words in found for found in faults(files)), faults(files)


def timed(**changes):
    """Return the record with other stamps of its repeat."""
    one = RECORD.timing.repeats[0].model_copy(update=changes)
    timing = RECORD.timing.model_copy(update={"repeats": (one,)})
    return RECORD.model_copy(update={"timing": timing})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fence_bits": ()}, "the record has the bits of 0 fences, there were 6"),
        ({"loss_last": 9.0}, "loss_last of repeat 0 is 9.0, read after step 52 was 10.875"),
        ({"timed_steps": 10**15}, "the fences of repeat 0 are not those of"),
        ({"fence_steps": (2, 12, 22, 32, 43, 52)}, "the fences of repeat 0 are not those of"),
        ({"warmup_steps": 12, "timed_steps": 40}, "is of timed_steps 50, the record of 40"),
        ({"nonce": "0f" * 16}, "repeat 0 has commitments to 0 steps, and made 1"),
    ],
)
def test_a_record_of_other_fences_than_the_evidence_is_found(changes, words):
    found = faults(HONEST, timed(**changes))
    assert any(words in one for one in found), found


@pytest.mark.parametrize("timed_steps", [1, 9, 10, 23, 50])
@pytest.mark.parametrize("start", [3, 13])
@pytest.mark.parametrize("every", [1, 10])
def test_fences_are_counted_as_the_supervisor_plans_them(timed_steps, start, every):
    from llmb.supervision.stream import Window

    stop = start + timed_steps
    window = Window(3, start, stop, stop + 4, every=every)
    due = [steps for steps in range(1, stop + 5) if window.is_fence(steps)]
    assert evidence_files._listed(stop + 4, 3, timed_steps, every) == due
    assert evidence_files._fences_until(stop + 4, 3, timed_steps, every) == len(due)


# -- older runs -------------------------------------------------------------------------------


def older(**changes):
    """Return the record as one of rules 2."""
    row = next(one for one in references.table().references if one.version == "0.1.0")
    record = timed(fence_bits=())
    audit = record.audit.model_copy(update={"rules_version": "2"})
    made = {"rules_version": "2", "llmb_version": "0.1.0", "reference_digest": row.digest}
    return record.model_copy(update={"audit": audit, **made, **changes})


WITHOUT = {n: c for n, c in HONEST.items() if n != FOLDER + evidence.REPEAT}


def test_a_run_of_rules_2_names_no_run_and_is_held_to_its_model_all_the_same():
    assert faults(WITHOUT, older()) == []
    del_fences = {n: c for n, c in WITHOUT.items() if n != FOLDER + evidence.FENCES}
    assert faults(del_fences, older()) == [f"{FOLDER}fences.safetensors is missing"]
    (found,) = faults(WITHOUT | of_fences(losses=[0.0] * 4), older())[:1]
    assert "has losses [4]" in found


def test_a_run_of_today_that_claims_rules_2_is_found():
    (found,) = faults(WITHOUT, older(llmb_version="0.2.0"))
    assert found == "rules 2 were those of llmb up to 0.1.x, the record is of 0.2.0"
    record = timed(nonce="0f" * 16).model_copy(update={"rules_version": "2"})
    assert any("nonce, fence_bits, which rules 2 did not" in f for f in faults(WITHOUT, record))


def test_a_run_of_today_that_claims_rules_3_is_found():
    claimed = RECORD.model_copy(update={"rules_version": "3", "llmb_version": "0.4.0"})
    found = [*faults(HONEST, claimed)]
    assert "rules 3 were those of llmb up to 0.3.x, the record is of 0.4.0" in found


def judged_record(*steps, at_ns=None, ns=5):
    """Return a record of a replayable run whose clock stopped in ``steps``."""
    timing = RECORD.timing.repeats[0]
    stamps = timing.step_ns
    stops = tuple(
        Stop(step=step, at_ns=stamps[min(step, 51)] - 1 if at_ns is None else at_ns, ns=ns)
        for step in steps
    )
    record = timed(nonce="0f" * 16, commitments=("a" * 64,) * 55, stops=stops)
    config = record.config.model_copy(update={"audit": AuditMode.QUICK})
    return record.model_copy(update={"rules_version": RULES_VERSION, "config": config})


def test_judged_steps_follow_from_the_nonce():
    window = range(2, 52)
    due = Draws("0f" * 16, RECORD.workload.optimizer, ledger=True).judged(window, 55)
    assert not [*evidence_files._other_stops(judged_record(*due), 0)]
    for steps in ((), due[1:], tuple(step + 1 for step in due)):
        (found,) = evidence_files._other_stops(judged_record(*steps), 0)
        assert "stopped its clock in steps" in found
    older = judged_record(*due).model_copy(update={"rules_version": "3"})
    assert "drawn were none" in next(evidence_files._other_stops(older, 0))


@pytest.mark.parametrize("version", ["4.0", "x"])
def test_a_run_of_unknown_rules_has_no_judged_steps_and_no_error(version):
    record = judged_record().model_copy(update={"rules_version": version})
    assert [*evidence_files._other_stops(record, 0)] == []


def test_a_clock_that_stopped_outside_of_its_step_is_found():
    due = Draws("0f" * 16, RECORD.workload.optimizer, ledger=True).judged(range(2, 52), 55)
    late = judged_record(*due, at_ns=RECORD.timing.stop_ns + 1)
    assert all("outside of the step" in one for one in evidence_files._other_stops(late, 0))
    assert [*evidence_files._other_stops(late, 0)]


def test_the_log_is_a_file_of_older_bundles_alone():
    from llmb.submission import layout

    names = {*HONEST, "log.txt"}
    assert layout.faults(names, RECORD) == ["'log.txt' is not a file of a run"]
    assert layout.faults(names - {FOLDER + evidence.REPEAT}, older()) == []


def test_a_run_of_short_sequences_is_not_one_of_long_ones():
    """BERT of 512 and of 2,048 tokens have the same parameters."""
    found = committed.bundles("nemo-bert-base")
    if not found:
        pytest.skip("no bundles beside these tests")
    bundle = read_bundle(found[0])
    record = bundle.record()
    shapes = {**record.workload.shapes, "sequence_length": 2048}
    facts = record.workload.model_copy(update={"name": "nemo-bert-base-2048", "shapes": shapes})
    longer = record.model_copy(update={"workload": facts})
    assert list(evidence_files.faults(bundle, record)) == []
    (fault,) = evidence_files.faults(bundle, longer)
    assert "positions used by 2048 tokens" in fault
