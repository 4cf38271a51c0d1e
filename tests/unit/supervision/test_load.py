"""What a run of each mode needs in memory: less where less is kept, more where more is made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmb import workloads
from llmb.config import BF16, FP32, AuditMode, Mode, Parallelism, RankAddress, RunRequest
from llmb.errors import NotEnoughMemoryError
from llmb.supervision import selection
from llmb.supervision.memory import Load, needed_bytes
from llmb.workloads.arithmetic import inference_bytes, weight_bytes
from llmb.workloads.memory import MemoryJob, peak_memory
from tests.unit.builders_runtime import offer, run_config

LLAMA = workloads.find("llama-2-7b", {})
GENERATION = workloads.find("litgpt-generation", {})
FORWARD = workloads.find("litgpt-forward", {})


def test_the_load_of_a_run_follows_from_its_configuration() -> None:
    config = run_config(workload="llama-2-7b", sac_freq="3/4")
    assert Load.of(config, LLAMA) == Load(Mode.TRAIN, recomputed=24)
    by_operation = config.model_copy(update={"sac_freq": "op"})
    assert Load.of(by_operation, LLAMA) == Load(Mode.TRAIN, by_operation=True)
    generating = run_config(
        workload="litgpt-generation", mode=Mode.GENERATE, prompt_length=6, new_tokens=200
    )
    assert Load.of(generating, GENERATION) == Load(Mode.GENERATE, 0, cached=206, generated=200)
    without = config.model_copy(update={"audit": AuditMode.OFF})
    bare = Load(Mode.TRAIN, recomputed=24, audited=False)
    assert Load.of(without, LLAMA) == bare
    forward = run_config(workload="litgpt-forward", mode=Mode.FORWARD)
    assert Load.of(forward, FORWARD) == Load(Mode.FORWARD)


@pytest.mark.parametrize("name", ["llama-2-7b", "gpt2-125m", "nemo-bert-base"])
def test_each_block_that_computes_again_needs_less(name: str) -> None:
    shape = workloads.find(name, {}).shape
    layers = shape.num_hidden_layers
    job = MemoryJob(shape, micro_batch=64)
    needs = [peak_memory(replace(job, recomputed=n)).total for n in range(layers + 1)]
    assert needs == sorted(needs, reverse=True)
    state = 4 * weight_bytes(shape, BF16)
    assert state < needs[-1] < needs[1] < needs[0]


def test_without_an_audit_nothing_is_set_aside_for_it() -> None:
    weights = weight_bytes(LLAMA.shape, BF16)
    audited, without = (needed_bytes(LLAMA, BF16, 1, Load(audited=a)) for a in (True, False))
    assert audited - without == weights // 4


def test_sgd_needs_no_memory_for_moments() -> None:
    shape, weights = LLAMA.shape, weight_bytes(LLAMA.shape, BF16)
    with_two, without = (peak_memory(MemoryJob(shape, moments=m)).total for m in (2, 0))
    assert with_two - without == 2 * weights


def test_inference_needs_more_with_every_sequence_token_and_position() -> None:
    shape = GENERATION.shape
    by_batch = [inference_bytes(shape, BF16, size) for size in (1, 2, 8)]
    assert by_batch == sorted({*by_batch})
    assert by_batch[2] == 8 * by_batch[0]
    by_cache = [inference_bytes(shape, BF16, 1, cached, 10) for cached in (16, 17, 400)]
    assert by_cache == sorted({*by_cache})
    by_tokens = [inference_bytes(shape, BF16, 1, 400, new) for new in (2, 3, 200)]
    assert by_tokens == sorted({*by_tokens})
    assert inference_bytes(shape, FP32, 1, 400, 10) == 2 * inference_bytes(shape, BF16, 1, 400, 10)


def test_a_cache_is_keys_and_values_of_every_layer_in_the_key_value_heads_only() -> None:
    shape = workloads.find("llama-3.1-8b", {}).shape  # 8 of them, 128 wide, in 32 layers
    one = inference_bytes(shape, BF16, 1, 101, 2) - inference_bytes(shape, BF16, 1, 100, 2)
    assert one == 2 * 32 * 8 * 128 * 2


def test_a_forward_pass_needs_less_than_training_and_training_more_than_generation() -> None:
    train = needed_bytes(FORWARD, BF16, 4, Load(Mode.TRAIN))
    forward = needed_bytes(FORWARD, BF16, 4, Load(Mode.FORWARD))
    generate = needed_bytes(FORWARD, BF16, 4, Load(Mode.GENERATE, 0, 206, 200))
    weights = weight_bytes(FORWARD.shape, BF16)
    assert weights < forward < train
    assert weights < generate < train
    assert needed_bytes(FORWARD, BF16, 4) == train


def test_what_is_computed_again_makes_a_run_fit() -> None:
    request = RunRequest(workload="llama-2-7b", precision="BF16", batch_size=8)
    plain = selection.resolve(offer(), request, LLAMA)
    every = request.model_copy(update={"sac_freq": "1/1"})
    need = needed_bytes(LLAMA, plain.precision, 8, Load.of(plain, LLAMA))
    small = offer(available_memory_bytes=need - 10**9)
    with pytest.raises(NotEnoughMemoryError, match="needs about"):
        selection.resolve(small, request, LLAMA)
    assert selection.resolve(small, every, LLAMA).sac_freq == "1/1"


def place(of: int) -> RankAddress:
    return RankAddress(
        rank=0, world_size=of, local_rank=0, local_world_size=of, host="localhost", port=1
    )


def need_of(*, accumulate: int = 1, **mesh: int) -> int:
    """Return what each rank needs for a sequence of LLAMA."""
    load = Load(parallelism=Parallelism(**mesh), accumulate=accumulate)
    return needed_bytes(LLAMA, BF16, 1, load)


def test_ranks_that_share_a_model_need_less_each_and_replicas_do_not() -> None:
    alone, weights = need_of(), weight_bytes(LLAMA.shape, BF16)
    assert need_of(dp_replicate=4) == alone + weights
    sharded, sliced = need_of(dp_shard=4), need_of(tp=4)
    assert weights < sliced < sharded < alone
    assert need_of(dp_shard=4, tp=2) < sharded
    assert need_of(tp=4, sequence_parallel=True) < sliced


def test_what_is_kept_gathered_or_not_yet_shared_counts() -> None:
    weights = weight_bytes(LLAMA.shape, BF16)
    again, kept = need_of(dp_shard=4), need_of(dp_shard=4, reshard_after_forward=False)
    assert 0.8 * weights < kept - again < weights
    assert 0.7 * weights < need_of(dp_shard=4, accumulate=2) - again < 1.3 * weights


def test_however_many_share_it_each_rank_makes_the_whole_model_first() -> None:
    assert need_of(dp_shard=1024) > weight_bytes(LLAMA.shape, BF16)


def test_ranks_on_a_hosts_processor_need_its_memory_together() -> None:
    request = RunRequest(
        workload="llama-2-7b",
        precision="BF16",
        batch_size=1,
        mixed_precision=False,
        parallelism=Parallelism(dp_shard=4),
    )
    need = needed_bytes(LLAMA, BF16, 1, Load(parallelism=request.parallelism))
    enough = offer(available_memory_bytes=4 * need)
    assert selection.resolve(enough, request, LLAMA, place(4)).parallelism.dp_shard == 4
    short = offer(available_memory_bytes=4 * need - 1)
    with pytest.raises(NotEnoughMemoryError, match=r"^4 ranks of llama-2-7b .* need about") as said:
        selection.resolve(short, request, LLAMA, place(4))
    assert "start fewer ranks here" in str(said.value)
    # One host of several: its own ranks count.
    assert selection.resolve(short, request, LLAMA, place(2)).batch_size == 1


def test_devices_have_memory_of_their_own_unless_all_ranks_were_sent_to_one() -> None:
    assert selection.sharing(place(4), offer(device="warp")) == 1
    assert selection.sharing(place(4), offer(device="warp:0")) == 4
    assert selection.sharing(None, offer()) == 1
