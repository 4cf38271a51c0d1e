"""Memory is what is alive: from the operation that makes it until nothing refers to it any more."""

from __future__ import annotations

import pytest
import torch

from llmb.config import Parallelism
from llmb.reference.data import make_batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.workloads import find

# llmb.simulation is imported by the tests: it takes a second, which collecting them need not.

KB = 1000
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "sequence_length": 32,
}


def made(kilobytes):
    return torch.empty(kilobytes * KB, dtype=torch.uint8)


def test_the_peak_is_what_was_alive_at_once_and_views_take_nothing():
    from llmb.simulation.ledger import ROLES, Ledger

    with Ledger(tuple) as ledger:
        first = made(3)
        second = made(4)
        view = second[1:].view(-1)
        del first, second
        third = made(5)  # with the view's 4
        del view
        last = made(1)
    assert sum(ledger.found().peak.values()) == 9 * KB
    ledger.restart()
    assert sum(ledger.found().peak.values()) == 6 * KB
    del third, last
    ledger.restart()
    assert ledger.found().peak == dict.fromkeys(ROLES, 0)


def test_what_is_given_back_and_taken_again_counts_while_it_is_there():
    from llmb.simulation import private
    from llmb.simulation.ledger import ROLES, Ledger

    ledger = Ledger(tuple)
    with ledger, private.resizing(ledger.resized):
        gathered = made(8).untyped_storage()
        gathered.resize_(0)
        ledger.restart()
        other = made(3)
        gathered.resize_(2 * KB)
    assert ledger.found().peak == {
        **dict.fromkeys(ROLES, 0),
        "collectives": 2000,
        "temporaries": 3000,
    }
    gathered.resize_(5 * KB)  # nobody watches any more
    assert sum(ledger.found().peak.values()) == 5 * KB
    del other


def test_what_a_forward_pass_leaves_are_activations_and_the_rest_is_for_the_moment():
    from llmb.simulation.ledger import Ledger

    weight = torch.ones(500, requires_grad=True)

    def known():
        yield "weights", weight.detach()
        if weight.grad is not None:
            yield "gradients", weight.grad

    with Ledger(known) as ledger:
        loss = (weight * 2).exp().sum()  # of these the exponentials are kept
        loss.backward()
    found, size = ledger.found(), weight.nbytes
    assert found.activations == size + 2 * loss.nbytes  # and the gradient of the sum
    assert found.peak["weights"] == size
    assert found.peak["gradients"] in (0, size)
    assert size <= found.peak["temporaries"] <= 3 * size


def test_of_several_micro_batches_the_one_that_leaves_most_counts():
    from llmb.simulation.ledger import Ledger

    def left(*sizes):
        with Ledger(lambda: ()) as ledger:
            for size in sizes:
                (torch.ones(size, requires_grad=True) * 2).exp().sum().backward()
        return ledger.found().activations

    assert left(500, 5) == left(500) > left(5)


@pytest.mark.parametrize("name", ["llama-1.4b", "gpt2-125m", "nemo-bert-base"])
def test_tensors_without_memory_live_as_long_as_those_that_have_some(name):
    from llmb.simulation.ledger import Ledger
    from llmb.simulation.rank import simulate

    workload = find(name, TINY)
    model = build(workload.shape, 1, torch.bfloat16)
    optimizer = build_optimizer(model.parameters(), workload.recipe.optimizer, fused=True)

    def step():
        batch = make_batch(1, 2, workload.shape)
        model(batch.ids, labels=batch.labels, **batch.extra).backward()
        optimizer.step()

    def known():
        for parameter in model.parameters():
            yield "weights", parameter.detach()
            if parameter.grad is not None:
                yield "gradients", parameter.grad
        for state in optimizer.state.values():
            yield from (("optimizer", value) for value in state.values())

    with Ledger(known) as ledger:
        step()
        optimizer.zero_grad(set_to_none=True)
        ledger.found()  # weights and moments are seen
        ledger.restart()
        step()
    real = ledger.found()
    assert simulate(workload, Parallelism(), 0, micro_batch=2).peak == real.peak
    assert min(real.peak["weights"], real.peak["optimizer"], real.peak["activations"]) > 0
