"""The master table: every workload of the source documents, at its own sizes."""

from __future__ import annotations

from dataclasses import replace

from llmb.config import OFFICIAL_WORKLOAD, Mode
from llmb.reference.qwen3_shape import Qwen3Shape, TiedQwen3Shape
from llmb.reference.recipe import Optimizer, Recipe
from llmb.reference.shapes import (
    BertShape,
    Gpt2Shape,
    LlamaShape,
    Shape,
    UngatedLlamaShape,
)
from llmb.workloads.workload import Workload

# -- shapes that several workloads share ----------------------------------------------------------

_LLAMA_2_7B = LlamaShape(
    hidden_size=4096,
    intermediate_size=11008,
    num_hidden_layers=32,
    sequence_length=4096,
    rms_norm_eps=1e-5,
    padding_idx=None,
)
_LLAMA_3_8B = LlamaShape(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_key_value_heads=8,
    sequence_length=4096,
    rms_norm_eps=1e-5,
    rope_theta=5e5,
    padding_idx=None,
)
_LLAMA_3_70B = replace(
    _LLAMA_3_8B,
    hidden_size=8192,
    intermediate_size=28672,
    num_hidden_layers=80,
    num_attention_heads=64,
)
_OPEN_LLAMA_3B = LlamaShape(
    intermediate_size=8640, num_hidden_layers=26, sequence_length=2048, padding_idx=None
)
_GPT_BENCH_DISTRIBUTED = Gpt2Shape(
    vocab_size=50432,
    hidden_size=12288,
    intermediate_size=49152,
    num_hidden_layers=64,
    num_attention_heads=96,
    sequence_length=2048,
    max_position_embeddings=2048,
)
_ALCF_1T = LlamaShape(
    vocab_size=32256,
    hidden_size=24576,
    intermediate_size=98304,
    num_hidden_layers=128,
    num_attention_heads=192,
    num_key_value_heads=192,
    sequence_length=2048,
    rms_norm_eps=1e-5,
    padding_idx=None,
)
#: 25,872 is not divisible by the script's 192 heads; 132 heads divide 25,872, and 12 divides 132.
_ALCF_1T_README = replace(
    _ALCF_1T, hidden_size=25872, num_attention_heads=132, num_key_value_heads=132
)
_BERT = BertShape()
_QWEN3_600M = TiedQwen3Shape(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16
)

# -- how the originals train ----------------------------------------------------------------------

_ADAMW = Optimizer(lr=1e-3, eps=1e-8)  # torch's own defaults
_LLM_TRAIN_BENCH = Recipe(_ADAMW, 8, 8, clip_grad_norm=1.0, mixed_precision=True)
_MEGATRON = Recipe(Optimizer(lr=1.5e-4, eps=1e-8), 4, 4, clip_grad_norm=1.0)
_ALCF = Recipe(Optimizer(lr=3e-3, eps=1e-8), 1, 512, clip_grad_norm=1.0)
_NANOTRON = Recipe(Optimizer(lr=3e-4, betas=(0.9, 0.95), eps=1e-8), 2, 16, clip_grad_norm=1.0)
_NEMO = Recipe(
    Optimizer(lr=6e-4, betas=(0.9, 0.98), eps=1e-8), 32, 4, clip_grad_norm=1.0, mixed_precision=True
)
_LITGPT = Recipe(Optimizer("SGD", lr=6e-4, weight_decay=0.1), 2)

# -- notes ----------------------------------------------------------------------------------------

_NO_SCHEDULE = "the learning rate is constant here: the original's schedule changes no throughput"
_VOCABULARY = (
    "the original's file says vocabulary 3200 (a slip for 32000; 6,502,486,016 parameters) and "
    "rotary base 1e5 (the model's is 1e4): neither is repeated"
)
_UNSHIFTED = (
    "the original's labels are its inputs, not shifted (a model that copies is right); here each "
    "position predicts the next token"
)
_FP8_GROUPS = (
    "the original's FP8 model has heads / key-value heads groups where its library wants "
    "key-value heads, so it is another model than its BF16 one: here it is the same"
)
_MEAN_OF_RATES = (
    "the original's figure is the mean of rates of single micro-steps, of which most have no "
    "optimizer's step; here it is all work by all time"
)
_LIKE_LLM_TRAIN_BENCH = (_UNSHIFTED, _MEAN_OF_RATES)
_WRONG_FILE = "the original's file holds the 125m values, a slip: these are the intended ones"
_POSITIONS = (
    "the original makes its rotary tables in bfloat16, where positions above 256 collapse; here "
    "they are made in float32"
)
_NORMS = "the original's norms compute in bfloat16 throughout; here in float32, cast once"
_TWICE = "the PDF's symbols are inverted: alpha is seconds a multiply-add, beta seconds a byte"
_README_HEADS = (
    "192 heads do not divide 25,872: 132 are used (168 would do as well), of 196 channels"
)
_BERT_HEADS = "the pooler and the sentence-order head are included; so are token types"
_BERT_BATCH = "the document prints global batch sizes 8092 and 8096; the configuration says 8192"
_BERT_DROPOUT = "dropout 0.1 as in the original; the audit judges a few steps with dropout on"

