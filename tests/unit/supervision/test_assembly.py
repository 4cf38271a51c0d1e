"""A finished run put together: evidence is checked and judged, and what failed is said."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from llmb import workloads
from llmb.config import (
    BF16,
    FP16,
    AuditMode,
    DataSource,
    Mode,
    Parallelism,
    RunConfig,
    WeightsSource,
)
from llmb.errors import LlmbError, RunFailedError
from llmb.measure import host
from llmb.records import audited, evidence, sources
from llmb.records.audited import PristineDigest, PristineEvidence
from llmb.records.canonical import pretty_bytes
from llmb.records.finding import Finding
from llmb.records.reproduction import Original
from llmb.records.run_directory import RunDirectory
from llmb.records.run_record import ClosedComponent, Duration, Rank, Rates, RunRecord
from llmb.records.sources import SourcesDiff
from llmb.reference import pins
from llmb.supervision import assembly
from llmb.supervision.assembly import Raw, Repeat, assemble, waivers, waivers_of
from llmb.supervision.auditing import Examined
from llmb.supervision.negotiation import Negotiated
from llmb.supervision.sizing import Estimate
from llmb.supervision.stream import Streamed
from llmb.wire.messages import Terms
from tests import builders
from tests.unit.builders_runtime import TINY, ceilings, host_load, offer, run_config, timing

CONFIG = run_config(shape_overrides=TINY, timed_steps=50, plugin_options={"threads": 1})
PLUGIN = "llmb/plugin/builtin/cpu.py"


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "compare", lambda: SourcesDiff("no release", None, ""))


def plugin_evidence() -> evidence.PluginEvidence:
    data = (Path(assembly.__file__).parents[2] / PLUGIN).read_bytes()
    return evidence.PluginEvidence(
        files=builders.digests({PLUGIN: data}), closed_components=(), declared_patches=()
    )


def of_the_worker() -> dict[str, bytes]:
    """Return what a worker leaves that says nothing of its gradients."""
    found = {
        evidence.MODEL: evidence.ModelEvidence(before={"a": "1"}, after={"a": "2"}),
        evidence.WEIGHTS: evidence.WeightsEvidence(pristine=(), processed=()),
        evidence.SETTINGS: evidence.SettingsEvidence(before={"x": "1"}, after={"x": "2"}),
        evidence.PLUGIN: plugin_evidence(),
        evidence.OPTIMIZER: builders.optimizer_evidence(timing()),
    }
    return {name: pretty_bytes(value) for name, value in found.items()}


class Run:
    """A run directory with the evidence of one repeat, and what its processes announced."""

    def __init__(self, folder: Path, config: RunConfig = CONFIG) -> None:
        self.directory = RunDirectory(folder, datetime(2026, 1, 1, tzinfo=timezone.utc), "x")
        self.folder = self.directory.evidence_folder(0)
        self.config = config
        self.worker, self.examined = of_the_worker(), dict[str, bytes]()
        self.failure: LlmbError | None = None
        self.failures: tuple[str, ...] = ()

    def assemble(self, **changes: Any) -> RunRecord:
        for name, data in {**self.worker, **self.examined}.items():
            (self.folder / name).write_bytes(data)
        return assemble(self.raw(**changes), self.directory)

    def raw(self, **changes: Any) -> Raw:
        def digests(files: Mapping[str, bytes]) -> dict[str, str]:
            return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}

        streamed = Streamed(timing(), None, digests(self.worker), {}, self.failure)
        values: dict[str, Any] = {
            "run_id": "0" * 32,
            "created": datetime(2026, 1, 1, tzinfo=timezone.utc),
            "config": self.config,
            "workload": workloads.find(self.config.workload, self.config.shape_overrides),
            "negotiated": Negotiated(
                offer(),
                self.config,
                Terms(environment={"ACME": "1"}, warmup_steps=1, facts={}, peak=None),
                (),
                "",
            ),
            "search": None,
            "ceilings": ceilings(1e12, 1e12),
            "repeats": (Repeat(streamed, Examined(digests(self.examined), self.failures)),),
            "load_before": host_load(),
            "load_after": host_load(),
            "processes": {"worker": "forked"},
            "real_s": 480.0,
        }
        return Raw(**{**values, **changes})


Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make runs, and close what they keep open."""
    made: list[Run] = []

    def call(config: RunConfig = CONFIG) -> Run:
        made.append(Run(tmp_path, config))
        return made[-1]

    yield call
    for each in made:
        each.directory.abandon("the test is over")


