"""Hooks of throw-away plugins: what they return is checked, and what goes wrong names them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from llmb.config import BF16, Precision
from llmb.errors import NotEnoughMemoryError, UnavailableError
from llmb.plugin.builtin.cpu import CpuBackend
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


def test_a_plugin_without_hooks_changes_nothing_and_offers_nothing(load: Load) -> None:
    plugin = load("")
    assert plugin.options() == ()
    assert plugin.precisions(CONFIG) == ()
    assert plugin.patches() == ()
    assert plugin.environment_variables(CONFIG) == {}
    assert plugin.optimizer_options(CONFIG) == {}
    assert plugin.describe_system(CONFIG) == {}
    assert plugin.warmup_steps(CONFIG) == 1
    assert plugin.parameter_map(MODEL) is None
    assert plugin.post_process_model(MODEL, CONFIG) is MODEL
    assert plugin.set_environment(CONFIG) is None


def test_a_plugin_without_a_backend_gets_the_harnesss_own_for_the_cpu(load: Load) -> None:
    assert isinstance(load("").backend(run_config(device="cpu")), CpuBackend)


def test_a_plugin_without_a_backend_gets_the_generic_one_for_an_accelerator(load: Load) -> None:
    with pytest.raises(UnavailableError, match="sees"):
        load("").backend(run_config(device="zyx:0"))


def test_every_hook_takes_effect(load: Load) -> None:
    plugin = load(
        "from torch import nn\nfrom llmb.config import BF16\n"
        "from llmb.plugin.builtin.cpu import CpuBackend\nSET = []\n"
        "class MyBackend(CpuBackend): pass\n"
        + hook("llmb_environment_variables", "config", "return {'OMP_NUM_THREADS': 3}")
        + hook("llmb_backend", "config", "return MyBackend()")
        + hook("llmb_options", "", "return [PluginOption(name='a', default=1, help='')]")
        + hook("llmb_precisions", "config", "return [BF16]")
        + hook("llmb_warmup_steps", "config", "return 7")
        + hook("llmb_set_environment", "config", "SET.append(config.seed)")
        + hook("llmb_post_process_model", "model, config", "return nn.Sequential(model)")
        + hook("llmb_optimizer_options", "config", "return {'fused': True}")
        + hook("llmb_parameter_map", "model", "return {'w': model}")
        + hook("llmb_patches", "", "return [DeclaredPatch(target='torch.x', reason='y')]")
        + hook("llmb_describe_system", "config", "return {'driver': 1.5}")
    )
    module = sys.modules["throwaway"]
    assert plugin.environment_variables(CONFIG) == {"OMP_NUM_THREADS": "3"}
    assert type(plugin.backend(CONFIG)) is module.MyBackend
    assert [option.name for option in plugin.options()] == ["a"]
    assert plugin.precisions(CONFIG) == (BF16,)
    assert plugin.warmup_steps(CONFIG) == 7
    plugin.set_environment(CONFIG)
    assert [CONFIG.seed] == module.SET
    assert plugin.post_process_model(MODEL, CONFIG)[0] is MODEL
    assert plugin.optimizer_options(CONFIG) == {"fused": True}
    assert plugin.parameter_map(MODEL) == {"w": MODEL}
    assert [patch.target for patch in plugin.patches()] == ["torch.x"]
    assert plugin.describe_system(CONFIG) == {"driver": "1.5"}


def test_a_hook_may_take_fewer_arguments_than_its_spec(load: Load) -> None:
    plugin = load(
        hook("llmb_warmup_steps", "", "return 4")
        + hook("llmb_post_process_model", "model", "return model")
    )
    assert plugin.warmup_steps(CONFIG) == 4
    assert plugin.post_process_model(MODEL, CONFIG) is MODEL


@pytest.mark.parametrize(
    "text",
    [
        hook("llmb_warm_up_steps", "config", "return 4"),
        hook("llmb_warmup_steps", "config, mood", "return 4"),
        "import no_such_library_anywhere\n",
        "1 / 0\n",
    ],
    ids=["misspelled hook", "argument nobody gives", "import", "error"],
)
def test_a_plugin_that_cannot_be_loaded_is_refused_by_name(load: Load, text: str) -> None:
    with pytest.raises(UnavailableError, match="plugin 'throwaway' cannot be loaded: "):
        load(text)


@pytest.mark.parametrize(
    ("name", "arguments", "value", "call", "words"),
    [
        ("environment_variables", "config", "['A']", (CONFIG,), "a list, expected Mapping"),
        ("backend", "config", "object()", (CONFIG,), "a object, expected Backend"),
        ("options", "", "3", (), "a int, expected Sequence"),
        ("options", "", "['threads']", (), "a str, expected PluginOptions"),
        ("precisions", "config", "['BF16']", (CONFIG,), "a str, expected Precisions"),
        ("warmup_steps", "config", "'3'", (CONFIG,), "a str, expected int"),
        ("post_process_model", "model", "lambda x: x", (MODEL, CONFIG), "expected Module"),
        ("optimizer_options", "config", "[('fused', True)]", (CONFIG,), "expected Mapping"),
        ("parameter_map", "model", "[1]", (MODEL,), "a list, expected Mapping"),
        ("patches", "", "['torch.x']", (), "a str, expected DeclaredPatchs"),
        ("describe_system", "config", "'driver 5'", (CONFIG,), "a str, expected Mapping"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hook_that_returns_another_type_is_refused_by_plugin_hook_and_type(
    load: Load, name: str, arguments: str, value: str, call: tuple, words: str
) -> None:
    plugin = load(hook(f"llmb_{name}", arguments, f"return {value}"))
    with pytest.raises(UnavailableError, match=f"'throwaway': llmb_{name} returned.*{words}"):
        getattr(plugin, name)(*call)


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
