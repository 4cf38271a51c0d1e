"""What long silences look like, in a log and on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from llmb import clock
from llmb.cli import progress
from llmb.cli.progress import Bar, Live, Plain
from llmb.supervision.forecast import Forecast, ForecastPart
from llmb.supervision.run_phases import Silent
from llmb.supervision.silence import Silence
from llmb.wire.messages import Fence, Phase, Tick

BUSY = Silence("worker", 60.0, 1.98, on_cpu=True, step=0)


class Shown:
    """A display, and what it has written."""

    def __init__(self, kind: type[Live] | type[Plain]) -> None:
        self._file = io.StringIO()
        terminal = kind is Live
        self.display = kind(
            Console(file=self._file, width=200, force_terminal=terminal, no_color=True)
        )
        self.display.phase("starting worker")
        self.display.stream(65, 256, "timing")
        self.display.message(Phase(name="training"))
        self.new()

    def new(self) -> str:
        """Return what was written since the last call."""
        text = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        return text


@pytest.fixture
def plain() -> Shown:
    return Shown(Plain)


@pytest.fixture
def live() -> Shown:
    return Shown(Live)


def test_a_log_says_once_a_minute_which_step_is_computed_and_how_busily(plain: Shown) -> None:
    for quarters in range(4 * 60, 4 * 181):
        plain.display.message(replace(BUSY, since_s=quarters / 4))
    assert plain.new().splitlines() == [
        f"llmb: timing: step 1 of at most 65, running for {minutes} min 00 s, "
        "worker busy on 1.98 cores"
        for minutes in (1, 2, 3)
    ]


def test_a_log_says_nothing_of_moments_without_a_report(plain: Shown) -> None:
    for _ in range(1000):
        plain.display.message(None)
    assert plain.new() == ""


def test_each_silence_is_told_from_its_own_first_minute(plain: Shown) -> None:
    plain.display.message(replace(BUSY, since_s=200.0))
    plain.display.message(Tick(index=0, ns=1))
    plain.display.message(replace(BUSY, since_s=60.0, step=1))
    plain.display.message(Phase(name="writing evidence"))
    plain.display.message(replace(BUSY, since_s=61.0, step=None))
    lines = plain.new().splitlines()
    assert [line.partition(", worker")[0] for line in lines] == [
        "llmb: timing: step 1 of at most 65, running for 3 min 20 s",
        "llmb: timing: first step done",
        "llmb: timing: step 2 of at most 65, running for 1 min 00 s",
        "llmb: timing: writing evidence",
        "llmb: timing: writing evidence, running for 1 min 01 s",
    ]


def test_a_phase_of_the_audit_is_called_by_its_own_name_and_process(plain: Shown) -> None:
    plain.display.phase("computing the reference: step")
    plain.display.message(Silence("verifier", 60.0, 0.97, on_cpu=True))
    plain.display.phase("computing the reference: head")
    plain.display.message(Silence("verifier", 60.0, 0.97, on_cpu=True))
    assert plain.new().splitlines() == [
        "llmb: computing the reference: step",
        "llmb: computing the reference: step, running for 1 min 00 s, verifier busy on 0.97 cores",
        "llmb: computing the reference: head",
        "llmb: computing the reference: head, running for 1 min 00 s, verifier busy on 0.97 cores",
    ]


@pytest.mark.parametrize(
    ("cores", "on_cpu", "words"),
    [
        (0.0, True, "worker idle"),
        (0.01, True, "worker idle"),
        (0.03, True, "worker busy on 0.03 cores"),
        (0.0, False, "worker uses no CPU, its device may be at work"),
        (1.0, False, "worker busy on 1.00 cores"),
        (None, True, "not measured whether the worker is busy"),
    ],
)
def test_a_process_that_does_nothing_is_not_called_busy(
    plain: Shown, cores: float | None, on_cpu: bool, words: str
) -> None:
    plain.display.message(replace(BUSY, busy_cores=cores, on_cpu=on_cpu))
    assert plain.new().endswith(f", {words}\n")


def test_a_terminals_line_says_the_same_until_the_next_report(live: Shown) -> None:
    with live.display:
        live.display.message(None)
        assert "timing: training" in live.new()
        live.display.message(replace(BUSY, since_s=125.3))
        words = "step 1 of at most 65, running for 2 min 05 s, worker busy on 1.98 cores"
        assert f"timing: {words}" in live.new()
        live.display.message(Tick(index=0, ns=1))
        shown = live.new()
    assert "running for" not in shown
    assert "step 1 of at most 65" in shown


def test_where_compiling_takes_minutes_a_silence_says_so(plain: Shown) -> None:
    plain.display.message(replace(BUSY, compiling_min=2.5))
    assert plain.new().endswith(" (compiling a program takes about 2.5 min here)\n")


def test_the_bar_never_goes_back_and_ends_near_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "now_ns", lambda: int(now[0] * 1e9))
    bar, run = Bar(), Forecast((ForecastPart("first", 10.0), ForecastPart("second", 10.0)))
    shares = []
    for second in range(100):  # each part takes five times as long as foreseen
        now[0] = float(second)
        if second == 50:
            run.enter("second")
        bar.advance(run)
        shares.append(bar.share)
    assert shares == sorted(shares)
    assert 0.7 < shares[-1] < 0.99
    assert shares[50] < 0.9


def test_the_bar_of_ranks_begins_with_the_time_of_their_start() -> None:
    bar = Bar(before_s=10.0)
    bar.advance(Forecast((ForecastPart("all", 30.0),)))
    assert bar.share == pytest.approx(0.25, abs=0.01)


def test_the_bar_of_a_sweep_counts_the_later_points() -> None:
    bar, run = Bar(more_runs=3), Forecast((ForecastPart("all", 30.0),))
    assert bar.advance(run) == pytest.approx(120.0, abs=0.5)
    bar.more_runs, bar.after_s = 0, 50.0
    assert bar.advance(run) == pytest.approx(80.0, abs=0.5)


def test_a_log_tells_the_time_left(plain: Shown) -> None:
    plain.display.foresee(Forecast((ForecastPart("all", 200.0),)))
    plain.display.phase("judging")
    assert plain.new() == "llmb: judging (0 %, 3 min left)\n"


@pytest.mark.parametrize("width", [20, 40, 80])
def test_the_bar_is_one_line_on_a_narrow_terminal(width: int) -> None:
    file = io.StringIO()
    shown = Live(Console(file=file, width=width, force_terminal=True, color_system=None))
    shown.foresee(Forecast((ForecastPart("all", 5000.0),)))
    with shown:
        shown.phase("computing an honest run on the device: what importing changes")
    assert " 0% " in file.getvalue()
    assert "\n\x1b[1A" not in file.getvalue()  # rich goes up a line to redraw two lines


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stderr", "term", "kind"),
    [(_Terminal, "xterm", Live), (_Terminal, "dumb", Plain), (io.StringIO, "xterm", Plain)],
)
def test_a_pipe_and_a_dumb_terminal_get_plain_lines_without_control_codes(
    monkeypatch: pytest.MonkeyPatch, stderr: type[io.StringIO], term: str, kind: type
) -> None:
    file = stderr()
    monkeypatch.setattr("sys.stderr", file)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = progress.display(quiet=False)
    assert isinstance(shown, kind)
    with shown as seen:
        seen.phase("judging")
    assert ("\x1b" in file.getvalue()) is (kind is Live)


FENCE = Fence(steps=20, worker_ns=1, loss=1.0, bits="0" * 64, cpu_s=0.0, starved_steps=0)


def test_nothing_is_drawn_between_two_steps_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "now_ns", lambda: int(now[0] * 1e9))
    file = io.StringIO()
    shown = Live(Console(file=file, width=80, force_terminal=True))
    shown.foresee(Forecast((ForecastPart("all", 5000.0),)))
    with shown:
        shown.stream(65, 256, "timing")
        shown.message(Tick(index=0, ns=1))
        drawn = file.tell()
        for index in range(1, 20):
            now[0] = float(index)
            shown.message(Tick(index=index, ns=index * 10**9))
        assert file.tell() == drawn
        shown.message(FENCE)
        assert file.tell() > drawn


def test_quiet_shows_nothing() -> None:
    with progress.display(quiet=True) as shown:
        assert isinstance(shown, Silent)