@pytest.fixture
def run(make: Make) -> Run:
    return make()


def finding(record: RunRecord, rule: str) -> Finding:
    return next(f for f in record.audit.findings if f.id == rule)


def test_a_record_says_what_was_measured_and_the_run_directory_has_its_files(run: Run) -> None:
    record = run.assemble()
    path = run.directory.path
    assert json.loads((path / "audit.json").read_bytes()) == json.loads(pretty_bytes(record.audit))
    assert (path / "system.json").read_bytes() == pretty_bytes(record.system)
    assert (path / "plugin" / PLUGIN).is_file()
    assert "-a: 1\n" in (path / "model.diff").read_text().replace('"', "").replace("a 1", "a: 1")
    assert record.plugin.environment == ("ACME",)
    assert record.precision.how == "not observed"
    assert record.audit.verdict.value == "UNVERIFIED"
    assert finding(record, "O1").status.value == "pass"


# -- evidence that is not what its writer announced -----------------------------------------


@pytest.mark.parametrize("name", list(of_the_worker()))
def test_evidence_that_was_altered_ends_the_run_by_name(run: Run, name: str) -> None:
    raw = run.raw()
    for each, data in run.worker.items():
        (run.folder / each).write_bytes(data + (b" " if each == name else b""))
    with pytest.raises(RunFailedError, match=f"evidence/repeat-0/{name} .* altered"):
        assemble(raw, run.directory)


def test_evidence_of_calibrator_and_verifier_is_held_to_its_digest_too(run: Run) -> None:
    run.examined = {audited.REFERENCE: b"x"}
    raw = run.raw()
    for name, data in {**run.worker, audited.REFERENCE: b"y"}.items():
        (run.folder / name).write_bytes(data)
    with pytest.raises(RunFailedError, match=r"reference\.safetensors .* altered"):
        assemble(raw, run.directory)


def test_evidence_that_is_gone_ends_the_run_by_name(run: Run) -> None:
    raw = run.raw()
    for name, data in run.worker.items():
        if name != evidence.OPTIMIZER:
            (run.folder / name).write_bytes(data)
    with pytest.raises(RunFailedError, match=r"evidence optimizer\.json is missing"):
        assemble(raw, run.directory)


@pytest.mark.parametrize("data", [b"", b"{}", b"garbage"])
def test_evidence_that_is_not_what_llmb_writes_ends_the_run_by_name(run: Run, data: bytes) -> None:
    run.worker[evidence.OPTIMIZER] = data
    with pytest.raises(RunFailedError, match=r"optimizer\.json is not readable"):
        run.assemble()


def test_a_file_that_nobody_announced_is_not_judged(run: Run) -> None:
    (run.folder / evidence.PROGRAM).write_text("a program from nowhere")
    assert finding(run.assemble(), "P2").status.value == "not_observed"


# -- who may write what ---------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(audited.NOT_BY_WORKER))
def test_what_the_worker_says_in_the_calibrators_or_verifiers_name_ends_the_run(
    run: Run, name: str
) -> None:
    """A plugin that makes the verifier fail must not be its own judge."""
    run.worker[name] = b"x"
    run.failures = ("the reference failed: it was altered",)
    with pytest.raises(RunFailedError, match=f"the worker wrote {name}, which is not its to write"):
        run.assemble()


def test_what_the_verifier_says_is_judged(run: Run) -> None:
    digest = PristineDigest(name="w", shape=(1,), dtype="bfloat16", sha256="0" * 64)
    one = evidence.ParameterDigest(
        name="w", shape=(1,), dtype="bfloat16", requires_grad=True, sha256="0" * 64
    )
    weights = evidence.WeightsEvidence(pristine=(), processed=(one,))
    run.worker[evidence.WEIGHTS] = pretty_bytes(weights)
    run.examined = {audited.PRISTINE: pretty_bytes(PristineEvidence(parameters=(digest,)))}
    assert finding(run.assemble(), "W1").status.value == "pass"


# -- an audit that did not come to its end --------------------------------------------------


