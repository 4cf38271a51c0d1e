"""An executor compiles one program for the prompt and one for every other token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llmb.reference.data import make_batch, random_tokens
from llmb.reference.generate import (
    OneToken,
    exponential_race,
    generate_loop,
    make_desk,
    multinomial,
)
from llmb.reference.models import build
from llmb.reference.shapes import Gpt2Shape, LlamaShape
from llmb.reference.train_loop import Step

# What inductor imports warns of its own ways.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

LLAMA = LlamaShape(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    sequence_length=16,
    initializer_range=0.18,
)
GROUPED_QUERY = replace(LLAMA, num_key_value_heads=2)
#: Where the number of layers does not matter: each takes a third of a second to compile.
SHALLOW = replace(LLAMA, num_hidden_layers=1)
GPT2 = Gpt2Shape(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    sequence_length=16,
    max_position_embeddings=32,
    initializer_range=0.18,
)
STEPS = [Step(index=i, seed=3 + i, fence=False) for i in range(2)]
PROMPT, NEW = 5, 8


def greedy(logits: Tensor) -> Tensor:
    return logits.argmax(dim=-1, keepdim=True)


def prompt(seed: int) -> Tensor:
    return random_tokens(seed, 1, PROMPT, 97)


@pytest.fixture(autouse=True)
def counters() -> Iterator[Any]:
    """What a compiler counts that has compiled nothing yet."""
    torch._dynamo.reset()  # torch imports it when it is first asked for it: seconds
    torch._dynamo.utils.counters.clear()
    yield torch._dynamo.utils.counters
    torch._dynamo.reset()


@pytest.fixture
def vectors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whether inductor uses vector instructions: which there are it compiles for seconds to see."""
    import torch._inductor.config

    found = {} if request.param else {"cpp.vec_isa_ok": False}
    with torch._inductor.config.patch(found):
        yield


def counting() -> Any:
    from torch._dynamo.testing import CompileCounterWithBackend

    return CompileCounterWithBackend("aot_eager")


@pytest.mark.parametrize(
    ("shape", "whole"),
    [
        pytest.param(GROUPED_QUERY, True, id="grouped_query-step"),
        pytest.param(GPT2, False, id="gpt2-model"),
        pytest.param(GROUPED_QUERY, False, id="grouped_query-model", marks=pytest.mark.full),
        pytest.param(GPT2, True, id="gpt2-step", marks=pytest.mark.full),
        pytest.param(LLAMA, True, id="multi_head-step", marks=pytest.mark.full),
        pytest.param(LLAMA, False, id="multi_head-model", marks=pytest.mark.full),
    ],
)
def test_two_programs_serve_every_token_and_draw_what_uncompiled_ones_do(
    counters: Any, shape: LlamaShape | Gpt2Shape, whole: bool
) -> None:
    model = build(shape, seed=1, dtype=torch.float64)
    desk = make_desk(shape, 1, PROMPT, NEW, torch.float64)
    counter = counting()

    def compiled(module):
        return torch.compile(module, backend=counter, fullgraph=True, dynamic=False)

    next_token = compiled(OneToken(model, greedy)) if whole else OneToken(compiled(model), greedy)
    found = [one.tokens for one in generate_loop(next_token, desk, STEPS, prompt)]
    assert counter.frame_count == 2
    assert not counters["graph_break"]
    expected = generate_loop(OneToken(model, greedy), desk, STEPS, prompt)
    assert all(map(torch.equal, found, [one.tokens for one in expected]))


def llama() -> nn.Module:
    return build(LLAMA, seed=1, dtype=torch.float32)


class Bigrams(nn.Module):
    """A model that looks at the last token alone: for a C++ compiler it is soon done."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(97, 97)

    def forward(self, ids: Tensor, cache: Any = None, positions: Any = None) -> Tensor:
        return self.rows(ids) if cache is None else self.rows(ids[:, -1])


@pytest.mark.parametrize(
    ("vectors", "made", "mode"),
    [
        (False, Bigrams, "default"),
        pytest.param(True, llama, "default", marks=pytest.mark.full),
        pytest.param(True, llama, "reduce-overhead", marks=pytest.mark.full),
    ],
    indirect=["vectors"],
)
@pytest.mark.usefixtures("vectors")
def test_inductor_compiles_the_whole_step_and_its_draws_follow_from_the_seed(
    counters: Any, made: Callable[[], nn.Module], mode: str
) -> None:
    model = made()
    desk = make_desk(LLAMA, 1, PROMPT, NEW, torch.float32)
    next_token = torch.compile(
        OneToken(model, exponential_race), fullgraph=True, dynamic=False, mode=mode
    )
    first, other = (one.tokens for one in generate_loop(next_token, desk, STEPS, prompt))
    logits = desk.logits.clone()
    assert counters["stats"]["unique_graphs"] == 2
    whole = model(torch.cat((prompt(STEPS[1].seed), other), dim=1))
    torch.testing.assert_close(
        logits.transpose(0, 1), whole[:, PROMPT - 1 : -1], rtol=1e-4, atol=1e-4
    )
    (again,) = generate_loop(next_token, desk, STEPS[:1], prompt)
    assert torch.equal(again.tokens, first)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "vectors", [False, pytest.param(True, marks=pytest.mark.full)], indirect=True
)
@pytest.mark.usefixtures("vectors")
def test_inductors_race_draws_with_the_probabilities() -> None:
    draw = torch.compile(exponential_race, fullgraph=True, dynamic=False)
    torch.manual_seed(1)
    logits = torch.linspace(-2.5, 2.5, 20)
    found = draw(logits.expand(200_000, -1)).flatten().bincount(minlength=20).double()
    expected = logits.double().softmax(-1) * 200_000
    assert ((found - expected) ** 2 / expected).sum() < 43.820  # see test_drawing_tokens


def test_the_model_compiled_for_decoding_is_the_one_that_trains() -> None:
    model = build(SHALLOW, seed=1, dtype=torch.float32)
    counter = counting()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=False)
    desk = make_desk(SHALLOW, 1, PROMPT, NEW, torch.float32)
    list(generate_loop(OneToken(compiled, multinomial), desk, STEPS, prompt))
    batch = make_batch(1, 1, SHALLOW)
    loss = compiled(batch.ids, labels=batch.labels)
    loss.backward()
    alone = build(SHALLOW, seed=1, dtype=torch.float32)
    expected = alone(batch.ids, labels=batch.labels)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
