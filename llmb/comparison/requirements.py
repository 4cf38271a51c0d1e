"""Conditions that a run must meet, as in a contract: ``tokens_per_second>=0.95*base``.

    requirement = name operator value
    name        = a figure (tokens_per_second, peak_memory_bytes, fom, ...) or a fact (verdict, ...)
    operator    = ">=" | ">" | "<=" | "<" for figures; "==" and "!=", too, for facts
    value       = number | number "*base" | "base" for figures; number or name for facts

The worse end of the 95 % interval decides: the lower end for >= and >, the upper end for <= and <.
Example: a ratio of 0.97 with the interval 0.94 to 1.00 does not meet ``>=0.95*base``. If a figure
has no interval, the value itself decides, and the answer tells the reader. A requirement on a
figure that was not measured is not met.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmb.comparison.compare import Comparison
from llmb.comparison.figures import KNOWN, Interval, Run
from llmb.errors import UsageError, did_you_mean
from llmb.records.finding import Verdict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_GRAMMAR = re.compile(
    r"\s*(?P<name>[a-z][a-z0-9_]{0,63})\s*(?P<operator>>=|<=|==|!=|>|<)\s*"
    r"(?:(?P<number>[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?)(?P<times>\s*\*\s*base)?"
    r"|(?P<base>base)|(?P<word>[A-Za-z][A-Za-z0-9_.+-]{0,63}))\s*",
    re.ASCII,
)
_ORDER = (">=", ">", "<=", "<")
_MOST_BYTES = 2**20
_LONGEST = 200
#: From the lowest verdict to the highest, in the order of rules.md.
_VERDICTS = tuple(verdict.value for verdict in Verdict)
#: Facts with a fixed list of values: a misspelt value would never, or always, be met.
_VALUES = {
    "verdict": _VERDICTS,
    "class": ("official", "debug"),
    "mode": ("train", "forward", "generate"),
    "strict": ("true", "false"),
}
_WORDS = (
    "verdict",
    "class",
    "effective_precision",
    "declared_precision",
    "workload",
    "mode",
    "plugin",
    "executor",
    "strict",
    "rules_version",
)
_COUNTS = ("world_size", "batch_size", "timed_steps", "warmup_steps", "repeats")
FACTS = (*_WORDS, *_COUNTS)


@dataclass(frozen=True)
class Requirement:
    """One condition, as written and as read."""

    text: str
    name: str
    operator: str
    #: None if the figure or fact is compared with ``word``.
    number: float | None
    #: True: ``number`` is a factor on the base run's figure, such as 0.95 in ``0.95*base``.
    of_base: bool
    word: str | None


@dataclass(frozen=True)
class Decision:
    """Whether a run meets a condition; ``met`` is None if the comparison was refused."""

    requirement: Requirement
    met: bool | None
    #: The figures behind the decision, in words.
    why: str


def parse(text: str) -> Requirement:
    """Return the requirement ``text``.

    Raises:
        UsageError: ``text`` is no requirement, or name, operator and value do not fit together.
    """
    shown = repr(text[:_LONGEST])
    match = _GRAMMAR.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise UsageError(
            f"requirement {shown} is not NAME OPERATOR VALUE: write it like "
            "'tokens_per_second>=0.95*base', 'tokens_per_joule>=12.5' or 'verdict==CONSISTENT'"
        )
    name, operator, word = match["name"], match["operator"], match["word"]
    of_base = match["base"] is not None or match["times"] is not None
    number = None if word is not None else float(match["number"] or 1.0)
    if number is not None and not math.isfinite(number):
        raise UsageError(f"requirement {shown}: {match['number']} is too large a number")
    if name in _WORDS:
        return _of_word(match, shown)
    if word is not None:
        raise UsageError(f"requirement {shown}: {name} is a number, {word!r} is none")
    if name in _COUNTS and of_base:
        raise UsageError(f"requirement {shown}: {name} takes a plain number")
    if name not in _COUNTS and operator not in _ORDER:
        raise UsageError(f"requirement {shown}: a measured figure takes {', '.join(_ORDER)} alone")
    return Requirement(text.strip(), name, operator, number, of_base, None)


def _of_word(match: re.Match[str], shown: str) -> Requirement:
    name, operator, value = match["name"], match["operator"], match["word"] or match["number"]
    if value is None or match["times"] is not None:
        raise UsageError(f"requirement {shown}: {name} takes a name, and none of base")
    if operator in _ORDER and name != "verdict":
        raise UsageError(f"requirement {shown}: {name} takes == and != alone")
    if name in _VALUES and value not in _VALUES[name]:
        known = ", ".join(_VALUES[name])
        raise UsageError(f"requirement {shown}: {name} is one of {known}, not {value!r}")
    return Requirement(match.string.strip(), name, operator, None, False, value)


def from_file(path: Path) -> tuple[Requirement, ...]:
    """Return the requirements of a TOML file: ``require = ["tokens_per_second>=0.95*base", ...]``.

    Raises:
        UsageError: the file cannot be read, is not TOML, or holds anything but ``require``.
    """
    where = f"requirements file {str(path)!r}"
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise UsageError(f"{where} is longer than {_MOST_BYTES} bytes")
        data = tomllib.loads(raw.decode())
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not TOML: {str(error).splitlines()[0]}") from None
    texts = data.get("require")
    unknown = sorted(data.keys() - {"require"})
    if unknown:
        raise UsageError(f"{where} has {unknown[0]!r}: it holds one list, require = [...]")
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise UsageError(f"{where} has no list of texts: require = ['verdict==CONSISTENT']")
    return tuple(parse(text) for text in texts)


def check_names(requirements: Iterable[Requirement], runs: Iterable[Run]) -> None:
    """Refuse a name that is neither a figure of any run nor a fact.

    Raises:
        UsageError: a name is unknown; the message lists the known names.
    """
    here = dict.fromkeys(name for run in runs for name in run.figures)
    for requirement in requirements:
        if requirement.name not in {*KNOWN, *FACTS, *here}:
            raise UsageError(
                f"requirement {requirement.text!r}: there is no {requirement.name!r}; these runs "
                f"have the figures {', '.join(here)}, and the facts {', '.join(FACTS)}"
                f"{did_you_mean(requirement.name, (*KNOWN, *FACTS, *here))}"
            )


def facts_of(run: Run) -> Mapping[str, str | int]:
    """Return the facts of ``run``, such as verdict and plugin: no measured figures."""
    record, config = run.record, run.record.config
    return {
        "verdict": record.audit.verdict.value,
        "class": record.class_,
        "effective_precision": record.precision.effective or "not-observed",
        "declared_precision": record.precision.declared,
        "workload": record.workload.name,
        "mode": record.workload.mode,
        "plugin": record.plugin.name,
        "executor": config.executor,
        "strict": str(record.plugin.strict).lower(),
        "rules_version": record.rules_version,
        "world_size": record.topology.world_size,
        "batch_size": config.batch_size,
        "timed_steps": record.timing.timed_steps,
        "warmup_steps": record.timing.warmup_steps,
        "repeats": len(record.timing.repeats),
    }


def decide(requirement: Requirement, run: Run, comparison: Comparison | None) -> Decision:
    """Return whether ``run`` meets ``requirement``; ``comparison`` is with the base run.

    Raises:
        UsageError: the requirement names the base, and ``comparison`` is None.
    """
    name = requirement.name
    if name in FACTS:
        return _by_fact(requirement, facts_of(run)[name])
    if not requirement.of_base:
        figure = run.figures.get(name)
        if figure is None:
            return Decision(requirement, False, f"{name} was not measured")
        return _by_number(requirement, name, figure.value, figure.interval)
    if comparison is None:
        raise UsageError(
            f"requirement {requirement.text!r} names base, and one run is given: "
            "llmb compare BASE RUN --require ..."
        )
    if comparison.refusals:
        return Decision(requirement, None, "nothing is compared")
    ratio = comparison.ratio(name)
    if ratio is None:
        reasons = (one.reason for one in comparison.left_out if one.name == name)
        return Decision(requirement, False, next(reasons, f"{name} was not measured"))
    return _by_number(requirement, f"{name} over base", ratio.ratio, ratio.interval)


def _by_fact(requirement: Requirement, value: str | int) -> Decision:
    operator, word = requirement.operator, requirement.word
    if isinstance(value, int) or requirement.name == "verdict":
        number = float(_VERDICTS.index(value) if isinstance(value, str) else value)
        against = _VERDICTS.index(word) if word is not None else requirement.number
        assert against is not None, "parse() lets nothing else through"
        met = _holds(number, operator, float(against))
    else:
        met = (value == word) == (operator == "==")
    why = f"{requirement.name} is {value}"
    if (value, word, operator) == ("REPRODUCED", "CONSISTENT", "=="):
        why += ", which is above CONSISTENT: write verdict>=CONSISTENT to allow both"
    return Decision(requirement, met, why)


def _by_number(
    requirement: Requirement, name: str, value: float, interval: Interval | None
) -> Decision:
    assert requirement.number is not None, "parse() lets nothing else through"
    if interval is None:
        met = _holds(value, requirement.operator, requirement.number)
        return Decision(requirement, met, f"{name} is {value:.6g}; it has no interval")
    lower = requirement.operator.startswith(">")
    end = interval[0] if lower else interval[1]
    met = _holds(end, requirement.operator, requirement.number)
    words = f"{'lower' if lower else 'upper'} end of its 95 % interval {end:.6g}"
    return Decision(requirement, met, f"{name} is {value:.6g}, {words}")


def _holds(value: float, operator: str, limit: float) -> bool:
    return {
        ">=": value >= limit,
        ">": value > limit,
        "<=": value <= limit,
        "<": value < limit,
        "==": value == limit,
        "!=": value != limit,
    }[operator]