def test_what_failed_in_the_audit_is_a_warning_said_once(run: Run) -> None:
    run.failures = ("the reference failed: out of memory",)
    record = run.assemble()
    assert record.warnings.count("the reference failed: out of memory") == 1
    raw = run.raw()
    assert len(raw.repeats) == 1


def test_a_worker_that_died_while_being_audited_leaves_an_unverified_record(run: Run) -> None:
    del run.worker[evidence.PLUGIN]
    del run.worker[evidence.OPTIMIZER]
    run.failure = RunFailedError("killed")
    run.failures = ("the worker died while being audited: killed",)
    record = run.assemble()
    assert record.audit.verdict.value == "UNVERIFIED"
    assert finding(record, "O1").status.value == "not_observed"
    assert finding(record, "S1").status.value == "not_observed"
    assert record.plugin.files == ()
    assert "the worker died while being audited: killed" in record.warnings
    assert record.result.tokens_per_second > 0


def test_of_a_plugin_that_left_nothing_it_is_not_said_that_it_has_no_closed_component(
    make: Make,
) -> None:
    assert make(run_config()).assemble().plugin.strict
    other = make(run_config())
    del other.worker[evidence.PLUGIN]
    assert not other.assemble().plugin.strict


def test_a_plugin_file_outside_the_package_is_refused(run: Run) -> None:
    found = plugin_evidence()
    outside = found.files[0].model_copy(update={"path": "../outside.py"})
    changed = found.model_copy(update={"files": (outside,)})
    run.worker[evidence.PLUGIN] = pretty_bytes(changed)
    with pytest.raises(RunFailedError, match="lies outside its package"):
        run.assemble()


