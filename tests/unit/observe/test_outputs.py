"""What is seen of a step that trains nothing: logits nobody could choose beforehand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from llmb.observe.outputs import Look, Output, OutputWitness, look
from llmb.reference.train_loop import Step

ROWS, POSITIONS, VOCAB = 3, 80, 1500


def logits(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, POSITIONS, VOCAB, generator=generator)


def step(index: int) -> Step:
    return Step(index, 100 + index, fence=False)


# -- what is looked at ----------------------------------------------------------------------------


def test_a_look_is_one_sequence_64_positions_and_1024_words_in_order() -> None:
    found = Look.of(5, "live", ROWS, POSITIONS, VOCAB)
    assert 0 <= found.row < ROWS
    for chosen, count, below in ((found.positions, 64, POSITIONS), (found.words, 1024, VOCAB)):
        assert len(chosen) == count
        assert int(chosen.min()) >= 0
        assert int(chosen.max()) < below
        assert torch.equal(chosen, chosen.unique())


def test_small_outputs_are_looked_at_as_a_whole() -> None:
    found = Look.of(5, "live", 1, 7, 30)
    assert (found.row, found.positions.tolist(), found.words.tolist()) == (
        0,
        list(range(7)),
        list(range(30)),
    )


def test_it_follows_from_the_seed_and_the_pass_and_from_nothing_else() -> None:
    def chosen(seed: int, name: str) -> tuple[object, ...]:
        found = Look.of(seed, name, ROWS, POSITIONS, VOCAB)
        return found.row, tuple(found.positions.tolist()), tuple(found.words.tolist())

    assert chosen(5, "live") == chosen(5, "live")
    assert len({chosen(seed, name) for seed in (5, 6) for name in ("live", "step")}) == 4
    rows = {chosen(seed, "live")[0] for seed in range(60)}
    assert rows == set(range(ROWS))


def test_what_is_read_is_what_those_places_hold() -> None:
    values, found = logits(), Look.of(5, "live", ROWS, POSITIONS, VOCAB)
    read = found.read(values)
    by_hand = values[found.row][found.positions][:, found.words].flatten()
    assert torch.equal(read, by_hand)
    assert torch.equal(found.of_row(values[found.row]), by_hand)
    read += 1
    assert not torch.equal(read, by_hand), "a copy: what comes later does not show in it"


def test_of_a_generation_the_tokens_of_that_sequence_come_along() -> None:
    tokens = torch.arange(ROWS * POSITIONS).view(ROWS, POSITIONS)
    found = look(Output(logits(), tokens), 5, "live")
    row = Look.of(5, "live", ROWS, POSITIONS, VOCAB).row
    assert torch.equal(found["tokens"], tokens[row])
    assert set(look(Output(logits()), 5, "live")) == {"logits"}


# -- the sampler ----------------------------------------------------------------------------------


def witnessed(indices: tuple[int, ...] = (2, 5), change: float = 0.0) -> OutputWitness:
    sampler = OutputWitness()
    for index in range(7):
        values = logits(index)
        sampler.show(Output(values))
        sampler.glance()
        sampler.next()
        if index in indices:
            values += change
            sampler.before(step(index), 50 + index)
    return sampler


def test_audited_steps_are_kept_with_the_seeds_their_logits_follow_from() -> None:
    sampler = witnessed()
    assert sampler.read() == (2, 5)
    first, second = sampler.steps()
    assert (first.index, first.token_seed, first.seed) == (2, 102, 52)
    assert [first.weights_kept, second.weights_kept] == [False, True]
    (segment,) = second.segments
    assert (segment.name, segment.dtype, segment.gradients) == ("logits", "float32", 64 * 1024)
    found = sampler.tensors()
    assert set(found) == {
        f"{index}/{what}" for index in (2, 5) for what in ("asked", "asked again", "logits")
    }
    chosen = Look.of(55, "step", ROWS, POSITIONS, VOCAB)
    assert torch.equal(found["5/logits"], chosen.read(logits(5)))


def test_what_was_glanced_at_is_the_same_when_it_is_read_again() -> None:
    found = witnessed().tensors()
    for index in (2, 5):
        assert len(found[f"{index}/asked"]) == 64
        assert torch.equal(found[f"{index}/asked"], found[f"{index}/asked again"])


def test_logits_that_are_put_right_after_the_glance_show() -> None:
    found = witnessed(change=0.5).tensors()
    assert not torch.equal(found["5/asked"], found["5/asked again"])
    again = found["5/asked again"] - found["5/asked"]
    assert torch.allclose(again, torch.full((64,), 0.5))


def test_no_two_glances_are_at_the_same_places() -> None:
    sampler, seen = OutputWitness(), set()
    sampler.show(Output(logits()))
    for index in range(5):
        sampler.glance()
        seen.add(tuple(sampler.glance_again(step(index))[f"{index}/asked"].tolist()))
    assert len(seen) == 5


def test_narrow_logits_come_as_float32_and_say_what_they_were() -> None:
    sampler = OutputWitness()
    sampler.show(Output(logits().bfloat16()))
    sampler.glance()
    sampler.before(step(0), 1)
    sampler.read()
    assert sampler.steps()[0].segments[0].dtype == "bfloat16"
    assert {tensor.dtype for tensor in sampler.tensors().values()} == {torch.float32}


def test_nothing_can_be_put_in_the_place_of_a_method_of_one_witness() -> None:
    with pytest.raises(AttributeError):
        OutputWitness().glance = lambda: None  # type: ignore[method-assign]