_QWEN3 = "sizes of the published configuration; sequences of 4,096 as in most of its pretraining"
_HUNDRED = "the original draws tokens below 100 only; here from the whole vocabulary"


#: The fixed model at every official size, the largest first. llama-1.4b is the benchmark; smaller
#: sizes are for machines on which llama-1.4b takes too long. Parameters are in docs/rules.md.
LADDER = (OFFICIAL_WORKLOAD, "llama-410m", "llama-128m", "llama-45m")
_NOT_THE_BENCHMARK = (
    "a smaller size of the benchmark's model, for machines on which llama-1.4b takes too long: "
    "figures of two sizes are never ranked together"
)


def _rung(name: str, hidden: int) -> Workload:
    """Return the fixed model of width ``hidden``: heads of 100, feed-forward of 2 x ``hidden``."""
    heads = hidden // LlamaShape().head_dim
    shape = LlamaShape(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads,
    )
    return Workload(name, shape, "llmb", notes=(_NOT_THE_BENCHMARK,))


def _gpt2(layers: int, hidden: int, heads: int) -> Gpt2Shape:
    return Gpt2Shape(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
    )


def _layers(shape: LlamaShape, layers: int) -> LlamaShape:
    return replace(shape, num_hidden_layers=layers)


def _llm_train_bench(name: str, shape: Shape, *notes: str, micro_batch_size: int = 8) -> Workload:
    return Workload(
        name,
        shape,
        "llm-train-bench",
        recipe=replace(_LLM_TRAIN_BENCH, micro_batch_size=micro_batch_size),
        convention="6n_full",
        world_size=1,
        notes=(*notes, *_LIKE_LLM_TRAIN_BENCH),
    )


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(OFFICIAL_WORKLOAD, LlamaShape(), "gpt-bench"),
        *(_rung(name, hidden) for name, hidden in zip(LADDER[1:], (1600, 800, 400), strict=True)),
        Workload(
            "gpt-bench-117b",
            _GPT_BENCH_DISTRIBUTED,
            "gpt-bench",
            recipe=_MEGATRON,
            convention="megatron",
            world_size=4,
            tp=2,
            pp=2,
            notes=("the script's 64 layers: its README says 175 B, which gpt-bench-175b is",),
        ),
        Workload(
            "gpt-bench-175b",
            replace(_GPT_BENCH_DISTRIBUTED, num_hidden_layers=96),
            "gpt-bench",
            recipe=_MEGATRON,
            convention="megatron",
            notes=("the README's 175 B: 96 layers where the script has 64",),
        ),
        Workload(
            "alcf-1t",
            _ALCF_1T,
            "alcf",
            recipe=_ALCF,
            convention="alcf_fom",
            world_size=768,
            tp=12,
            pp=64,
            notes=(
                "the script's model, SwiGLU: 1.239 T; the document's text has other sizes, which "
                "alcf-1t-readme and alcf-1t-readme-swiglu are",
                _TWICE,
                _NO_SCHEDULE,
            ),
        ),
        Workload(
            "alcf-1t-readme",
            UngatedLlamaShape(**vars(_ALCF_1T_README)),
            "alcf",
            recipe=_ALCF,
            convention="alcf_fom",
            tp=12,
            pp=64,
            notes=("the text's sizes with a two-matrix feed-forward: 0.995 T", _README_HEADS),
        ),
        Workload(
            "alcf-1t-readme-swiglu",
            _ALCF_1T_README,
            "alcf",
            recipe=_ALCF,
            convention="alcf_fom",
            tp=12,
            pp=64,
            notes=("the text's sizes with the script's SwiGLU: 1.321 T", _README_HEADS),
        ),
        Workload(
            "alcf-1t-4l",
            replace(_ALCF_1T, num_hidden_layers=4),
            "alcf",
            recipe=replace(_ALCF, accumulate=16),
            convention="alcf_fom",
            world_size=24,
            tp=12,
            pp=2,
            notes=(_TWICE, _NO_SCHEDULE),
        ),
        Workload(
            "alcf-7b",
            _LLAMA_2_7B,
            "alcf",
            recipe=replace(_ALCF, accumulate=8),
            convention="alcf_fom",
            world_size=4,
            notes=(_TWICE, _NO_SCHEDULE),
        ),
        Workload(
            "nanotron-llama2-7b",
            replace(_LLAMA_2_7B, rms_norm_eps=1e-6, initializer_range=0.025),
            "nanotron",
            recipe=_NANOTRON,
            world_size=8,
            tp=4,
            notes=(
                "the document's global batch size counts nodes where it means replicas: a node's "
                "four GPUs are one replica (tp 4)",
                _NO_SCHEDULE,
            ),
        ),
        Workload(
            "nemo-bert-base",
            _BERT,
            "nemo",
            recipe=_NEMO,
            world_size=8,
            notes=(_BERT_HEADS, _BERT_DROPOUT, _NO_SCHEDULE),
        ),
        Workload(
            "nemo-bert-base-2048",
            replace(_BERT, sequence_length=2048),
            "nemo",
            recipe=replace(_NEMO, micro_batch_size=8, accumulate=16),
            world_size=8,
            notes=(_BERT_HEADS, _BERT_DROPOUT, _NO_SCHEDULE),
        ),
        Workload(
            "nemo-bert-large",
            replace(
                _BERT,
                hidden_size=1024,
                intermediate_size=4096,
                num_hidden_layers=24,
                num_attention_heads=16,
            ),
            "nemo",
            recipe=replace(_NEMO, micro_batch_size=128, accumulate=32),
            world_size=8,
            tp=4,
            notes=(_BERT_BATCH, _BERT_HEADS, _BERT_DROPOUT, _NO_SCHEDULE),
        ),
        _llm_train_bench("gpt2-125m", _gpt2(12, 768, 12)),
        _llm_train_bench("gpt2-350m", _gpt2(24, 1024, 16), _WRONG_FILE),
        _llm_train_bench("gpt2-774m", _gpt2(36, 1280, 20), _WRONG_FILE),
        _llm_train_bench("gpt2-1.5b", _gpt2(48, 1600, 25)),
        _llm_train_bench("llama-2-7b", _LLAMA_2_7B, _VOCABULARY, _FP8_GROUPS),
        _llm_train_bench("llama-2-7b-proxy", _layers(_LLAMA_2_7B, 1), _VOCABULARY, _FP8_GROUPS),
        _llm_train_bench("llama-3.1-8b", _LLAMA_3_8B, _FP8_GROUPS),
        _llm_train_bench("llama-3.1-8b-proxy", _layers(_LLAMA_3_8B, 1), _FP8_GROUPS),
        _llm_train_bench("llama-3.1-70b", _LLAMA_3_70B),
        _llm_train_bench("llama-3.1-70b-proxy", _layers(_LLAMA_3_70B, 1), micro_batch_size=2),
        _llm_train_bench("llama-3.1-70b-proxy2", _layers(_LLAMA_3_70B, 2), micro_batch_size=2),
        _llm_train_bench("llama-3.1-70b-proxy4", _layers(_LLAMA_3_70B, 4), micro_batch_size=2),
        Workload(
            "litgpt-forward",
            replace(_LLAMA_2_7B, sequence_length=2048, rms_norm_eps=1e-6),
            "litgpt",
            modes=(Mode.FORWARD,),
            recipe=Recipe(micro_batch_size=10),
            world_size=1,
            notes=(_POSITIONS, _NORMS),
        ),
        Workload(
            "litgpt-model-inference",
            _LLAMA_2_7B,
            "litgpt",
            modes=(Mode.GENERATE,),
            recipe=Recipe(micro_batch_size=1),
            scope="model",
            world_size=1,
            notes=("the executor compiles the model; tokens are drawn outside", _POSITIONS, _NORMS),
        ),
        Workload(
            "litgpt-generation",
            _LLAMA_2_7B,
            "litgpt",
            modes=(Mode.GENERATE,),
            recipe=Recipe(micro_batch_size=1),
            world_size=1,
            notes=("the executor compiles the whole step of one token", _POSITIONS, _NORMS),
        ),
        Workload(
            "litgpt-train",
            _OPEN_LLAMA_3B,
            "litgpt",
            recipe=_LITGPT,
            world_size=1,
            notes=(_POSITIONS, _NORMS, _HUNDRED),
        ),
        Workload(
            "litgpt-fsdp",
            _OPEN_LLAMA_3B,
            "litgpt",
            recipe=_LITGPT,
            world_size=2,
            notes=(_POSITIONS, _NORMS, _HUNDRED),
        ),
        Workload("qwen3-0.6b", _QWEN3_600M, "llmb", notes=(_QWEN3,)),
        Workload("qwen3-8b", Qwen3Shape(), "llmb", notes=(_QWEN3,)),
    )
}
