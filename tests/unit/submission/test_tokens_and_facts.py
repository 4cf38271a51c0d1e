"""Audited steps are of the run's own tokens, and a bundle is judged by what its record says."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.audit import bench, judgement
from llmb.errors import BundleRefusedError
from llmb.records import audited, evidence
from llmb.records.bundle import Bundle, from_files
from llmb.records.canonical import pretty_bytes
from llmb.records.draws import Draws, nonce_of
from llmb.records.finding import RULES_VERSION
from llmb.records.run_record import RunRecord
from llmb.records.seeds import token_seed
from llmb.reference import pins
from llmb.submission import rejudge
from llmb.submission.verify import verify_bundle
from tests import builders
from tests.builders import with_manifest

RECORD = builders.make_record(repeats=2)
SEED = RECORD.config.seed


def steps(**seeds: int) -> audited.StepsEvidence:
    """Return evidence of audited steps: ``_<index>`` -> seed of its tokens."""
    return audited.StepsEvidence(
        steps=tuple(
            audited.AuditedStep(
                index=int(name[1:]),
                token_seed=seed,
                seed=1,
                weights_kept=False,
                steps_before=1.0,
                foreach=None,
                fused=None,
                capturable=False,
                segments=(),
            )
            for name, seed in seeds.items()
        ),
        pause_ns=1,
        longest_pause_ns=1,
    )


def probed(step: int, seed: int) -> audited.ProbedEvidence:
    return audited.ProbedEvidence(seed=1, last_step=step, token_seed=seed, passes=(), missing=())


def bundle_of(repeat: int, record: RunRecord = RECORD, **found: Any) -> Bundle:
    """Return an honest bundle of ``record`` with more evidence of one repeat."""
    names = {"steps": audited.STEPS, "probed": audited.PROBED}
    more = {evidence.path(repeat, names[n]): pretty_bytes(value) for n, value in found.items()}
    return from_files(with_manifest(builders.run_files(record) | more))


def foreign(bundle: Bundle) -> list[str]:
    return list(rejudge.other_draws(bundle, RECORD))


def own(repeat: int, index: int) -> int:
    return token_seed(SEED, repeat, index)


def test_steps_made_with_the_runs_own_tokens_are_no_fault() -> None:
    assert foreign(bundle_of(0)) == []
    honest = bundle_of(1, steps=steps(_7=own(1, 7), _9=own(1, 9)), probed=probed(60, own(1, 60)))
    assert foreign(honest) == []


@pytest.mark.parametrize("repeat", [0, 1])
def test_an_audited_step_of_other_tokens_is_named(repeat: int) -> None:
    (found,) = foreign(bundle_of(repeat, steps=steps(_7=own(repeat, 7), _9=own(repeat, 10))))
    assert found == f"step 9 of repeat {repeat} was not made with the tokens of seed and nonce"


def test_tokens_of_another_repeat_are_not_this_ones() -> None:
    assert len(foreign(bundle_of(1, steps=steps(_7=own(0, 7))))) == 1


def test_the_last_step_of_the_probes_is_held_to_its_tokens_too() -> None:
    (found,) = foreign(bundle_of(0, probed=probed(60, own(0, 61))))
    assert found.startswith("step 60 of repeat 0")


@pytest.mark.parametrize(("seed", "ok"), [(own(0, 7), True), (own(0, 7) + 1, False)])
def test_a_bundle_with_steps_of_other_tokens_fails_its_audit(seed: int, ok: bool) -> None:
    checks = {
        check.name: check for check in verify_bundle(bundle_of(0, steps=steps(_7=seed))).checks
    }
    assert checks["audit"].ok is ok
    assert ("tokens of seed and nonce" in checks["audit"].message) is not ok


# -- what a nonce has drawn --------------------------------------------------------------------

NONCE = "0f" * 16


def drawn_by(nonce: str, second: str | None = None) -> Any:
    """Return the record with repeats of two nonces."""
    timings = RECORD.timing.repeats
    nonces = (nonce, second or nonce_of(nonce, 1))
    repeats = [t.model_copy(update={"nonce": n}) for t, n in zip(timings, nonces, strict=True)]
    timing = RECORD.timing.model_copy(update={"repeats": tuple(repeats)})
    return RECORD.model_copy(update={"timing": timing})


def looked_at(seed: int) -> audited.StepsEvidence:
    """Return evidence of one audited step, 7, whose elements were chosen by ``seed``."""
    found = steps(_7=token_seed(SEED, 0, 7, NONCE))
    return found.model_copy(
        update={"steps": tuple(s.model_copy(update={"seed": seed}) for s in found.steps)}
    )


def test_what_the_nonce_has_drawn_is_no_fault() -> None:
    seed = Draws(NONCE, RECORD.workload.optimizer, ledger=True).audit(7)
    record = drawn_by(NONCE)
    assert list(rejudge.other_draws(bundle_of(0, record, steps=looked_at(seed)), record)) == []


def test_elements_that_the_nonce_has_not_drawn_are_named() -> None:
    record = drawn_by(NONCE)
    (found,) = rejudge.other_draws(bundle_of(0, record, steps=looked_at(5)), record)
    assert found == "what was looked at in step 7 of repeat 0 was not drawn by the nonce"


def test_a_repeat_with_a_nonce_of_its_own_choice_is_named() -> None:
    record = drawn_by(NONCE, "aa" * 16)
    (found,) = rejudge.other_draws(bundle_of(0, record), record)
    assert found == "the nonce of repeat 1 does not follow from the run's"


def test_a_run_that_was_asked_to_have_another_nonce_is_named() -> None:
    record = drawn_by(NONCE)
    config = record.config.model_copy(update={"nonce": "bb" * 16})
    asked = record.model_copy(update={"config": config})
    (found,) = rejudge.other_draws(bundle_of(0, record), asked)
    assert found == "the nonce of the run is not the one that it was asked to have"


# -- what is judged ---------------------------------------------------------------------------


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the facts that a bundle of a record is judged by."""

    def given(record: Any) -> Any:
        seen: list[Any] = []
        monkeypatch.setattr(judgement, "judge", lambda files, facts: seen.append(facts))
        rejudge.judge(from_files(with_manifest(builders.run_files(record))), record)
        return seen[0]

    return given


