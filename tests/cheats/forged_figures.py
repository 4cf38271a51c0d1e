"""Forged figures: ranks and batches that nobody ran, joules, ceilings, steps that nobody made."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

from llmb import workloads
from llmb.measure import metrics, summary
from llmb.records import audited, evidence, references
from llmb.records.run_record import RepeatTiming, RunRecord
from tests import builders
from tests.cheats.corpus import RECORD, TIMING
from tests.cheats.forging import Files, Forgery, Runs, edited, judged_again, record_of, with_record

_FOLDER = "evidence/repeat-0"
_TIMES = 8
#: Steps that `llmb verify --recompute` makes again unless all are asked for.
_QUICK = 3


def ranks_nobody_saw(runs: Runs) -> Files:
    """Eight ranks are claimed, seven of them without a host, and eight times the tokens."""
    return _more_ranks(runs, {"host": "", "device": "", "peak_memory_bytes": None, "fence_ns": ()})


def ranks_invented(runs: Runs) -> Files:
    """The same, with invented evidence of the seven ranks (`ranks.json`)."""
    files = _more_ranks(runs, {})
    ranks = json.loads(files["record.json"])["topology"]["ranks"]
    told = {"ranks": ranks, "collectives": [], "library": "nccl"}
    for n in range(len(record_of(files).timing.repeats)):
        files[evidence.path(n, evidence.RANKS)] = json.dumps(told, indent=1).encode()
    return judged_again(files)


def batch_split(runs: Runs) -> Files:
    """Eight times the batch is claimed, in eight parts of the real size."""

    def edit(data: dict[str, Any]) -> None:
        for name in ("batch_size", "accumulate"):
            data["config"][name] *= _TIMES
        data["workload"]["tokens_per_step"] *= _TIMES

    return judged_again(_derived(edited(runs.honest, edit)))


def slower_repeats_forgotten(runs: Runs) -> Files:
    """Of two repeats the second is left out, and the configuration asks for one."""

    def edit(data: dict[str, Any]) -> None:
        data["config"]["repeats"] = 1
        del data["timing"]["repeats"][1:]

    kept = {n: c for n, c in runs.honest.items() if "repeat-1" not in n}
    return judged_again(_derived(edited(kept, edit)))


def joules_invented(runs: Runs) -> Files:
    """An energy counter is claimed that counted half a joule."""
    files = _derived(runs.honest, lambda data: data.update(energy_start_j=0.0, energy_stop_j=0.5))
    timing = record_of(files).timing
    tokens = record_of(files).workload.tokens_per_step * timing.timed_steps
    energy = {"joules": 0.5, "tokens_per_joule": tokens / 0.5}
    energy |= {"source": "counter", "scope": "node"}
    return edited(files, lambda data: data["result"].update(energy=energy))


def memory_shrunk(runs: Runs) -> Files:
    """The peak of memory is a thousand bytes."""
    return judged_again(_derived(runs.honest, lambda data: data.update(peak_memory_bytes=1000)))


def steps_evened(runs: Runs) -> Files:
    """Between START and STOP every step takes equally long."""

    def edit(data: dict[str, Any]) -> None:
        begin, stamps = data["warmup_steps"], data["step_ns"]
        end = begin + data["timed_steps"]
        first, last = stamps[begin - 1], stamps[end - 1]
        for step in range(begin, end):
            share = (step - begin + 1) / (end - begin)
            stamps[step] = first + int((last - first) * share)

    return judged_again(_derived(runs.honest, edit))


def ceiling_lowered(runs: Runs) -> Files:
    """All products of the ceiling took 1.2 times as long, and the run is nearer to the ceiling."""
    times = 1.2

    def edit(data: dict[str, Any]) -> None:
        for ceiling in (data["ceilings"]["before"], data["ceilings"]["after"]):
            for product in (*ceiling["gemms"], *ceiling["squares"]):
                product["best_s"] *= times
            ceiling["flops_per_second"] /= times
            if ceiling["best_product_flops_per_second"] is not None:
                ceiling["best_product_flops_per_second"] /= times
            ceiling["sustained"] = None

    return judged_again(_derived(edited(runs.honest, edit)))


def executor_renamed(runs: Runs) -> Files:
    """A run of plain PyTorch is called a run of a compiler."""
    return edited(runs.honest, lambda data: data["config"].update(executor="inductor"))


def commitment_invented(runs: Runs) -> Files:
    """After the run somebody commits to the run's seed."""

    def edit(data: dict[str, Any]) -> None:
        data["seed_commitment"] = builders.seed_commitment(data["config"]["seed"])

    return judged_again(edited(runs.honest, edit))


def later_steps_invented(runs: Runs) -> Files:
    """All steps from the fourth on have invented gradients."""
    from safetensors.torch import load, save

    name = f"{_FOLDER}/{audited.LEDGER_VALUES}"
    rows = load(runs.honest[name])[audited.ROWS]
    nonce = record_of(runs.honest).timing.repeats[0].nonce
    rows[_QUICK:] = rows[_QUICK:].roll(1, dims=1)
    told = [struct.pack(f"<{len(row)}f", *row.float().tolist()) for row in rows]
    digests = [hashlib.sha256(one).hexdigest() for one in told]

    def edit(data: dict[str, Any]) -> None:
        if data["nonce"] == nonce:
            data["commitments"][: len(digests)] = digests

    files = _derived(runs.honest | {name: save({audited.ROWS: rows})}, edit)
    return judged_again(files)


