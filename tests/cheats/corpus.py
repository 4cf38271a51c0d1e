"""The table of forbidden acts and of their honest twins, and what must be said of each.

Numbers of acts are those of the catalogue in the design's notes on measurements (64 acts in eleven
groups). ``plugins/<name>.py`` says in its docstring what it does.
"""

from __future__ import annotations

from dataclasses import dataclass

TIMING = "timing"
SKIPPED = "work skipped"
FUNCTION = "function changed"
PRECISION = "precision lowered"
OPTIMIZER = "optimizer"
REUSE = "data reuse or cache"
MEMORY = "memory of the model"
HARNESS = "harness monkeypatched"
RECORD = "record forged"
BUNDLE = "bundle tampered"
ENVIRONMENT = "environment misreported"
GROUPS = (
    *(TIMING, SKIPPED, FUNCTION, PRECISION, OPTIMIZER, REUSE),
    *(MEMORY, HARNESS, RECORD, BUNDLE, ENVIRONMENT),
)

#: What must come of a run: the verdict, or that it is refused before it begins, or that it fails.
INVALID, UNVERIFIED, FLAGGED, REFUSED = "INVALID", "UNVERIFIED", "FLAGGED", "refused"
FAILED = "failed"


@dataclass(frozen=True)
class Cheat:
    """A plugin that does what is forbidden, and the rules that must say so."""

    plugin: str
    group: str
    #: Numbers in the catalogue.
    acts: tuple[int, ...]
    #: Every one of them must fail or flag; others may.
    rules: tuple[str, ...]
    precision: str = "BF16"
    flags: tuple[str, ...] = ()
    outcome: str = INVALID
    #: Why nothing sees it, where nothing does.
    unseen: str | None = None
    #: It lies at the border of what is seen: now and then it is.
    at_the_border: bool = False


@dataclass(frozen=True)
class Twin:
    """A plugin that does what is allowed."""

    plugin: str
    precision: str = "BF16"
    flags: tuple[str, ...] = ()
    #: A package without which it cannot be made.
    needs: str | None = None


#: Rules that only flag or block beside others, and why no act here is theirs. A note needs none.
WITHOUT_AN_ACT = {
    "T2": "the harness makes the fences: an act that leaves one out replaces it, which N1 says",
    "K2": "whatever moves the loss so far breaks E1",
}


def _cheats(group: str, *rows: tuple[str, str, str] | Cheat) -> tuple[Cheat, ...]:
    """Return rows of name, acts and rules (both with spaces between) as cheats of ``group``."""
    return tuple(
        row
        if isinstance(row, Cheat)
        else Cheat(row[0], group, tuple(map(int, row[1].split())), tuple(row[2].split()))
        for row in rows
    )


def _unseen(plugin: str, group: str, acts: str, why: str, *, border: bool = False) -> Cheat:
    numbers = tuple(map(int, acts.split()))
    return Cheat(plugin, group, numbers, (), unseen=why, at_the_border=border)