def test_a_bundle_is_judged_by_what_its_record_says(facts: Any) -> None:
    found = facts(RECORD)
    assert found.precision == RECORD.config.precision
    assert found.repeats == RECORD.timing.repeats
    assert found.workload == RECORD.workload
    assert (found.ceilings, found.system) == (RECORD.ceilings, RECORD.system)
    assert RECORD.result.mfu is not None
    assert found.peak_flops == RECORD.result.mfu.peak_flops
    assert (found.parallelism.world_size, found.is_debug) == (1, False)
    assert {f.path for f in found.shown} == {f.path for f in RECORD.plugin.files}


@pytest.mark.parametrize("version", ["1", "77", "two", RULES_VERSION])
def test_a_version_of_the_rules_that_nobody_judges_by_is_not_followed(
    facts: Any, version: str
) -> None:
    found = facts(RECORD.model_copy(update={"rules_version": version}))
    assert found.rules_version == RULES_VERSION


def test_a_bundle_is_judged_by_the_rules_of_its_time(
    facts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "JUDGED_VERSIONS", ("2", "3"))
    monkeypatch.setattr(bench, "RULES_VERSION", "3")
    assert facts(RECORD.model_copy(update={"rules_version": "2"})).rules_version == "2"


def test_the_reference_is_held_to_this_llmbs_pins(facts: Any) -> None:
    found = facts(RECORD)
    assert found.reference == found.pinned == pins.pinned_digests()


def test_variables_and_class_are_the_records_too(facts: Any) -> None:
    def edit(data: Any) -> None:
        data["class"] = "debug"
        data["plugin"]["environment"] = ["LD_PRELOAD"]
        data["config"]["parallelism"]["dp_shard"] = 4
        data["result"]["mfu"] = None

    found = facts(builders.edited(RECORD, edit))
    assert (found.is_debug, found.variables) == (True, ("LD_PRELOAD",))
    assert (found.parallelism.world_size, found.peak_flops) == (4, None)


def test_a_record_without_a_repeat_is_refused_before_it_is_judged(facts: Any) -> None:
    empty = builders.edited(RECORD, lambda data: data["timing"].update(repeats=[]))
    bundle = from_files(with_manifest(builders.run_files(RECORD)))
    with pytest.raises(BundleRefusedError, match="no repeat to judge"):
        rejudge.judge(bundle, empty)


@pytest.mark.parametrize("error", [KeyError("x"), IndexError(), ValueError(), ZeroDivisionError()])
def test_whatever_evidence_lacks_is_a_refusal_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*_: Any) -> None:
        raise error

    monkeypatch.setattr(judgement, "judge", broken)
    bundle = from_files(with_manifest(builders.run_files(RECORD)))
    with pytest.raises(BundleRefusedError, match="do not span its window, or evidence is incom"):
        rejudge.judge(bundle, RECORD)
