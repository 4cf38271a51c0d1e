"""A sweep's plan: the user's request, the software and device in use, and the resulting points."""

from __future__ import annotations

from llmb import __version__
from llmb.config import Frozen
from llmb.errors import UsageError
from llmb.records.canonical import as_json
from llmb.records.finding import RULES_VERSION
from llmb.records.sweep_overview import Ground, SweepRequest
from llmb.reference import pins
from llmb.wire.messages import Offer


def ground_of(offer: Offer) -> Ground:
    """Return the ground of the installed llmb with ``offer``."""
    return Ground(
        llmb_version=__version__,
        rules_version=RULES_VERSION,
        reference_digest=pins.reference_digest(pins.actual_digests()),
        plugin=offer.plugin,
        distribution=offer.distribution,
        plugin_version=offer.version,
        plugin_options=dict(offer.options),
        device=offer.device,
        torch_version=offer.torch_version,
    )


#: Field of ``SweepRequest`` or ``RunRequest`` -> command-line option with a different name.
_FLAGS = {"precisions": "--precision", "batch_sizes": "--batch-size", "plugin_options": "-O"}


def check_same(given: Frozen, planned: Frozen, place: str) -> None:
    """Refuse to resume a sweep with another plan, or on other software or another device.

    Raises:
        UsageError: a value differs; the message gives the first differing name and both values.
    """
    found = first_difference(as_json(given), as_json(planned))
    if found is None:
        return
    path, now, then = found
    name = path.removeprefix("request.").partition(".")[0]
    if isinstance(given, SweepRequest):
        name = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    raise UsageError(
        f"--resume {place}: {name} is {_said(now)}, and the sweep was begun with {_said(then)}: "
        "give --resume alone, or begin a new sweep"
    )


def _said(value: object) -> str:
    if value is None or value == []:
        return "not given"
    return ",".join(map(str, value)) if isinstance(value, list) else repr(value)


def first_difference(a: object, b: object, name: str = "") -> tuple[str, object, object] | None:
    """Return name, left and right value of the first difference of two JSON values, or None.

    Example: ``{"a": {"b": 1}}`` and ``{"a": {"b": 2}}`` give ``("a.b", 1, 2)``.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            found = first_difference(a.get(key), b.get(key), f"{name}.{key}".lstrip("."))
            if found is not None:
                return found
        return None
    return None if a == b else (name, a, b)
