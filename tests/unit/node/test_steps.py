"""An examination goes through all its steps; what fails is written down, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb.config import RunConfig, RunRequest
from llmb.errors import NotEnoughMemoryError, RunFailedError, UsageError
from llmb.node import examination, judgement
from llmb.node.plan import NodePlan, Seat
from llmb.node.progress import NodeProgress, read
from llmb.plugin.backend import Peak
from llmb.records.canonical import pretty_bytes
from llmb.records.node_report import NodeDevice, NodeReport
from llmb.supervision.negotiation import Negotiated
from llmb.supervision.run_phases import Silent
from llmb.wire.messages import Terms
from tests.builders import make_record
from tests.unit.builders_runtime import ceilings, offer, run_config

RECORD = make_record(1)
RATE = RECORD.result.tokens_per_second


class Node:
    """A node of fake devices; which runs were started on what is noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: list[tuple[str, tuple[str, ...]]] = []
        self.calibrated: list[tuple[Any, float]] = []
        self.cores: list[Any] = []
        self.limits: list[float] = []
        self.failing: dict[str, BaseException] = {}
        self.torch_error: str | None = None
        self.changed: tuple[str, ...] = ()
        self.peak: Peak | None = None

    def plan(self, count: int = 2, **changes: Any) -> NodePlan:
        config = run_config(**{"batch_size": 8, "accumulate": 1, **changes.pop("config", {})})
        terms = Terms(environment={}, warmup_steps=1, facts={}, peak=self.peak)
        values: dict[str, Any] = {
            "request": RunRequest(),
            "arguments": ("--given=1",),
            "negotiated": Negotiated(offer(), config, terms, (), ""),
            "seats": tuple(
                Seat(NodeDevice(index=i, name=f"dev {i}", description=None), f"x:{i}", (i,))
                for i in range(count)
            ),
            "limits": judgement.FULL,
            "seconds": 600.0,
            "folder": self.folder,
            "submissions": (),
        }
        plan = {**values, **changes}
        plan.setdefault("progress", self.progress(plan["negotiated"].config, plan["seats"]))
        return NodePlan(**plan)

    @staticmethod
    def progress(config: RunConfig, seats: Sequence[Seat]) -> NodeProgress:
        return NodeProgress(
            arguments=("--given=1",),
            options={},
            batch_size=config.batch_size,
            devices=tuple(seat.device for seat in seats),
        )

    def examine(self, count: int = 2, **changes: Any) -> NodeReport:
        return examination.examine(self.plan(count, **changes), Silent())

    @contextmanager
    def run(self, arguments: Any, folder: Path) -> Any:
        name = folder.relative_to(self.folder).as_posix()
        self.runs.append((name, tuple(arguments)))

        def record(limit_s: float, waiting: Callable[[], None]) -> Any:
            self.limits.append(limit_s)
            if name in self.failing:
                raise self.failing.pop(name)
            return folder / "one", RECORD

        yield SimpleNamespace(record=record)

    def calibrate(self, request: Any, seconds: float) -> Any:
        self.calibrated.append((request, seconds))
        if "ceilings" in self.failing:
            raise self.failing.pop("ceilings")
        return ceilings(2e12, 1.0).before

    @contextmanager
    def on_cores(self, cores: Any) -> Any:
        self.cores.append(cores)
        yield

    def doctor(self) -> Any:
        return SimpleNamespace(
            torch=SimpleNamespace(error=self.torch_error),
            llmb=SimpleNamespace(reference_changed=self.changed),
            missing=("numpy is old",),
        )


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(examination, "NodeRun", made.run)
    monkeypatch.setattr(examination, "on_cores", made.on_cores)
    monkeypatch.setattr(examination, "limit_threads", lambda count: None)
    monkeypatch.setattr(examination, "time_collectives", lambda *_: ())
    monkeypatch.setattr(examination.doctor, "examine", made.doctor)
    monkeypatch.setattr(examination.supervisor, "calibrate", made.calibrate)
    return made


def statuses(report: NodeReport) -> dict[str, str]:
    return {step.name: step.status for step in report.steps}