def first_rules_claimed(runs: Runs) -> Files:
    """A run claims rules 1, by which little could be observed, and the verdict UNVERIFIED."""

    def edit(data: dict[str, Any]) -> None:
        data["rules_version"] = data["audit"]["rules_version"] = "1"
        data["audit"]["verdict"] = "UNVERIFIED"
        for finding in data["audit"]["findings"]:
            if finding["level"] == "block":
                finding["status"] = "not_observed"

    return edited(runs.honest, edit)


def older_llmb_claimed(runs: Runs) -> Files:
    """A run of today's rules claims llmb 0.1.0, which wrote no further figures."""
    first = next(row for row in references.table().references if row.version == "0.1.0")

    def edit(data: dict[str, Any]) -> None:
        data["llmb_version"], data["reference_digest"] = first.version, first.digest
        data["result"]["metrics"] = []

    return judged_again(edited(runs.honest, edit))


def _more_ranks(runs: Runs, told: dict[str, Any]) -> Files:
    def edit(data: dict[str, Any]) -> None:
        topology = data["topology"]
        for mesh in (data["config"]["parallelism"], topology["parallelism"]):
            mesh["dp_replicate"] = _TIMES
        topology["world_size"] = topology["devices_per_node"] = _TIMES
        (first,) = topology["ranks"]
        others = [{**first, **told, "rank": n} for n in range(1, _TIMES)]
        topology["ranks"] = [first, *others]
        data["workload"]["tokens_per_step"] *= _TIMES

    return judged_again(_derived(edited(runs.honest, edit)))


def _derived(files: Files, edit: Callable[[dict[str, Any]], object] | None = None) -> Files:
    """Edit every repeat, if ``edit`` is given, and derive every figure of the record."""
    record, repeats = record_of(files), list[RepeatTiming]()
    for repeat in record.timing.repeats:
        data = json.loads(repeat.model_dump_json())
        if edit is not None:
            edit(data)
        repeats.append(RepeatTiming.model_validate(data))
    return with_record(files, _with_timing(record, repeats))


def _with_timing(record: RunRecord, repeats: list[RepeatTiming]) -> RunRecord:
    config, tokens = record.config, record.workload.tokens_per_step
    timing = summary.timing_of(repeats, tokens)
    size = record.topology.world_size
    result = summary.result_of(timing, record.workload, size, record.ceilings, None, None)
    named = metrics.metrics_of(config, workloads.of(config), timing, tokens, None)
    follows = {"fence_ns": timing.fence_ns, "peak_memory_bytes": timing.peak_memory_bytes}
    first, *others = record.topology.ranks
    ranks = (first.model_copy(update=follows), *others)
    return record.model_copy(
        update={
            "timing": timing,
            "result": result.model_copy(update={"metrics": named}),
            "topology": record.topology.model_copy(update={"ranks": ranks}),
        }
    )


_BY_RECOMPUTE = "`llmb verify --recompute` refuses it"
_BY_NOBODY = "clocks and counters are the host's own: only a reproduction can"

FORGED_FIGURES = (
    Forgery("ranks_nobody_saw", RECORD, (62, 64), ranks_nobody_saw, "evidence"),
    Forgery("ranks_invented", RECORD, (62, 64), ranks_invented, None, _BY_RECOMPUTE),
    Forgery("batch_split", RECORD, (62, 64), batch_split, None, _BY_RECOMPUTE),
    Forgery(
        "slower_repeats_forgotten",
        TIMING,
        (9,),
        slower_repeats_forgotten,
        None,
        "a run that nobody hands in leaves no trace: only a reproduction shows the usual speed",
    ),
    Forgery("joules_invented", RECORD, (62,), joules_invented, None, _BY_NOBODY),
    Forgery("memory_shrunk", RECORD, (62,), memory_shrunk, None, _BY_NOBODY),
    Forgery("steps_evened", TIMING, (9,), steps_evened, None, _BY_NOBODY),
    Forgery("ceiling_lowered", RECORD, (62,), ceiling_lowered, None, _BY_NOBODY),
    Forgery(
        "executor_renamed",
        RECORD,
        (62,),
        executor_renamed,
        None,
        "marked as *declared*: no evidence depends on the executor",
    ),
    Forgery(
        "commitment_invented",
        RECORD,
        (62,),
        commitment_invented,
        None,
        "`llmb verify` asks the reader to compare with the publication",
    ),
    Forgery(
        "later_steps_invented",
        RECORD,
        (62, 63),
        later_steps_invented,
        None,
        "`llmb verify --recompute full` refuses it; `--recompute` makes three steps, and does not",
    ),
    Forgery("first_rules_claimed", RECORD, (62,), first_rules_claimed, "audit"),
    Forgery("older_llmb_claimed", RECORD, (62,), older_llmb_claimed, "recomputation"),
)
