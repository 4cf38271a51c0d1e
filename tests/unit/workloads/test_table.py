"""The master table: every size of the source documents, held to what was counted in their code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from llmb.families import family_of
from llmb.reference.models import model_of
from llmb.reference.shapes import UngatedLlamaShape
from llmb.workloads import LADDER, WORKLOADS, find, published
from llmb.workloads.arithmetic import gemms, parameter_count
from llmb.workloads.conventions import CONVENTIONS, megatron

#: Parameters of each workload, counted in the originals' own modules or by their closed form.
PARAMETERS = {
    "llama-1.4b": 1_433_680_000,
    "llama-410m": 409_640_000,
    "llama-128m": 128_020_000,
    "llama-45m": 44_810_000,
    "gpt-bench-117b": 116_619_239_424,
    "gpt-bench-175b": 174_606_409_728,
    "alcf-1t": 1_238_542_344_192,
    "alcf-1t-readme": 995_478_418_704,
    "alcf-1t-readme-swiglu": 1_321_023_517_968,
    "alcf-1t-4l": 40_240_373_760,
    "alcf-7b": 6_738_415_616,
    "nanotron-llama2-7b": 6_738_415_616,
    "nemo-bert-base": 137_030_658,
    "nemo-bert-base-2048": 137_030_658,
    "nemo-bert-large": 372_113_922,
    "gpt2-125m": 124_475_904,
    "gpt2-350m": 354_871_296,
    "gpt2-774m": 774_090_240,
    "gpt2-1.5b": 1_557_686_400,
    "llama-2-7b": 6_738_415_616,
    "llama-2-7b-proxy": 228_601_856 + 2 * (32000 - 3200) * 4096,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-8b-proxy": 1_268_789_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-70b-proxy": 2_957_008_896,
    "llama-3.1-70b-proxy2": 3_812_663_296,
    "llama-3.1-70b-proxy4": 5_523_972_096,
    "litgpt-forward": 6_738_415_616,
    "litgpt-model-inference": 6_738_415_616,
    "litgpt-generation": 6_738_415_616,
    "litgpt-train": 3_426_473_600,
    "litgpt-fsdp": 3_426_473_600,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
}


def test_every_workload_has_its_count_here() -> None:
    assert PARAMETERS.keys() == WORKLOADS.keys()


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_the_model_on_the_meta_device_has_exactly_the_parameters_of_the_original(
    name: str, count: int
) -> None:
    shape = WORKLOADS[name].shape
    with torch.device("meta"):
        model = model_of(shape)
    assert sum(p.numel() for p in model.parameters()) == count
    assert parameter_count(shape) == count


def test_the_originals_slip_of_a_vocabulary_explains_its_count() -> None:
    slip = replace(WORKLOADS["llama-2-7b"].shape, vocab_size=3200)
    assert parameter_count(slip) == 6_502_486_016


@pytest.mark.parametrize("name", WORKLOADS)
def test_products_are_those_of_the_models_linear_layers_and_its_head(name: str) -> None:
    workload = find(name, {"num_hidden_layers": 2, "hidden_size": 264, "num_attention_heads": 12})
    with torch.device("meta"):
        model = model_of(workload.shape)
    linear: dict[tuple[int, int], int] = {}
    for path, module in model.named_modules():
        # Once a sequence, not once a token.
        if isinstance(module, torch.nn.Linear) and not path.endswith(
            ("pooler.dense", "seq_relationship")
        ):
            key = (module.in_features, module.out_features)
            linear[key] = linear.get(key, 0) + 1
    if family_of(workload.shape).tied:  # the head is the embedding
        key = (workload.shape.hidden_size, workload.shape.vocab_size)
        linear[key] = linear.get(key, 0) + 1
    counted: dict[tuple[int, int], int] = {}
    for gemm in gemms(workload.shape):
        counted[gemm.k, gemm.n] = counted.get((gemm.k, gemm.n), 0) + gemm.count
    assert counted == linear


# -- conventions ----------------------------------------------------------------------------------


def per_token(convention: str, name: str) -> float:
    return CONVENTIONS[convention].per_token(WORKLOADS[name].shape)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_the_documents_own_convention_is_known(workload) -> None:
    assert workload.convention in CONVENTIONS


@pytest.mark.parametrize(
    ("convention", "name", "expected"),
    [
        ("gemm_full", "llama-1.4b", 8_105_164_800),
        ("gemm_full", "nanotron-llama2-7b", 46_084_915_200),
        ("gemm_full", "nemo-bert-base", 864_681_984),
        ("gemm_full", "nemo-bert-base-2048", 1_034_551_296),
        ("gemm_full", "nemo-bert-large", 2_362_441_728),
        ("6n_full", "gpt2-1.5b", 10_289_836_800),
        ("6n_causal", "gpt2-1.5b", 9_817_977_600),
        ("6n_full", "llama-3.1-8b", 54_624_018_432),
        ("6n_causal", "llama-3.1-8b", 51_402_792_960),
        ("6n_full", "llama-3.1-70b-proxy", 18_144_706_560),
        ("6n_causal", "llama-3.1-70b-proxy", 17_943_379_968),
    ],
)
def test_flops_per_token_are_the_originals_own_figures(
    convention: str, name: str, expected: int
) -> None:
    assert per_token(convention, name) == expected


def test_the_1t_documents_work_of_a_device_is_its_own_test_vector() -> None:
    # b = 512 sequences of 2048 tokens over TP 12 and PP 64.
    assert 512 * 2048 * per_token("alcf_mac", "alcf-1t") / (12 * 64) == 3_852_688_743_727_104


def test_the_numerator_of_the_figure_of_merit_is_a_sixth_of_the_multiply_adds() -> None:
    assert 2048 * per_token("alcf_fom", "alcf-1t") == 963_172_185_931_776


def test_true_flops_are_twelve_times_the_figure_of_merit_for_a_two_matrix_feed_forward() -> None:
    # Of 4 d, with no head: what the formula is about.
    heads = {"num_attention_heads": 192, "num_key_value_heads": 192}
    shape = replace(WORKLOADS["alcf-1t-readme"].shape, hidden_size=24576, **heads)
    headless = CONVENTIONS["gemm_full"].per_token(shape) - 6 * 24576 * shape.vocab_size
    assert headless == pytest.approx(12 * CONVENTIONS["alcf_fom"].per_token(shape))


def test_a_recomputed_forward_pass_is_a_third_more() -> None:
    plain, again = (per_token(c, "alcf-7b") for c in ("megatron", "megatron_recompute"))
    assert again == pytest.approx(plain * 4 / 3)


@pytest.mark.parametrize("name", ["alcf-7b", "gpt2-1.5b", "llama-1.4b", "llama-3.1-8b"])
def test_megatron_counts_what_the_full_products_are(name: str) -> None:
    assert per_token("megatron", name) == pytest.approx(per_token("gemm_full", name))


# -- published rows -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table", [t for d in published.documents().values() for t in d.tables], ids=lambda t: t.title
)
def test_a_published_table_is_about_a_workload_and_has_figures_for_its_columns(table) -> None:
    assert table.workload in WORKLOADS
    keys = {column.key for column in table.columns}
    assert all(row.values.keys() <= keys for row in table.rows)
    assert all(len(row.labels) == len(table.labels) for row in table.rows)


def test_every_document_is_published_under_the_name_the_workloads_give_it() -> None:
    documents = {w.document for w in WORKLOADS.values()} - {"llmb"}  # llmb's own sizes
    assert published.documents().keys() == documents


def test_the_ladder_is_the_fixed_model_at_falling_widths() -> None:
    shapes = [WORKLOADS[name].shape for name in LADDER]
    assert [shape.hidden_size for shape in shapes] == [3200, 1600, 800, 400]
    for shape in shapes:
        width = shape.hidden_size
        assert shape.head_dim == 100
        smaller = {"hidden_size": width, "intermediate_size": 2 * width}
        heads = {"num_attention_heads": width // 100, "num_key_value_heads": width // 100}
        assert shape == replace(shapes[0], **smaller, **heads)
    assert len({(w.recipe, w.modes) for w in map(WORKLOADS.get, LADDER) if w}) == 1


def test_nanotrons_tflops_follow_from_its_tokens_per_second_on_all_five_rows() -> None:
    ((_, table),) = published.tables_of("nanotron-llama2-7b")
    flops = per_token("gemm_full", "nanotron-llama2-7b")
    found = [round(r.values["tokens_per_second_per_device"] * flops / 1e12) for r in table.rows]
    assert (
        found
        == [row.values["tflops_per_device"] for row in table.rows]
        == [185, 180, 173, 171, 166]
    )


@pytest.mark.parametrize(
    ("name", "length"),
    [("nemo-bert-base", 512), ("nemo-bert-base-2048", 2048), ("nemo-bert-large", 512)],
)
def test_nemos_tokens_are_its_samples_times_their_length(name: str, length: int) -> None:
    ((_, table),) = published.tables_of(name)
    (row,) = table.rows
    samples, tokens = row.values["samples_per_second"], row.values["tokens_per_second"]
    assert tokens == pytest.approx(samples * length, rel=0.002)
    assert WORKLOADS[name].shape.sequence_length == length


@pytest.mark.parametrize(("devices", "sequences"), [(3, None), (4, 1), (10, None), (12, 3)])
def test_a_mesh_that_does_not_fill_the_devices_has_no_global_batch(
    devices: int, sequences: int | None
) -> None:
    original = WORKLOADS["nanotron-llama2-7b"]
    recipe = replace(original.recipe, micro_batch_size=1, accumulate=1)
    workload = replace(original, tp=4, pp=1, recipe=recipe)
    assert workload.global_batch_size(devices) == sequences


def test_megatrons_count_has_a_third_matrix_only_where_the_feed_forward_is_gated() -> None:
    gated = WORKLOADS["llama-128m"].shape
    plain = UngatedLlamaShape(**vars(gated))
    one, other = (megatron(shape, recompute=False) for shape in (gated, plain))
    assert one - other == 6 * gated.num_hidden_layers * gated.intermediate_size * gated.hidden_size
