"""The process in which a plugin is checked: all plugin code of the checks runs here."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from llmb.errors import LlmbError
from llmb.plugin.discovery import source_root
from llmb.sdk import catalogue
from llmb.sdk.catalogue import Check
from llmb.sdk.report import CheckError, SkipError
from llmb.sdk.subject import Subject
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import CheckBegun, Checked, CheckOrder, Done

#: Check id -> function. The import loads the parts of llmb that checks need at process start.
_FUNCTIONS: dict[str, Callable[[Subject], str | None]] = {
    check.id: getattr(import_module(f"llmb.sdk.checks.{check.subject}"), check.name)
    for check in catalogue.IN_PROCESS
}


def check(channel: Channel) -> None:
    """Carry out one order, check by check."""
    order = channel.expect(CheckOrder)
    subject = Subject(order)
    for check_id in order.checks:
        channel.send(CheckBegun(id=check_id))
        channel.send(perform(catalogue.find(check_id), subject))
    channel.send(Done())


def perform(check: Check, subject: Subject) -> Checked:
    """Return the outcome of one check."""
    try:
        detail = _FUNCTIONS[check.id](subject)
    except SkipError as reason:
        return Checked(id=check.id, status="skip", message=str(reason))
    except (CheckError, LlmbError) as error:
        if error.__cause__ is not None:
            traceback.print_exc()
        return Checked(
            id=check.id, status="fail", message=str(error) + _place(error.__cause__, subject)
        )
    except Exception as error:  # an error of plugin code during the check
        traceback.print_exc()
        first_line = (str(error).splitlines() or [""])[0]
        text = f"{type(error).__name__}: {first_line}{_place(error, subject)}"
        return Checked(id=check.id, status="fail", message=text)
    return Checked(id=check.id, status="pass", message=detail or "")


def _place(error: BaseException | None, subject: Subject) -> str:
    """Return the innermost line of the plugin's code in ``error``'s traceback, "" if none."""
    plugin = subject.made.get("plugin")
    if error is None or plugin is None:
        return ""
    root = source_root(plugin.module_name)
    package = root.folder / root.package
    inside = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(package)
        or Path(frame.filename) == package.with_suffix(".py")
    ]
    if not inside:
        return ""
    return f" ({Path(inside[-1].filename).relative_to(root.folder)}:{inside[-1].lineno})"


if __name__ == "__main__":
    serve(check)
