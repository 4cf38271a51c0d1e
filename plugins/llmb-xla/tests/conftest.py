"""Real runs shared by several tests. They need the environment of ``tox run -e xla``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# At the end, so that tox tests an installed llmb and not the sources beside the tests.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from tests.e2e import harness
from tests.e2e.harness import Ended

#: Four untimed steps on both devices, to put the fences at the same steps. Unaudited: an audit
#: compiles each pass of the pristine model, half a minute (test_audited.py).
DEBUG_RUN = ("--preset=debug", *harness.SAME, "--warmup-steps=4", harness.UNAUDITED)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on the host's processor, a device of every machine."""
    monkeypatch.setenv("PJRT_DEVICE", "CPU")


@pytest.fixture(scope="session")
def debug_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """Make a debug run of a plugin in a precision, once."""
    made: dict[tuple[str, ...], Ended] = {}

    def make(plugin: str, precision: str) -> Ended:
        if (plugin, precision) not in made:
            output = tmp_path_factory.mktemp(f"{plugin}-{precision}") / "out"
            flags = (f"--plugin={plugin}", f"--precision={precision}", *DEBUG_RUN)
            done = harness.run(output, *flags, PJRT_DEVICE="CPU")
            assert done.code == 0, done.stderr
            made[plugin, precision] = done
        return made[plugin, precision]

    return make


@pytest.fixture(scope="session")
def fp32_run(debug_run: Callable[..., Ended]) -> Ended:
    return debug_run("xla", "FP32")


@pytest.fixture(scope="session", params=["FP32", "BF16"])
def xla_run(request: pytest.FixtureRequest, debug_run: Callable[..., Ended]) -> Ended:
    return debug_run("xla", request.param)
