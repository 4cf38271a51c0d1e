"""Holes of the audit: work that a plugin can save without a finding, with the largest gain.

Engineers who had read the audit found the holes. The figures are from docs/adr/0080 to 0097.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmb.config import Mode

#: What a gain was computed from: the products of a step, bytes of memory traffic, or a timed run;
#: or an estimate of a cheat that nobody has built.
Basis = Literal["products", "bytes", "run", "estimate"]


@dataclass(frozen=True)
class Hole:
    """A way to save work without a finding of any rule."""

    #: Rules about the saved work; empty if no rule is about it.
    rules: tuple[str, ...]
    #: The work that is saved or made rougher.
    saved: str
    #: Formats and options that are needed.
    where: str
    #: Largest gain, as a ratio of tokens/s to an honest run. Example: 1.2. None: no work is saved,
    #: or a declared figure is untrue.
    gain: float | None
    basis: Basis = "products"
    #: How many runs of the cheat pass, if not every run. Example: ``1 in 14``.
    some: str = ""
    #: Plugins in ``tests/cheats`` that use the hole.
    cheats: tuple[str, ...] = ()
    mode: Mode = Mode.TRAIN

    @property
    def passes(self) -> str:
        """How many runs of the cheat pass; ``not built`` for an estimate without a cheat."""
        built = self.cheats or self.basis != "estimate"
        return self.some or ("every run" if built else "not built")

    def told(self) -> str:
        """Return the hole in a line. Example: ``1.2 times the tokens/s (from products): ...``."""
        gain = f"{self.gain} times the tokens/s (from {self.basis})" if self.gain else "no gain"
        return f"{gain}: {self.saved}; {self.where}; passes: {self.passes}"


_NOT_COMPARED = (
    "steps that L1 does not compare: more than 64 ranks, ranks that share more than 16 GB, debug "
    "runs in FP16 without a loss scale or after the 80th step"
)
_DIRECTIONS = "L1 compares directions: fewer than 8 bits, FP16 under autocast"
_OTHER_MASKS = "dropout, and ranks share the model"
_WAITING = "1 in 2: the window has no third judged step"

_FOUND = (
    Hole(
        ("W1",),
        "three of ten features asleep, and softmaxes made one-hot by large queries and keys",
        _NOT_COMPARED,
        3.5,
        "estimate",
    ),
    Hole(("W1",), "three of ten features asleep", _NOT_COMPARED, 1.2),
    Hole(("W1",), "a twentieth of each matrix idle", _NOT_COMPARED, 1.1),
    Hole(
        ("E1", "G1"),
        "five of 16 sequences",
        "a format of the plugin's own with an error of 0.6",
        1.45,
        "estimate",
    ),
    Hole(
        ("E1", "G1"),
        "three of 16 sequences",
        "MXFP4 with 12 layers",
        1.23,
        some="most runs",
        cheats=("sequences_left_out_in_four_bits",),
    ),
    Hole(
        ("E1", "L1"),
        "the last three of 16 positions, with the others in NVFP4",
        "MXFP4 with 12 layers",
        1.23,
        some="most runs",
        cheats=("positions_left_out_in_four_bits",),
        mode=Mode.FORWARD,
    ),
    Hole(
        ("G1", "L1"),
        "no backward pass for three of four words without a loss",
        "dropout, and 4 bits (NVFP4, MXFP4; FP8 with 2 layers: 1 run in 2)",
        1.35,
        cheats=("backward_of_some_words_in_four_bits",),
    ),
    Hole(
        ("E1", "G1"),
        "4 bits in weight gradients",
        "FP8",
        1.2,
        cheats=("fp4_weight_gradients_under_fp8",),
    ),
    Hole(
        ("E1", "L1"),
        "INT8 in blocks of 32 in queries, keys, gates and ups, with float32 between the products",
        "BF16",
        1.38,
        cheats=("forward_int8_some_products",),
        mode=Mode.FORWARD,
    ),
    Hole(
        ("E1", "L1"),
        "INT8 copies of queries, keys, gates and ups",
        "BF16, batch size 1",
        1.36,
        "bytes",
        cheats=("generated_from_int8_some",),
        mode=Mode.GENERATE,
    ),
    Hole(
        ("E1", "L1"),
        "a cache of keys and values in 8 bits",
        "BF16, batch size 256 (batch size 64: 1.14)",
        1.4,
        "bytes",
        cheats=("cache_in_eight_bits",),
        mode=Mode.GENERATE,
    ),
    Hole(
        ("E1", "G1"),
        "a head in 4 bits but for target words and means",
        "FP8, llama-45m (llama-1.4b: 1.12)",
        1.68,
        cheats=("head_in_four_bits",),
    ),
    Hole(
        ("E1", "G1"),
        "a head in 8 bits but for target words and means",
        "BF16, llama-45m (llama-1.4b: 1.04)",
        1.23,
        some="some runs",
        cheats=("fp8_head_unless_probed",),
    ),
    Hole(
        ("E1", "G1"),
        "INT8 in all weight gradients",
        "BF16 with 12 layers",
        1.2,
        some="most runs",
        cheats=("int8_weight_gradients",),
    ),
    Hole(
        ("E1", "G1"),
        "INT8 in blocks of 32 in most products, with float32 between the products",
        "BF16 at the width of llama-1.4b (docs/adr/0083), or 256 micro-batches",
        1.83,
        "estimate",
        some="a step by a script; of runs with 256 micro-batches 1 in 2",
    ),
    Hole(
        ("E1", "G1"),
        "gradients of queries and keys",
        "4 bits, and one parameter for queries, keys and values",
        1.1,
    ),
    Hole(
        ("G1",),
        "INT8 in outputs and weight gradients after the second judged step",
        "BF16 with 12 layers",
        1.12,
        some=_WAITING,
        cheats=("int8_after_two_judged_steps",),
    ),
    Hole(
        ("G1",),
        "everything after the third judged step",
        _NOT_COMPARED,
        1.33,
        "run",
        some="1 in 3",
    ),
    Hole(
        ("G1",),
        "parameters that a map gives to words that no step has",
        _NOT_COMPARED,
        1.2,
    ),
    Hole(
        ("L1",),
        "parameters that a map gives to words that no step has",
        "the plugin knows the sampled indices",
        1.06,
    ),
    Hole(
        ("G1", "L1"),
        "4 bits in all products, and no backward pass for three of four words without a loss",
        f"{_OTHER_MASKS} (4 bits alone: 1.79; 8 bits: 1.42; no backward pass of a sixth of the "
        "sequences: 1.08; no dropout of attention scores: not measured)",
        2.1,
    ),
    Hole(
        ("L1",),
        "half of the sequences, in half of the steps",
        "dropout",
        1.33,
        some="1 in 14",
    ),
    Hole(
        ("G1", "L1"),
        "half of the bytes of gradients between ranks: INT8 in blocks of 32",
        "replicas in BF16, where the network is much slower than the backward pass",
        2.0,
        "estimate",
        cheats=("sync_left_out", "library_in_int8"),
    ),
    Hole(
        ("G1", "L1"),
        "a sixth of the bytes between ranks: gradients in INT8 in blocks of 32",
        "--dp-shard in BF16, where the network is much slower than the products",
        1.2,
        "estimate",
        cheats=("shards_in_int8",),
    ),
    Hole(
        ("E1", "G1"),
        "products of attention in INT8",
        "FP8 (qwen3-0.6b)",
        1.2,
        cheats=("attention_in_eight_bits",),
    ),
    Hole(
        ("W1",),
        "words that are alike, by weights that AdamW can reach: one word stands for most",
        _NOT_COMPARED,
        31.0,
        "estimate",
    ),
    Hole(("L1",), "weight gradients of a quarter of the parameters", "dropout", 1.09),
    Hole(
        ("L1",),
        "a third of the sequences, in half of the steps",
        f"{_DIRECTIONS}; 4 bits with 12 layers",
        1.2,
        some="1 in 27",
    ),
    Hole(
        ("L1",),
        "4 bits in one step of twenty, if no parameter is 0.4 of its length off",
        "BF16 (no gradient of the head in these steps: 1.001)",
        1.04,
    ),
    Hole(
        ("L1",),
        "gradients of queries and keys, but in the last step",
        "GPT-2, which stores queries, keys and values in one parameter",
        1.04,
    ),
    Hole(
        ("L1",),
        "TF32 after the last judged step",
        "FP32, ranks that share a model, clipped gradients",
        1.4,
        some=_WAITING,
    ),
    Hole(
        ("E1", "L1"),
        "running means of the tokens in place of attention",
        "8 bits",
        1.5,
        cheats=("attention_averaged",),
        mode=Mode.FORWARD,
    ),
    Hole(
        ("L1",),
        "made-up words (FP8: 21 % of the words; BF16: 2.5 %)",
        "FP8",
        1.3,
        mode=Mode.GENERATE,
    ),
    Hole(
        ("L1", "N1"),
        "words that a narrow copy guesses right and one pass confirms",
        "batch size 1; the plugin reads the noise of later words in the worker",
        2.0,
        mode=Mode.GENERATE,
    ),
    Hole(
        ("L1", "N1"),
        "words of an INT8 copy, with the right logits written into llmb's memory in the last call",
        "batch size 1",
        1.87,
        "bytes",
        cheats=("right_logits_by_memory",),
        mode=Mode.GENERATE,
    ),
    Hole(
        ("L1", "N1"),
        "weight gradients, made only where llmb reads them",
        "native code of the plugin: it finds the sampled indices in the memory of the worker, or "
        "fills the pages of a gradient as llmb reads them",
        1.5,
        "estimate",
    ),
    Hole(
        (),
        "recomputation, by blocks that save activations by hooks of their own",
        "--sac-freq 1/1, against an honest run with this option",
        1.33,
        cheats=("checkpointing_unseen",),
    ),
    Hole(
        ("E1", "G1"),
        "input gradients of queries and keys",
        "BF16 at width 64; at width 400 and more the rules see the fault",
        1.06,
        some="some runs",
        cheats=("scores_without_input_gradient_counted",),
    ),
    Hole(
        ("E1", "P1"),
        "norms, softmax, or the sum of exponentials, in 16 bits or by a short formula",
        "BF16; in FP32 the rules see the fault",
        1.01,
        "estimate",
        some="most runs",
        cheats=("norm_in_bf16", "softmax_in_bf16", "softmax_denominator", "silu_polynomial"),
    ),
    Hole(
        ("E1",),
        "nothing: a small second loss is added",
        "BF16",
        None,
        some="most runs",
        cheats=("z_loss",),
    ),
    Hole(
        (),
        "anything: a start file of the package forges the verdict in the supervisor",
        "a machine of the cheat's own; llmb verify on another machine refuses the bundle",
        None,
        cheats=("site_customised",),
    ),
    Hole(
        (),
        "nothing: device, torch's version, or peak memory is untrue",
        "any run; each page marks these figures as declared",
        None,
        cheats=("device_misnamed", "torch_misnamed", "memory_misreported"),
    ),
)


#: All known holes, the largest first.
HOLES = tuple(sorted(_FOUND, key=lambda hole: -(hole.gain or 0.0)))
