"""What is missing on a machine, said exactly when it is."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.plugin.discovery import TorchExtension
from llmb.records.system import Cpu, HostMemory
from llmb.supervision.diagnosis import (
    DiagnosedPlugin,
    Diagnosis,
    HostState,
    LlmbState,
    Restriction,
    TorchState,
)
from llmb.supervision.missing import what_is_missing

CPU = DiagnosedPlugin(
    name="cpu",
    distribution="llmb",
    version="0.1.0",
    state="ready",
    reason=None,
    device="cpu",
    devices=(),
    available_memory_bytes=10**12,
    precisions=("BF16",),
    slow=(),
    refused={},
    options={},
    facts={},
    official_run=None,
)
WARP = CPU.model_copy(update={"name": "warp", "distribution": "llmb-warp", "device": "warp"})
TORCH = TorchState(
    installed="2.13.0",
    version="2.13.0",
    error=None,
    importable_alone=None,
    import_s=2.0,
    build={},
    accelerator=None,
    accelerators=0,
    troubles=(),
    extensions=(),
    autoload=None,
)
HOST = HostState(
    os="Linux 6",
    python="CPython 3.11.7",
    cpu=Cpu(
        model="CPU",
        architecture="x86_64",
        physical_cores=4,
        logical_cores=8,
        usable_cores=8,
        max_frequency_mhz=None,
    ),
    memory=HostMemory(total_bytes=10**12, available_bytes=10**12),
    free_disk_bytes={"working folder": 10**9, "temporary files": None},
    limits={},
    bus=(),
    load_1min=0.1,
)


def gone(plugin: DiagnosedPlugin, state: str, reason: str) -> DiagnosedPlugin:
    return plugin.model_copy(update={"state": state, "reason": reason})


def diagnosis(**changes: Any) -> Diagnosis:
    values: dict[str, Any] = {
        "llmb": LlmbState(
            version="0.1.0", rules_version="1", reference_digest="0" * 64, reference_changed=()
        ),
        "host": HOST,
        "torch": TORCH,
        "plugins": (CPU,),
        "restriction": None,
        "choice": None,
        "packages": {},
        "unmet": (),
        "compilers": ("g++",),
        "environment": {},
        "missing": (),
    }
    return Diagnosis(**{**values, **changes})


def torch(**changes: Any) -> TorchState:
    return TORCH.model_copy(update=changes)


def host(**changes: Any) -> HostState:
    return HOST.model_copy(update=changes)


def test_on_a_machine_that_can_run_nothing_is_missing() -> None:
    assert what_is_missing(diagnosis()) == ()
    seeing = torch(accelerator="warp", accelerators=2)
    assert what_is_missing(diagnosis(torch=seeing, plugins=(WARP, CPU))) == ()


BROKEN_TORCH = torch(version=None, error="OSError: libtorch.so: not found")
EXTENSION = TorchExtension(name="warpdev", target="warp:go", distribution="torch-warp", version="2")
OTHER = TorchExtension(name="calm", target="calm:go", distribution="torch-calm", version="1")
BAD_EXTENSION = torch(
    error="RuntimeError: Failed to load the backend extension: warpdev. You can",
    importable_alone=True,
    extensions=(OTHER, EXTENSION),
)
CARD = "10ff:2330 class 0302"
CONSOLE = "1a03:2000 class 0300"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"torch": torch(installed=None, version=None, error="ModuleNotFoundError: torch")},
            ["torch is not installed", "pip install"],
        ),
        ({"torch": BROKEN_TORCH}, ["torch 2.13.0 cannot be imported", "libtorch.so", "reinstall"]),
        (
            {"torch": BAD_EXTENSION},
            ["warpdev (torch-warp)", "TORCH_DEVICE_BACKEND_AUTOLOAD=0", "Failed to load"],
        ),
        ({"torch": torch(troubles=("torch cannot use numpy: x",))}, ["torch cannot use numpy"]),
        (
            {"plugins": (gone(WARP, "broken", "cannot be loaded: KeyError: 'x'"), CPU)},
            ["plugin warp (llmb-warp) is broken: cannot be loaded: KeyError: 'x'"],
        ),
        (
            {"restriction": Restriction(value="wrap", left_out=("warp",), unknown=("wrap",))},
            ["LLMB_LOAD_PLUGINS names 'wrap'"],
        ),
        ({"torch": torch(accelerator="warp")}, ["made for 'warp'", "driver", "container"]),
        ({"unmet": ("llmb-warp needs torch==2.9.1",)}, ["llmb-warp needs torch==2.9.1"]),
        (
            {"plugins": (CPU.model_copy(update={"official_run": "needs about 13 GB"}),)},
            ["plugin cpu: needs about 13 GB"],
        ),
        ({"compilers": ()}, ["no C++ compiler", "torch.compile", "CXX"]),
        (
            {"host": host(free_disk_bytes={"working folder": 5 * 10**8, "temporary files": None})},
            ["0.5 GB", "working folder"],
        ),
        (
            {"llmb": diagnosis().llmb.model_copy(update={"reference_changed": ("llama.py",)})},
            ["llama.py", "reinstall llmb"],
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[0][:30],
)
def test_what_is_missing_is_one_sentence_that_says_what_to_do(
    changes: dict[str, Any], words: list[str]
) -> None:
    (line,) = what_is_missing(diagnosis(**changes))
    for word in words:
        assert word in line


def test_a_vendors_plugin_without_a_device_is_told_with_the_torch_it_has_to_do_with() -> None:
    plugins = (gone(WARP, "no device", "no warp device was found"), CPU)
    build, device = what_is_missing(diagnosis(plugins=plugins))
    assert "torch 2.13.0 is made for no accelerator" in build
    assert "plugin warp (llmb-warp) finds no device: no warp device was found" in device


def test_a_built_in_plugin_without_a_device_is_nothing_to_worry_about() -> None:
    generic = CPU.model_copy(update={"name": "generic", "device": "auto"})
    assert what_is_missing(diagnosis(plugins=(CPU, gone(generic, "no device", "none")))) == ()


def test_a_card_on_the_bus_that_nothing_drives_is_told_but_not_the_servers_console() -> None:
    assert what_is_missing(diagnosis(host=host(bus=(CONSOLE,)))) == ()
    build, card = what_is_missing(diagnosis(host=host(bus=(CONSOLE, CARD))))
    assert "made for no accelerator" in build
    assert CARD in card
    assert CONSOLE not in card
    driven = diagnosis(
        host=host(bus=(CARD,)),
        torch=torch(accelerator="warp", accelerators=1),
        plugins=(WARP, CPU),
    )
    assert what_is_missing(driven) == ()


def test_a_torch_that_cannot_be_imported_is_said_once_and_not_for_every_plugin() -> None:
    broken = tuple(gone(p, "broken", "OSError: libtorch.so: not found") for p in (WARP, CPU))
    (line,) = what_is_missing(diagnosis(torch=BROKEN_TORCH, plugins=broken))
    assert "cannot be imported" in line


def test_an_extension_that_is_not_to_blame_is_not_named() -> None:
    (line,) = what_is_missing(diagnosis(torch=BAD_EXTENSION))
    assert "calm" not in line