#: Runs that train nothing.
_FORWARD = ("--workload=litgpt-forward", "--timed-steps=10")
_AVERAGED = (
    *("--workload=litgpt-forward", "--hidden-size=512", "--intermediate-size=1376"),
    *("--num-hidden-layers=4", "--sequence-length=256", "--timed-steps=5"),
)
_GENERATE = ("--workload=litgpt-generation", "--timed-steps=5", "--new-tokens=8")
_LOGITS = ("E1", "G1", "P1")
#: With a tied head, heads of a size of their own, and few words: qwen3-0.6b has 151,936.
_QWEN3 = '--workload={"name":"qwen3-small","family":"qwen3-tied","vocab_size":4096,"head_dim":32}'
#: Of two layers late copies of weights can be off by less than L1 allows: 2.5 and 2.7 honest errors
#: in two runs of four. Of six layers they were 7 to 11 in three runs.
_DEEPER = ("--num-hidden-layers=6",)
#: Types of operands are watched in a full audit only.
_FULL = ("--audit=full",)
_NOISE = "its error is that of the declared format; in an FP32 run it shows"
_HIDES = (
    "one forward product of the head in 8 bits is 1.7 times the honest error of a real step, of "
    "which E1 and G1 allow 1.5 and L1 3, and it hides from the probes, which would see it"
)
_COUNTED = (
    "at width 64 what is left out is about as large as the error that E1 and G1 allow; from width "
    "400 on it is ten times as large (docs/adr/0046)"
)
_WAITS = (
    "the window has two judged steps by this nonce, and a plugin that is honest until then has the "
    "rest for itself: one window in two has no third judged step (docs/adr/0087)"
)
#: Judged are steps 11 and 18 of steps 1 to 20 with the first of these, 3 and 10 with the second.
_JUDGED_LATE, _JUDGED_EARLY = f"--nonce={'0' * 32}", f"--nonce={'f' * 32}"
#: With dropout: the masks of a step follow from the seed of its tokens.
_BERT = ("--workload=nemo-bert-base",)
_TWELVE = ("--num-hidden-layers=12",)
_SIX = (
    *("--hidden-size=128", "--intermediate-size=256"),
    *("--num-hidden-layers=6", "--sequence-length=64"),
)
_WIDER = ("--hidden-size=512", "--intermediate-size=1376", "--num-hidden-layers=6")
_BETWEEN = (
    "an honest run rounds to 16 bits between the products. With float32 between, INT8 in small "
    "blocks is as far off as the honest run, and probes are recognised and honest (docs/adr/0086)"
)
_REPLICAS = ("--nproc=2", "--batch-size=2")
_SHARED = (
    "integers of 8 bits in blocks of 32 are nearly as exact as BF16, and nothing counts what "
    "travels between ranks in a step"
)
_ROUGH = (
    "the format's own error is so large that rougher products, or sequences left out, are within "
    "1.5 times the honest error, and probes are recognised and honest (docs/adr/0086)"
)
_ROUGH_MASKS = (
    "with dropout on, an honest step with the same masks alone judges the step, and with 4 bits "
    "the rounding of an honest run is as large as what is left out"
)
_SMALL = (
    "at the initial weights gates are small, and what is left out is less than the rounding of 16 "
    "bits (docs/adr/0046); in an FP32 run it shows"
)
_DENOMINATOR = (
    "the sum over thousands of words follows from their mean and covariance, and gradients are "
    "mostly those of the words that came next (docs/adr/0048). Of so few tokens E1 mostly sees it"
)
_DEVICE = "nobody but the plugin knows the device; another's reproduction would show it"
_ITSELF = (
    "the package runs in the supervisor too and judges there; `llmb verify` elsewhere refuses the "
    "bundle (below)"
)