# -- classes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ()),
        ({"audit": AuditMode.QUICK}, ()),
        ({"audit": AuditMode.OFF}, ("--audit off",)),
        ({"warmup_steps": 20}, ()),
        ({"warmup_steps": 21}, ("--warmup-steps 21 (official: 20 at most)",)),
        ({"timed_steps": 49}, ("--timed-steps 49 (official: 50)",)),
        ({"shape_overrides": {"hidden_size": 3200}}, ()),
        ({"shape_overrides": {"hidden_size": 64}}, ("--hidden-size 64 (official: 3200)",)),
    ],
)
def test_a_debug_run_says_why_it_is_one(changes: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert waivers(run_config(**changes)) == expected


@pytest.mark.parametrize(
    "changes",
    [{"precision": FP16.model_copy(update={"master_weights": True})}, {"mode": Mode.FORWARD}],
    ids=["scaled", "forward"],
)
def test_fp16_trains_officially_with_a_loss_scale_only(changes: dict[str, Any]) -> None:
    (found,) = waivers(run_config(precision=FP16))
    assert found.startswith("FP16 without a loss scale (official: --mixed-precision;")
    usual = {"precision": FP16, "timed_steps": 50}
    assert waivers(run_config(**{**usual, **changes})) == ()


@pytest.mark.parametrize(
    ("block_ms", "expected"),
    [
        ([1000] * 5, ()),
        ([500] * 5, ("a window of 2.5 s (official: 5; --batch-size 3 --accumulate 3)",)),
        ([960] * 5, ("a window of 4.8 s (official: 5; --timed-steps 58)",)),
    ],
)
def test_a_window_that_is_too_short_makes_a_debug_run(
    block_ms: list[int], expected: tuple[str, ...]
) -> None:
    long = timing([9000] * 5)
    assert waivers_of(run_config(timed_steps=50), [long, timing(block_ms)]) == expected


def test_more_steps_than_the_ledger_compares_make_a_debug_run() -> None:
    told = "--timed-steps 61 (official: 60 at most; --repeats times more)"
    assert waivers(run_config(timed_steps=60)) == ()
    assert waivers(run_config(timed_steps=61)) == (told,)
    assert waivers(run_config(timed_steps=400, mode=Mode.FORWARD)) == ()


def test_a_run_with_the_audit_switched_off_is_a_debug_run_and_unverified(make: Make) -> None:
    run = make(run_config(audit=AuditMode.OFF))
    run.failures = ("the audit was switched off: --audit off",)
    record = run.assemble()
    assert (record.class_, record.waivers) == ("debug", ("--audit off",))
    assert record.audit.verdict.value == "UNVERIFIED"
    assert not record.plugin.strict


def test_a_missing_ceiling_is_said(run: Run) -> None:
    record = run.assemble(ceilings=None)
    assert any("ceiling was not measured" in warning for warning in record.warnings)
    assert finding(record, "K1").status.value == "not_observed"


def test_the_ceiling_of_another_format_is_no_denominator(make: Make) -> None:
    slow = make(run_config(precision=BF16.model_copy(update={"native": False})))
    assert slow.assemble().result.fraction_of_ceiling is None
    assert make().assemble().result.fraction_of_ceiling is not None


def test_products_of_another_format_are_held_against_that_formats_ceiling(make: Make) -> None:
    wide = BF16.model_copy(update={"native": False, "products": "FP32"})
    assert make(run_config(precision=wide)).assemble().result.fraction_of_ceiling is not None


def test_how_each_process_was_started_is_recorded(make: Make) -> None:
    assert make().assemble().processes == {"worker": "forked"}


def test_an_estimate_is_recorded_beside_the_real_time(run: Run) -> None:
    run.assemble()
    raw = run.raw()
    rates = Rates(flops_per_second={"bfloat16": 3e11}, bytes_per_second=2e10)
    estimate = Estimate(450.0, rates, 1.8, within_s=600.0)
    negotiated = replace(raw.negotiated, estimate=estimate)
    found = assemble(replace(raw, negotiated=negotiated), run.directory).duration
    assert found == Duration(
        estimated_s=450.0, real_s=480.0, within_s=600.0, rates=rates, start_s=1.8
    )


def test_a_repetition_says_how_much_more_it_attains_than_the_original(run: Run) -> None:
    half = run.assemble().result.tokens_per_second / 2
    original = Original(bundle_id="b" * 64, run_id="a" * 32, tokens_per_second=half, ci95=None)
    found = run.assemble(original=original).reproduction_of
    assert found is not None
    assert (found.bundle_id, found.difference_percent) == ("b" * 64, pytest.approx(100.0))


def test_two_repeats_keep_their_own_evidence_apart(run: Run) -> None:
    raw = run.raw()
    second = run.directory.evidence_folder(1)
    for name, data in run.worker.items():
        (run.folder / name).write_bytes(data)
        (second / name).write_bytes(data)
    (second / evidence.OPTIMIZER).write_bytes(b"x")
    both = replace(raw, repeats=raw.repeats * 2)
    with pytest.raises(RunFailedError, match=r"evidence/repeat-1/optimizer\.json .* altered"):
        assemble(both, run.directory)


# -- what a record says of the user and the machine ------------------------------------------

DATA = DataSource(
    path="/home/somebody/corpus",
    kind="text",
    tokenizer="/home/somebody/tokenizer.json",
    sha256="ab" * 32,
    tokens=10**6,
)
WEIGHTS = WeightsSource(path="/home/somebody/checkpoint", sha256="cd" * 32)


def test_a_record_names_the_users_files_and_not_their_folders(make: Make) -> None:
    record = make(run_config(data=DATA, weights=WEIGHTS)).assemble()
    assert "somebody" not in record.model_dump_json()
    assert record.config.data == DATA.model_copy(
        update={"path": "corpus", "tokenizer": "tokenizer.json"}
    )
    assert record.config.weights == WEIGHTS.model_copy(update={"path": "checkpoint"})
    assert record.workload.tokens == "data abababababab"


@pytest.mark.parametrize("tokenizer", [None, "bytes"])
def test_a_tokenizer_that_is_no_file_keeps_its_name(make: Make, tokenizer: str | None) -> None:
    data = DATA.model_copy(update={"tokenizer": tokenizer})
    record = make(run_config(data=data)).assemble()
    assert record.config.data is not None
    assert record.config.data.tokenizer == tokenizer


def test_loads_before_and_after_are_told_apart_and_the_time_is_utc(run: Run) -> None:
    record = run.assemble(load_before=host_load(load_1min=1.0), load_after=host_load(load_1min=2.0))
    assert record.system.load_before.load_1min == 1.0
    assert record.system.load_after.load_1min == 2.0
    assert record.created_utc == "2026-01-01T00:00:00Z"
    assert record.run_id == "0" * 32


def test_a_record_has_the_plugins_variables_in_order_and_its_options(run: Run) -> None:
    raw = run.raw()
    terms = raw.negotiated.terms.model_copy(update={"environment": {"B": "1", "A": "2"}})
    run.assemble()
    found = assemble(replace(raw, negotiated=replace(raw.negotiated, terms=terms)), run.directory)
    assert found.plugin.environment == ("A", "B")
    assert found.plugin.options == {"threads": 1}
    assert (found.plugin.name, found.plugin.version) == ("cpu", "0.1.0")


def test_a_debug_run_is_never_strict(run: Run) -> None:
    record = run.assemble()
    assert (record.class_, record.plugin.strict) == ("debug", False)


def test_a_plugin_with_a_closed_component_is_not_strict(make: Make) -> None:
    closed = make(run_config())
    component = ClosedComponent(
        name="lib.so",
        version="1",
        sha256="0" * 64,
        bytes=1,
        where_to_get="vendor",
        licence="own",
    )
    found = plugin_evidence().model_copy(update={"closed_components": (component,)})
    closed.worker[evidence.PLUGIN] = pretty_bytes(found)
    record = closed.assemble()
    assert not record.plugin.strict
    assert record.plugin.closed_components == (component,)


# -- ranks ------------------------------------------------------------------------------------


def ranks_evidence(*hosts: str) -> bytes:
    fences = (*timing().fence_ns, 10**12, 2 * 10**12)
    ranks = tuple(
        evidence.RankEvidence(
            rank=number,
            host=host,
            device=f"cpu:{number}",
            peak_memory_bytes=100 + number,
            fence_ns=fences,
            alone_s=1.0 + number,
        )
        for number, host in enumerate(hosts)
    )
    return pretty_bytes(evidence.RanksEvidence(ranks=ranks, collectives=()))


PAIR = CONFIG.model_copy(update={"parallelism": Parallelism(dp_replicate=2)})


@pytest.mark.parametrize(("far", "nodes", "each"), [(False, 1, 2), (True, 2, 1)])
def test_ranks_are_as_their_own_workers_saw_them_until_stop(
    make: Make, far: bool, nodes: int, each: int
) -> None:
    here = host.host_digest()
    run = make(PAIR)
    run.worker[evidence.RANKS] = ranks_evidence(here, "elsewhere" if far else here)
    topology = run.assemble().topology
    assert (topology.nodes, topology.devices_per_node, topology.world_size) == (nodes, each, 2)
    first, second = topology.ranks
    assert (first.rank, first.device, first.alone_s) == (0, "cpu", 1.0)
    assert first.peak_memory_bytes == timing().peak_memory_bytes
    assert (second.rank, second.device, second.alone_s) == (1, "cpu:1", 2.0)
    assert second.peak_memory_bytes == 101
    assert first.fence_ns == second.fence_ns == timing().fence_ns


def test_ranks_of_which_nothing_was_seen_are_listed_without_a_place(make: Make) -> None:
    topology = make(PAIR).assemble().topology
    assert (topology.nodes, topology.devices_per_node) == (1, 2)
    assert topology.ranks[1] == Rank(
        rank=1, host="", device="", peak_memory_bytes=None, fence_ns=()
    )
    assert topology.ranks[0].alone_s is None


# -- what is judged ---------------------------------------------------------------------------


def test_a_run_is_judged_by_what_was_measured(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def judge(files: Any, facts: Any) -> Any:
        seen.append(facts)
        return right(files, facts)

    right = assembly.judge
    monkeypatch.setattr(assembly, "judge", judge)
    run = make(CONFIG.model_copy(update={"parallelism": Parallelism(dp_replicate=2)}))
    record = run.assemble()
    (facts,) = seen
    assert (facts.precision, facts.parallelism.world_size, facts.is_debug) == (BF16, 2, True)
    assert tuple(facts.repeats) == record.timing.repeats
    assert (facts.workload, facts.system) == (record.workload, record.system)
    assert (facts.ceilings, facts.peak_flops) == (record.ceilings, None)
    assert (facts.variables, facts.patches) == (("ACME",), record.plugin.declared_patches)
    assert (facts.reference, facts.pinned) == (pins.actual_digests(), pins.pinned_digests())