STEPS = ("doctor", "ceilings", "collectives", "alone", "together", "ddp")


def test_every_step_is_made_in_order_and_each_device_runs_alone_and_beside_the_others(
    node: Node,
) -> None:
    report = node.examine()
    assert tuple(statuses(report)) == STEPS
    assert set(statuses(report).values()) == {"done"}
    assert [name for name, _ in node.runs] == [
        "alone/0",
        "alone/1",
        "together/0",
        "together/1",
        "ddp",
    ]
    assert node.cores == [(0,), (1,)] * 3
    assert [one.alone.run for one in report.devices if one.alone] == ["alone/0/one", "alone/1/one"]
    # Two devices of one rate, of which DDP has half.
    assert (report.ddp_efficiency, report.verdict) == (0.5, "no")


def test_an_interrupted_examination_makes_only_the_steps_that_are_left(node: Node) -> None:
    node.failing["together/0"] = KeyboardInterrupt()
    node.failing["alone/1"] = RunFailedError("no more")
    with pytest.raises(KeyboardInterrupt):
        node.examine()
    before = read(node.folder)
    assert [step.status for step in before.steps] == ["done", "done", "done", "failed"]
    node.runs.clear()
    node.calibrated.clear()
    run = node.folder / "alone/0/one"
    run.mkdir(parents=True)
    (run / "record.json").write_bytes(pretty_bytes(RECORD))
    report = node.examine(progress=before)
    assert [name for name, _ in node.runs] == ["together/0", "together/1", "ddp"]
    assert node.calibrated == []
    assert [*statuses(report)] == [*STEPS]
    assert statuses(report)["alone"] == "failed"
    assert report.collectives == before.collectives


def test_an_examination_of_other_devices_is_not_gone_on_with(tmp_path: Path, node: Node) -> None:
    begun = node.plan().progress
    with pytest.raises(UsageError, match="its devices are dev 0, dev 1, and here are dev 0"):
        begun.check_same(node.plan(1).progress.devices, tmp_path)
    older = begun.model_copy(update={"llmb_version": "0.0.1"})
    with pytest.raises(UsageError, match=r"llmb 0\.0\.1 began it"):
        older.check_same(begun.devices, tmp_path)


def test_one_device_is_not_examined_beside_others(node: Node) -> None:
    report = node.examine(1)
    left_out = {name for name, status in statuses(report).items() if status == "left out"}
    assert left_out == {"collectives", "together", "ddp"}
    assert (report.verdict, report.ddp, report.reasons) == ("yes", None, ())


def test_runs_have_the_device_the_size_and_what_was_given(node: Node) -> None:
    node.examine()
    arguments = dict(node.runs)
    assert arguments["alone/1"] == ("--given=1", "--batch-size=8", "--device=x:1")
    assert arguments["ddp"] == ("--given=1", "--batch-size=8", "--nproc=2", "--rank-timeout=60")


def test_a_batch_size_that_was_given_is_given_once(node: Node) -> None:
    node.examine(1, request=RunRequest(batch_size=3))
    assert node.runs[0][1] == ("--given=1", "--device=x:0")


@pytest.mark.parametrize(
    "where", ["alone/0", "alone/1", "together/0", "together/1", "ddp", "ceilings"]
)
def test_what_fails_is_said_and_every_other_step_is_still_made(node: Node, where: str) -> None:
    node.failing = {where: RunFailedError("it broke")}
    report = node.examine()
    failed = [name for name, status in statuses(report).items() if status == "failed"]
    assert failed == [where.partition("/")[0]]
    assert tuple(statuses(report)) == STEPS
    assert report.verdict == "no"
    assert any("it broke" in reason for reason in report.reasons)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"torch_error": "no torch"}, "no torch"), ({"changed": ("llama.py",)}, "llama.py")],
)
def test_a_broken_torch_and_a_changed_reference_are_reasons(
    node: Node, change: dict[str, Any], words: str
) -> None:
    vars(node).update(change)
    (reason,) = node.examine(1).reasons
    assert reason.startswith("doctor: ")
    assert words in reason