CHEATS = (
    *_cheats(
        TIMING,
        Cheat("clock_halved", TIMING, (1,), ("T1", "N1"), "FP32"),
        Cheat("clock_preloaded", TIMING, (2,), ("T1", "N2"), "FP32"),
        ("synchronize_lies", "3 4", "O1"),
        ("work_in_a_thread", "3 4", "E1 E2 E3 L1 P1"),
        ("loss_put_off", "5", "E1 E2 E3 L1 P1"),
        Cheat("honest_when_asked", TIMING, (11,), ("E1", "L1"), "FP32"),
        ("layer_dropped_later", "8 11 13", "E1 E2 L1 P1"),
    ),
    *_cheats(
        SKIPPED,
        ("skip_layer", "13", "E1 E2 L1 P1"),
        Cheat("layer_dropped_by_chance", SKIPPED, (14,), ("O1",)),
        ("padding_everywhere", "11 13", "L1"),
        ("gradients_given_away", "11 15", "L1"),
        Cheat("replay_forged", SKIPPED, (11, 24), ("L1",), flags=(_JUDGED_EARLY,)),
        Cheat("declared_to_record", SKIPPED, (11, 24), (), outcome=REFUSED),
        Cheat(
            "checkpointing_left_out", SKIPPED, (24,), (), flags=("--sac-freq=1/1",), outcome=REFUSED
        ),
        Cheat("backward_of_some_words", SKIPPED, (11, 15), (), flags=_BERT, outcome=UNVERIFIED),
        Cheat(
            "backward_of_some_words_in_four_bits",
            SKIPPED,
            (11, 15),
            (),
            "NVFP4",
            flags=_BERT,
            unseen=_ROUGH_MASKS,
        ),
        Cheat(
            "sequences_left_out_in_four_bits",
            SKIPPED,
            (11, 19),
            (),
            "MXFP4",
            flags=("--batch-size=16", *_TWELVE),
            unseen=_ROUGH,
            at_the_border=True,
        ),
        Cheat(
            "no_backward_in_one_store",
            SKIPPED,
            (11, 15),
            (),
            flags=_BERT,
            outcome=UNVERIFIED,
        ),
        Cheat(
            "layers_in_padding",
            SKIPPED,
            (11, 15),
            (),
            flags=(*_BERT, "--hidden-size=128", "--intermediate-size=256", "--batch-size=8"),
            outcome=UNVERIFIED,
        ),
        Cheat("keys_without_gradient", SKIPPED, (11, 15), ("L1",), flags=_TWELVE),
        Cheat("keys_and_queries_without_backward", SKIPPED, (11, 15), ("L1",), "FP8", flags=_SIX),
        Cheat(
            "queries_and_keys_without_backward_in_four_bits",
            SKIPPED,
            (11, 15),
            ("G1",),
            "MXFP4",
            flags=_SIX,
        ),
        ("branch_without_backward", "15", "E1 E2 L1 P1"),
        ("frozen", "16", "W1"),
        ("frozen_in_steps", "16 17", "O1"),
        ("optimizer_step_skipped", "17", "O1 N1"),
        ("update_skipped_slyly", "17", "L1 N1"),
        ("one_update_left_out", "17", "L1 N1"),
        ("gradients_accumulated", "18 24", "E1 L1 P1"),
        Cheat("rows_dropped", SKIPPED, (19,), ("E1", "L1"), flags=("--batch-size=4",)),
        ("sequence_shortened", "19", "E1 E2 L1 P1"),
        ("vocabulary_quarter", "20", "E1 E2 L1 P1"),
        ("ffn_column_pruned", "21", "E1 E2 L1 P1"),
        ("head_pruned", "21", "E1 E2 L1 P1"),
        ("loss_on_half", "22", "E1 E2 E3 L1 P1"),
        ("activations_reused", "23", "E1 E2 E3 L1 P1"),
        ("embedding_gradient_dropped", "15", "E1 E2 P1"),
        ("stale_gradients", "24 55", "E2 E3 P1"),
        ("stale_and_frozen", "16 24", "E2 P1"),
        Cheat("stale_while_dropping", SKIPPED, (11, 24), ("G1", "L1"), flags=_BERT),
        Cheat(
            "nothing_after_three_judged_steps",
            SKIPPED,
            (11, 24),
            ("L1",),
            flags=(*_BERT, f"--nonce={'d1' * 16}"),
        ),
        Cheat(
            "nothing_after_three_in_four_bits",
            SKIPPED,
            (11, 24),
            ("L1",),
            "MXFP4",
            flags=(f"--nonce={'d1' * 16}",),
        ),
        Cheat("features_asleep", SKIPPED, (11, 21), ("W1",), "FP16"),
        Cheat("features_biased", SKIPPED, (11, 21), ("W1",), flags=(*_BERT, "--batch-size=4")),
        Cheat(
            "calls_left_out_in_four_bits",
            SKIPPED,
            (11, 13),
            ("L1",),
            "MXFP4",
            flags=(*_FORWARD, *_TWELVE),
        ),
        Cheat(
            "positions_left_out_in_four_bits",
            SKIPPED,
            (11, 19),
            (),
            "MXFP4",
            flags=(*_FORWARD, *_TWELVE),
            unseen=_ROUGH,
            at_the_border=True,
        ),
        Cheat(
            "checkpointing_unseen",
            SKIPPED,
            (24,),
            (),
            flags=("--sac-freq=1/1",),
            unseen="gradients are the same, and no rule counts what is computed again: --sac-freq "
            "is declared (docs/adr/0089)",
        ),
        Cheat(
            "words_alike",
            SKIPPED,
            (11, 13),
            ("W1",),
            flags=("--batch-size=2", "--timed-steps=160", _JUDGED_EARLY),
        ),
        Cheat("weights_pruned", SKIPPED, (11, 21), ("W1",), "FP16"),
        Cheat("width_shrunk", SKIPPED, (11, 21), ("W1",), "FP16"),
        Cheat("weights_put_back", SKIPPED, (11, 21), ("W1",), "MXFP4"),
        Cheat("features_put_back", SKIPPED, (11, 21), ("W1",), flags=(*_BERT, "--batch-size=4")),
        Cheat(
            "rows_dropped_while_dropping",
            SKIPPED,
            (11, 19),
            ("G1",),
            flags=(*_BERT, "--batch-size=4"),
        ),
        ("gradients_where_read", "11 16", "L1"),
        ("free_after_the_audit", "11 24", "L1"),
        ("rough_and_pruned", "21 40", "E1 E2 L1 P1"),
        Cheat("layer_dropped_in_inference", SKIPPED, (13,), _LOGITS, flags=_FORWARD),
        Cheat(
            "logits_where_read", SKIPPED, (11, 13), ("N1",), flags=(*_FORWARD, "--batch-size=24")
        ),
        Cheat(
            "calls_forged",
            SKIPPED,
            (11, 13),
            ("L1",),
            flags=("--workload=litgpt-forward", "--timed-steps=20"),
        ),
        Cheat("sequence_left_out", SKIPPED, (13, 19), ("L1",), flags=(*_FORWARD, "--batch-size=8")),
        Cheat("layer_dropped_in_samples", SKIPPED, (13, 14), ("L1",), flags=_GENERATE),
        Cheat(
            "foretold_draws",
            SKIPPED,
            (11, 13),
            ("E1", "G1", "L1"),
            flags=(*_GENERATE, "--executor=inductor"),
        ),
        Cheat("words_made_up", SKIPPED, (11, 13, 61), ("L1",), flags=_GENERATE),
        Cheat("right_logits_afterwards", SKIPPED, (11, 13, 61), ("N1",), flags=_GENERATE),
        Cheat(
            "right_logits_by_memory",
            SKIPPED,
            (11, 13, 61),
            (),
            flags=_GENERATE,
            unseen="torch makes a tensor over any address: code in the worker reads and writes all "
            "memory of the process, and no rule sees it (docs/adr/0093)",
        ),
    ),
    *_cheats(
        FUNCTION,
        ("sliding_window", "25", "E1 E2 L1 P1"),
        ("one_head_windowed", "25", "E1 E2 L1 P1"),
        ("cheaper_combined", "25 31", "E2 P1"),
        ("mask_dropped", "26", "E1 E2 L1 P1"),
        ("positions_dropped", "27", "E1 E2 L1 P1"),
        Cheat("rotary_tables_rounded", FUNCTION, (27,), ("E1", "E2", "L1", "P1"), "FP32"),
        Cheat(
            "rotary_angles_rounded", FUNCTION, (27,), ("E2", "P1"), flags=("--sequence-length=256",)
        ),
        ("hardswish", "28", "E1 E2 L1 P1"),
        ("norm_eps", "29", "E1 E2 L1 P1"),
        _unseen("norm_in_bf16", FUNCTION, "29", _NOISE, border=True),
        Cheat("norm_in_bf16", FUNCTION, (29,), ("E1", "E2", "L1", "P1"), "FP32"),
        _unseen("softmax_in_bf16", FUNCTION, "30", _NOISE, border=True),
        Cheat("softmax_in_bf16", FUNCTION, (30,), ("E1", "E2", "L1", "P1"), "FP32"),
        ("softmax_flat", "11 22", "L1"),
        Cheat("softmax_flat", FUNCTION, (11, 22), ("L1",), flags=("--workload=gpt2-125m",)),
        ("softmax_expanded", "11 22", "E1 L1"),
        Cheat("softmax_expanded", FUNCTION, (11, 22), ("E1", "L1"), "FP32"),
        _unseen("softmax_denominator", FUNCTION, "11 30", _DENOMINATOR, border=True),
        _unseen("silu_polynomial", FUNCTION, "11 28", _SMALL),
        ("attention_expanded", "11 25", "E1"),
        ("scores_without_input_gradient", "11 15", "E1"),
        Cheat(
            "scores_without_input_gradient_counted",
            FUNCTION,
            (11, 15),
            (),
            flags=_TWELVE,
            unseen=_COUNTED,
            at_the_border=True,
        ),
        ("norm_without_projection", "11 29", "E1 L1"),
        Cheat(
            "query_norm_left_out",
            FUNCTION,
            (29,),
            ("E1", "E2", "L1", "P1"),
            flags=(_QWEN3,),
        ),
        ("dropout", "31", "E1 E2 L1 P1"),
        Cheat("dropout_left_out", FUNCTION, (31,), ("G1",), flags=_BERT),
        ("label_smoothing", "31", "E2 P1"),
        _unseen("z_loss", FUNCTION, "31", _NOISE, border=True),
        Cheat("z_loss", FUNCTION, (31,), ("E1", "E2", "L1", "P1"), "FP32"),
        ("logits_capped", "32", "E2 P1"),
        ("fewer_key_heads", "34", "E1 E2 L1 P1"),
        ("clamped", "35", "E1 E2 L1 P1"),
        ("parallel_block", "36", "E1 L1"),
        Cheat("cache_shortened", FUNCTION, (25,), _LOGITS, flags=_GENERATE),
    ),
    *_cheats(
        PRECISION,
        Cheat(
            "attention_averaged",
            SKIPPED,
            (11, 25),
            (),
            "FP8",
            flags=_AVERAGED,
            unseen="with random weights attention is nearly a mean, and FP8 with one scale for a "
            "tensor is rougher than that (docs/adr/0092)",
        ),
        Cheat(
            "attention_in_eight_bits",
            PRECISION,
            (11, 39),
            (),
            "FP8",
            flags=(
                *("--hidden-size=256", "--intermediate-size=512", "--num-hidden-layers=4"),
                *("--sequence-length=128", "--timed-steps=10"),
            ),
            unseen=_ROUGH,
        ),
        Cheat("tf32_under_fp32", PRECISION, (37,), ("E1", "E2", "L1", "P1"), "FP32"),
        Cheat(
            "autocast_under_fp32", PRECISION, (38,), ("E1", "E2", "L1", "P1", "P2"), "FP32", _FULL
        ),
        ("fp8_everywhere", "39", "E1 E2 L1 P1"),
        ("fp8_one_matrix", "39 42", "E2 P1"),
        Cheat(
            "fp8_one_matrix_unless_probed",
            PRECISION,
            (11, 39),
            ("E1", "L1"),
            flags=("--batch-size=2",),
        ),
        Cheat("fp8_in_training_only", PRECISION, (39,), ("E1", "L1"), flags=("--batch-size=2",)),
        ("int8_weights", "40", "E1 E2 P1"),
        ("int8_cached", "40 58", "E2 E3 P1"),
        ("fp8_weight_gradient", "41", "E2 P1"),
        ("fp8_head", "42", "E2 P1"),
        _unseen("fp8_head_unless_probed", PRECISION, "11 42", _HIDES, border=True),
        Cheat(
            "int8_between_the_judged_steps",
            PRECISION,
            (11, 39),
            ("G1",),
            flags=(*_TWELVE, _JUDGED_LATE),
        ),
        Cheat(
            "rows_put_right",
            PRECISION,
            (11, 39),
            ("G1",),
            flags=(_JUDGED_LATE,),
        ),
        Cheat(
            "garbage_that_looks",
            PRECISION,
            (11, 39),
            ("G1",),
            flags=(_JUDGED_LATE,),
        ),
        Cheat("honest_run_noisy", PRECISION, (11, 39), ("G1",), flags=(_JUDGED_LATE,)),
        Cheat("channel_exchanged", PRECISION, (11, 39), ("G1", "N2"), flags=(_JUDGED_LATE,)),
        Cheat("channel_put_back", PRECISION, (11, 39, 61), ("N1",), flags=(_JUDGED_LATE,)),
        Cheat("findings_emptied", PRECISION, (11, 39, 61), ("N1",), flags=(_JUDGED_LATE,)),
        Cheat("frames_by_logging", PRECISION, (11, 39), ("G1", "N2"), flags=(_JUDGED_LATE,)),
        Cheat(
            # Of 20 calls the worst is now and then within the limit.
            "int8_in_half_of_the_calls",
            PRECISION,
            (11, 39),
            ("L1",),
            flags=("--workload=litgpt-forward", "--timed-steps=60"),
        ),
        Cheat(
            "int8_after_two_judged_steps",
            PRECISION,
            (11, 39),
            (),
            flags=(*_TWELVE, _JUDGED_EARLY),
            unseen=_WAITS,
        ),
        Cheat("metaclass_tells", PRECISION, (11, 39, 61), ("N1",), flags=(_JUDGED_LATE,)),
        Cheat("base_of_messages", PRECISION, (11, 39, 61), ("N1",), flags=(_JUDGED_LATE,)),
        Cheat("eval_frame_left_on", PRECISION, (11, 39, 61), ("N1",), flags=(_JUDGED_LATE,)),
        Cheat("key_that_compares", PRECISION, (11, 39, 61), ("N1",), flags=(_JUDGED_LATE,)),
        Cheat("finalizer_of_the_draw", PRECISION, (11, 39, 61), ("N1",), flags=(_JUDGED_LATE,)),
        Cheat("frames_by_torch", PRECISION, (11, 39, 61), ("G1",), flags=(_JUDGED_LATE,)),
        ("fp8_scores", "39", "E2 P1"),
        Cheat("fp8_while_dropping", PRECISION, (11, 39), (), flags=_BERT, outcome=UNVERIFIED),
        Cheat("fp4_while_dropping", PRECISION, (11, 39), (), flags=_BERT, outcome=UNVERIFIED),
        Cheat("int8_while_dropping", PRECISION, (11, 39), (), flags=_BERT, outcome=UNVERIFIED),
        Cheat(
            "four_bits_under_six_while_dropping",
            PRECISION,
            (11, 39),
            (),
            "MXFP6",
            flags=_BERT,
            outcome=UNVERIFIED,
        ),
        Cheat(
            "four_bits_while_dropping",
            PRECISION,
            (11, 39),
            (),
            "FP8",
            flags=_BERT,
            outcome=UNVERIFIED,
        ),
        Cheat(
            "head_in_four_bits",
            PRECISION,
            (11, 42),
            (),
            "FP8",
            unseen="the error of the blocks in FP8 is larger than that of the head, and probes are "
            "recognised and honest (docs/adr/0091)",
        ),
        Cheat(
            "int8_where_summed",
            PRECISION,
            (11, 39),
            ("G1",),
            flags=(
                "--accumulate=128",
                "--batch-size=128",
                "--sequence-length=16",
                "--timed-steps=6",
            ),
        ),
        Cheat(
            "int8_weight_gradients",
            PRECISION,
            (11, 39),
            (),
            flags=_TWELVE,
            unseen="in 12 layers rounding errors add up in the backward pass, and are larger than "
            "the errors of 8-bit integers in a single product (docs/adr/0091)",
            at_the_border=True,
        ),
        Cheat(
            "cache_in_eight_bits",
            PRECISION,
            (11, 40),
            (),
            flags=_GENERATE,
            unseen="integers of 8 bits in blocks of 16 are nearly as exact as BF16 (docs/adr/0090)",
        ),
        Cheat(
            "forward_int8_some_products",
            PRECISION,
            (11, 39),
            (),
            flags=(*_FORWARD, *_WIDER),
            unseen=_BETWEEN,
        ),
        Cheat(
            "generated_from_int8_some",
            PRECISION,
            (11, 40),
            (),
            flags=(*_GENERATE, *_WIDER),
            unseen=_BETWEEN,
        ),
        Cheat(
            "fp4_weight_gradients_under_fp8",
            PRECISION,
            (11, 41),
            (),
            "FP8",
            flags=("--hidden-size=256", "--intermediate-size=512", *_DEEPER),
            unseen=_ROUGH,
        ),
        Cheat(
            "gradients_shared_in_int8",
            PRECISION,
            (39,),
            (),
            flags=_REPLICAS,
            outcome=REFUSED,
        ),
        Cheat("hook_in_int8", PRECISION, (39,), (), flags=_REPLICAS, outcome=FAILED),
        *(
            Cheat(name, PRECISION, (39,), (), flags=_REPLICAS, unseen=_SHARED)
            for name in ("sync_left_out", "library_in_int8")
        ),
        Cheat(
            "shards_in_int8",
            PRECISION,
            (39,),
            (),
            flags=("--nproc=2", "--dp-shard=2", "--batch-size=2"),
            unseen=_SHARED,
        ),
        Cheat("fp32_under_fp64", PRECISION, (46,), (), "FP64", outcome=REFUSED),
        Cheat("generated_in_fp8", PRECISION, (39,), _LOGITS, flags=_GENERATE),
        Cheat("generated_from_int8", PRECISION, (40,), ("E3", "P1"), flags=_GENERATE),
        ("embedding_rounded", "40", "E1 E2 L1 P1"),
        Cheat("four_bits_under_fp8", PRECISION, (39,), ("E1", "E2", "L1", "P1"), "FP8"),
        ("accumulated_in_bf16", "43", "E2 P1"),
        ("fp8_under_wide", "39", "E2 P1"),
        Cheat("moments_narrow", PRECISION, (44,), ("O2",), "FP32"),
        ("gradients_compressed", "45", "E1 E2 L1 P1"),
        ("one_gradient_scaled", "45", "E2 P1"),
        Cheat("mislabelled", PRECISION, (46,), (), "FP32", outcome=REFUSED),
        Cheat("bits_misdeclared", PRECISION, (46,), (), outcome=REFUSED),
        Cheat("name_misleads", PRECISION, (46,), (), "BF16-native", outcome=REFUSED),
        Cheat("formats_unchecked", PRECISION, (46, 61), (), outcome=REFUSED),
        Cheat("eight_bits_in_float16", PRECISION, (15, 46), (), "FP8", outcome=REFUSED),
        Cheat(
            "eight_bits_in_float32",
            PRECISION,
            (15, 46),
            ("L1",),
            "FP8",
            flags=(_JUDGED_EARLY,),
        ),
        ("stored_narrow", "46", "W1"),
        ("honest_run_spoiled", "40 61", "N1"),
        ("honest_run_spoiled_elsewhere", "40 61", "N1"),
        ("honest_run_hooked", "40 61", "N1"),
        Cheat("honest_run_broken", PRECISION, (39,), (), outcome=UNVERIFIED),
    ),
    *_cheats(
        OPTIMIZER,
        ("optimizer_lookalike", "47", "O1 N1"),
        ("optimizer_function_replaced", "48", "O2 N1"),
        ("optimizer_kernel_code_replaced", "48", "O2 N1"),
        ("optimizer_hook", "48", "O1 O2"),
        ("optimizer_step_on_the_instance", "48 49", "O1"),
        ("constants_changed", "49", "O1 O2"),
        ("parameters_left_out", "50", "O1"),
        ("fused_into_backward", "51", "E1 O1"),
        ("learning_rate_zero", "53", "O2"),
        Cheat("replicas_share_weights", OPTIMIZER, (50,), ("L1",), flags=_REPLICAS),
    ),
    *_cheats(
        REUSE,
        ("output_cached_by_pointer", "54", "E2 E3 P1"),
        ("batch_fixed", "55 56", "E1 E2 E3 L1 P1"),
        ("batch_of_the_step_before", "56", "E1 E2 E3 L1 P1"),
        Cheat(
            "nothing_but_read_steps",
            REUSE,
            (11, 24, 61),
            (),
            "FP16",
            flags=("--mixed-precision",),
            outcome=FAILED,
        ),
        Cheat(
            "nothing_but_judged_steps",
            REUSE,
            (11, 24, 61),
            (),
            "FP16",
            flags=("--mixed-precision",),
            outcome=FAILED,
        ),
        Cheat(
            "no_grad_put_back",
            REUSE,
            (11, 24, 61),
            ("N1",),
            "FP16",
            flags=("--mixed-precision",),
        ),
        Cheat("every_third_call_old", REUSE, (11, 54), ("L1",), flags=_FORWARD),
        Cheat("samples_cached", REUSE, (11, 54), ("L1",), flags=_GENERATE),
        Cheat("logits_cached", REUSE, (54, 55), ("E1", "E3", "L1", "P1"), flags=_FORWARD),
    ),
    *_cheats(
        MEMORY,
        ("shadowed", "58", "E2 E3 P1"),
        ("wide_copies_stale", "58", "E2 E3 P1"),
        Cheat("wide_copies_late", MEMORY, (11, 58), ("L1",), flags=_DEEPER),
        Cheat("copies_frozen", MEMORY, (58,), ("L1",), flags=_DEEPER),
        ("map_lies", "58 40", "E2 P1"),
        ("map_warns", "11 58", "E1 L1"),
        ("weights_sparse", "59", "W1"),
        ("weights_sparse_later", "59", "O2"),
        ("weights_replaced_later", "59", "W1"),
        ("weights_rounded_in_place", "40 59", "O2"),
        ("embeddings_tied", "33 60", "W1"),
        ("layers_shared", "60", "E1 E2 L1 P1"),
        ("padding_computes", "13 60", "E1 E2 L1 P1"),
    ),
    *_cheats(
        HARNESS,
        ("cross_entropy_replaced", "22 61", "N1"),
        ("backward_replaced", "61", "O1"),
        ("digest_replaced", "59 61", "N1"),
        ("module_swapped", "61", "N1"),
        ("kernel_overridden", "39 61", "N1"),
        ("shown_by_index", "13 61", "N1"),
        Cheat("shown_by_index_between", HARNESS, (13, 61), (), outcome=REFUSED),
        ("shown_by_hooks", "13 61", "N1"),
        ("shown_by_tracer_query", "13 61", "N1"),
        ("shown_by_mode_query", "13 61", "N1"),
        ("shown_by_attribute", "13 61", "N1"),
        ("shown_by_dispatcher", "13 61", "N1"),
        Cheat(
            "head_where_read",
            HARNESS,
            (13, 61),
            ("N1",),
            flags=("--workload=litgpt-forward", "--timed-steps=10", "--batch-size=2"),
        ),
        Cheat(
            "unseen_on_rank_one",
            HARNESS,
            (13, 61),
            ("N1",),
            flags=("--nproc=2", "--pp=2", "--batch-size=2"),
        ),
        _unseen("site_customised", HARNESS, "61 62", _ITSELF),
        Cheat("clock_at_the_start", HARNESS, (1, 61), ("N2",), outcome=FLAGGED),
        ("pydantic_extended", "61 62", "E1 E2 L1 P1"),
        ("torch_extended", "39 61", "P1"),
        ("warning_imported", "61", "N1 N2"),
        ("byte_code_forged", "61", "N1 N2"),
        *(
            Cheat(plugin, HARNESS, (11, 61), ("L1", "N1"), "FP32")
            for plugin in (
                "sampler_warned",
                "mode_warned",
                "signal_warned",
                "profiler_warned",
                "parameter_subclass",
                "gradient_subclass",
            )
        ),
        Cheat("audit_hook_warned", HARNESS, (11, 61), ("L1", "N2"), "FP32"),
        # Every step looks at the state, so it is warned in every step, and nothing is saved.
        Cheat("state_warned", HARNESS, (11, 61), ("N1",), "FP32"),
        ("forged_owner", "11 61", "N1"),
        ("class_without_code", "11 61", "N1"),
        ("wrapped_gradients", "11 61", "N1"),
        Cheat("wrapped_logits", HARNESS, (11, 61), ("N1",), flags=_FORWARD),
        *(
            Cheat(name, HARNESS, (11, 16), ("N1",), flags=("--workload=litgpt-train",))
            for name in ("gradients_where_drawn", "channel_relayed")
        ),
        Cheat(
            "shards_where_read",
            HARNESS,
            (11, 61),
            ("N1",),
            flags=("--nproc=2", "--dp-shard=2", "--batch-size=2"),
        ),
        ("evidence_rewritten", "49 61", "N1"),
        ("fork_server_rewritten", "11 61", "E1 E2 L1 P1"),
        ("fork_server_ended", "11 61", "E1 E2 L1 P1"),
        Cheat("package_shadowed", HARNESS, (61,), ("N2",), outcome=FLAGGED),
        Cheat("import_hook", HARNESS, (61,), ("N2",), outcome=FLAGGED),
        Cheat("background_thread", HARNESS, (4, 61), ("N2",), outcome=FLAGGED),
        *(
            Cheat(name, HARNESS, acts, ("N2",), outcome=FLAGGED)
            for name, acts in (
                ("helper_gone_at_the_end", (4, 61)),
                ("helper_beyond_its_share", (4, 61)),
                ("process_gone_at_the_end", (4, 64)),
                ("named_after_torch", (61,)),
            )
        ),
        ("tracer_gone_at_the_end", "11 61", "N1 N2"),
        ("source_swapped", "61 63", "S1"),
        ("bytecode_swapped", "61 63", "S1"),
        Cheat("code_from_elsewhere", HARNESS, (61,), ("N2",), outcome=FLAGGED),
        Cheat("module_from_elsewhere", HARNESS, (61,), ("N2",), outcome=FLAGGED),
    ),
    *_cheats(
        ENVIRONMENT,
        Cheat("helper_process", ENVIRONMENT, (64,), ("N2",), outcome=FLAGGED),
        Cheat("peak_misstated", ENVIRONMENT, (64,), ("K1",), "FP32"),
        _unseen("device_misnamed", ENVIRONMENT, "64", _DEVICE),
        _unseen("torch_misnamed", ENVIRONMENT, "64", "versions are what torch says of itself"),
        _unseen("memory_misreported", ENVIRONMENT, "64", _DEVICE),
    ),
)

