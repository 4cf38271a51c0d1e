"""How checks are carried out: in the plugin's process, then as runs; an early end is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmb.config import BF16, FP16
from llmb.errors import RunFailedError, UnavailableError, UsageError
from llmb.plugin.discovery import InstalledPlugin
from llmb.sdk import catalogue, examine
from llmb.sdk.report import CheckError, CheckReport, SkipError
from llmb.supervision.run_phases import Silent
from llmb.wire.messages import CheckBegun, Checked, CheckOrder, Terms
from tests.unit.builders_runtime import offer

PLUGIN = InstalledPlugin("cpu", "llmb.plugin.builtin.cpu", "llmb", "0.1.0")
IN_PROCESS = [check.id for check in catalogue.IN_PROCESS]


class Scene(Silent):
    """A plugin whose probe, checker and runs are made up."""

    def __init__(self) -> None:
        self.offered = offer(precisions=(BF16, FP16))
        self.failure: Exception | None = None
        self.terms: Any = Terms(environment={"ACME": "1"}, warmup_steps=1, facts={}, peak=None)
        self.order: CheckOrder | None = None
        self.started: list[tuple[str, dict[str, str]]] = []
        self.waits: list[float] = []
        self.phases: list[str] = []
        #: After so many messages the checker says nothing more, or dies.
        self.silent_after: int | None = None
        self.dies_after: int | None = None
        self.failing: dict[str, tuple[str, str]] = {}
        self.runs: dict[str, Any] = {}
        self.requests: list[Any] = []

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def probes(self, plugins: Any, request: Any) -> Any:
        scene = self
        scene.requests.append(request)

        class Probes:
            offers = (scene.offered,)
            failures = {} if scene.failure is None else {"cpu": scene.failure}

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def settle(self, plugin: str, config: Any) -> Any:
                if isinstance(scene.terms, Exception):
                    raise scene.terms
                return scene.terms

        return Probes()

    def child(self, module: str, environment: Any, log: Any) -> Any:
        scene = self
        scene.started.append((module, dict(environment)))

        class Child:
            said = 0

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def send(self, order: CheckOrder) -> None:
                scene.order = order
                log.write(b"a word\nits last words\n")

            def receive(self, timeout_s: float) -> Any:
                assert scene.order is not None
                scene.waits.append(timeout_s)
                if self.said == scene.silent_after:
                    return None
                if self.said == scene.dies_after:
                    raise RunFailedError("it was killed")
                at, begun = divmod(self.said, 2)
                self.said += 1
                name = scene.order.checks[at]
                if begun == 0:
                    return CheckBegun(id=name)
                status, message = scene.failing.get(name, ("pass", "seen"))
                return Checked(id=name, status=status, message=message)

        return Child()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()
    monkeypatch.setattr(examine, "Offers", made.probes)
    monkeypatch.setattr(examine, "Child", made.child)
    monkeypatch.setattr(examine.discovery, "find", lambda name: PLUGIN)
    monkeypatch.setattr(examine.runs, "Trials", lambda *given: SimpleNamespace(given=given))
    for check in catalogue.AS_RUNS[1:]:

        def tried(trials: Any, name: str = check.id) -> str:
            outcome = made.runs.get(name, "it ran")
            if isinstance(outcome, Exception):
                raise outcome
            return str(outcome)

        monkeypatch.setattr(examine.runs, check.name, tried)
    return made


def examined(scene: Scene, *only: str, **options: Any) -> CheckReport:
    return examine.examine("cpu", only=only, display=scene, **options)


def statuses(report: CheckReport) -> dict[str, str]:
    return {outcome.id: outcome.status for outcome in report.outcomes}


def test_every_check_is_made_in_order_and_the_report_says_of_what(scene: Scene) -> None:
    report = examined(scene)
    assert list(statuses(report)) == [check.id for check in catalogue.CHECKS]
    assert set(statuses(report).values()) == {"pass"}
    assert (report.plugin, report.distribution, report.device) == ("cpu", "llmb", "cpu")
    assert report.passed
    assert scene.started == [("llmb.sdk.checker", {"ACME": "1"})]
    assert scene.order is not None
    assert (scene.order.precision, scene.order.reason) == (BF16, None)


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (("device.energy",), ["device.energy"]),
        (("hooks.loads", "runs.finish"), ["hooks.loads", "runs.finish"]),
        (("runs",), [check.id for check in catalogue.AS_RUNS]),
    ],
)
def test_only_what_was_asked_for_is_checked(
    scene: Scene, only: tuple[str, ...], names: list[str]
) -> None:
    assert list(statuses(examined(scene, *only))) == names
    assert bool(scene.started) is not names[0].startswith("runs")


def test_a_check_that_is_none_is_refused_with_the_subjects_there_are(scene: Scene) -> None:
    with pytest.raises(UsageError, match=r"no check 'speed': .*hooks, .*runs"):
        examined(scene, "speed")


def test_what_a_check_found_is_told_as_it_was_said(scene: Scene) -> None:
    scene.failing = {"device.energy": ("fail", "it fell"), "device.memory": ("skip", "no meter")}
    report = examined(scene)
    assert not report.passed
    assert report.outcome("device.energy").message == "it fell"
    assert report.outcome("device.memory").status == "skip"
    assert report.count["fail"] == 1
    assert report.outcome("runs.finish").status == "pass", "a failed check ends nothing"


@pytest.mark.parametrize("how", ["silent_after", "dies_after"])
def test_a_check_in_which_the_process_ends_has_failed_and_those_after_it_are_not_reached(
    scene: Scene, how: str
) -> None:
    setattr(scene, how, 7)  # the fourth check has begun
    report = examined(scene, limit_s=5.0)
    found = list(report.outcomes)
    assert [one.status for one in found[:4]] == ["pass"] * 3 + ["fail"]
    words = "within 5 s" if how == "silent_after" else "it was killed"
    assert words in found[3].message
    assert found[3].message.endswith("(its last words)")
    assert found[4].message.startswith(f"not reached: the process had ended in {IN_PROCESS[3]}")
    assert report.outcome("runs.finish").message.startswith("not tried")


def test_the_first_message_may_take_long_and_later_ones_the_limit(scene: Scene) -> None:
    examined(scene, "hooks", limit_s=5.0)
    assert scene.waits[0] == 300.0
    assert set(scene.waits[1:]) == {5.0}


def test_subjects_are_shown_as_they_begin(scene: Scene) -> None:
    examined(scene, "backend", "hooks")
    assert scene.phases == ["asking the plugin", "checking: hooks", "checking: backend"]


def test_a_plugin_without_a_device_is_checked_without_one_and_not_run(scene: Scene) -> None:
    scene.offered = offer(available=False, reason="no driver")
    report = examined(scene)
    assert report.device is None
    assert report.outcome("runs.agree").status == "skip"
    assert report.outcome("runs.finish").message == "no device here: no driver"
    assert scene.order is not None
    assert (scene.order.device, scene.order.reason) == (None, "no driver")


@pytest.mark.parametrize("where", ["failure", "terms"])
def test_a_plugin_that_agrees_on_no_run_fails_that_check(scene: Scene, where: str) -> None:
    setattr(scene, where, UnavailableError("it does not say"))
    report = examined(scene)
    agree = report.outcome("runs.agree")
    assert (agree.status, agree.message) == ("fail", "it does not say")
    assert report.outcome("runs.finish").message == "no run was agreed on"
    assert scene.order is not None
    assert scene.order.reason is None


def test_an_option_that_the_plugin_has_not_is_the_users_mistake(scene: Scene) -> None:
    scene.failure = UsageError("no such option")
    with pytest.raises(UsageError, match="no such option"):
        examined(scene, options={"x": "1"})
    assert scene.requests[0].plugin_options == {"x": "1"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CheckError("wrong"), "fail"),
        (RunFailedError("died"), "fail"),
        (SkipError("no meter"), "skip"),
    ],
)
def test_a_run_that_fails_or_cannot_be_made_is_told(
    scene: Scene, error: Exception, status: str
) -> None:
    scene.runs = {"runs.weights": error}
    found = examined(scene, "runs").outcome("runs.weights")
    assert (found.status, found.message) == (status, str(error))


def test_what_was_agreed_on_is_named(scene: Scene) -> None:
    assert examined(scene, "runs.agree").outcome("runs.agree").message == "cpu, BF16"
    (request,) = scene.requests
    assert (request.batch_size, request.timed_steps, request.plugin) == (2, 20, "cpu")
