"""The examination: who is asked, what becomes of it, and what does not leave the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmb.cli.doctor import _plugin
from llmb.config import BF16, FP16, Refused
from llmb.errors import LlmbError, RunFailedError, UnavailableError
from llmb.plugin import discovery
from llmb.plugin.discovery import InstalledPlugin
from llmb.records.canonical import pretty_bytes
from llmb.records.lacks import Lacks
from llmb.records.run_record import Rates
from llmb.supervision import doctor, negotiation, sizing
from llmb.supervision.diagnosis import DiagnosedPlugin, Diagnosis
from llmb.wire.messages import Message, Offer, OfferOrder, Resolved, Terms, TorchFacts
from tests.unit.builders_runtime import install, offer

WARP = offer(
    plugin="warp",
    distribution="llmb-warp",
    device="warp:0",
    precisions=(BF16, FP16.model_copy(update={"native": False})),
    refused=(Refused(name="FP8", reason="too old"),),
    options={"fuse": "mlp"},
)
PLUGINS = (
    InstalledPlugin("warp", "warp_llmb", "llmb-warp", "2.0"),
    InstalledPlugin("cpu", "llmb.plugin.builtin.cpu", "llmb", "0.1.0"),
)
FACTS = TorchFacts(version="2.13.0", import_s=1.0, accelerator="warp", accelerators=1)


class Machine:
    """What the children say: by plugin for probes, in turn for inspectors."""

    def __init__(self) -> None:
        self.offers: dict[str, Offer | LlmbError] = {"warp": WARP, "cpu": offer()}
        self.terms: dict[str, LlmbError] = {}
        self.torch: list[TorchFacts | LlmbError] = [FACTS]
        self.variables: list[dict[str, str]] = []
        self.running = 0
        self.at_once = 0

    def examine(self) -> Diagnosis:
        found = doctor.examine()
        assert self.running == 0, "every child is ended"
        return found


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    there = Machine()

    class FakeChild:
        def __init__(self, module: str, environment: dict[str, str], log: object) -> None:
            self.module, self.plugin = module, ""
            there.running += 1
            there.at_once = max(there.at_once, there.running)
            if module == "llmb.processes.torch_facts":
                there.variables.append(environment)

        def begin(self) -> None:
            pass

        def send(self, message: Message) -> None:
            assert isinstance(message, (OfferOrder, Resolved))
            if isinstance(message, OfferOrder):
                self.plugin = message.plugin

        def expect(self, kind: type, timeout_s: float) -> Message:
            if self.module == "llmb.processes.torch_facts":
                answer: Message | LlmbError = there.torch.pop(0)
            elif kind is Offer:
                answer = there.offers[self.plugin]
            else:
                told = Terms(environment={}, warmup_steps=1, facts={"driver": "5"}, peak=None)
                answer = there.terms.get(self.plugin, told)
            if isinstance(answer, LlmbError):
                raise answer
            return answer

        def end(self) -> None:
            there.running -= 1

    monkeypatch.setattr(negotiation, "Child", FakeChild)
    monkeypatch.setattr(doctor, "Child", FakeChild)
    rates = Rates(flops_per_second=dict.fromkeys(DTYPES, 1e12), bytes_per_second=5e10)
    monkeypatch.setattr(sizing, "_measured", lambda configs, settle: (rates, 1.0))
    monkeypatch.setattr(discovery, "installed", lambda: PLUGINS)
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    return there


#: Of every product that an estimate needs.
DTYPES = ("bfloat16", "float32", "float64")


def plugins(found: Diagnosis) -> dict[str, DiagnosedPlugin]:
    return {plugin.name: plugin for plugin in found.plugins}


def test_torch_and_every_plugin_are_asked_at_the_same_time(machine: Machine) -> None:
    machine.examine()
    assert machine.at_once == 3


def test_a_plugin_is_shown_with_what_it_offers_refuses_and_knows(machine: Machine) -> None:
    found = machine.examine()
    warp = plugins(found)["warp"]
    assert (warp.state, warp.reason, warp.device) == ("ready", None, "warp:0")
    assert (warp.precisions, warp.slow) == (("BF16", "FP16"), ("FP16",))
    assert warp.refused == {"FP8": "too old"}
    assert (warp.options, warp.facts) == ({"fuse": "mlp"}, {"driver": "5"})
    assert found.choice == "plugin warp, device warp:0: llama-1.4b in BF16"
    assert (found.torch.version, found.torch.accelerators) == ("2.13.0", 1)


def test_a_plugin_that_dies_or_lies_or_finds_nothing_is_shown_as_what_it_is(
    machine: Machine,
) -> None:
    machine.offers["warp"] = RunFailedError("llmb.processes.offer was killed by SIGSEGV")
    assert plugins(machine.examine())["warp"].state == "broken"
    machine.torch = [FACTS]
    machine.offers["warp"] = WARP.model_copy(update={"available": False, "reason": "no card"})
    warp = plugins(machine.examine())["warp"]
    assert (warp.state, warp.reason) == ("no device", "no card")


def test_a_plugin_that_fails_only_when_it_is_asked_for_its_facts_is_broken_and_not_chosen(
    machine: Machine,
) -> None:
    machine.terms["warp"] = UnavailableError("plugin 'warp': llmb_describe_system raised KeyError")
    found = machine.examine()
    warp = plugins(found)["warp"]
    assert (warp.state, warp.reason) == ("broken", "llmb_describe_system raised KeyError")
    assert found.choice is not None
    assert found.choice.startswith("plugin cpu, device cpu: llama-1.4b in BF16: about ")
    assert any("warp" in line and "KeyError" in line for line in found.missing)


def test_too_little_memory_for_the_official_run_is_missing_and_the_plugin_still_ready(
    machine: Machine,
) -> None:
    machine.offers["warp"] = WARP.model_copy(update={"available_memory_bytes": 10**9})
    found = machine.examine()
    assert plugins(found)["warp"].state == "ready"
    assert plugins(found)["warp"].facts == {"driver": "5"}
    assert any("needs about" in line for line in found.missing)


@pytest.fixture
def extension(site: Path) -> None:
    info = install(site, "torch-calm", {})
    (info / "entry_points.txt").write_text("[torch.backends]\ncalm = torch_calm:go\n")


@pytest.mark.usefixtures("extension")
def test_a_torch_that_fails_with_its_extensions_is_looked_at_again_without_them(
    machine: Machine,
) -> None:
    machine.torch = [TorchFacts(error="RuntimeError: extension: calm."), FACTS]
    torch = machine.examine().torch
    assert machine.variables == [{}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}]
    assert (torch.error, torch.importable_alone) == ("RuntimeError: extension: calm.", True)
    assert torch.version == "2.13.0"


@pytest.mark.usefixtures("extension")
@pytest.mark.parametrize("autoload", [None, "0"])
def test_a_torch_that_fails_by_itself_is_not_blamed_on_its_extensions(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, autoload: str | None
) -> None:
    if autoload is not None:
        monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", autoload)
    failed = TorchFacts(error="OSError: libtorch.so")
    machine.torch = [failed, failed]
    found = machine.examine()
    assert not found.torch.importable_alone
    assert any("torch" in line and "libtorch.so" in line for line in found.missing)


def test_a_torch_that_kills_its_process_is_an_error_and_not_the_end_of_the_examination(
    machine: Machine,
) -> None:
    machine.torch = [RunFailedError("llmb.processes.torch_facts was killed by SIGILL")]
    found = machine.examine()
    assert found.torch.error == "import torch: llmb.processes.torch_facts was killed by SIGILL"
    assert found.torch.version is None


def test_nothing_that_tells_who_or_where_leaves_the_machine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/gertrude")
    monkeypatch.setenv("USER", "gertrude")
    monkeypatch.setattr("platform.node", lambda: "box17.acme.example")
    monkeypatch.setenv("ACME_TOKEN", "hunter2hunter2")
    monkeypatch.setenv("LLMB_SECRET_THING", "s3cr3ts3cr3t")
    reason = "gertrude on box17: /home/gertrude/x.so, box17.acme.example refused hunter2hunter2"
    machine.offers["warp"] = UnavailableError(reason)
    machine.torch = [FACTS.model_copy(update={"troubles": (reason,)})]
    text = pretty_bytes(machine.examine()).decode()
    for word in ("gertrude", "box17", "hunter2", "s3cr3t"):
        assert word not in text
    assert "<user> on <host>: ~/x.so, <host> refused (redacted)" in text


def test_a_restriction_is_shown_with_what_it_leaves_out_and_names_in_vain(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, site: Path
) -> None:
    install(site, "llmb-calm", {"calm": "calm"})
    monkeypatch.setenv("LLMB_LOAD_PLUGINS", "warp")
    restriction = machine.examine().restriction
    assert restriction is not None
    assert "calm (llmb-calm)" in restriction.left_out
    assert restriction.unknown == ("warp",)


def test_what_is_found_is_json_with_a_schema(machine: Machine) -> None:
    data: dict[str, Any] = json.loads(pretty_bytes(machine.examine()))
    assert data["schema"] == "llmb.doctor/1"
    assert data["llmb"]["reference_changed"] == []
    assert "torch" in data["packages"]


def test_what_a_device_lacks_is_part_of_the_diagnosis_and_has_a_line(machine: Machine) -> None:
    lacks = Lacks(float64=True, eager_kernels=True)
    machine.offers["warp"] = WARP.model_copy(update={"lacks": lacks})
    warp, cpu = machine.examine().plugins
    assert (warp.lacks, cpu.lacks) == (lacks, Lacks())
    assert "lacks float64, eager kernels" in [text for _, text in _plugin(warp)]
    assert "lacks" not in "".join(text for _, text in _plugin(cpu))
