"""N2: what torch, the libraries and the system bring is no finding; the rest is flagged."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.audit.surroundings import finding as judge
from llmb.records.evidence import Origin, Presence, PresenceKind, SurroundingsEvidence
from llmb.records.finding import Finding, Level, Status
from tests.unit.builders_runtime import timing


def presence(kind: PresenceKind, origin: Origin, **changes: Any) -> Presence:
    return Presence(**{"kind": kind, "name": "that one", "origin": origin, **changes})


def finding(*found: Presence, variables: tuple[str, ...] = (), **changes: Any) -> Finding:
    values: dict[str, Any] = {
        "found": found,
        "preloaded": (),
        "frozen_objects": (0, 0),
        "collecting": (True, True),
        "native_threads": (2, 9),
    }
    seen = SurroundingsEvidence(**{**values, **changes})
    return judge(seen, variables, "surroundings.json", timing())


def test_a_quiet_run_passes() -> None:
    found = finding()
    assert (found.id, found.level, found.status) == ("N2", Level.FLAG, Status.PASS)
    assert found.measured == "new: 7 native threads"


def test_a_process_beside_the_steps_is_told_where_it_may_run() -> None:
    found = finding(presence("process", "plugin"))
    assert found.status is Status.FLAG
    assert "run the program in llmb_telemetry" in found.message


@pytest.mark.parametrize("kind", ["thread", "process", "import hook", "gc callback", "tracer"])
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("needed", Status.PASS),
        ("library", Status.PASS),
        ("plugin", Status.FLAG),
        ("other", Status.FLAG),
        ("unknown", Status.FLAG),
        ("llmb", Status.FLAG),
    ],
)
def test_what_torch_and_the_libraries_bring_is_no_finding(
    kind: PresenceKind, origin: Origin, status: Status
) -> None:
    assert finding(presence(kind, origin)).status is status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("library", Status.PASS),
        ("plugin", Status.PASS),  # a closed component
        ("compiler", Status.PASS),
        ("system", Status.PASS),
        ("other", Status.FLAG),
        ("unknown", Status.FLAG),
    ],
)
def test_a_native_library_that_nobody_brought_is_flagged(origin: Origin, status: Status) -> None:
    assert finding(presence("library", origin)).status is status


def test_a_flagged_library_is_named_with_what_to_do_about_it() -> None:
    found = finding(presence("library", "unknown", name="libvendor.so.3"))
    assert found.message.startswith("library libvendor.so.3 of unknown origin. Install ")
    assert "below /usr or /opt" in found.message
    assert found.message.endswith("declare its path in llmb_native_libraries")


def test_a_finding_about_no_library_has_no_hint_about_libraries() -> None:
    assert "llmb_native_libraries" not in finding(presence("tracer", "other")).message


def test_code_of_a_file_that_no_package_owns_is_flagged() -> None:
    found = finding(presence("code", "unknown", name="elsewhere.py"))
    assert found.status is Status.FLAG
    assert "code elsewhere.py of unknown origin" in found.message


def test_whose_it_is_is_said() -> None:
    found = finding(presence("thread", "plugin", distribution="llmb-acme"))
    assert found.message.startswith("thread that one of llmb-acme, which llmb_helpers does not")


SYSTEMS = presence("library", "system", name="libtcmalloc.so.4")


def test_an_allocator_of_the_systems_that_the_plugin_asks_for_is_noted() -> None:
    found = finding(preloaded=(SYSTEMS,), variables=("LD_PRELOAD",))
    assert found.status is Status.PASS
    assert "libtcmalloc.so.4" in found.message


def test_a_preloaded_library_that_no_variable_of_the_plugins_declares_is_flagged() -> None:
    found = finding(preloaded=(SYSTEMS,), variables=("OMP_NUM_THREADS",))
    assert found.status is Status.FLAG
    assert found.message.startswith("library libtcmalloc.so.4 of the system put before all others")
    assert ". Unset the variable" in found.message
    assert "llmb_environment_variables may return LD_PRELOAD" in found.message


@pytest.mark.parametrize("origin", ["plugin", "other", "unknown"])
def test_a_preloaded_library_that_is_not_the_systems_is_flagged_though_declared(
    origin: Origin,
) -> None:
    own = presence("library", origin, name="slow.so")
    assert finding(preloaded=(own,), variables=("LD_PRELOAD",)).status is Status.FLAG


def test_a_variable_that_runs_code_before_llmb_is_flagged() -> None:
    found = finding(variables=("PYTHONPATH", "OMP_NUM_THREADS"))
    assert found.status is Status.FLAG
    assert found.message == "PYTHONPATH set by the plugin"


@pytest.mark.parametrize("origin", ["plugin", "library"])
def test_a_file_that_python_runs_at_its_start_is_flagged(origin: Origin) -> None:
    file = presence("code", origin, name="acme.pth", distribution="acme")
    found = finding(at_start=(file,))
    assert found.status is Status.FLAG
    assert found.message.startswith("code acme.pth of acme, which runs in every Python process. No")


def test_objects_frozen_for_the_collector_are_noted() -> None:
    frozen = finding(frozen_objects=(0, 12))
    assert frozen.status is Status.PASS
    assert "12 objects more were frozen" in frozen.message
    assert finding(frozen_objects=(12, 12)).status is Status.PASS


def test_a_collector_that_was_switched_off_is_only_noted() -> None:
    found = finding(collecting=(True, False))
    assert found.status is Status.PASS
    assert "switched off" in found.message


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES"])
def test_each_variable_that_puts_a_library_before_all_others_declares_it(variable: str) -> None:
    assert finding(preloaded=(SYSTEMS,), variables=(variable,)).status is Status.PASS


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("needed", Status.PASS),
        ("library", Status.PASS),
        ("python", Status.PASS),
        ("llmb", Status.FLAG),
        ("compiler", Status.FLAG),
    ],
)
def test_whose_library_may_be_put_before_all_others(origin: Origin, status: Status) -> None:
    own = presence("library", origin)
    assert finding(preloaded=(own,), variables=("LD_PRELOAD",)).status is status


@pytest.mark.parametrize(
    "variable",
    [
        *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONSTARTUP", "PYTHONPLATLIBDIR"),
        *("PYTHONWARNINGS", "PYTHONPYCACHEPREFIX", "PYTHONOPTIMIZE", "PYTHONEXECUTABLE"),
        *("PYTHON_OF_A_LATER_VERSION", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES"),
        "GCONV_PATH",
    ],
)
def test_each_variable_that_lets_other_code_run_first_is_flagged(variable: str) -> None:
    assert finding(variables=(variable,)).message == f"{variable} set by the plugin"


@pytest.mark.parametrize(
    "variable",
    [
        *("PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER", "PYTHONHASHSEED", "PYTHONMALLOC"),
        *("PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "PYTHONUTF8"),
        *("PYTHON_GIL", "PYTHON_JIT", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF"),
    ],
)
def test_a_variable_that_runs_no_code_is_no_finding(variable: str) -> None:
    assert finding(variables=(variable,)).status is Status.PASS


@pytest.mark.parametrize("origin", ["needed", "python", "llmb"])
def test_torchs_pythons_and_llmbs_own_native_libraries_are_explained(origin: Origin) -> None:
    assert finding(presence("library", origin)).status is Status.PASS


@pytest.mark.parametrize(
    ("kind", "origin", "status"),
    [
        ("thread", "python", Status.PASS),
        ("process", "system", Status.FLAG),
        ("thread", "compiler", Status.FLAG),
    ],
)
def test_only_python_torch_and_the_library_start_threads_and_processes(
    kind: PresenceKind, origin: Origin, status: Status
) -> None:
    assert finding(presence(kind, origin)).status is status


def test_a_collector_that_was_off_before_is_no_note() -> None:
    for collecting in ((False, False), (False, True), (True, True)):
        assert "switched off" not in finding(collecting=collecting).message


def test_of_many_faults_three_are_told_and_the_rest_is_counted() -> None:
    found = finding(*(presence("thread", "other", name=f"t{n}") for n in range(5)))
    assert "thread t2 of unknown origin, which" in found.message
    assert found.message.endswith(" and 2 more")
    assert found.measured == "new: 5 thread, 7 native threads"
