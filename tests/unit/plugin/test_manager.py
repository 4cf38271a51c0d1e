"""Hooks of throw-away plugins: what they return is checked, and what goes wrong names them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from llmb.config import BF16, Precision, Refused
from llmb.errors import NotEnoughMemoryError, UnavailableError
from llmb.plugin import hookspecs
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.plugin.faults import PluginFaultError
from llmb.plugin.manager import Plugin
from tests.unit.builders_runtime import install, run_config

CONFIG = run_config()
MODEL = nn.Linear(2, 2)
Load = Callable[[str], Plugin]


@pytest.fixture
def load(site: Path) -> Load:
    """Install a plugin whose module is the given text, and load it."""

    def load(text: str) -> Plugin:
        source = f"from llmb.plugin import *\nfrom llmb.plugin import hookimpl\n{text}"
        install(site, "llmb-throwaway", {"throwaway": "throwaway"}, {"throwaway.py": source}, "3.1")
        return Plugin("throwaway")

    return load


def hook(name: str, arguments: str, body: str) -> str:
    return f"@hookimpl\ndef {name}({arguments}):\n    {body}\n"


def test_a_loaded_plugin_knows_where_it_comes_from(load: Load) -> None:
    plugin = load("")
    assert (plugin.name, plugin.module_name) == ("throwaway", "throwaway")
    assert (plugin.distribution, plugin.version) == ("llmb-throwaway", "3.1")


def test_a_plugin_without_hooks_offers_nothing(load: Load) -> None:
    plugin = load("")
    assert plugin.options() == ()
    assert plugin.precisions(CONFIG) == ()
    assert plugin.patches() == ()
    assert plugin.helpers() == ()
    assert plugin.native_libraries() == ()


def test_a_plugin_without_hooks_changes_nothing(load: Load) -> None:
    plugin = load("")
    assert plugin.environment_variables(CONFIG) == {}
    assert plugin.set_environment(CONFIG) is None
    assert plugin.warmup_steps(CONFIG) == 1
    assert plugin.post_process_model(MODEL, CONFIG) is MODEL
    assert plugin.parameter_map(MODEL) is None
    assert plugin.optimizer_options(CONFIG) == {}


def test_a_plugin_without_hooks_tells_nothing_of_its_device(load: Load) -> None:
    plugin = load("")
    assert plugin.describe_system(CONFIG) == {}
    assert plugin.telemetry(CpuBackend()) == {}
    assert plugin.program([torch.zeros(1)]) is None


def test_a_plugin_without_a_backend_gets_the_harnesss_own_for_the_cpu(load: Load) -> None:
    assert isinstance(load("").backend(run_config(device="cpu")), CpuBackend)


def test_a_plugin_without_a_backend_gets_the_generic_one_for_an_accelerator(load: Load) -> None:
    with pytest.raises(UnavailableError, match="sees"):
        load("").backend(run_config(device="zyx:0"))


@pytest.fixture
def full(load: Load) -> Plugin:
    """Load a plugin that has every hook there is."""
    return load(
        "from torch import nn\nfrom llmb.config import BF16, Refused\n"
        "from llmb.plugin.builtin.cpu import CpuBackend\nSET = []\n"
        "class MyBackend(CpuBackend): pass\n"
        + hook("llmb_environment_variables", "config", "return {'OMP_NUM_THREADS': 3}")
        + hook("llmb_backend", "config", "return MyBackend()")
        + hook("llmb_options", "", "return [PluginOption(name='a', default=1, help='')]")
        + hook("llmb_precisions", "config", "return [BF16, Refused(name='FP8', reason='old')]")
        + hook("llmb_warmup_steps", "config", "return 7")
        + hook("llmb_set_environment", "config", "SET.append(config.seed)")
        + hook("llmb_post_process_model", "model, config", "return nn.Sequential(model)")
        + hook("llmb_optimizer_options", "config", "return {'fused': True}")
        + "class View:\n    padding, read, write = (), None, None\n"
        + hook("llmb_parameter_map", "model", "return {'w': View}")
        + hook("llmb_patches", "", "return [DeclaredPatch(target='torch.x', reason='y')]")
        + hook("llmb_helpers", "", "return [DeclaredHelper(name='a', reason='b', cpu_share=0.05)]")
        + hook("llmb_describe_system", "config", "return {'driver': 1.5}")
        + hook("llmb_telemetry", "backend", "return {'power_w': 5, 'of': backend.reading}")
        + hook("llmb_program", "tensors", "return f'{len(tensors)} tensors'")
        + hook(
            "llmb_native_libraries",
            "",
            "return [NativeLibrary(path='/opt/x.so', licence='closed', where_to_get='x.com')]",
        )
    )


def test_the_plugin_of_the_next_tests_has_every_hook_there_is(full: Plugin) -> None:
    every = {name for name in vars(hookspecs) if name.startswith("llmb_")}
    assert every == {name for name in vars(sys.modules["throwaway"]) if name.startswith("llmb_")}


def test_the_hooks_that_offer_something_take_effect(full: Plugin) -> None:
    assert [option.name for option in full.options()] == ["a"]
    assert full.precisions(CONFIG) == (BF16, Refused(name="FP8", reason="old"))
    assert [patch.target for patch in full.patches()] == ["torch.x"]
    assert [helper.name for helper in full.helpers()] == ["a"]
    assert [library.path for library in full.native_libraries()] == ["/opt/x.so"]


def test_the_hooks_that_prepare_a_process_take_effect(full: Plugin) -> None:
    module = sys.modules["throwaway"]
    assert full.environment_variables(CONFIG) == {"OMP_NUM_THREADS": "3"}
    assert full.warmup_steps(CONFIG) == 7
    assert type(full.backend(CONFIG)) is module.MyBackend
    full.set_environment(CONFIG)
    assert [CONFIG.seed] == module.SET


def test_the_hooks_about_model_and_optimizer_take_effect(full: Plugin) -> None:
    assert full.post_process_model(MODEL, CONFIG)[0] is MODEL
    assert full.parameter_map(MODEL) == {"w": sys.modules["throwaway"].View}
    assert full.optimizer_options(CONFIG) == {"fused": True}


def test_the_hooks_that_tell_of_the_device_take_effect(full: Plugin) -> None:
    assert full.describe_system(CONFIG) == {"driver": "1.5"}
    backend = full.backend(CONFIG)
    backend.reading = 3.5
    assert full.telemetry(backend) == {"power_w": 5.0, "of": 3.5}
    assert full.program([MODEL.weight, MODEL.bias]) == "2 tensors"


def test_a_hook_may_take_fewer_arguments_than_its_spec(load: Load) -> None:
    plugin = load(
        hook("llmb_warmup_steps", "", "return 4")
        + hook("llmb_post_process_model", "model", "return model")
    )
    assert plugin.warmup_steps(CONFIG) == 4
    assert plugin.post_process_model(MODEL, CONFIG) is MODEL


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            hook("llmb_warm_up_steps", "config", "return 4"),
            "there is no hook 'llmb_warm_up_steps'; did you mean llmb_warmup_steps",
        ),
        (hook("llmb_sing", "config", "return 4"), "'llmb_sing'; there are llmb_environment_var"),
        (
            hook("llmb_post_process_model", "model, mood", "return model"),
            "hook llmb_post_process_model has no argument 'mood'; it may take model, config",
        ),
        (hook("llmb_options", "config", "return []"), "llmb_options .*; it may take no argument"),
        (
            "import no_such_library.part\n",
            "ModuleNotFoundError: .*; install the package that provides 'no_such_library'",
        ),
        ("raise ImportError('x.so: undefined symbol: y')\n", "ImportError: x.so: undefined symbol"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise KeyError('libacme.so')\n", "KeyError: 'libacme.so'"),
        ("this is no Python\n", "SyntaxError: .*throwaway.py, line 3"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt$"),
    ],
    ids=lambda value: value.split("\n")[-2][:30] if "\n" in value else "",
)
def test_a_plugin_that_cannot_be_loaded_is_refused_by_name_with_the_reason(
    load: Load, text: str, words: str
) -> None:
    with pytest.raises(PluginFaultError, match=f"plugin 'throwaway' cannot be loaded: .*{words}"):
        load(text)


def test_an_entry_point_to_a_module_that_is_not_there_is_refused_by_name(site: Path) -> None:
    install(site, "llmb-hollow", {"hollow": "hollow"})
    with pytest.raises(PluginFaultError, match="'hollow' cannot be loaded: ModuleNotFoundError"):
        Plugin("hollow")


#: Hook -> its arguments, and (value it returns, words of the refusal).
WRONG = {
    "environment_variables": [("['A']", "a list, expected Mapping")],
    "backend": [
        ("object()", "a object, expected Backend .it lacks device_type, step_clock, .*versions")
    ],
    "options": [("3", "a int, expected Sequence"), ("['x']", "a str, expected PluginOptions")],
    "precisions": [
        ("'BF16'", "a str, expected Precisions or Refuseds"),
        ("['BF16']", "a str, expected Precisions or Refuseds"),
    ],
    "warmup_steps": [("'3'", "a str, expected int"), ("3.5", "a float, expected int")],
    "set_environment": [("config", "a RunConfig, expected None")],
    "post_process_model": [
        ("lambda x: x", "a function, expected Module"),
        ("(model, None)", "a tuple, expected Module"),
    ],
    "optimizer_options": [
        ("[('fused', True)]", "a list, expected Mapping"),
        ("{'fused': 'yes'}", "a str for 'fused', expected bool"),
    ],
    "parameter_map": [
        ("[1]", "a list, expected Mapping"),
        ("{'w': model}", "a Linear for 'w', expected an object with padding, read, write"),
    ],
    "patches": [("['torch.x']", "a str, expected DeclaredPatchs")],
    "helpers": [("['sensor']", "a str, expected DeclaredHelpers")],
    "native_libraries": [("['/opt/x.so']", "a str, expected NativeLibrarys")],
    "telemetry": [
        ("[1.0]", "a list, expected Mapping"),
        ("{'power_w': 'much'}", "something that is no number"),
    ],
    "program": [("b'dot'", "a bytes, expected str"), ("['dot']", "a list, expected str")],
    "describe_system": [("'driver 5'", "a str, expected Mapping")],
}
ARGUMENTS = {"config": CONFIG, "model": MODEL, "tensors": [], "backend": CpuBackend()}


def arguments_of(name: str) -> list[str]:
    code = getattr(hookspecs, f"llmb_{name}").__code__
    return list(code.co_varnames[: code.co_argcount])


def test_every_hook_is_held_to_its_type_below() -> None:
    assert {f"llmb_{name}" for name in WRONG} == {n for n in vars(hookspecs) if n[:5] == "llmb_"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [(name, value, words) for name, cases in WRONG.items() for value, words in cases],
    ids=lambda value: str(value)[:24],
)
def test_a_hook_that_returns_another_type_is_refused_by_plugin_hook_and_type(
    load: Load, name: str, value: str, words: str
) -> None:
    taken = arguments_of(name)
    plugin = load(hook(f"llmb_{name}", ", ".join(taken), f"return {value}"))
    expected = f"'throwaway': llmb_{name} returned.*{words}"
    with pytest.raises(PluginFaultError, match=expected):
        getattr(plugin, name)(*(ARGUMENTS[argument] for argument in taken))


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("raise AttributeError('no queue')", "AttributeError: no queue"),
        ("raise SystemExit(2)", "SystemExit: 2"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt$"),
    ],
    ids=["error", "exit", "interrupt"],
)
def test_whatever_any_hook_raises_is_a_fault_of_that_plugin(
    load: Load, name: str, statement: str, words: str
) -> None:
    taken = arguments_of(name)
    plugin = load(hook(f"llmb_{name}", "", statement))
    with pytest.raises(PluginFaultError, match=f"'throwaway': llmb_{name} raised {words}"):
        getattr(plugin, name)(*(ARGUMENTS[argument] for argument in taken))


def test_a_hook_that_runs_out_of_memory_is_told_from_a_broken_one(load: Load) -> None:
    plugin = load(hook("llmb_post_process_model", "model", "raise MemoryError"))
    with pytest.raises(NotEnoughMemoryError, match="llmb_post_process_model raised MemoryError"):
        plugin.post_process_model(MODEL, CONFIG)


@pytest.mark.parametrize(
    "formats",
    ["[BF16, FP32, BF16]", "[BF16, Refused(name='bf16', reason='no')]"],
    ids=["offered twice", "offered and refused"],
)
def test_a_format_may_be_named_only_once(load: Load, formats: str) -> None:
    source = "from llmb.config import BF16, FP32, Refused\n"
    plugin = load(source + hook("llmb_precisions", "", f"return {formats}"))
    with pytest.raises(PluginFaultError, match="llmb_precisions returned BF16 more than once"):
        plugin.precisions(CONFIG)


def test_readings_that_are_no_finite_number_are_left_out(load: Load) -> None:
    body = "return {'a': float('nan'), 'b': float('inf'), 'c': 1, 4: True}"
    plugin = load(hook("llmb_telemetry", "", body))
    assert plugin.telemetry(CpuBackend()) == {"c": 1.0, "4": 1.0}


def test_a_hook_that_raises_is_named_with_what_it_raised(load: Load) -> None:
    plugin = load(hook("llmb_set_environment", "config", "raise KeyError('queue')"))
    expected = "'throwaway': llmb_set_environment raised KeyError: 'queue'"
    with pytest.raises(UnavailableError, match=expected):
        plugin.set_environment(CONFIG)


def test_an_error_of_llmb_that_a_hook_raises_is_quoted_as_it_is(load: Load) -> None:
    plugin = load(
        "from llmb.errors import NotEnoughMemoryError\n"
        + hook("llmb_post_process_model", "model", "raise NotEnoughMemoryError('too big')")
    )
    with pytest.raises(NotEnoughMemoryError, match=r"^too big$"):
        plugin.post_process_model(MODEL, CONFIG)


def test_only_the_switches_of_the_kernel_may_be_chosen_for_the_optimizer(load: Load) -> None:
    plugin = load(hook("llmb_optimizer_options", "config", "return {'fused': True, 'lr': 1.0}"))
    with pytest.raises(UnavailableError, match=r"returned \['lr'\].*capturable.*foreach.*fused"):
        plugin.optimizer_options(CONFIG)


@pytest.mark.parametrize("steps", [-2, 0, 1])
def test_warm_up_is_never_less_than_one_step(load: Load, steps: int) -> None:
    assert load(hook("llmb_warmup_steps", "", f"return {steps}")).warmup_steps(CONFIG) == 1


def test_warm_up_of_more_than_twenty_steps_is_the_plugins_fault(load: Load) -> None:
    with pytest.raises(UnavailableError, match="returned 21, at most 20"):
        load(hook("llmb_warmup_steps", "", "return 21")).warmup_steps(CONFIG)


def test_warm_up_may_have_twenty_steps(load: Load) -> None:
    assert load(hook("llmb_warmup_steps", "", "return 20")).warmup_steps(CONFIG) == 20


def test_only_the_plugin_that_was_asked_for_is_loaded(site: Path, load: Load) -> None:
    install(site, "llmb-bomb", {"bomb": "bomb"}, {"bomb.py": "raise SystemExit(1)\n"})
    load("")
    assert "bomb" not in sys.modules


def test_the_built_in_cpu_plugin_goes_through_the_same_door() -> None:
    plugin = Plugin("cpu")
    assert (plugin.distribution, plugin.module_name) == ("llmb", "llmb.plugin.builtin.cpu")
    assert all(isinstance(precision, Precision) for precision in plugin.precisions(CONFIG))


def test_a_plugin_that_is_not_installed_cannot_be_loaded() -> None:
    with pytest.raises(UnavailableError, match="no plugin 'warp'"):
        Plugin("warp")


@pytest.mark.parametrize(
    ("name", "bits", "fault"),
    [
        ("BF16", 8, "8 bits, BF16 has 16"),
        ("bf16-native", 8, "8 bits, BF16 has 16"),
        ("FP32x", 16, "16 bits, FP32 has 32"),
        ("BF16-autocast", 16, None),
        ("FP32-from-3xBF16", 32, None),
        ("FP8-rowwise", 8, None),
    ],
)
def test_a_name_may_not_promise_more_bits_than_a_format_has(
    load: Load, name: str, bits: int, fault: str | None
) -> None:
    made = f"Precision(name={name!r}, bits={bits}, dtype='bfloat16')"
    source = "from llmb.config import Precision\n"
    plugin = load(source + hook("llmb_precisions", "", f"return [{made}]"))
    if fault is None:
        assert [one.name for one in plugin.precisions(CONFIG)] == [name]
        return
    with pytest.raises(PluginFaultError, match=f"{name} with {fault}: use a name of its own"):
        plugin.precisions(CONFIG)
