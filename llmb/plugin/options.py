"""Typed plugin options: the options a plugin offers, and the values of ``-O key=value``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from llmb.config import Frozen, OptionValue
from llmb.errors import UsageError, did_you_mean

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


class PluginOption(Frozen):
    """One ``-O name=value`` of a plugin. Example: ``-O threads=8``."""

    name: str
    type: Literal["bool", "int", "float", "str"] = "str"
    default: OptionValue
    choices: tuple[OptionValue, ...] = ()
    minimum: float | None = None
    help: str

    def parse(self, text: str) -> OptionValue:
        """Return ``text`` as this option's type.

        Raises:
            UsageError: ``text`` does not have the option's type, is no choice, or is too small.
        """
        try:
            value = self._convert(text)
        except ValueError:
            raise UsageError(f"-O {self.name}={text}: not a value of type {self.type}") from None
        if self.choices and value not in self.choices:
            choices = ", ".join(map(str, self.choices))
            raise UsageError(f"-O {self.name}={text}: choose one of {choices}")
        if self.minimum is not None and isinstance(value, (int, float)) and value < self.minimum:
            raise UsageError(f"-O {self.name}={text}: it must be at least {self.minimum:g}")
        return value

    def _convert(self, text: str) -> OptionValue:
        if self.type == "bool":
            if text.lower() not in _TRUE | _FALSE:
                raise ValueError(text)
            return text.lower() in _TRUE
        if self.type == "int":
            return int(text)
        if self.type == "float":
            number = float(text)
            if not math.isfinite(number):
                raise ValueError(text)
            return number
        return text


def resolve(
    plugin: str, offered: Sequence[PluginOption], given: Mapping[str, str]
) -> dict[str, OptionValue]:
    """Return every option of ``plugin`` with the given or else the default value.

    Raises:
        UsageError: the plugin has no option of a given name, or a value is bad.
    """
    names = [option.name for option in offered]
    for name in given:
        if name not in names:
            known = f"it has {', '.join(names)}" if names else "it has none"
            near = did_you_mean(name, names)
            raise UsageError(f"-O {name}: plugin {plugin!r} has no such option; {known}{near}")
    return {
        option.name: option.parse(given[option.name]) if option.name in given else option.default
        for option in offered
    }