def test_what_is_missing_is_a_note_and_no_reason(node: Node) -> None:
    first = node.examine(1).steps[0]
    assert (first.status, first.messages) == ("done", ("numpy is old",))


def test_the_first_device_halves_the_batch_until_it_fits(node: Node) -> None:
    node.failing = {"alone/0": NotEnoughMemoryError("out of memory")}
    report = node.examine(1)
    assert report.batch_size == 4
    assert [arguments[1] for _, arguments in node.runs] == ["--batch-size=8", "--batch-size=4"]
    assert report.verdict == "yes"


def test_a_halved_batch_is_a_multiple_of_its_parts(node: Node) -> None:
    node.failing = {"alone/0": NotEnoughMemoryError("out of memory")}
    report = node.examine(1, config={"batch_size": 12, "accumulate": 4})
    assert report.batch_size == 4


@pytest.mark.parametrize(
    ("changes", "config", "error"),
    [
        ({"request": RunRequest(batch_size=8)}, {}, NotEnoughMemoryError("out of memory")),
        ({}, {"batch_size": 2, "accumulate": 2}, NotEnoughMemoryError("out of memory")),
        ({}, {}, RunFailedError("a cable")),
    ],
    ids=["given", "smallest", "another reason"],
)
def test_a_batch_is_not_halved_where_that_cannot_help(
    node: Node, changes: dict[str, Any], config: dict[str, Any], error: Exception
) -> None:
    node.failing = {"alone/0": error}
    report = node.examine(1, config=config, **changes)
    assert len(node.runs) == 1
    assert statuses(report)["alone"] == "failed"


def test_a_device_after_the_first_has_the_batch_of_the_first_or_fails(node: Node) -> None:
    node.failing = {"alone/1": NotEnoughMemoryError("out of memory")}
    report = node.examine()
    assert (report.batch_size, statuses(report)["alone"]) == (8, "failed")


def test_where_time_is_short_a_device_is_not_run_alone_and_that_is_said(node: Node) -> None:
    report = node.examine(seconds=-1.0)
    alone = report.steps[3]
    assert (alone.name, alone.status) == ("alone", "done")
    assert len(alone.messages) == 2
    assert "was not run alone" in alone.messages[0]
    assert report.ddp_efficiency is not None


def test_one_run_may_take_half_of_what_is_left_and_a_minute_at_least(node: Node) -> None:
    node.examine(1, seconds=600.0)
    assert 250 < node.limits[0] <= 300
    node.examine(1, seconds=10.0)
    assert node.limits[-1:] == [60.0]


@pytest.mark.parametrize(
    ("overrides", "size", "seconds"), [({}, "full", 2.0), ({"hidden_size": 64}, "debug", 0.5)]
)
def test_ceilings_take_as_long_as_the_size_allows(
    node: Node, overrides: dict[str, int], size: str, seconds: float
) -> None:
    node.peak = Peak(flops_per_second=4e12, source="sheet")
    report = node.examine(1, request=RunRequest(shape_overrides=overrides))
    ((request, taken),) = node.calibrated
    assert (report.size, taken) == (size, seconds)
    assert (request.device, request.batch_size) == ("x:0", 8)
    found = report.devices[0].ceiling
    assert found is not None
    assert (found.product_flops_per_second, found.of_datasheet) == (2e12, 0.5)
    assert found.memory_bytes_per_second == 1.0


def test_an_emulated_format_has_no_ceiling_and_that_is_no_fault(node: Node) -> None:
    slow = run_config().precision.model_copy(update={"native": False})
    report = node.examine(1, config={"precision": slow})
    assert node.calibrated == []
    assert report.steps[1].status == "done"
    assert "emulated" in report.steps[1].messages[0]


def test_a_speed_is_that_of_its_record(node: Node) -> None:
    (device,) = node.examine(1).devices
    assert device.alone is not None
    assert device.alone.tokens_per_second == RATE
    assert device.alone.ci95 == RECORD.result.ci95
    assert RECORD.result.mfu is not None
    assert device.alone.of_datasheet == RECORD.result.mfu.value
    assert device.alone.of_ceiling == RECORD.result.fraction_of_ceiling
