"""Changes outside the permitted points: settings, environment, tokens, callables."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

import torch

from llmb.observe.callables import Callables, below
from llmb.records.printable import few
from llmb.records.redact import redact_environment
from llmb.sdk.report import CheckError
from llmb.sdk.subject import Change, Subject

#: A plugin may replace nothing here, not even with a declaration.
_NEVER = ("torch.optim", "llmb", "builtins", "time")
_few = partial(few, most=3, between="; ")


def importing(subject: Subject) -> None:
    """Compare torch's settings, and the variables that steer torch, before and after the import."""
    _ = subject.plugin
    steering = [
        change
        for change in subject.watch.variables["importing"]
        if change.name in redact_environment({change.name: ""})
    ]
    if steering:
        raise CheckError(
            f"{_said(steering)} when the plugin was imported: return it from "
            "llmb_environment_variables, and it is set before torch is loaded and recorded"
        )
    _none_of(
        subject.watch.settings["importing"],
        "when the plugin was imported: change settings in llmb_set_environment",
    )


def answering(subject: Subject) -> None:
    """Compare settings and environment before and after the hooks that only answer."""
    _ = subject.backend
    watch = subject.watch
    _none_of(
        [*watch.settings["answering"], *watch.variables["answering"]],
        "when a hook was asked a question: change settings in llmb_set_environment",
    )


def post_processing(subject: Subject) -> str:
    """Compare the environment, and the tokens made from a seed."""
    _ = subject.processed
    _none_of(
        subject.watch.variables["post-processing"],
        "in llmb_post_process_model: set variables in llmb_environment_variables",
    )
    if not torch.equal(subject.batch(0), subject.tokens):
        raise CheckError("the same seed gives other tokens than before the plugin was imported")
    allowed = subject.watch.settings["post-processing"]
    return _said(allowed) if allowed else "no setting changed either"


def training(subject: Subject) -> None:
    """Compare settings before and after three steps of training."""
    _ = subject.trained
    watch = subject.watch
    _none_of(
        [*watch.settings["training"], *watch.variables["training"]],
        "while the model was trained: settings hold from llmb_set_environment on",
    )


def _replaced(subject: Subject) -> tuple[str, ...]:
    _ = subject.plugin
    return subject.callables.replaced(Callables(subject.callables))


def declared_patches(subject: Subject) -> str:
    """Compare every callable of torch before and after the import."""
    replaced = _replaced(subject)
    targets = [patch.target for patch in subject.plugin.patches()]
    undeclared = [
        name
        for name in replaced
        if not below([name], *_NEVER) and not any(fnmatchcase(name, t) for t in targets)
    ]
    if undeclared:
        raise CheckError(
            f"{_few(undeclared)} was replaced and is not declared: return a DeclaredPatch with the "
            "reason from llmb_patches, or leave it alone"
        )
    return f"{len(replaced)} replaced and declared" if replaced else "nothing was replaced"


def forbidden_patches(subject: Subject) -> None:
    """Check the callables that no declaration permits to replace."""
    forbidden = below(_replaced(subject), *_NEVER)
    if forbidden:
        raise CheckError(
            f"{_few(forbidden)} was replaced: what is in {', '.join(_NEVER)} stays as it is, "
            "declared or not"
        )


def _none_of(changes: Sequence[Change], when: str) -> None:
    if changes:
        raise CheckError(f"{_said(changes)} {when}")


def _said(changes: Sequence[Change]) -> str:
    return _few(map(str, changes))
