"""llmb: an LLM-training benchmark that any hardware vendor can run and any stranger can check."""

import os

TYPE_CHECKING = False  # type checkers take the name for True; ``typing`` would take 3 ms to import
if TYPE_CHECKING:
    from llmb import errors
    from llmb.api.checked import BundleCheck, verify
    from llmb.api.comparison import RunComparison, compare
    from llmb.api.options import RunOptions
    from llmb.api.result import RunResult, load
    from llmb.api.running import run
    from llmb.api.steps import TimedStep

# Else pydantic imports the code of every package with an entry point of the group "pydantic", in
# the supervisor and in the reference run, too. This module runs before any import of pydantic.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"

__version__ = "0.4.0"

__all__ = [
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

#: Public name -> module. A name is imported when the name is used: ``import llmb`` stays light.
_MODULES = {
    "BundleCheck": "llmb.api.checked",
    "RunComparison": "llmb.api.comparison",
    "RunOptions": "llmb.api.options",
    "RunResult": "llmb.api.result",
    "TimedStep": "llmb.api.steps",
    "compare": "llmb.api.comparison",
    "load": "llmb.api.result",
    "run": "llmb.api.running",
    "verify": "llmb.api.checked",
}


if not TYPE_CHECKING:  # a type checker would believe every name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "errors":
            return import_module("llmb.errors")
        if name not in _MODULES:
            raise AttributeError(f"module 'llmb' has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
