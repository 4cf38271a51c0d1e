"""The short-lived process that describes the installed torch, even a torch that fails to import.

No module here imports torch before the supervisor listens, so a hanging import is noticed too.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from llmb import clock
from llmb.plugin.faults import told
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import TorchFacts


def tell(channel: Channel) -> None:
    """Import torch, and send version, build and devices, or the error."""
    began_ns = clock.now_ns()
    try:
        torch = import_module("torch")
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # an extension may raise anything
        channel.send(TorchFacts(error=_told(error)))
        return
    import_s = (clock.now_ns() - began_ns) / 1e9
    troubles: list[str] = []

    def ask(what: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception as error:  # a broken driver may raise in any question
            troubles.append(f"{what}: {_told(error)}")
            return None

    accelerator = ask("the accelerator of this torch", lambda: _accelerator(torch))
    channel.send(
        TorchFacts(
            version=str(torch.__version__),
            import_s=import_s,
            build=ask("the build of this torch", lambda: _build(torch)) or {},
            accelerator=accelerator,
            accelerators=ask("the devices of this torch", lambda: torch.accelerator.device_count())
            or 0,
            troubles=(*troubles, *_numpy_trouble(torch)),
        )
    )


def _told(error: BaseException) -> str:
    cause = f" ({told(error.__cause__)})" if error.__cause__ is not None else ""
    return f"{told(error)}{cause}".encode(errors="backslashreplace").decode()


def _accelerator(torch: Any) -> str | None:
    # Without the check: the device type the build is made for, even if no such device is present.
    compiled = torch.accelerator.current_accelerator(check_available=False)
    return None if compiled is None else str(compiled.type)


def _build(torch: Any) -> dict[str, str]:
    """Return the public facts of ``torch.version`` in this build, such as ``cuda`` or ``hip``."""
    facts = vars(torch.version)
    names = [name for name, value in facts.items() if isinstance(value, (str, bool))]
    return {name: str(facts[name]) for name in names if not name.startswith("_")}


def _numpy_trouble(torch: Any) -> tuple[str, ...]:
    try:
        torch.zeros(1).numpy()
    except Exception as error:  # missing, or of another major version than torch was built for
        return (f"torch cannot use numpy: {_told(error)}",)
    return ()


if __name__ == "__main__":
    serve(tell)