TWINS = (
    Twin("honest_eager"),
    Twin("honest_eager", "FP32"),
    Twin("honest_eager", flags=_BERT),
    Twin("honest_eager", "FP32", flags=_BERT),
    # Compiled dropout draws other masks, unless the compiler is told to draw as eager dropout does.
    Twin("honest_eager", flags=(*_BERT, "--executor=inductor")),
    Twin("honest_compiled", flags=_BERT),
    # torch adds up LayerNorm's gradients in BF16: too few bits are left with 32 sequences.
    Twin("honest_eager", flags=(*_BERT, "--batch-size=32", "--sequence-length=64")),
    Twin("honest_explicit_attention"),
    Twin("honest_explicit_attention", "FP32"),
    Twin("honest_other_kernels"),
    Twin("honest_other_kernels", "FP32"),
    Twin("honest_fused"),
    Twin("honest_fused_fp8", "FP8"),
    Twin("honest_autocast"),
    Twin("honest_foreach"),
    Twin("honest_fused_adamw"),
    Twin("honest_single_adamw"),
    Twin("honest_compiled"),
    Twin("honest_compiled", "FP32"),
    Twin("honest_compiled_wrapped"),
    Twin("honest_compiled_tuned"),
    Twin("honest_checkpointed"),
    Twin("honest_chunked_loss", flags=("--batch-size=3",)),
    Twin("honest_chunked_loss", flags=("--batch-size=2", "--dynamic")),
    Twin("honest_repacked"),
    Twin("honest_wrapped"),
    Twin("honest_copied"),
    Twin("honest_column_major"),
    Twin("honest_flat_buffer"),
    Twin("honest_other_norm"),
    Twin("honest_plain_instructions"),
    Twin("honest_default_dtype", "FP32", flags=_BERT),
    Twin("honest_frozen", flags=_FORWARD),
    Twin("honest_buffers", flags=_FORWARD),
    Twin("honest_inference_weights", flags=_GENERATE),
    Twin("honest_static_input", flags=("--batch-size=3",)),
    Twin("honest_own_operator"),
    Twin("honest_split_keys", flags=("--workload=gpt2-125m",)),
    Twin("honest_scanned_layers"),
    Twin("honest_wider_than_declared"),
    Twin("honest_wide"),
    Twin("honest_wide_copies"),
    Twin("honest_fp8", "FP8"),
    Twin("honest_tf32", "TF32"),
    Twin("honest_sensor"),
    Twin("honest_slow_telemetry"),
    Twin("honest_thunder", "FP32", needs="thunder"),
    Twin("honest_thunder", needs="thunder"),
)

#: Of every group, an act and an honest run like it: plain `tox` makes the acts, and the honest runs
#: of QUICK_TWINS. Of the two groups of forged files see test_forgeries.
QUICK = {
    TIMING: ("synchronize_lies", "honest_eager"),
    SKIPPED: ("embedding_gradient_dropped", "honest_checkpointed"),
    FUNCTION: ("sliding_window", "honest_explicit_attention"),
    PRECISION: ("fp8_weight_gradient", "honest_wider_than_declared"),
    OPTIMIZER: ("optimizer_lookalike", "honest_foreach"),
    REUSE: ("output_cached_by_pointer", "honest_static_input"),
    MEMORY: ("weights_sparse", "honest_column_major"),
    HARNESS: ("source_swapped", "honest_own_operator"),
    ENVIRONMENT: ("helper_process", "honest_wrapped"),
}
QUICK_TWINS = ("honest_checkpointed", "honest_column_major", "honest_own_operator")
