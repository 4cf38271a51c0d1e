"""Rule K2: the loss of random tokens lies between ln V and what the initial weights give."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
import torch

from llmb import workloads
from llmb.audit import loss
from llmb.audit.bench import facts_of
from llmb.inputs.start import start_gain, values_of
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import WorkloadFacts
from llmb.reference.data import random_tokens
from llmb.reference.models import build
from llmb.reference.shapes import BertShape, LlamaShape
from tests import builders
from tests.unit.builders_runtime import run_config, timing, workload_facts

OFFICIAL = LlamaShape()
LOW, HIGH = math.log(32000), math.log(32000) + 0.64  # logits of variance 3200 * 0.02 ** 2 = 1.28
SCATTER = 5 * math.sqrt(1.28 / 255)


def facts(shape: LlamaShape = OFFICIAL, sequences: int = 1) -> WorkloadFacts:
    tokens = sequences * shape.sequence_length
    return workload_facts(tokens).model_copy(update={"shapes": asdict(shape)})


def judge(first: float, last: float) -> Finding:
    return loss.finding([timing(loss_first=first, loss_last=last)], facts())


@pytest.mark.parametrize(("first", "last"), [(11.0625, 11.0), (10.9375, 10.375), (11.15, 11.13)])
def test_losses_as_official_runs_have_them_pass(first: float, last: float) -> None:
    found = judge(first, last)
    assert (found.id, found.level, found.status) == ("K2", Level.FLAG, Status.PASS)


def test_the_loss_may_leave_the_range_by_rounding_and_scatter_and_no_further() -> None:
    margin = 0.25 + SCATTER
    for edge, inwards in ((LOW - margin, 1e-6), (HIGH + margin, -1e-6)):
        assert judge(edge + inwards, 11.0).status is Status.PASS
        assert judge(edge - inwards, 11.0).status is Status.FLAG
        assert judge(11.0, edge - inwards).status is Status.FLAG


def test_one_odd_repeat_is_flagged() -> None:
    honest, odd = timing(loss_first=11.0, loss_last=11.0), timing(loss_first=3.5, loss_last=11.0)
    found = loss.finding([honest, odd], facts())
    assert found.status is Status.FLAG
    assert "3.5" in found.message


def test_a_loss_that_is_no_number_is_flagged() -> None:
    assert judge(11.0, 11.0).status is Status.PASS
    broken = timing().model_copy(update={"loss_first": 11.0, "loss_last": math.nan})
    assert loss.finding([broken], facts()).status is Status.FLAG


@pytest.mark.parametrize("hidden", [16, 256])
@pytest.mark.parametrize("sharp", [False, True], ids=["plain", "sharp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_begins_where_the_rule_expects_it(
    hidden: int, sharp: bool, dtype: torch.dtype
) -> None:
    shape = replace(
        OFFICIAL,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        sequence_length=32,
    )
    workload = replace(workloads.WORKLOADS["llama-1.4b"], shape=shape)
    ids = random_tokens(1, 2, shape.sequence_length, shape.vocab_size)
    with torch.no_grad():
        values = values_of(run_config(constant_rate=not sharp), workload)
        first = float(build(shape, 3, dtype, "cpu", values)(ids, labels=ids))
    found = loss.finding([timing(loss_first=first, loss_last=first)], facts(shape, 2), sharp=sharp)
    assert found.status is Status.PASS
    variance = (start_gain(shape) if sharp else 1.0) ** 2 * hidden * 0.02**2
    assert abs(first - math.log(32000) - variance / 2) < 0.04 + 4 * math.sqrt(variance / 62)


def test_a_sharp_start_has_a_larger_loss_and_scatters_more() -> None:
    variance = 4 * 1.28  # a gain of 2
    most = LOW + variance / 2 + 0.25 + 5 * math.sqrt(variance / 255)
    for value, expected in ((most - 1e-6, Status.PASS), (most + 1e-6, Status.FLAG)):
        times = [timing(loss_first=value, loss_last=11.0)]
        assert loss.finding(times, facts(), sharp=True).status is expected
        assert loss.finding(times, facts()).status is Status.FLAG


def test_runs_by_rules_2_started_with_plain_weights() -> None:
    record = builders.make_record(repeats=1)
    assert facts_of(record, (), {}).sharp_start
    older = record.model_copy(update={"rules_version": "2"})
    assert not facts_of(older, (), {}).sharp_start


def test_how_much_work_a_token_is_is_told_and_judged_by_nobody() -> None:
    assert "8.046e+09" in judge(11.0, 11.0).measured
    assert "8.105e+09" in judge(11.0, 11.0).measured


def test_without_shapes_or_repeats_nothing_is_observed() -> None:
    assert loss.finding([timing()], workload_facts()).status is Status.NOT_OBSERVED
    assert loss.finding([], facts()).status is Status.NOT_OBSERVED
    no_tokens = facts().model_copy(update={"tokens_per_step": 0})
    assert loss.finding([timing()], no_tokens).status is Status.NOT_OBSERVED


# -- what the fixed workload does not have ---------------------------------------------------

#: 1 sequence of 512 tokens: 76 of them are masked, logits have variance 768 * 0.02 ** 2 = 0.3072.
BERT = BertShape()
BERT_LOW, BERT_HIGH = math.log(64000), math.log(64000) + 0.1536 + math.log(2)


def bert_facts(**changes: object) -> WorkloadFacts:
    values = {"shapes": asdict(BERT), "family": "bert", **changes}
    return workload_facts(BERT.sequence_length).model_copy(update=values)


def status_of(value: float, workload: WorkloadFacts) -> Status:
    return loss.finding([timing(loss_first=value, loss_last=value)], workload).status


@pytest.mark.parametrize(("edge", "inwards"), [(BERT_LOW, 1), (BERT_HIGH, -1)])
def test_berts_loss_has_the_order_of_two_sentences_on_top_and_masked_tokens_scatter(
    edge: float, inwards: int
) -> None:
    margin = 0.25 + 5 * math.sqrt(0.3072 / 76)
    outside = edge - inwards * margin
    assert status_of(outside + inwards * 1e-6, bert_facts()) is Status.PASS
    assert status_of(outside - inwards * 1e-6, bert_facts()) is Status.FLAG


@pytest.mark.parametrize(("lr", "rise"), [(1e-4, 0.0), (1.01e-4, 3.0)])
def test_only_a_learning_rate_above_a_gentle_one_may_raise_the_loss(lr: float, rise: float) -> None:
    constants = replace(facts().optimizer, lr=lr)
    workload = facts().model_copy(update={"optimizer": constants})
    most = HIGH + rise + 0.25 + SCATTER
    assert status_of(most - 1e-6, workload) is Status.PASS
    assert status_of(most + 1e-6, workload) is Status.FLAG
    assert status_of(LOW - 0.25 - SCATTER - 1e-6, workload) is Status.FLAG


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (16.375, Status.PASS),  # an honest run of width 64
        (LOW - 1.0, Status.FLAG),
        (math.inf, Status.FLAG),
        (math.nan, Status.FLAG),
    ],
)
def test_weights_in_fp16_may_raise_the_loss_to_any_number(value: float, expected: Status) -> None:
    times = [timing().model_copy(update={"loss_first": 11.0, "loss_last": value})]
    assert loss.finding(times, facts(), far=True).status is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2.5, Status.PASS), (0.0, Status.PASS), (math.nan, Status.FLAG), (math.inf, Status.FLAG)],
)
def test_of_text_only_a_finite_loss_is_asked(value: float, expected: Status) -> None:
    workload = facts().model_copy(update={"tokens": "data 0123456789ab"})
    broken = timing().model_copy(update={"loss_first": 3.0, "loss_last": value})
    assert loss.finding([broken], workload).status is expected


@pytest.mark.parametrize("missing", ["loss_first", "loss_last"])
def test_a_loss_that_was_not_read_back_is_not_observed(missing: str) -> None:
    gone = timing(loss_first=11.0, loss_last=11.0).model_copy(update={missing: None})
    whole = timing(loss_first=11.0, loss_last=11.0)
    assert loss.finding([whole, gone], facts()).status is Status.NOT_OBSERVED
