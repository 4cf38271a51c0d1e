"""``llmb plugin list`` asks every plugin, or those that are named and no other."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from llmb.cli import plugin
from llmb.errors import UnavailableError
from llmb.plugin import discovery
from llmb.supervision import negotiation
from tests.unit.builders_runtime import offer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def survey(plugins: tuple[discovery.InstalledPlugin, ...], request: object) -> list[object]:
        found.extend(each.name for each in plugins)
        return [offer(plugin=each.name) for each in plugins]

    monkeypatch.setattr(negotiation, "survey", survey)
    return found


def listed(*words: str) -> list[str]:
    done = CliRunner().invoke(plugin.command, ["list", "--json", *words], catch_exceptions=False)
    return [each["plugin"] for each in json.loads(done.stdout)]


def test_without_a_name_every_plugin_is_asked(asked: list[str]) -> None:
    assert {"cpu", "generic"} <= set(listed())
    assert asked == [each.name for each in discovery.installed()]


def test_only_plugins_that_are_named_are_asked_each_once(asked: list[str]) -> None:
    assert listed("generic", "cpu", "generic") == ["generic", "cpu"]
    assert asked == ["generic", "cpu"]


def test_a_name_that_is_not_installed_is_refused_before_any_is_asked(asked: list[str]) -> None:
    with pytest.raises(UnavailableError, match="no plugin 'warp' is installed"):
        listed("cpu", "warp")
    assert asked == []
