"""The public names of ``llmb``: frozen, light to import, and known to type checkers."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import llmb
from tests import needs

#: The folder with the package llmb: the checkout, or site-packages.
ROOT = Path(llmb.__file__).resolve().parent.parent
CHECKOUT = Path(__file__).resolve().parents[3]
API = CHECKOUT / "docs" / "api.md"
#: Whoever adds or drops a name changes this list on purpose, and docs/api.md with it.
NAMES = [
    "BundleCheck",
    "RunComparison",
    "RunOptions",
    "RunResult",
    "TimedStep",
    "__version__",
    "compare",
    "errors",
    "load",
    "run",
    "verify",
]


def test_the_public_names_are_frozen() -> None:
    assert llmb.__all__ == NAMES
    assert {*NAMES} <= {*dir(llmb)}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_imported_when_it_is_used_and_documented(name: str) -> None:
    value = getattr(llmb, name)
    assert name == "errors" or value is getattr(llmb, name)
    if name != "__version__":
        assert value.__doc__
        assert f"llmb.{name}" in API.read_text()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'measure_all'"):
        llmb.measure_all  # noqa: B018


def test_importing_llmb_imports_nothing_else() -> None:
    # ``os`` is there in every Python that is not started with -S.
    code = "import os, sys; a = {*sys.modules}; import llmb; print(sorted({*sys.modules} - a))"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['llmb']"


def test_the_names_of_the_api_import_no_torch() -> None:
    code = (
        "import sys, llmb; llmb.run, llmb.compare, llmb.verify, llmb.load\n"
        "print({'torch', 'numpy', 'pandas', 'matplotlib', 'IPython'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


SNIPPET = """\
import llmb
from llmb import RunOptions, RunResult, errors

more: RunOptions = {"timed_steps": 20, "seed": 7}
result: RunResult = llmb.run(workload="llama-1.4b", preset="debug", precision="BF16", **more)
rate: float = result.tokens_per_second
low = result.interval[0] if result.interval else None
times: list[float] = [step.seconds for step in result.steps if step.seconds is not None]
found = llmb.compare("base.zip", result)
ratio: float | None = found.ratio
found.require("tokens_per_second>=0.95*base")
ok: bool = llmb.verify("bundle.zip", evidence=["there"]).ok
code: int = errors.UsageError.exit_code
"""
WRONG = """\
llmb.run(preset="fast")
llmb.run(timed_step=20)
llmb.run(seed="7")
llmb.load("runs/a").tokens
llmb.measure()
"""


def test_a_type_checker_knows_the_names_and_finds_mistakes(tmp_path: Path) -> None:
    needs.package("mypy")
    (tmp_path / "user.py").write_text(SNIPPET + WRONG)
    # The cache of a check of llmb itself, of the same settings: 4 s instead of 40.
    command = [sys.executable, "-m", "mypy", str(tmp_path / "user.py")]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    first = SNIPPET.count("\n") + 1
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert lines == [*range(first, first + WRONG.count("\n"))], done.stdout


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "llmb" / "py.typed").exists()


def test_errors_travel_between_processes() -> None:
    error = llmb.errors.AuditInvalidError("why")
    error.run_dir = Path("runs/a")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.run_dir) == ("why", Path("runs/a"))
