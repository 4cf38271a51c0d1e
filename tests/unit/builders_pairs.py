"""What the probe ``pairs`` sees of a model, and the recipe that follows."""

from __future__ import annotations

from dataclasses import asdict, replace

import torch

from llmb.audit.bench import Bench
from llmb.audit.precision_recipe import recipe_of
from llmb.config import BF16, Precision
from llmb.families import SHAPES
from llmb.observe import pairs_seen
from llmb.observe.pairs import Pairs
from llmb.records import evidence
from llmb.records.canonical import pretty_bytes
from llmb.records.precision_recipe import PairSeen, PairsEvidence, PrecisionRecipe
from llmb.reference.models import model_of
from llmb.reference.qwen3_shape import Qwen3Shape, TiedQwen3Shape
from llmb.reference.shapes import (
    BertShape,
    Gpt2Shape,
    LlamaShape,
    Shape,
    UngatedLlamaShape,
)
from tests.narrow_product import DIRECTIONS, narrow
from tests.unit.builders_audit import facts
from tests.unit.builders_runtime import run_config

#: Small models that the probe can be made of.
UNGATED = UngatedLlamaShape(
    vocab_size=640,
    hidden_size=192,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=6,
    sequence_length=32,
)
GPT2 = Gpt2Shape(
    vocab_size=640,
    hidden_size=384,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=6,
    sequence_length=32,
    max_position_embeddings=48,
)
BERT = BertShape(
    vocab_size=640,
    hidden_size=384,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=6,
    sequence_length=32,
    max_position_embeddings=48,
)
QWEN3 = Qwen3Shape(
    vocab_size=640,
    hidden_size=256,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=12,
    num_key_value_heads=6,
    head_dim=32,
    sequence_length=32,
)
TIED_QWEN3 = TiedQwen3Shape(**vars(QWEN3))
_SHAPE = LlamaShape()
#: What the loss is multiplied by in FP16, as a run does.
_COPIES = 4096


def seen(
    shape: Shape,
    *kinds: str,
    ways: tuple[str, ...] = DIRECTIONS,
    dtype: str = "float32",
    mixed: bool = False,
    seed: int = 3,
) -> tuple[PairSeen, ...]:
    """Return what a model in ``dtype`` shows whose products of ``kinds`` are in FP8.

    ``mixed``: its weights are float32, and torch's autocast is on.
    """
    model, probe = model_of(shape), Pairs(shape, seed, dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(probe.weight(name, parameter))
    batch, kept = probe.batch(), getattr(torch, dtype)
    # Without dropout, as a run is looked at.
    model = narrow(model if mixed else model.to(kept), kinds, ways).eval()
    with torch.autocast("cpu", kept, enabled=mixed):
        loss = model(batch.ids, labels=batch.labels, **batch.extra)
    (loss * (_COPIES if dtype == "float16" else 1)).backward()
    return tuple(pairs_seen.seen(shape, {n: p.grad for n, p in model.named_parameters()}.get))


def recipe(
    *repeats: PairsEvidence | None, shape: Shape = _SHAPE, precision: Precision = BF16
) -> PrecisionRecipe | None:
    """Return the recipe of a run whose ``repeats`` left this evidence."""
    files = {
        evidence.path(n, evidence.PAIRS): pretty_bytes(one)
        for n, one in enumerate(repeats)
        if one is not None
    }
    known = replace(facts(run_config()), precision=precision)
    family = next(name for name, kind in SHAPES.items() if kind is type(shape))
    sizes = {"family": family, "shapes": asdict(shape)}
    known = replace(known, workload=known.workload.model_copy(update=sizes))
    known = replace(known, repeats=[known.repeats[0]] * len(repeats))
    return recipe_of(Bench(files.get, known, 0))
